//! Machines as sandboxes of gVisor: prepares places for them and takes them apart.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use remuda_types::Uid;

use crate::cgroup::{Cgroup, CgroupRoot};
use crate::dialer::Dialer;
use crate::dirs::{Dirs, SandboxDirs};
use crate::error::{EngineError, Result, Tried};
use crate::freeze::{self, Frozen};
use crate::machine::{CapturePlaces, MachineSpec, discard, remove_tree};
use crate::network::egress::{Egress, HostSide, Own};
use crate::network::{NetworkBuilder, Wanted};
use crate::parts::Parts;
use crate::process::HostProcess;
use crate::rootfs;
use crate::site::{ChannelEnds, GvisorSite};

/// Rounds of killing what is found in a cgroup before giving up; each waits for the ends of what it killed.
const KILL_ROUNDS_MAX: u32 = 20;

/// What runs machines as sandboxes of gVisor. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Gvisor {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    parts: Parts,
    pub(crate) dirs: Dirs,
    pub(crate) cgroups: CgroupRoot,
    pub(crate) networks: NetworkBuilder,
    pub(crate) dialer: Dialer,
    /// Why guests have no way out, if they have none.
    pub(crate) no_way_out: Option<String>,
    /// Taken when the server ends for good.
    host_side: Mutex<Option<HostSide>>,
}

/// What was left of a machine, and what became of it. Each fact was looked up after the deed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TornDown {
    /// Bytes of its private files.
    pub bytes_reclaimed: u64,
    /// No process is left in its cgroup.
    pub processes_gone: bool,
    /// Its directories, mounts, pins and cgroup are gone.
    pub files_gone: bool,
}

impl Gvisor {
    /// Opens the engine on a data directory. Must be called within a tokio runtime that has I/O enabled.
    pub(crate) fn open(data_dir: &Path, parts: Parts, egress: std::result::Result<Egress, String>) -> Result<Gvisor> {
        if !rustix::process::geteuid().is_root() {
            return Err(EngineError::NotReady {
                what: "gVisor can restore machines only as root; run this as root (for example with sudo)".into(),
            });
        }
        let dirs = Dirs::open(data_dir)?;
        let cgroups = CgroupRoot::find(&dirs.instance())?;
        let own = Own::of(&dirs.instance());
        let (egress, host_side, no_way_out) = match egress.and_then(|egress| {
            let set_up = HostSide::set_up(&egress, own.clone());
            set_up.map(|side| (egress, side)).map_err(|e| crate::error::chain(&e))
        }) {
            Ok((egress, side)) => (Some(egress), Some(side), None),
            Err(why) => (None, None, Some(why)),
        };
        let (networks, dialer) = (NetworkBuilder::start(egress, own)?, Dialer::start()?);
        let host_side = Mutex::new(host_side);
        Ok(Gvisor { shared: Arc::new(Shared { parts, dirs, cgroups, networks, dialer, no_way_out, host_side }) })
    }

    /// Copies the files of a machine whose processes have ended.
    pub(crate) async fn capture_ended(&self, uid: &Uid, places: CapturePlaces) -> Result<Frozen> {
        // Of a machine that has just ended there may be helpers of its kernel on their way out.
        if !end_processes(&self.shared.cgroups.leftover(uid.as_str())).await? {
            return Err(EngineError::NotReady { what: format!("processes of {uid} still run") });
        }
        let upper = self.shared.dirs.sandbox(uid).upper;
        let copying = tokio::task::spawn_blocking(move || {
            let frozen = freeze::freeze(&upper, &places.layer_tmp).and_then(|frozen| {
                let publishing = std::fs::rename(&places.layer_tmp, &places.layer);
                publishing.tried(|| format!("publish {}", places.layer.display()))?;
                Ok(frozen)
            });
            if frozen.is_err()
                && let Err(e) = discard(&places)
            {
                tracing::warn!("a failed capture left something: {e}");
            }
            frozen
        });
        copying.await.map_err(std::io::Error::other).tried(|| "copy a machine's files".into())?
    }

