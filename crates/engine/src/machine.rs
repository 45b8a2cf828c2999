//! One machine: a created sandbox, its control socket, its channel, its processes.
//!
//! Everything after its launch goes through the control socket; ends go through pidfds, never through
//! `runsc delete`, which has killed strangers whose pid was reused.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remuda_types::Uid;

use crate::alarm::OomAlarm;
use crate::cgroup::{Cgroup, Limits};
use crate::control_socket::ControlSocket;
use crate::dialer::Dialer;
use crate::dirs::SandboxDirs;
use crate::error::{EngineError, Result, Tried};
use crate::freeze::{self, Frozen};
use crate::halt::Halt;
use crate::host_facts::{HostFacts, boot_id};
use crate::image::{ImageFiles, MemoryImage};
use crate::network::{self, NetworkBuilder};
use crate::parts::Fingerprint;
use crate::process::HostProcess;
use crate::settle::{Settled, settle};

/// What a machine is built from.
#[derive(Debug, Clone)]
pub struct MachineSpec {
    /// Its name in directories and to runsc.
    pub uid: Uid,
    /// Frozen layers below its upper, newest first, by directory name.
    pub layers: Vec<String>,
    /// Below its layers: agent and base image of these parts.
    pub parts: Fingerprint,
    /// What it may use.
    pub limits: Limits,
    /// Whether it gets a way out, which [`crate::Machine::open_way_out`] opens.
    pub internet: bool,
}

/// Why a machine's processes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// The kernel killed it at its memory limit.
    OutOfMemory,
    /// Anything else: killed from outside, a crash of the sentry, or the end of the agent.
    Ended,
}

/// What a capture of memory and files took.
#[derive(Debug)]
pub struct Captured {
    /// The memory image, where memory was captured.
    pub memory: Option<MemoryImage>,
    /// The layer's size.
    pub layer: Frozen,
    /// How long the guest stood still.
    pub paused: Duration,
}

/// Where a capture goes. All four must not exist yet; the temporary ones are gone afterwards, whatever happened.
#[derive(Debug, Clone)]
pub struct CapturePlaces {
    /// Final place of the layer.
    pub layer: std::path::PathBuf,
    /// Where the layer is made.
    pub layer_tmp: std::path::PathBuf,
    /// Final place of the memory image and where it is made; absent for a capture of files alone.
    pub memory: Option<(std::path::PathBuf, std::path::PathBuf)>,
}

impl CapturePlaces {
    /// Tells what became of a capture that nobody works on any more; what is half-made is removed. May be repeated.
    pub fn settle(&self) -> Result<Settled> {
        settle(self)
    }

    /// Removes whatever there is of it.
    pub fn discard(&self) -> Result<()> {
        discard(self)
    }
}

/// A machine whose processes exist.
#[derive(Debug)]
pub(crate) struct GvisorMachine {
    uid: Uid,
    dirs: SandboxDirs,
    control: ControlSocket,
    halt: Arc<Halt>,
    sentry: Arc<HostProcess>,
    gofer: HostProcess,
    cgroup: Cgroup,
    oom: OomAlarm,
    outer: Arc<OwnedFd>,
    dialer: Dialer,
    networks: NetworkBuilder,
}

impl GvisorMachine {
    #[allow(clippy::too_many_arguments, reason = "each is a part of the machine; only its site calls this")]
    pub(crate) fn new(
        uid: Uid,
        dirs: SandboxDirs,
        control: ControlSocket,
        halt: Halt,
        sentry: HostProcess,
        gofer: HostProcess,
        cgroup: Cgroup,
        oom: OomAlarm,
        outer: OwnedFd,
        dialer: Dialer,
        networks: NetworkBuilder,
    ) -> GvisorMachine {
        let (halt, sentry, outer) = (Arc::new(halt), Arc::new(sentry), Arc::new(outer));
        GvisorMachine { uid, dirs, control, halt, sentry, gofer, cgroup, oom, outer, dialer, networks }
    }

    /// Pids of its sentry and gofer on the host.
    pub(crate) fn host_pids(&self) -> [i32; 2] {
        [self.sentry.pid(), self.gofer.pid()]
    }

    /// What a later server recognises its processes by ([`crate::Engine::adopt`]).
    pub(crate) fn host_facts(&self) -> Result<HostFacts> {
        Ok(HostFacts { boot_id: boot_id()?, sentry: self.sentry.facts(), gofer: self.gofer.facts() })
    }

    /// Halts every process of the guest. One that is halted stays so.
    pub(crate) async fn pause(&self) -> Result<()> {
        let halt = self.halt.clone();
        self.with_control(move |control| halt.begin(control)).await
    }

    /// Lets the guest go on. One that is not halted goes on anyway.
    pub(crate) async fn resume(&self) -> Result<()> {
        let halt = self.halt.clone();
        self.with_control(move |control| halt.end(control)).await
    }

