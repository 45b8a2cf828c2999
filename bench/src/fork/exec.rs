//! `true` in a running sandbox: through the API on a kept connection, against `runsc exec`. Once turn by turn without
//! a break, and once after the machine has been idle, when processors sleep and every wake-up costs more.

use std::time::{Duration, Instant};

use remuda_types::ExecutionState;
use remuda_types::wire::{CreateSandbox, StartExecution};

use crate::bare::{Bare, Program};
use crate::harness::{Contest, Figure, Goal, Turn};
use crate::ours::Server;
use crate::sides::Sides;
use crate::world::World;

/// Long enough for the processors to sleep.
const IDLE: Duration = Duration::from_millis(200);

pub(super) fn figures(world: &World, sides: &Sides, rounds: usize) -> [Figure; 2] {
    // Cheap enough for more turns than the others get.
    let rounds = rounds * 4;
    let busy = Contest { name: "exec `true`", rounds, warm_ups: 3, goal: Goal::RatioAtMost(0.5) };
    let idle =
        Contest { name: "exec `true` after 200 ms of idleness", rounds: rounds / 2, warm_ups: 1, goal: Goal::None };
    [(busy, Duration::ZERO), (idle, IDLE)].map(|(contest, pause)| {
        contest.run(sides.ours(|server| ours(world, server, pause)), Some(sides.peer(|bare| peer(bare, pause))))
    })
}

fn ours<'a>(world: &'a World, server: &Server, pause: Duration) -> anyhow::Result<Turn<'a>> {
    let client = server.client();
    let id = world.runtime.block_on(client.create_sandbox(&CreateSandbox::default()))?.id;
    let call =
        StartExecution { argv: Some(vec!["true".to_owned()]), wait_ms: Some(10_000), ..StartExecution::default() };
    Ok(Box::new(move || {
        std::thread::sleep(pause);
        let began = Instant::now();
        let execution = world.runtime.block_on(client.execute(&id, &call))?;
        let took = began.elapsed();
        anyhow::ensure!(
            execution.state == ExecutionState::Exited && execution.exit_code == Some(0),
            "`true` ended as {} with {:?}",
            execution.state,
            execution.exit_code
        );
        Ok(took)
    }))
}

fn peer<'a>(bare: &'a Bare, pause: Duration) -> anyhow::Result<Turn<'a>> {
    let mut sandbox = bare.prepare(&Program::new(&["sleep", "infinity"], "/", &[]))?;
    sandbox.mount(None)?;
    sandbox.run_detached()?;
    Ok(Box::new(move || {
        std::thread::sleep(pause);
        let began = Instant::now();
        sandbox.exec(&["true"])?;
        Ok(began.elapsed())
    }))
}
