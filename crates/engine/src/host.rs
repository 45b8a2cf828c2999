//! What an engine needs of whatever runs its machines, as plain data. gVisor does; a stand-in does for model tests and
//! benchmarks of what is above the engine, and lives in a crate of its own that no shipped one depends on.
//!
//! Records and names of sandboxes are known on neither side of it.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use remuda_types::{SnapshotId, Uid};

use crate::adoption::Adopted;
use crate::engine::Machine;
use crate::error::Result;
use crate::freeze::Frozen;
use crate::gvisor::{Gvisor, TornDown};
use crate::host_facts::{HostFacts, ProcessFacts};
use crate::leftovers::Leftovers;
use crate::machine::{CapturePlaces, Captured, Death, GvisorMachine, MachineSpec};
use crate::process::HostProcess;
use crate::settle::Settled;
use crate::site::{ChannelEnds, GvisorSite, Life};
use crate::survey::Survey;

/// Work on a host that somebody waits for.
pub type Work<'a, T> = BoxFuture<'a, Result<T>>;

/// Runs machines. What each of these means is told where [`crate::Engine`] has it.
#[allow(missing_docs, reason = "each is told of at its counterpart")]
pub trait Host: Debug + Send + Sync {
    fn prepare<'a>(&'a self, spec: &'a MachineSpec) -> Work<'a, Box<dyn Place>>;
    fn adopt<'a>(&'a self, uid: &'a Uid, facts: &'a HostFacts) -> Work<'a, Adopted>;
    fn settle_capture<'a>(&'a self, snapshot: &'a SnapshotId, source: &'a Uid) -> Work<'a, Settled>;
    fn capture_ended<'a>(&'a self, uid: &'a Uid, places: CapturePlaces) -> Work<'a, Frozen>;
    fn tear_down<'a>(&'a self, uid: &'a Uid) -> Work<'a, TornDown>;
    fn lay_down<'a>(&'a self, uid: &'a Uid) -> Work<'a, bool>;
    fn hand_over<'a>(&'a self, from: &'a Uid, to: &'a Uid) -> Work<'a, ()>;
    fn remove_directory(&self, path: PathBuf) -> Work<'_, u64>;
    fn no_way_out(&self) -> Option<String>;
    fn boot_id(&self) -> Result<String>;
    fn leftovers(&self) -> Result<Leftovers>;
    fn survey(&self) -> Result<Survey>;
    fn end_process(&self, facts: ProcessFacts) -> Work<'_, bool>;
    fn leave(&self) -> Result<()>;
    fn close(&self) -> Result<()>;
}

/// A prepared place; [`crate::Site`] tells more.
#[allow(missing_docs, reason = "each is told of at its counterpart")]
pub trait Place: Debug + Send + Sync {
    fn open_channel(&self) -> Result<ChannelEnds>;
    fn raise(self: Box<Self>, life: Life) -> Work<'static, Machine>;
}

/// What a machine is to those who reach into it; [`crate::Machine`] tells more.
#[allow(missing_docs, reason = "each is told of at its counterpart")]
pub trait Body: Debug + Send + Sync {
    fn host_pids(&self) -> [i32; 2];
    fn host_facts(&self) -> Result<HostFacts>;
    fn pause(&self) -> Work<'_, ()>;
    fn resume(&self) -> Work<'_, ()>;
    fn capture(&self, places: CapturePlaces, was_paused: bool) -> Work<'_, Captured>;
    fn open_way_out(&self) -> Work<'_, ()>;
    fn dial(&self, port: u16) -> Work<'_, tokio::net::TcpStream>;
    fn outside_connections(&self) -> Work<'_, u32>;
    fn ended(&self) -> BoxFuture<'_, Death>;
    fn has_ended(&self) -> bool;
    fn memory_bytes(&self) -> u64;
    fn kill(&self) -> Result<()>;
    fn both_ended(&self) -> BoxFuture<'_, ()>;
}

impl Host for Gvisor {
    fn prepare<'a>(&'a self, spec: &'a MachineSpec) -> Work<'a, Box<dyn Place>> {
        Box::pin(async move { self.prepare(spec).await.map(|site| Box::new(site) as _) })
    }

