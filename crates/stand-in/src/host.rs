//! The host: what outlives servers. Each server has its own view of it, bound to its session.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_engine::{
    Adopted, CapturePlaces, ChannelEnds, Death, Dirs, Engine, Fingerprint, Frozen, Host, HostFacts, Leftovers, Life,
    Machine, MachineSpec, OomAlarm, Parts, Place, ProcessFacts, Result, SandboxDirs, Settled, Survey, Survivor,
    TornDown, Work, disk_usage,
};
use remuda_types::{SnapshotId, Uid};
use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::agent;
use crate::being::{Being, Grip, failed, freeze};
use crate::mind::Mind;
use crate::session::Session;

/// A host that runs machines without processes. Clones are one host.
#[derive(Debug, Clone)]
pub struct StandIn {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Where agents run: a runtime that outlives every server's.
    runtime: Handle,
    machines: Mutex<BTreeMap<Uid, Arc<Being>>>,
    boots: AtomicI32,
    pids: AtomicI32,
}

/// A machine as the host sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its uid.
    pub uid: Uid,
    /// Whether it stands still.
    pub halted: bool,
    /// Whether it runs or stands still, and has not ended.
    pub alive: bool,
    /// Programs that run in it.
    pub running: usize,
    /// Numbers of the effects that started what its agent remembers.
    pub spawned: Vec<u64>,
}

impl StandIn {
    /// A host whose agents run on this runtime.
    pub fn new(runtime: Handle) -> StandIn {
        let shared =
            Shared { runtime, machines: Mutex::default(), boots: AtomicI32::new(1), pids: AtomicI32::new(100) };
        StandIn { shared: Arc::new(shared) }
    }

    /// An engine on this host, for one server.
    ///
    /// # Errors
    /// The directories can't be made.
    pub fn engine(&self, data_dir: &Path, session: &Arc<Session>) -> Result<Engine> {
        let dirs = Dirs::on_disk_alone(data_dir)?;
        let view = View { host: self.clone(), dirs: dirs.clone(), session: session.clone() };
        Ok(Engine::on(Arc::new(view), dirs, parts()))
    }

    /// All machines of which there is anything but files.
    pub fn seen(&self) -> Vec<Seen> {
        let see = |being: &Arc<Being>| {
            let mind = being.mind.lock().unwrap_or_else(PoisonError::into_inner);
            Seen {
                uid: being.uid.clone(),
                halted: *being.halted.borrow(),
                alive: being.death().is_none(),
                running: mind.running(),
                spawned: mind.spawned(),
            }
        };
        self.machines().values().map(see).collect()
    }

    /// Ends a machine as if its processes had ended by themselves. Tells whether it lived.
    pub fn end(&self, uid: &Uid, death: Death) -> bool {
        let found = self.machines().get(uid).cloned();
        found.filter(|being| being.death().is_none()).is_some_and(|being| {
            being.die(death);
            true
        })
    }

    /// Starts the host anew: every machine is gone, and files stay.
    pub fn reboot(&self) {
        let ended = std::mem::take(&mut *self.machines());
        for being in ended.into_values() {
            being.die(Death::Ended);
        }
        self.shared.boots.fetch_add(1, Ordering::SeqCst);
    }

    fn boot_id(&self) -> String {
        format!("boot-{}", self.shared.boots.load(Ordering::SeqCst))
    }

    fn process(&self) -> ProcessFacts {
        let pid = self.shared.pids.fetch_add(1, Ordering::SeqCst);
        ProcessFacts { pid, start_ticks: pid.unsigned_abs().into() }
    }

    fn machines(&self) -> MutexGuard<'_, BTreeMap<Uid, Arc<Being>>> {
        self.shared.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parts that are none.
fn parts() -> Parts {
    let none = || "0".repeat(64);
    Parts {
        fingerprint: Fingerprint { runsc: none(), agent: none(), base: none() },
        runsc_version: "no runsc".to_owned(),
        runsc: PathBuf::new(),
        agent_dir: PathBuf::new(),
        base_dir: PathBuf::new(),
    }
}

/// The host as one server sees it.
#[derive(Debug, Clone)]
struct View {
    host: StandIn,
    dirs: Dirs,
    session: Arc<Session>,
}

/// A prepared place.
#[derive(Debug)]
struct Prepared {
    view: View,
    uid: Uid,
    dirs: SandboxDirs,
}

impl View {
    /// Whatever runs of a machine ends.
    fn end(&self, uid: &Uid) {
        let found = self.host.machines().remove(uid);
        if let Some(being) = found {
            being.die(Death::Ended);
        }
    }

