//! The engine of one server, as everything above it sees it: places for machines, machines, and what is left of them.
//! What runs them is behind [`Host`].

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use remuda_types::{SnapshotId, Uid};

use crate::adoption::Adopted;
use crate::diff::{self, DiffLimits, Differences, Side};
use crate::dirs::Dirs;
use crate::error::{Result, Tried};
use crate::freeze::Frozen;
use crate::gvisor::{Gvisor, TornDown};
use crate::host::{Body, Host, Place};
use crate::host_facts::{HostFacts, ProcessFacts};
use crate::leftovers::{Leftovers, remove_stranger};
use crate::machine::{CapturePlaces, Captured, Death, MachineSpec};
use crate::network::egress::Egress;
use crate::parts::Parts;
use crate::settle::Settled;
use crate::site::{ChannelEnds, Life};
use crate::survey::Survey;

/// The engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    parts: Arc<Parts>,
    dirs: Arc<Dirs>,
    host: Arc<dyn Host>,
}

/// A site: a machine's place, with everything but processes. Whoever drops one without raising it, or fails to, has
/// [`Engine::tear_down`] remove it.
#[derive(Debug)]
pub struct Site(Box<dyn Place>);

/// A machine whose processes exist.
#[derive(Debug)]
pub struct Machine(Arc<dyn Body>);

impl Engine {
    /// Opens the engine on a data directory. Must be called within a tokio runtime that has I/O enabled.
    pub fn open(data_dir: &Path, parts: Parts) -> Result<Engine> {
        Engine::open_with(data_dir, parts, Err("nobody asked for one".into()))
    }

    /// The same, with ways out for guests, or with the reason why they have none. That the machine can't have any is no
    /// reason not to open: [`Engine::no_way_out`] tells it.
    pub fn open_with(data_dir: &Path, parts: Parts, egress: std::result::Result<Egress, String>) -> Result<Engine> {
        let gvisor = Gvisor::open(data_dir, parts.clone(), egress)?;
        let dirs = gvisor.shared.dirs.clone();
        Ok(Engine::on(Arc::new(gvisor), dirs, parts))
    }

    /// An engine on another host than gVisor.
    pub fn on(host: Arc<dyn Host>, dirs: Dirs, parts: Parts) -> Engine {
        Engine { parts: Arc::new(parts), dirs: Arc::new(dirs), host }
    }

    /// Why guests have no way out to the internet; `None` if they have.
    pub fn no_way_out(&self) -> Option<String> {
        self.host.no_way_out()
    }

    /// The kernel's id of this boot: what was written and not flushed in another one may be lost.
    pub fn boot_id(&self) -> Result<String> {
        self.host.boot_id()
    }

    /// The parts that machines are made with.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Where things lie.
    pub fn dirs(&self) -> &Dirs {
        &self.dirs
    }

    /// Where a capture of that snapshot goes.
    pub fn capture_places(&self, snapshot: &SnapshotId, with_memory: bool) -> CapturePlaces {
        self.dirs.capture(snapshot, with_memory)
    }

    /// Captures the files of a machine that has ended; whatever still runs of it is ended. What its kernel had not
    /// written back is not among them. Whoever calls sees to it that nobody removes the machine meanwhile.
    pub async fn capture_ended(&self, uid: &Uid, places: CapturePlaces) -> Result<Frozen> {
        self.host.capture_ended(uid, places).await
    }

    /// Prepares the place for a machine: directories, cgroup, namespaces, root, FIFOs. If that fails, and also if what
    /// follows does, [`Engine::tear_down`] removes what there is.
    pub async fn prepare(&self, spec: &MachineSpec) -> Result<Site> {
        self.host.prepare(spec).await.map(Site)
    }

    /// Takes over the machine `uid` of an earlier server, by what that recorded of it. Waits until no call of that
    /// server to the sandbox is under way any more; a checkpoint that it had begun is carried out to its end. Must be
    /// called within a tokio runtime.
    ///
    /// # Errors
    /// When it cannot be told what became of it. Nothing was signalled then, and the call may be repeated.
    pub async fn adopt(&self, uid: &Uid, facts: &HostFacts) -> Result<Adopted> {
        self.host.adopt(uid, facts).await
    }

