//! The whole worker comparison in memory mode, as a user runs it: everything included, from the command to its exit.
//! There is no peer; the goal is a time.

use std::process::{Command, Stdio};
use std::time::Instant;

use crate::harness::{Contender, Contest, Figure, Goal, Side, Turn};
use crate::world::World;

pub(super) fn figure(world: &World, side: Side, rounds: usize) -> Figure {
    let contest = Contest {
        name: "whole memory comparison of the worker",
        rounds,
        warm_ups: 0,
        goal: Goal::MillisecondsAtMost(12_000.0),
    };
    let arguments = ["rodeo", "run", "worker", "--mode", "memory", "--json"];
    let side = Side { flags: arguments.map(str::to_owned).to_vec(), ..side };
    // Kept: a comparison that ends otherwise than the others must be looked into.
    let evidence = world.target.join("bench/evidence");
    let turn: Turn<'_> = Box::new(move || {
        let began = Instant::now();
        let output = Command::new(&world.remuda)
            .args(arguments)
            .arg("--out")
            .arg(&evidence)
            // No server is here: the command starts an embedded one.
            .env("REMUDA_DATA_DIR", world.scratch.join("no-server"))
            .env_remove("REMUDA_URL")
            .stdin(Stdio::null())
            .output()?;
        let took = began.elapsed();
        anyhow::ensure!(
            output.status.success(),
            "the comparison ended with {}: {} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim(),
            String::from_utf8_lossy(&output.stdout).trim()
        );
        Ok(took)
    });
    contest.run(Contender { side, turn: Ok(turn) }, None)
}