    /// Prepares the place for a machine: directories, cgroup, namespaces, root, FIFOs. If that fails, and also if what
    /// follows does, [`Gvisor::tear_down`] removes what there is.
    pub(crate) async fn prepare(&self, spec: &MachineSpec) -> Result<GvisorSite> {
        let dirs = self.shared.dirs.sandbox(&spec.uid);
        for dir in dirs.all() {
            crate::dirs::make(&dir)?;
        }
        // The upper's own mode is that of the guest's root directory.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&dirs.upper, open).tried(|| format!("open {} to its guest", dirs.upper.display()))?;
        ChannelEnds::make(&dirs)?;
        let cgroup = self.shared.cgroups.make(spec.uid.as_str(), spec.limits)?;
        let oom = cgroup.oom_alarm()?;
        let (engine, places, layers, parts) = (self.clone(), dirs.clone(), spec.layers.clone(), spec.parts.clone());
        let mounting = tokio::task::spawn_blocking(move || {
            let below = engine.shared.parts.below(&parts).map_err(|what| EngineError::NotReady { what })?;
            rootfs::mount(&engine.shared.dirs, &places, &layers, &below)
        });
        let namespaces = self.shared.networks.make(dirs.net_inner(), dirs.net_outer());
        let (mounted, namespaces) = tokio::join!(mounting, namespaces);
        mounted.map_err(std::io::Error::other).tried(|| "mount a root file system".into())??;
        Ok(GvisorSite {
            uid: spec.uid.clone(),
            dirs,
            runsc: self.shared.parts.runsc.clone(),
            cgroup,
            memory_bytes: spec.limits.memory_bytes,
            oom,
            namespaces: namespaces?,
            networks: self.shared.networks.clone(),
            wanted: Wanted { uid: spec.uid.clone(), egress: spec.internet && self.shared.no_way_out.is_none() },
            dialer: self.shared.dialer.clone(),
        })
    }

    /// Ends and removes whatever exists of a machine: processes first, then mounts, namespaces, cgroup and files. May
    /// be repeated, and needs nothing but the uid.
    pub(crate) async fn tear_down(&self, uid: &Uid) -> Result<TornDown> {
        let cgroup = self.shared.cgroups.leftover(uid.as_str());
        let processes_gone = end_processes(&cgroup).await?;
        self.shared.networks.part(uid.clone()).await?;
        let places = self.shared.dirs.sandbox(uid);
        let removing = tokio::task::spawn_blocking(move || -> Result<(u64, bool)> {
            unmount_all(&places)?;
            let bytes = disk_usage(&places.upper);
            for dir in [&places.state, &places.root] {
                remove_tree(dir).tried(|| format!("remove {}", dir.display()))?;
            }
            Ok((bytes, !places.root.exists() && !places.state.exists()))
        });
        let (bytes_reclaimed, files_gone) =
            removing.await.map_err(std::io::Error::other).tried(|| "remove a machine's files".into())??;
        if processes_gone {
            cgroup.remove()?;
        }
        Ok(TornDown { bytes_reclaimed, processes_gone, files_gone })
    }

    /// Ends whatever runs of a machine and removes everything of it but its private files. May be repeated. Returns
    /// whether no process is left.
    pub(crate) async fn lay_down(&self, uid: &Uid) -> Result<bool> {
        let cgroup = self.shared.cgroups.leftover(uid.as_str());
        let processes_gone = end_processes(&cgroup).await?;
        self.shared.networks.part(uid.clone()).await?;
        let places = self.shared.dirs.sandbox(uid);
        let removing = tokio::task::spawn_blocking(move || -> Result<()> {
            unmount_all(&places)?;
            for dir in places.all().iter().filter(|dir| **dir != places.upper && **dir != places.root) {
                remove_tree(dir).tried(|| format!("remove {}", dir.display()))?;
            }
            Ok(())
        });
        removing.await.map_err(std::io::Error::other).tried(|| "remove a machine's places".into())??;
        if processes_gone {
            cgroup.remove()?;
        }
        Ok(processes_gone)
    }

