//! The benchmark `fork`: copying a running machine three times, and the calls around it, against the bare `runsc`
//! command line. Its peers have their namespaces and mounts made ahead and not timed.

mod comparison;
mod create;
mod exec;
mod three;

use crate::bare::Bare;
use crate::harness::{Contender, Figure, Side, Turn};
use crate::ours::{self, Server};
use crate::world::World;

/// The two sides, each ready or with the reason why not.
struct Sides {
    server: Result<Server, String>,
    bare: Result<Bare, String>,
    ours: Side,
    peer: Side,
}

impl Sides {
    fn new(world: &World) -> Sides {
        let server = Server::start(&world.remuda, &world.scratch).map_err(|e| format!("{e:#}"));
        let bare = world
            .installed
            .clone()
            .and_then(|i| Bare::new(&i.runsc, &i.base, &world.scratch.join("bare")).map_err(|e| format!("{e:#}")));
        let peer = match &bare {
            Ok(bare) => bare.side(),
            Err(_) => Side { name: "bare runsc".to_owned(), version: "unknown".to_owned(), flags: Vec::new() },
        };
        Sides { server, bare, ours: ours::side(&world.remuda), peer }
    }

    /// Our side with a turn that `prepare` makes.
    fn ours<'a>(&'a self, prepare: impl FnOnce(&'a Server) -> anyhow::Result<Turn<'a>>) -> Contender<'a> {
        Contender { side: self.ours.clone(), turn: prepared(&self.server, prepare) }
    }

    /// The peer with a turn that `prepare` makes.
    fn peer<'a>(&'a self, prepare: impl FnOnce(&'a Bare) -> anyhow::Result<Turn<'a>>) -> Contender<'a> {
        Contender { side: self.peer.clone(), turn: prepared(&self.bare, prepare) }
    }
}

fn prepared<'a, T>(
    side: &'a Result<T, String>,
    prepare: impl FnOnce(&'a T) -> anyhow::Result<Turn<'a>>,
) -> Result<Turn<'a>, String> {
    match side {
        Ok(side) => prepare(side).map_err(|e| format!("{e:#}")),
        Err(reason) => Err(reason.clone()),
    }
}

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
