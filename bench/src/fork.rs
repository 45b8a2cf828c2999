//! The benchmark `fork`: copying a running machine three times, and the calls around it, against the bare `runsc`
//! command line. Its peers have their namespaces and mounts made ahead and not timed.

mod comparison;
mod create;
mod exec;
mod three;

use crate::harness::Figure;
use crate::sides::Sides;
use crate::world::World;

/// Takes all four figures of the benchmark, and the execution after idleness beside them.
pub(crate) fn figures(world: &World, rounds: usize) -> anyhow::Result<Vec<Figure>> {
    let sides = Sides::new(world);
    let mut figures = vec![three::figure(world, &sides, rounds)];
    figures.extend(exec::figures(world, &sides, rounds));
    figures.push(create::figure(world, &sides, rounds));
    // Last, and with the server gone: the comparison brings its own.
    let ours = sides.ours.clone();
    drop(sides);
    figures.push(comparison::figure(world, ours, rounds));
    Ok(figures)
}
