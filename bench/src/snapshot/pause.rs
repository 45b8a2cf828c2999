//! How long a source stands still for a capture of its memory: what the server itself says, against the bare calls
//! between which the peer's stands still.

use std::time::Duration;

use remuda_types::wire::CreateSnapshot;

use super::heap;
use crate::copies::{self, BareSource};
use crate::harness::{Contest, Figure, Goal, Turn};
use crate::ours::Server;
use crate::sides::Sides;
use crate::world::World;

const HEAP_MIB: u32 = 16;

pub(super) fn figure(world: &World, sides: &Sides, rounds: usize) -> Figure {
    let contest = Contest {
        name: "pause of the source for a capture of memory, heap of 16 MiB",
        rounds,
        warm_ups: 1,
        goal: Goal::RatioAtMost(0.6),
    };
    let peer = sides.peer(|bare| {
        let source = BareSource::start(bare, &heap::served(HEAP_MIB))?;
        let turn: Turn<'_> = Box::new(move || {
            let took = source.capture();
            source.discard()?;
            took
        });
        Ok(turn)
    });
    contest.run(sides.ours(|server| ours(world, server)), Some(peer))
}

fn ours<'a>(world: &'a World, server: &Server) -> anyhow::Result<Turn<'a>> {
    let client = server.client();
    let (id, _) = world.runtime.block_on(copies::start(&client, &heap::served(HEAP_MIB)))?;
    Ok(Box::new(move || {
        world.runtime.block_on(async {
            let captured = client.snapshot(&id, &CreateSnapshot::default()).await?;
            client.remove_snapshot(captured.id.as_str()).await?;
            let pause = captured.pause_ms.ok_or_else(|| anyhow::anyhow!("the snapshot tells no pause"))?;
            Ok(Duration::from_secs_f64(pause / 1e3))
        })
    }))
}
