//! Fork of the worker 1 → 3: from the request to all three answering over HTTP.

use crate::copies;
use crate::harness::{Contest, Figure, Goal};
use crate::sides::Sides;
use crate::worker;
use crate::world::World;

/// How many branches.
const BRANCHES: usize = 3;

pub(super) fn figure(world: &World, sides: &Sides, rounds: usize) -> Figure {
    let contest = Contest {
        name: "fork of the worker 1 → 3, request to all three answering",
        rounds,
        warm_ups: 1,
        goal: Goal::RatioAtMost(0.9),
    };
    let ours = sides.ours(|server| copies::ours(world, server, worker::served(&world.project)?, BRANCHES));
    let peer = sides.peer(|bare| copies::peer(bare, &worker::served(&world.project)?, BRANCHES));
    contest.run(ours, Some(peer))
}