    /// Captures the machine and lets it go on (unless it was paused before), whatever becomes of the capture.
    /// [`crate::Engine::settle_capture`] tells what became of one whose server was killed.
    ///
    /// The agent must be quiet: at a frame boundary, saying nothing. Blocking work runs to its end also if the caller
    /// goes away, so that the guest is never left standing.
    pub(crate) async fn capture(&self, places: CapturePlaces, was_paused: bool) -> Result<Captured> {
        let (upper, sentry, halt) = (self.dirs.upper.clone(), self.sentry.clone(), self.halt.clone());
        self.with_control(move |control| {
            let start = Instant::now();
            if !was_paused {
                halt.begin(control)?;
            }
            let captured = capture_halted(control, &upper, &places);
            let resumed = if was_paused { Ok(()) } else { halt.end(control) };
            let paused = start.elapsed();
            // Whoever removes a machine ends it first and takes its files after: of one that has ended, files may have
            // been missing when they were copied.
            let whole = if sentry.has_ended() { Err(EngineError::Ended) } else { resumed };
            // The guest runs again; what follows is nothing it should wait for.
            let published = captured
                .and_then(|captured| whole.map(|()| captured))
                .and_then(|(files, layer)| Ok((publish(&places, files)?, layer)));
            if published.is_err()
                && let Err(e) = discard(&places)
            {
                tracing::warn!("a failed capture left something: {e}");
            }
            let (memory, layer) = published?;
            Ok(Captured { memory, layer, paused })
        })
        .await
    }

    /// Lets the guest out, if it was given a way. May be repeated.
    pub(crate) async fn open_way_out(&self) -> Result<()> {
        let outer = self.outer.try_clone().tried(|| format!("open the way out of {}", self.uid))?;
        self.networks.open(outer).await
    }

    /// Connects to a port of the guest.
    pub(crate) async fn dial(&self, port: u16) -> Result<tokio::net::TcpStream> {
        let from = network::dial_address(&self.uid);
        self.dialer.dial(&self.outer, from, network::GUEST_ADDRESS, port).await
    }

    /// TCP connections between the server and the guest; a capture of memory resets them.
    pub(crate) async fn outside_connections(&self) -> Result<u32> {
        self.dialer.count(&self.outer).await
    }

    /// Waits until the machine has ended, and tells why. What ends one of its processes ends it whole: without its
    /// gofer a sentry has no files, and where the kernel kills for want of memory it may pick a single guest process.
    /// Nothing of it runs when this returns.
    pub(crate) async fn ended(&self) -> Death {
        tokio::select! {
            () = self.sentry.ended() => {}
            () = self.gofer.ended() => {}
            () = self.oom.rings() => {}
        }
        if let Err(e) = self.kill() {
            tracing::error!("failed to end what is left of {}: {e}", self.uid);
        }
        self.both_ended().await;
        if self.oom.has_rung() || self.cgroup.oom_kills() > 0 { Death::OutOfMemory } else { Death::Ended }
    }

    /// Whether the sentry has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.sentry.has_ended()
    }

    /// Bytes of memory that the machine holds now, as its cgroup counts them; what a checkpoint may have to write.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.cgroup.memory_bytes()
    }

    /// Kills both processes; [`crate::Engine::tear_down`] does the rest.
    pub(crate) fn kill(&self) -> Result<()> {
        self.sentry.kill()?;
        self.gofer.kill()
    }

    /// Waits until both processes have ended and are reaped.
    pub(crate) async fn both_ended(&self) {
        self.sentry.ended().await;
        self.gofer.ended().await;
    }

    /// Calls on the control socket; a socket that nobody serves any more means that the sentry is gone.
    async fn with_control<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ControlSocket) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.control.with(work).await {
            Err(EngineError::Io { .. }) if self.has_ended() => Err(EngineError::Ended),
            other => other,
        }
    }
}

/// The part of a capture for which the guest stands still.
fn capture_halted(
    control: &ControlSocket,
    upper: &Path,
    places: &CapturePlaces,
) -> Result<(Option<ImageFiles>, Frozen)> {
    let files = match &places.memory {
        None => None,
        Some((_, memory_tmp)) => {
            let files = ImageFiles::create(memory_tmp)?;
            control.checkpoint(files.descriptors())?;
            Some(files)
        }
    };
    // After the checkpoint: taking it makes the sentry write back what it still held of files.
    let layer = freeze::freeze(upper, &places.layer_tmp)?;
    Ok((files, layer))
}

/// Mends what is known to be wrong in a memory image, and moves image and layer to their final places. The layer comes
/// last: once it is in its place, all of the capture is.
fn publish(places: &CapturePlaces, files: Option<ImageFiles>) -> Result<Option<MemoryImage>> {
    let memory = match (&places.memory, files) {
        (Some((memory, memory_tmp)), Some(mut files)) => {
            files.mend()?;
            Some(MemoryImage::publish(memory_tmp, &files, memory)?)
        }
        _ => None,
    };
    std::fs::rename(&places.layer_tmp, &places.layer).tried(|| format!("publish {}", places.layer.display()))?;
    Ok(memory)
}

/// Removes what a failed capture left: all of it that can be removed, and tells the first failure.
pub(crate) fn discard(places: &CapturePlaces) -> Result<()> {
    let memory = places.memory.iter().flat_map(|(a, b)| [a, b]);
    let all = [&places.layer, &places.layer_tmp].into_iter().chain(memory);
    let removed: Vec<Result<()>> =
        all.map(|path| remove_tree(path).tried(|| format!("remove {}", path.display()))).collect();
    removed.into_iter().collect()
}

/// Removes a directory with all that is in it; one that is not there is fine.
pub(crate) fn remove_tree(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}