    async fn lay_down(&self, uid: &Uid) -> Result<bool> {
        self.session.pass("before a laying down").await?;
        self.end(uid);
        let places = self.dirs.sandbox(uid);
        for dir in [&places.fifo, &places.state] {
            remove(dir)?;
        }
        self.session.pass("after a laying down").await?;
        Ok(true)
    }
}

impl Host for View {
    fn prepare<'a>(&'a self, spec: &'a MachineSpec) -> Work<'a, Box<dyn Place>> {
        Box::pin(async move {
            self.session.pass("before a place is prepared").await?;
            let dirs = self.dirs.sandbox(&spec.uid);
            for dir in [&dirs.upper, &dirs.fifo] {
                fs::create_dir_all(dir).map_err(|e| failed("prepare a place", e))?;
            }
            ChannelEnds::make(&dirs)?;
            self.session.pass("after a place is prepared").await?;
            Ok(Box::new(Prepared { view: self.clone(), uid: spec.uid.clone(), dirs }) as _)
        })
    }

    fn adopt<'a>(&'a self, uid: &'a Uid, facts: &'a HostFacts) -> Work<'a, Adopted> {
        Box::pin(async move {
            self.session.pass("before an adoption").await?;
            if facts.boot_id != self.host.boot_id() {
                return Ok(Adopted::Gone);
            }
            let found = self.host.machines().get(uid).cloned();
            let Some(being) = found.filter(|being| being.facts == *facts) else {
                return Ok(Adopted::Ended(Death::Ended));
            };
            if let Some(death) = being.death() {
                return Ok(Adopted::Ended(death));
            }
            let channel = ChannelEnds::open(uid, &being.dirs, OomAlarm::default())?;
            let paused = *being.halted.borrow();
            self.session.pass("after an adoption").await?;
            let machine = Machine::new(Arc::new(Grip { being, session: self.session.clone() }));
            Ok(Adopted::Alive(Box::new(Survivor { machine, channel, paused })))
        })
    }

    fn settle_capture<'a>(&'a self, snapshot: &'a SnapshotId, _: &'a Uid) -> Work<'a, Settled> {
        Box::pin(async move {
            self.session.pass("before a capture is settled").await?;
            let settled = self.dirs.capture(snapshot, true).settle()?;
            self.session.pass("after a capture is settled").await?;
            Ok(settled)
        })
    }

    fn capture_ended<'a>(&'a self, uid: &'a Uid, places: CapturePlaces) -> Work<'a, Frozen> {
        Box::pin(async move {
            self.session.pass("before the files of what has ended are copied").await?;
            let copied = freeze(&self.dirs.sandbox(uid).upper, &places.layer_tmp);
            let copied = copied.map_err(|e| failed("copy files", e));
            let published = match self.session.pass("before they are published").await.and(copied) {
                Ok(frozen) => fs::rename(&places.layer_tmp, &places.layer)
                    .map(|()| frozen)
                    .map_err(|e| failed("publish a layer", e)),
                Err(e) => Err(e),
            };
            if published.is_err() {
                places.discard()?;
            }
            self.session.pass("after the files of what has ended are copied").await?;
            published
        })
    }

    fn tear_down<'a>(&'a self, uid: &'a Uid) -> Work<'a, TornDown> {
        Box::pin(async move {
            self.session.pass("before a tearing down").await?;
            self.end(uid);
            self.session.pass("between processes and files of a tearing down").await?;
            let places = self.dirs.sandbox(uid);
            let bytes_reclaimed = disk_usage(&places.upper);
            remove(&places.state)?;
            remove(&places.root)?;
            self.session.pass("after a tearing down").await?;
            Ok(TornDown { bytes_reclaimed, processes_gone: true, files_gone: true })
        })
    }

    fn lay_down<'a>(&'a self, uid: &'a Uid) -> Work<'a, bool> {
        Box::pin(self.lay_down(uid))
    }

    fn hand_over<'a>(&'a self, from: &'a Uid, to: &'a Uid) -> Work<'a, ()> {
        Box::pin(async move {
            self.lay_down(from).await?;
            self.session.pass("before files are handed over").await?;
            let (old, new) = (self.dirs.sandbox(from), self.dirs.sandbox(to));
            fs::create_dir_all(&new.root).map_err(|e| failed("hand files over", e))?;
            match fs::rename(&old.upper, &new.upper) {
                Err(e) if e.kind() == io::ErrorKind::NotFound && new.upper.exists() => {}
                moved => moved.map_err(|e| failed("hand files over", e))?,
            }
            self.session.pass("after files are handed over").await
        })
    }

    fn remove_directory(&self, path: PathBuf) -> Work<'_, u64> {
        Box::pin(async move {
            self.session.pass("before a directory is removed").await?;
            let bytes = disk_usage(&path);
            remove(&path)?;
            self.session.pass("after a directory is removed").await?;
            Ok(bytes)
        })
    }

    fn no_way_out(&self) -> Option<String> {
        Some("a host that stands in for another has no network".into())
    }

    fn boot_id(&self) -> Result<String> {
        Ok(self.host.boot_id())
    }

    fn leftovers(&self) -> Result<Leftovers> {
        let mut found = Leftovers::below(&self.dirs)?;
        found.machines.extend(self.host.machines().keys().cloned());
        Ok(found)
    }

    fn survey(&self) -> Result<Survey> {
        let mut survey = Survey::of_places(&self.dirs, self.host.boot_id())?;
        for (uid, being) in self.host.machines().iter() {
            let traces = survey.sandboxes.entry(uid.clone()).or_default();
            // As in the kernel: what has ended is no process any more.
            let pids = [being.facts.sentry.pid, being.facts.gofer.pid].into_iter().filter(|_| being.death().is_none());
            (traces.cgroup, traces.processes) = (true, pids.collect());
        }
        Ok(survey)
    }

    fn end_process(&self, facts: ProcessFacts) -> Work<'_, bool> {
        Box::pin(async move {
            let is_it = |being: &&Arc<Being>| [being.facts.sentry, being.facts.gofer].contains(&facts);
            let found = self.host.machines().values().find(is_it).cloned();
            let found = found.filter(|being| being.death().is_none());
            Ok(found.is_some_and(|being| {
                being.die(Death::Ended);
                true
            }))
        })
    }

    fn leave(&self) -> Result<()> {
        Ok(())
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}

