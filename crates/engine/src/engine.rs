//! The engine of one server: builds machines, takes them apart, and clears what an earlier server left behind.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use remuda_types::{SnapshotId, Uid};

use crate::bundle;
use crate::cgroup::CgroupRoot;
use crate::dialer::Dialer;
use crate::dirs::{Dirs, SandboxDirs};
use crate::error::{EngineError, Result, Tried};
use crate::machine::{CapturePlaces, Machine, MachineSpec, remove_tree};
use crate::network::NetworkBuilder;
use crate::parts::Parts;
use crate::process::{HostProcess, become_subreaper};
use crate::rootfs;

/// Rounds of killing what is found in a cgroup before giving up; each waits for the ends of what it killed.
const KILL_ROUNDS_MAX: u32 = 20;
/// How much of runsc's complaint goes into an error, in characters.
const COMPLAINT_CHARS_MAX: usize = 600;

/// The engine. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    parts: Parts,
    dirs: Dirs,
    cgroups: CgroupRoot,
    networks: NetworkBuilder,
    dialer: Dialer,
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

impl Engine {
    /// Opens the engine on a data directory. Must be called within a tokio runtime that has I/O enabled.
    pub fn open(data_dir: &Path, parts: Parts) -> Result<Engine> {
        if !rustix::process::geteuid().is_root() {
            return Err(EngineError::NotReady {
                what: "gVisor can restore machines only as root; run this as root (for example with sudo)".into(),
            });
        }
        become_subreaper()?;
        let dirs = Dirs::open(data_dir)?;
        let cgroups = CgroupRoot::find(&dirs.instance())?;
        let (networks, dialer) = (NetworkBuilder::start()?, Dialer::start()?);
        Ok(Engine { shared: Arc::new(Shared { parts, dirs, cgroups, networks, dialer }) })
    }

    /// The parts that machines are made with.
    pub fn parts(&self) -> &Parts {
        &self.shared.parts
    }

    /// Where things lie.
    pub fn dirs(&self) -> &Dirs {
        &self.shared.dirs
    }

    /// Where a capture of that snapshot goes.
    pub fn capture_places(&self, snapshot: &SnapshotId, with_memory: bool) -> CapturePlaces {
        let tmp = |path: &Path| path.with_extension("tmp");
        let dirs = &self.shared.dirs;
        let (layer, memory) = (dirs.layer(snapshot), dirs.memory(snapshot));
        CapturePlaces {
            layer_tmp: tmp(&layer),
            layer,
            memory: with_memory.then(|| {
                let memory_tmp = tmp(&memory);
                (memory, memory_tmp)
            }),
        }
    }

    /// Builds a machine: namespaces, root, cgroup, `runsc create`. Nothing of the guest runs yet. On failure nothing
    /// of it is left.
    pub async fn build(&self, spec: &MachineSpec) -> Result<Machine> {
        match self.try_build(spec).await {
            Ok(machine) => Ok(machine),
            Err(e) => {
                if let Err(cleanup) = self.tear_down(&spec.uid).await {
                    tracing::error!("failed to clean up after {}, which was not built: {cleanup}", spec.uid);
                }
                Err(e)
            }
        }
    }

    async fn try_build(&self, spec: &MachineSpec) -> Result<Machine> {
        let places = self.shared.dirs.sandbox(&spec.uid);
        for dir in places.all() {
            crate::dirs::make(&dir)?;
        }
        // The upper's own mode is that of the guest's root directory.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&places.upper, open).tried(|| format!("open {} to its guest", places.upper.display()))?;
        let cgroup = self.shared.cgroups.make(spec.uid.as_str(), spec.limits)?;
        let namespaces = self.shared.networks.make(places.net_inner(), places.net_outer()).await?;
        let entrances = cgroup.entrances()?;
        let (engine, dirs, layers) = (self.clone(), places.clone(), spec.layers.clone());
        let uid = spec.uid.clone();
        let created = tokio::task::spawn_blocking(move || {
            let Shared { parts, dirs: all, .. } = &*engine.shared;
            rootfs::mount(all, &dirs, &layers, parts)?;
            create(&parts.runsc, &uid, &dirs, entrances)
        });
        // The interfaces are set up while runsc starts its processes, which takes most of the time.
        let (created, connected) = tokio::join!(created, self.shared.networks.connect(namespaces));
        let pids = created.map_err(std::io::Error::other).tried(|| "build a machine".into())??;
        let (outer, packet_socket) = connected?;
        let (sentry, gofer) = (HostProcess::open(pids.sentry)?, HostProcess::open(pids.gofer)?);
        let dialer = self.shared.dialer.clone();
        let machine = Machine::new(spec.uid.clone(), places, sentry, gofer, cgroup, outer, dialer)?;
        machine.connect_network(packet_socket).await?;
        Ok(machine)
    }