    fn adopt<'a>(&'a self, uid: &'a Uid, facts: &'a HostFacts) -> Work<'a, Adopted> {
        Box::pin(self.adopt(uid, facts))
    }

    fn settle_capture<'a>(&'a self, snapshot: &'a SnapshotId, source: &'a Uid) -> Work<'a, Settled> {
        Box::pin(self.settle_capture(snapshot, source))
    }

    fn capture_ended<'a>(&'a self, uid: &'a Uid, places: CapturePlaces) -> Work<'a, Frozen> {
        Box::pin(self.capture_ended(uid, places))
    }

    fn tear_down<'a>(&'a self, uid: &'a Uid) -> Work<'a, TornDown> {
        Box::pin(self.tear_down(uid))
    }

    fn lay_down<'a>(&'a self, uid: &'a Uid) -> Work<'a, bool> {
        Box::pin(self.lay_down(uid))
    }

    fn hand_over<'a>(&'a self, from: &'a Uid, to: &'a Uid) -> Work<'a, ()> {
        Box::pin(self.hand_over(from, to))
    }

    fn remove_directory(&self, path: PathBuf) -> Work<'_, u64> {
        Box::pin(self.remove_directory(path))
    }

    fn no_way_out(&self) -> Option<String> {
        self.shared.no_way_out.clone()
    }

    fn boot_id(&self) -> Result<String> {
        crate::host_facts::boot_id()
    }

    fn leftovers(&self) -> Result<Leftovers> {
        let mut found = Leftovers::below(&self.shared.dirs)?;
        // A cgroup by another name is none of ours.
        found.machines.extend(self.shared.cgroups.existing().iter().filter_map(|name| name.parse().ok()));
        Ok(found)
    }

    fn survey(&self) -> Result<Survey> {
        let dirs = &self.shared.dirs;
        Survey::of_places(dirs, crate::host_facts::boot_id()?)?.on_the_machine(dirs, &self.shared.cgroups)
    }

    fn end_process(&self, facts: ProcessFacts) -> Work<'_, bool> {
        Box::pin(async move {
            let Some(process) = HostProcess::find(facts)? else { return Ok(false) };
            process.kill()?;
            process.ended().await;
            Ok(true)
        })
    }

    fn leave(&self) -> Result<()> {
        self.leave()
    }

    fn close(&self) -> Result<()> {
        self.close()
    }
}

impl Place for GvisorSite {
    fn open_channel(&self) -> Result<ChannelEnds> {
        self.open_channel()
    }

    fn raise(self: Box<Self>, life: Life) -> Work<'static, Machine> {
        Box::pin(async move { GvisorSite::raise(*self, life).await.map(|machine| Machine::new(Arc::new(machine))) })
    }
}

impl Body for GvisorMachine {
    fn host_pids(&self) -> [i32; 2] {
        self.host_pids()
    }

    fn host_facts(&self) -> Result<HostFacts> {
        self.host_facts()
    }

    fn pause(&self) -> Work<'_, ()> {
        Box::pin(self.pause())
    }

    fn resume(&self) -> Work<'_, ()> {
        Box::pin(self.resume())
    }

    fn capture(&self, places: CapturePlaces, was_paused: bool) -> Work<'_, Captured> {
        Box::pin(self.capture(places, was_paused))
    }

    fn open_way_out(&self) -> Work<'_, ()> {
        Box::pin(self.open_way_out())
    }

    fn dial(&self, port: u16) -> Work<'_, tokio::net::TcpStream> {
        Box::pin(self.dial(port))
    }

    fn outside_connections(&self) -> Work<'_, u32> {
        Box::pin(self.outside_connections())
    }

    fn ended(&self) -> BoxFuture<'_, Death> {
        Box::pin(self.ended())
    }

    fn has_ended(&self) -> bool {
        self.has_ended()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes()
    }

    fn kill(&self) -> Result<()> {
        self.kill()
    }

    fn both_ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.both_ended())
    }
}