    /// Finds out what became of a capture of the machine `source` that an earlier server had begun, and removes what is
    /// half-made. Waits, within a limit, until nobody writes into it any more. May be repeated. It leaves a source that
    /// still lives as it is; [`Engine::adopt`] says whether that stands still.
    ///
    /// # Errors
    /// `Busy` when the sentry still writes at the limit; then nothing was touched.
    pub async fn settle_capture(&self, snapshot: &SnapshotId, source: &Uid) -> Result<Settled> {
        self.host.settle_capture(snapshot, source).await
    }

    /// Removes every place of a snapshot, whole or half-made, and tells how many bytes that freed. Nobody may be
    /// writing there ([`Engine::settle_capture`]).
    pub async fn remove_capture(&self, snapshot: &SnapshotId) -> Result<u64> {
        let places = self.capture_places(snapshot, true);
        let mut bytes = 0;
        let memory = places.memory.into_iter().flat_map(|(a, b)| [a, b]);
        for path in [places.layer, places.layer_tmp].into_iter().chain(memory) {
            bytes += self.remove_directory(path).await?;
        }
        Ok(bytes)
    }

    /// Ends and removes whatever exists of a machine: processes first, then mounts, namespaces, cgroup and files. May
    /// be repeated, and needs nothing but the uid.
    pub async fn tear_down(&self, uid: &Uid) -> Result<TornDown> {
        self.host.tear_down(uid).await
    }

    /// Ends whatever runs of a machine and removes everything of it but its private files. May be repeated. Returns
    /// whether no process is left.
    pub async fn lay_down(&self, uid: &Uid) -> Result<bool> {
        self.host.lay_down(uid).await
    }

    /// Whether there are private files of a machine.
    pub fn has_files(&self, uid: &Uid) -> bool {
        self.dirs.sandbox(uid).upper.exists()
    }

    /// Makes the private files of one machine, of which nothing may run, those of another one that has none yet. They
    /// are there after a loss of power too when this returns. May be repeated, also after a crash in its middle.
    ///
    /// # Errors
    /// `Busy` when a process of the first machine can't be ended; then nothing was moved.
    pub async fn hand_over(&self, from: &Uid, to: &Uid) -> Result<()> {
        self.host.hand_over(from, to).await
    }

    /// Looks through the places of this data directory.
    pub fn leftovers(&self) -> Result<Leftovers> {
        self.host.leftovers()
    }

    /// Compares the files with which machines on these two sides would begin, by the layers that only one of them stands
    /// on. Nothing of the look is left behind.
    pub async fn differences(&self, before: Side, after: Side, limits: DiffLimits) -> Result<Differences> {
        let dirs = self.dirs.clone();
        let comparing = tokio::task::spawn_blocking(move || diff::differences(&dirs, &before, &after, limits));
        comparing.await.map_err(std::io::Error::other).tried(|| "compare two snapshots".into())?
    }

    /// Looks at everything that the machine has of this data directory. Blocks for as long as that takes.
    pub fn survey(&self) -> Result<Survey> {
        self.host.survey()
    }

    /// Ends the one process that these facts, of this boot, were recorded of, and waits for that. Tells whether there
    /// was one: a stranger under its pid is left alone.
    pub async fn end_process(&self, facts: ProcessFacts) -> Result<bool> {
        self.host.end_process(facts).await
    }

    /// Removes everything that an earlier server left behind on this data directory: machines, layers and images.
    /// Returns how many machines that were.
    pub async fn sweep(&self) -> Result<usize> {
        let found = self.leftovers()?;
        self.remove_leftovers(&found).await?;
        Ok(found.machines.len())
    }