    /// Ends and removes whatever exists of a machine: processes first, then mounts, namespaces, cgroup and files. May
    /// be repeated, and needs nothing but the uid.
    pub async fn tear_down(&self, uid: &Uid) -> Result<TornDown> {
        let cgroup = self.shared.cgroups.leftover(uid.as_str());
        let mut processes_gone = false;
        for _ in 0..KILL_ROUNDS_MAX {
            let pids = cgroup.processes();
            if pids.is_empty() {
                processes_gone = true;
                break;
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
        let places = self.shared.dirs.sandbox(uid);
        let removing = tokio::task::spawn_blocking(move || -> Result<(u64, bool)> {
            rootfs::unmount(&places.mount)?;
            rootfs::unmount(&places.net_inner())?;
            rootfs::unmount(&places.net_outer())?;
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

    /// Removes everything that an earlier server left behind on this data directory: machines, layers and images.
    /// Returns how many machines that were.
    pub async fn sweep(&self) -> Result<usize> {
        let dirs = &self.shared.dirs;
        let mut uids: BTreeSet<String> = self.shared.cgroups.existing().into_iter().collect();
        for place in [dirs.sandboxes(), dirs.state().to_owned()] {
            uids.extend(names(&place)?);
        }
        let uids: Vec<Uid> = uids.iter().filter_map(|name| name.parse().ok()).collect();
        for uid in &uids {
            self.tear_down(uid).await?;
        }
        for place in [dirs.layers(), dirs.memories()] {
            for name in names(&place)? {
                let path = place.join(name);
                remove_tree(&path).tried(|| format!("remove {}", path.display()))?;
            }
        }
        Ok(uids.len())
    }

    /// Removes what belongs to this server as a whole, once no machine is left.
    pub fn close(&self) -> Result<()> {
        self.shared.cgroups.remove()?;
        let state = self.shared.dirs.state();
        remove_tree(state).tried(|| format!("remove {}", state.display()))
    }

    /// Removes a layer or memory image and tells how many bytes that freed.
    pub async fn remove_directory(&self, path: PathBuf) -> Result<u64> {
        let removing = tokio::task::spawn_blocking(move || {
            let bytes = disk_usage(&path);
            remove_tree(&path).tried(|| format!("remove {}", path.display()))?;
            Ok(bytes)
        });
        removing.await.map_err(std::io::Error::other).tried(|| "remove a directory".into())?
    }
}

struct Pids {
    sentry: i32,
    gofer: i32,
}

/// Runs `runsc create` and waits for it; it forks sentry and gofer and ends.
fn create(runsc: &Path, uid: &Uid, dirs: &SandboxDirs, entrances: Vec<fs::File>) -> Result<Pids> {
    let trying = || format!("create the sandbox {uid}");
    let config = bundle::config(&dirs.mount, &dirs.net_inner());
    let text = serde_json::to_vec(&config).map_err(std::io::Error::from).tried(trying)?;
    fs::write(dirs.bundle.join("config.json"), text).tried(trying)?;
    let mut ends = Vec::new();
    for fifo in [dirs.fifo_in(), dirs.fifo_out()] {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).tried(|| format!("make {}", fifo.display()))?;
        ends.push(fs::File::options().read(true).write(true).open(&fifo).tried(trying)?);
    }
    let (out, into) = (ends.pop(), ends.pop());
    let complaints = fs::File::create(dirs.log.join("create.err")).tried(trying)?;
    let pid_file = dirs.state.join("pid");
    let mut command = std::process::Command::new(runsc);
    command
        .arg("--root")
        .arg(dirs.runsc_root())
        .args(["--platform=systrap", "--network=sandbox", "--net-disconnect-ok", "--overlay2=none"])
        .arg("--ignore-cgroups")
        .arg("--log")
        .arg(dirs.log.join("runsc.log"))
        .arg("create")
        .arg("--bundle")
        .arg(&dirs.bundle)
        .arg("--pid-file")
        .arg(&pid_file)
        .arg(uid.as_str())
        .stdin(into.map_or_else(Stdio::null, Stdio::from))
        .stdout(out.map_or_else(Stdio::null, Stdio::from))
        .stderr(complaints)
        .env_clear()
        .current_dir("/");
    // SAFETY: between fork and exec only `write` is called, on descriptors that were opened before.
    unsafe {
        command.pre_exec(move || {
            entrances.iter().try_for_each(|mut entrance| std::io::Write::write_all(&mut entrance, b"0"))
        });
    }
    let status = command.status().tried(|| format!("run {}", runsc.display()))?;
    if !status.success() {
        let read = |name: &str| fs::read_to_string(dirs.log.join(name)).unwrap_or_default();
        let said = format!("{}{}", read("create.err"), read("runsc.log"));
        let start = said.char_indices().rev().nth(COMPLAINT_CHARS_MAX).map_or(0, |(i, _)| i);
        return Err(EngineError::Create { why: format!("{status}: {}", said[start..].trim()) });
    }
    let read = |path: PathBuf| fs::read_to_string(&path).tried(|| format!("read {}", path.display()));
    let bad = |what: &str| EngineError::Create { why: format!("it left no {what}") };
    let sentry = read(pid_file)?.trim().parse().map_err(|_| bad("pid file"))?;
    let state = read(dirs.runsc_root().join(format!("{uid}_sandbox:{uid}.state")))?;
    let gofer = serde_json::from_str::<serde_json::Value>(&state)
        .ok()
        .and_then(|state| i32::try_from(state.get("goferPid")?.as_i64()?).ok())
        .ok_or_else(|| bad("gofer pid in its state file"))?;
    Ok(Pids { sentry, gofer })
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let trying = || format!("list {}", dir.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).tried(trying)? {
        if let Ok(name) = entry.tried(trying)?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
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