impl Place for Prepared {
    fn open_channel(&self) -> Result<ChannelEnds> {
        ChannelEnds::open(&self.uid, &self.dirs, OomAlarm::default())
    }

    fn raise(self: Box<Self>, life: Life) -> Work<'static, Machine> {
        Box::pin(async move {
            let Prepared { view, uid, dirs } = *self;
            view.session.pass("before a machine is raised").await?;
            let mind = match life {
                Life::Fresh => Mind::default(),
                Life::Restored(files) => {
                    let file = files.descriptors()[0].try_clone_to_owned().map(fs::File::from);
                    let read = file.and_then(|file| {
                        let mut bytes = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(0)];
                        file.read_exact_at(&mut bytes, 0)?;
                        Ok(serde_json::from_slice(&bytes)?)
                    });
                    read.map_err(|e| failed("read an image", e))?
                }
            };
            let being = view.host.give_birth(uid, dirs, mind)?;
            view.session.pass("after a machine is raised").await?;
            Ok(Machine::new(Arc::new(Grip { being, session: view.session })))
        })
    }
}

impl StandIn {
    fn give_birth(&self, uid: Uid, dirs: SandboxDirs, mind: Mind) -> Result<Arc<Being>> {
        let (mind, halted) = (Arc::new(Mutex::new(mind)), watch::Sender::new(false));
        // The agent's ends belong to its own runtime.
        let inside = self.shared.runtime.enter();
        let mut options = pipe::OpenOptions::new();
        options.read_write(true);
        let ear = options.open_receiver(dirs.fifo_in()).map_err(|e| failed("open a channel", e))?;
        let mouth = options.open_sender(dirs.fifo_out()).map_err(|e| failed("open a channel", e))?;
        let agent = self.shared.runtime.spawn(agent::run(ear, mouth, mind.clone(), halted.subscribe()));
        drop(inside);
        let facts = HostFacts { boot_id: self.boot_id(), sentry: self.process(), gofer: self.process() };
        let (agent, death) = (agent.abort_handle(), watch::Sender::new(None));
        let being = Arc::new(Being { uid: uid.clone(), facts, dirs, mind, halted, death, agent });
        self.machines().insert(uid, being.clone());
        Ok(being)
    }
}

fn remove(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove a directory", e)),
        _ => Ok(()),
    }
}
