//! From nothing to a first answer: creating a sandbox and the end of its first execution, against `runsc run` of a
//! program that says one word, to that word's first byte.

use std::time::Instant;

use remuda_types::wire::{CreateSandbox, StartExecution};

use crate::bare::{Bare, Program};
use crate::harness::{Contest, Figure, Goal, Turn};
use crate::ours::Server;
use crate::sides::Sides;
use crate::world::World;

/// What both sides run.
const HELLO: [&str; 2] = ["echo", "ready"];

pub(super) fn figure(world: &World, sides: &Sides, rounds: usize) -> Figure {
    let contest = Contest {
        name: "create to the first exec's answer, no spares",
        rounds,
        warm_ups: 1,
        goal: Goal::RatioAtMost(1.0),
    };
    contest.run(sides.ours(|server| ours(world, server)), Some(sides.peer(peer)))
}

fn ours<'a>(world: &'a World, server: &Server) -> anyhow::Result<Turn<'a>> {
    let client = server.client();
    let call = StartExecution {
        argv: Some(HELLO.map(str::to_owned).to_vec()),
        wait_ms: Some(10_000),
        ..StartExecution::default()
    };
    Ok(Box::new(move || {
        world.runtime.block_on(async {
            let began = Instant::now();
            let sandbox = client.create_sandbox(&CreateSandbox::default()).await?;
            let execution = client.execute(&sandbox.id, &call).await;
            let took = began.elapsed();
            client.remove_sandbox(&sandbox.id).await?;
            let said = execution?.stdout;
            anyhow::ensure!(said.as_deref() == Some("ready\n"), "the first execution said {said:?}");
            Ok(took)
        })
    }))
}

fn peer(bare: &Bare) -> anyhow::Result<Turn<'_>> {
    let program = Program::new(&HELLO, "/", &[]);
    Ok(Box::new(move || {
        let mut sandbox = bare.prepare(&program)?;
        sandbox.mount(None)?;
        sandbox.run_to_first_output()
    }))
}
