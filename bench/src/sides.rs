//! Ours and the bare `runsc` command line, each made ready once for all figures of a benchmark.

use crate::bare::Bare;
use crate::harness::{Contender, Side, Turn};
use crate::ours::{self, Server};
use crate::world::World;

/// The two sides, each ready or with the reason why not.
pub(crate) struct Sides {
    server: Result<Server, String>,
    bare: Result<Bare, String>,
    pub(crate) ours: Side,
    peer: Side,
}

impl Sides {
    pub(crate) fn new(world: &World) -> Sides {
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
    pub(crate) fn ours<'a>(&'a self, prepare: impl FnOnce(&'a Server) -> anyhow::Result<Turn<'a>>) -> Contender<'a> {
        Contender { side: self.ours.clone(), turn: prepared(&self.server, prepare) }
    }

    /// The peer with a turn that `prepare` makes.
    pub(crate) fn peer<'a>(&'a self, prepare: impl FnOnce(&'a Bare) -> anyhow::Result<Turn<'a>>) -> Contender<'a> {
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
