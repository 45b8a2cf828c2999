//! A captured file system that comes up with its server: a restore by its launch recipe, against `runsc run` of the server
//! on the same files, both to the first answer.

use std::time::Instant;

use remuda_types::SnapshotMode;
use remuda_types::wire::{CreateSnapshot, LaunchRecipe, Restart, RestoreSnapshot};

use super::heap;
use crate::copies;
use crate::harness::{Contest, Figure, Goal, Turn};
use crate::ours::Server;
use crate::sides::Sides;
use crate::world::World;

const HEAP_MIB: u32 = 1;

pub(super) fn figure(world: &World, sides: &Sides, rounds: usize) -> Figure {
    let contest = Contest {
        name: "restore of files to a listening Node server, request to first answer",
        rounds,
        warm_ups: 1,
        goal: Goal::RatioAtMost(0.9),
    };
    let peer = sides.peer(|bare| copies::peer_launch(bare, heap::served(HEAP_MIB)));
    contest.run(sides.ours(|server| ours(world, server)), Some(peer))
}

fn ours<'a>(world: &'a World, server: &Server) -> anyhow::Result<Turn<'a>> {
    let client = server.client();
    let served = heap::served(HEAP_MIB);
    let (id, _) = world.runtime.block_on(copies::start(&client, &served))?;
    let recipe = LaunchRecipe {
        argv: served.argv.clone(),
        cwd: Some(served.directory.to_owned()),
        env: served.env.iter().cloned().collect(),
        user: None,
        port: served.port,
        ready_path: None,
        ready_status: None,
        restart: Restart::Never,
        timeout_ms: None,
    };
    let create =
        CreateSnapshot { mode: Some(SnapshotMode::Filesystem), launch: Some(recipe), ..CreateSnapshot::default() };
    let snapshot = world.runtime.block_on(client.snapshot(&id, &create))?.id;
    Ok(Box::new(move || {
        world.runtime.block_on(async {
            let began = Instant::now();
            let restored = client.restore(snapshot.as_str(), &RestoreSnapshot::default()).await?.id;
            let answered = copies::answer(&client, &restored, &served).await;
            let took = began.elapsed();
            client.remove_sandbox(&restored).await?;
            answered?;
            Ok(took)
        })
    }))
}
