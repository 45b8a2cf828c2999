//! The benchmark `snapshot`: what copies cost with little and with much in memory, how long a source stands still, and a
//! file system that comes up with its server, against the bare `runsc` command line doing the same steps.

mod heap;
mod launch;
mod pause;

use crate::copies;
use crate::harness::{Contest, Figure, Goal};
use crate::sides::Sides;
use crate::world::World;

/// Heaps in MiB, with what a fork of them must reach.
const HEAPS: [(u32, Goal); 3] = [(16, Goal::RatioAtMost(0.7)), (256, Goal::None), (1024, Goal::RatioAtMost(1.0))];
/// Branches of one fork.
const COUNTS: [usize; 3] = [1, 3, 10];

/// Takes all figures.
pub(crate) fn figures(world: &World, rounds: usize) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (mib, goal) in HEAPS {
        for count in COUNTS {
            // A source of each side for each figure, so that no other's memory is in the way.
            let sides = Sides::new(world);
            let name = format!("fork 1 → {count} with a heap of {mib} MiB, request to all answering");
            // Those that take long are repeated less.
            let rounds = if mib == 1024 { rounds.div_ceil(4) } else { rounds.div_ceil(2) };
            let contest = Contest { name: &name, rounds, warm_ups: 1, goal };
            let ours = sides.ours(|server| copies::ours(world, server, heap::served(mib), count));
            let peer = sides.peer(|bare| copies::peer(bare, &heap::served(mib), count));
            figures.push(contest.run(ours, Some(peer)));
        }
    }
    let sides = Sides::new(world);
    figures.push(pause::figure(world, &sides, rounds));
    figures.push(launch::figure(world, &sides, rounds));
    Ok(figures)
}
