//! How long a server takes to be ready on a data directory where sandboxes run: many on the host that stands in, and
//! some real ones.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use remuda_control::Caller;
use remuda_stand_in::StandIn;
use remuda_types::SandboxState;
use remuda_types::wire::CreateSandbox;

use super::plane::{self, Slowness};
use crate::harness::{Contender, Contest, Figure, Goal, Side, Turn};
use crate::journal::{CLIENTS, all_at_once};
use crate::ours::{self, Server};
use crate::world::World;

/// Sandboxes on the host that stands in.
const STAND_INS: usize = 1_000;
/// Real ones.
const REAL: usize = 20;
/// How long a server with many may take to be ready.
const READY_MS: f64 = 3_000.0;

/// All of them have been found again, and run, when it is ready.
pub(crate) fn stand_ins(world: &World, rounds: usize) -> Figure {
    let name = format!("restart with {STAND_INS} sandboxes that run, until calls are taken");
    let contest = Contest { name: &name, rounds, warm_ups: 1, goal: Goal::MillisecondsAtMost(READY_MS) };
    let flags = vec!["every commit synced, a host that stands in".to_owned()];
    let side = Side { name: "control plane".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned(), flags };
    contest.run(Contender { side, turn: prepare(world).map_err(|e| format!("{e:#}")) }, None)
}

fn prepare(world: &World) -> anyhow::Result<Turn<'_>> {
    let directory = world.scratch.join("control-restart");
    std::fs::create_dir_all(&directory)?;
    let agents = plane::agents()?;
    let host = StandIn::new(agents.handle().clone());
    let gate = Arc::<Slowness>::default();
    let platform = world.runtime.block_on(plane::open(&host, &directory, gate.clone()))?;
    let (creating, next) = (platform.clone(), Arc::new(AtomicU64::new(0)));
    all_at_once(world, CLIENTS, STAND_INS, move |_| {
        let (platform, number) = (creating.clone(), next.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        async move {
            platform
                .create(&plane::keyed(number)?, plane::request(number))
                .await
                .result
                .map(drop)
                .map_err(plane::failed)
        }
    })?;
    world.runtime.block_on(platform.close())?;
    drop(platform);
    Ok(Box::new(move || {
        // What runs in the machines is used by nobody else.
        let _agents = &agents;
        world.runtime.block_on(async {
            let start = Instant::now();
            let platform = plane::open(&host, &directory, gate.clone()).await?;
            let took = start.elapsed();
            let found = platform.list(&Caller::operator(), false).await?;
            let running = found.iter().filter(|sandbox| sandbox.state == SandboxState::Running).count();
            platform.close().await?;
            anyhow::ensure!(running == STAND_INS, "{running} of {} run after the restart", found.len());
            Ok(took)
        })
    }))
}

/// The same with real machines, and a server that is a process: until it says that it listens.
pub(crate) fn real(world: &World, rounds: usize) -> Figure {
    let name = format!("restart of `remuda serve` with {REAL} real sandboxes that run, until it listens");
    let contest = Contest { name: &name, rounds, warm_ups: 1, goal: Goal::None };
    let turn = world.installed.clone().and_then(|_| prepare_real(world).map_err(|e| format!("{e:#}")));
    contest.run(Contender { side: ours::side(&world.remuda), turn }, None)
}

fn prepare_real(world: &World) -> anyhow::Result<Turn<'_>> {
    let scratch = world.scratch.join("real-restart");
    std::fs::create_dir_all(&scratch)?;
    let mut server = Running { server: Some(Server::start_to_keep(&world.remuda, &scratch)?), world, scratch };
    let client = server.client()?;
    world.runtime.block_on(async {
        for _ in 0..REAL {
            client.create_sandbox(&CreateSandbox { memory_mib: Some(256), ..CreateSandbox::default() }).await?;
        }
        anyhow::Ok(())
    })?;
    Ok(Box::new(move || {
        let took = server.restart()?;
        let found = world.runtime.block_on(server.client()?.list_sandboxes(&Default::default()))?;
        let running = found.iter().filter(|sandbox| sandbox.state == SandboxState::Running).count();
        anyhow::ensure!(running == REAL, "{running} of {} run after the restart", found.len());
        Ok(took)
    }))
}

/// A server whose sandboxes go with it at the end, and not before.
struct Running<'a> {
    server: Option<Server>,
    world: &'a World,
    scratch: std::path::PathBuf,
}

impl Running<'_> {
    fn client(&self) -> anyhow::Result<remuda_client::Client> {
        Ok(self.server.as_ref().context("there is no server")?.client())
    }

    fn restart(&mut self) -> anyhow::Result<Duration> {
        self.server = None;
        let start = Instant::now();
        self.server = Some(Server::start_to_keep(&self.world.remuda, &self.scratch)?);
        Ok(start.elapsed())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.server = None;
        // Its sandboxes end with the last one.
        if let Err(e) = Server::start(&self.world.remuda, &self.scratch) {
            eprintln!("bench: not all sandboxes are removed: {e:#}");
        }
    }
}