    /// Removes these. Nobody may need them any more.
    pub async fn remove_leftovers(&self, found: &Leftovers) -> Result<()> {
        for uid in &found.machines {
            self.tear_down(uid).await?;
        }
        for snapshot in &found.snapshots {
            self.remove_capture(snapshot).await?;
        }
        for path in &found.strangers {
            remove_stranger(path).tried(|| format!("remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Removes a layer or memory image and tells how many bytes that freed.
    pub async fn remove_directory(&self, path: PathBuf) -> Result<u64> {
        self.host.remove_directory(path).await
    }

    /// Takes back what was set up on the host for machines of this server, if none is left.
    pub fn leave(&self) -> Result<()> {
        self.host.leave()
    }

    /// Removes what belongs to this server as a whole, once no machine is left.
    pub fn close(&self) -> Result<()> {
        self.host.close()
    }
}

impl Site {
    /// Opens the host's ends of the channel. They are opened for reading and writing both, so that neither side ever
    /// sees an end of file, and by descriptions of their own: the sentry makes its ones non-blocking. What is written
    /// before the machine is raised is the first thing its agent reads.
    pub fn open_channel(&self) -> Result<ChannelEnds> {
        self.0.open_channel()
    }

    /// Raises the machine and gives it life.
    pub async fn raise(self, life: Life) -> Result<Machine> {
        self.0.raise(life).await
    }
}

impl Machine {
    /// A machine of a host.
    pub fn new(body: Arc<dyn Body>) -> Machine {
        Machine(body)
    }

    /// Lets the guest out to the internet, if it was given a way. May be repeated. Before this nothing that it sends gets
    /// further than its own network.
    pub async fn open_way_out(&self) -> Result<()> {
        self.0.open_way_out().await
    }

    /// Pids of its sentry and gofer on the host.
    pub fn host_pids(&self) -> [i32; 2] {
        self.0.host_pids()
    }

    /// What a later server recognises its processes by ([`Engine::adopt`]).
    pub fn host_facts(&self) -> Result<HostFacts> {
        self.0.host_facts()
    }

    /// Halts every process of the guest. One that is halted stays so.
    pub async fn pause(&self) -> Result<()> {
        self.0.pause().await
    }

    /// Lets the guest go on. One that is not halted goes on anyway.
    pub async fn resume(&self) -> Result<()> {
        self.0.resume().await
    }

    /// Captures the machine and lets it go on (unless it was paused before), whatever becomes of the capture.
    /// [`Engine::settle_capture`] tells what became of one whose server was killed.
    ///
    /// The agent must be quiet: at a frame boundary, saying nothing. Blocking work runs to its end also if the caller
    /// goes away, so that the guest is never left standing.
    pub async fn capture(&self, places: CapturePlaces, was_paused: bool) -> Result<Captured> {
        self.0.capture(places, was_paused).await
    }

    /// Connects to a port of the guest.
    pub async fn dial(&self, port: u16) -> Result<tokio::net::TcpStream> {
        self.0.dial(port).await
    }

    /// The address that a guest sees connections from [`Machine::dial`] come from.
    pub fn dials_from(uid: &Uid) -> Ipv4Addr {
        crate::network::dial_address(uid)
    }

    /// TCP connections between the server and the guest; a capture of memory resets them.
    pub async fn outside_connections(&self) -> Result<u32> {
        self.0.outside_connections().await
    }

    /// Waits until the machine has ended, and tells why. What ends one of its processes ends it whole: without its
    /// gofer a sentry has no files, and where the kernel kills for want of memory it may pick a single guest process.
    /// Nothing of it runs when this returns.
    pub async fn ended(&self) -> Death {
        self.0.ended().await
    }

    /// Whether the sentry has ended.
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Bytes of memory that the machine holds now, as its cgroup counts them; what a checkpoint may have to write.
    pub fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes()
    }

    /// Kills both processes; [`Engine::tear_down`] does the rest.
    pub fn kill(&self) -> Result<()> {
        self.0.kill()
    }

    /// Waits until both processes have ended and are reaped.
    pub async fn both_ended(&self) {
        self.0.both_ended().await;
    }
}