    /// Makes the private files of one machine, of which nothing may run, those of another one that has none yet. They
    /// are there after a loss of power too when this returns. May be repeated, also after a crash in its middle.
    ///
    /// # Errors
    /// `Busy` when a process of the first machine can't be ended; then nothing was moved.
    pub(crate) async fn hand_over(&self, from: &Uid, to: &Uid) -> Result<()> {
        if !self.lay_down(from).await? {
            let what = format!("the end of the processes of {from}");
            return Err(EngineError::Busy { what, waited: std::time::Duration::ZERO });
        }
        let (old, new) = (self.shared.dirs.sandbox(from), self.shared.dirs.sandbox(to));
        let all = self.shared.dirs.sandboxes();
        let moving = tokio::task::spawn_blocking(move || -> Result<()> {
            crate::dirs::make(&new.root)?;
            match fs::rename(&old.upper, &new.upper) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && new.upper.exists() => {}
                moved => moved.tried(|| format!("move {} to {}", old.upper.display(), new.upper.display()))?,
            }
            for dir in [&new.root, &old.root, &all] {
                let flushed = match fs::File::open(dir) {
                    Ok(dir) => dir.sync_all(),
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
                    Err(e) => Err(e),
                };
                flushed.tried(|| format!("flush {}", dir.display()))?;
            }
            Ok(())
        });
        moving.await.map_err(std::io::Error::other).tried(|| "hand over a machine's files".into())?
    }

    /// Takes back what was set up on the host for whatever runs, if nothing does.
    pub(crate) fn leave(&self) -> Result<()> {
        let side = self.shared.host_side.lock().unwrap_or_else(PoisonError::into_inner).take();
        side.map_or(Ok(()), HostSide::take_back)
    }

    /// Removes what belongs to this server as a whole, once no machine is left.
    pub(crate) fn close(&self) -> Result<()> {
        let side = self.shared.host_side.lock().unwrap_or_else(PoisonError::into_inner).take();
        side.map_or(Ok(()), HostSide::take_back)?;
        self.shared.cgroups.remove()?;
        self.leave()?;
        let state = self.shared.dirs.state();
        remove_tree(state).tried(|| format!("remove {}", state.display()))
    }

    /// Removes a layer or memory image and tells how many bytes that freed.
    pub(crate) async fn remove_directory(&self, path: PathBuf) -> Result<u64> {
        let removing = tokio::task::spawn_blocking(move || {
            let bytes = disk_usage(&path);
            remove_tree(&path).tried(|| format!("remove {}", path.display()))?;
            Ok(bytes)
        });
        removing.await.map_err(std::io::Error::other).tried(|| "remove a directory".into())?
    }
}

/// Takes off whatever is mounted in a machine's places.
fn unmount_all(places: &SandboxDirs) -> Result<()> {
    [&places.mount, &places.net_inner(), &places.net_outer()].into_iter().try_for_each(|place| rootfs::unmount(place))
}

/// Kills whatever is in a cgroup, also what enters it meanwhile, and tells whether nothing is left there.
pub(crate) async fn end_processes(cgroup: &Cgroup) -> Result<bool> {
    for _ in 0..KILL_ROUNDS_MAX {
        let pids = cgroup.processes();
        if pids.is_empty() {
            return Ok(true);
        }
        for pid in pids {
            // Held first and looked up again second: a pid that was reused in between is not in the group.
            let Ok(process) = HostProcess::open(pid) else { continue };
            if cgroup.processes().contains(&pid) {
                process.kill()?;
                process.ended().await;
            }
        }
    }
    Ok(false)
}

/// Bytes as stored below `path`, without following links; what cannot be read counts nothing.
pub fn disk_usage(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    let mut directories = vec![path.to_owned()];
    while let Some(dir) = directories.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for entry in entries.filter_map(|e| e.ok()) {
            let Ok(meta) = entry.metadata() else { continue };
            bytes += meta.blocks() * 512;
            if meta.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    bytes
}
