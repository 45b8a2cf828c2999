//! One cgroup a sandbox: its limits, and how it died of them.
//!
//! The server makes and removes them itself and tells runsc to ignore cgroups: one way for all versions of runsc, and
//! the counters can be read before the group goes.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{EventfdFlags, eventfd};

use crate::alarm::OomAlarm;
use crate::error::{EngineError, Result, Tried};

/// Host threads and processes of one sandbox. The sentry alone has about 20 threads; reaching the limit kills the
/// sandbox, so guests are limited by `RLIMIT_NPROC` and this is only the net below.
const HOST_TASKS_MAX: u32 = 8192;
/// What the sentry and gofer need beside the guest's own memory, in bytes.
const ENGINE_OVERHEAD_BYTES: u64 = 96 << 20;
/// Scheduling period of the processor limit, in microseconds.
const CPU_PERIOD_US: u32 = 100_000;

/// Share of a contended processor that goes with each processor of a sandbox: as much as one plain process of the host
/// has. All sandboxes together have as much as one such process for each processor of the host, so that they are not
/// starved by a single busy process and do not starve the server.
const SHARES_PER_CPU: u64 = 1024;
/// The same in the units of version 2, and the most that it takes.
const WEIGHT_PER_CPU: u64 = 100;
const WEIGHT_MAX: u64 = 10_000;

/// Processors of the host.
fn host_cpus() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

/// How this machine's control groups are mounted.
#[derive(Debug, Clone)]
enum Hierarchy {
    /// One tree a controller.
    V1 { memory: PathBuf, cpu: PathBuf, pids: PathBuf },
    /// One tree for all.
    V2 { root: PathBuf },
}

/// Where a server's groups lie.
#[derive(Debug, Clone)]
pub struct CgroupRoot {
    hierarchy: Hierarchy,
    name: String,
}

/// What a sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Guest memory, in bytes.
    pub memory_bytes: u64,
    /// Processors.
    pub cpus: u32,
}

/// The group of one sandbox.
#[derive(Debug)]
pub struct Cgroup {
    /// One directory for each v1 controller, or the one of v2.
    dirs: Vec<PathBuf>,
    version: u8,
}

impl CgroupRoot {
    /// Finds the hierarchy; `instance` is this server's name in it.
    pub fn find(instance: &str) -> Result<CgroupRoot> {
        let mounts = fs::read_to_string("/proc/self/mounts").tried(|| "read /proc/self/mounts".into())?;
        let hierarchy =
            hierarchy(&mounts, |root| fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default())
                .ok_or_else(|| {
                    EngineError::NotReady {
            what: "no cgroup controllers for memory, cpu and pids are mounted (neither version 1 nor 2); mount them, \
                   as with: mount -t cgroup2 none /sys/fs/cgroup"
                .into(),
        }
                })?;
        Ok(CgroupRoot { hierarchy, name: format!("remuda-{instance}") })
    }

    fn roots(&self) -> Vec<PathBuf> {
        match &self.hierarchy {
            Hierarchy::V1 { memory, cpu, pids } => {
                let mut roots = vec![memory.join(&self.name), cpu.join(&self.name), pids.join(&self.name)];
                // Controllers may be mounted together.
                roots.dedup();
                roots
            }
            Hierarchy::V2 { root } => vec![root.join(&self.name)],
        }
    }

    /// Makes a sandbox's group with its limits.
    pub fn make(&self, uid: &str, limits: Limits) -> Result<Cgroup> {
        let dirs: Vec<PathBuf> = self.roots().iter().map(|r| r.join(uid)).collect();
        for dir in &dirs {
            fs::create_dir_all(dir).tried(|| format!("make the cgroup {}", dir.display()))?;
        }
        let set = |file: PathBuf, value: String| {
            fs::write(&file, &value).tried(|| format!("set {} to {value}", file.display()))
        };
        let memory = limits.memory_bytes + ENGINE_OVERHEAD_BYTES;
        let quota = u64::from(limits.cpus) * u64::from(CPU_PERIOD_US);
        let version = match &self.hierarchy {
            Hierarchy::V1 { memory: m, cpu, pids } => {
                let at = |mount: &Path, file: &str| mount.join(&self.name).join(uid).join(file);
                set(at(m, "memory.limit_in_bytes"), memory.to_string())?;
                set(at(cpu, "cpu.cfs_period_us"), CPU_PERIOD_US.to_string())?;
                set(at(cpu, "cpu.cfs_quota_us"), quota.to_string())?;
                set(at(cpu, "cpu.shares"), (SHARES_PER_CPU * u64::from(limits.cpus)).to_string())?;
                set(cpu.join(&self.name).join("cpu.shares"), (SHARES_PER_CPU * host_cpus()).to_string())?;
                set(at(pids, "pids.max"), HOST_TASKS_MAX.to_string())?;
                1
            }
            Hierarchy::V2 { root } => {
                // A controller must be handed down at each level before it exists below.
                for level in [root.clone(), root.join(&self.name)] {
                    set(level.join("cgroup.subtree_control"), "+memory +cpu +pids".into())?;
                }
                let at = |file: &str| root.join(&self.name).join(uid).join(file);
                set(at("memory.max"), memory.to_string())?;
                set(at("memory.oom.group"), "1".into())?;
                set(at("cpu.max"), format!("{quota} {CPU_PERIOD_US}"))?;
                set(at("cpu.weight"), (WEIGHT_PER_CPU * u64::from(limits.cpus)).min(WEIGHT_MAX).to_string())?;
                let all = root.join(&self.name).join("cpu.weight");
                set(all, (WEIGHT_PER_CPU * host_cpus()).min(WEIGHT_MAX).to_string())?;
                set(at("pids.max"), HOST_TASKS_MAX.to_string())?;
                2
            }
        };
        Ok(Cgroup { dirs, version })
    }

    /// Which version of control groups it is.
    pub fn version(&self) -> u8 {
        if matches!(self.hierarchy, Hierarchy::V1 { .. }) { 1 } else { 2 }
    }

    /// Names of the groups that exist under this server's name.
    pub fn existing(&self) -> Vec<String> {
        let mut names: Vec<String> = self.roots().iter().flat_map(|r| subdirectories(r)).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The group of a sandbox that an earlier server left behind.
    pub fn leftover(&self, uid: &str) -> Cgroup {
        Cgroup { dirs: self.roots().iter().map(|r| r.join(uid)).collect(), version: self.version() }
    }

    /// Removes this server's own level once it is empty.
    pub fn remove(&self) -> Result<()> {
        self.roots().iter().try_for_each(|root| remove_directory(root))
    }
}

impl Cgroup {
    /// Files to which a process with one thread writes `0` to join the group.
    ///
    /// On version 1 these are the ones for single threads: the kernel moves the calling thread without its lock over
    /// all thread groups, which waits for a grace period of some 10 ms each time (measured: 9 ms against 0.5).
    pub fn entrances(&self) -> Result<Vec<File>> {
        let file = if self.version == 1 { "tasks" } else { "cgroup.procs" };
        let open = |dir: &PathBuf| {
            let path = dir.join(file);
            File::options().write(true).open(&path).tried(|| format!("open {}", path.display()))
        };
        self.dirs.iter().map(open).collect()
    }

    /// Processes in the group now.
    pub fn processes(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self
            .dirs
            .iter()
            .filter_map(|d| fs::read_to_string(d.join("cgroup.procs")).ok())
            .flat_map(|text| text.lines().filter_map(|l| l.parse().ok()).collect::<Vec<_>>())
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Bytes of memory that its processes hold. Not counted is the cache of their files, which is as large as memory
    /// allows after much was written and goes when it is needed.
    pub fn memory_bytes(&self) -> u64 {
        let own = if self.version == 1 { "rss" } else { "anon" };
        // The guest's memory is one shared file of the sentry's, and so counts as shmem.
        self.dirs
            .iter()
            .find_map(|d| fs::read_to_string(d.join("memory.stat")).ok())
            .map_or(0, |stat| figure(&stat, own).unwrap_or(0) + figure(&stat, "shmem").unwrap_or(0))
    }

    /// What rings when the kernel is about to kill a process of the group for want of memory.
    ///
    /// Version 2 kills the whole group then (`memory.oom.group`), and nothing needs to ring. Version 1 kills one
    /// process, which may be a single guest process: its sandbox would go on with a hole in it.
    pub(crate) fn oom_alarm(&self) -> Result<OomAlarm> {
        let Some(dir) = self.dirs.iter().find(|_| self.version == 1) else { return Ok(OomAlarm::default()) };
        let ringing = || -> io::Result<OwnedFd> {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let counter = File::open(dir.join("memory.oom_control"))?;
            let wire = format!("{} {}", bell.as_raw_fd(), counter.as_raw_fd());
            fs::write(dir.join("cgroup.event_control"), wire)?;
            Ok(bell)
        };
        let bell = ringing().tried(|| format!("watch {} for want of memory", dir.display()))?;
        OomAlarm::new(bell)
    }

    /// How many of its processes the kernel killed for want of memory. Read it before the group is removed.
    pub fn oom_kills(&self) -> u64 {
        let file = if self.version == 1 { "memory.oom_control" } else { "memory.events" };
        let texts = self.dirs.iter().filter_map(|d| fs::read_to_string(d.join(file)).ok());
        texts.into_iter().find_map(|text| figure(&text, "oom_kill")).unwrap_or(0)
    }

    /// Removes the group; all its processes must have ended.
    pub fn remove(&self) -> Result<()> {
        self.dirs.iter().try_for_each(|dir| remove_directory(dir))
    }
}

/// The figure behind a name in a file of lines such as `shmem 4096`.
fn figure(text: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(value)
}

fn remove_directory(dir: &Path) -> Result<()> {
    match fs::remove_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e).tried(|| format!("remove {}", dir.display())),
        _ => Ok(()),
    }
}

fn subdirectories(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .filter_map(|e| e.ok())
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .filter_map(|e| e.file_name().into_string().ok())
        .collect()
}

/// Version 2 where it has all three controllers, else version 1.
fn hierarchy(mounts: &str, controllers: impl Fn(&Path) -> String) -> Option<Hierarchy> {
    let rows = || mounts.lines().map(|l| l.split_ascii_whitespace().collect::<Vec<_>>()).filter(|f| f.len() >= 4);
    let has = |list: &str, sep: char, name: &str| list.split(sep).any(|w| w.trim() == name);
    let v2 = rows().filter(|f| f[2] == "cgroup2").map(|f| PathBuf::from(f[1])).find(|root| {
        let list = controllers(root);
        ["memory", "cpu", "pids"].iter().all(|name| list.split_ascii_whitespace().any(|w| w == *name))
    });
    if let Some(root) = v2 {
        return Some(Hierarchy::V2 { root });
    }
    let v1 = |name: &str| rows().find(|f| f[2] == "cgroup" && has(f[3], ',', name)).map(|f| PathBuf::from(f[1]));
    Some(Hierarchy::V1 { memory: v1("memory")?, cpu: v1("cpu")?, pids: v1("pids")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "cgroup /c/cpu cgroup rw,relatime,cpu 0 0\ncgroup /c/cpuacct cgroup rw,cpuacct 0 0\n\
                      cgroup /c/memory cgroup rw,memory 0 0\ncgroup /c/pids cgroup rw,pids 0 0\n";

    #[test]
    fn version_1_is_found_by_its_mount_options() {
        match hierarchy(V1, |_| String::new()) {
            Some(Hierarchy::V1 { memory, cpu, pids }) => {
                assert_eq!((memory, cpu, pids), ("/c/memory".into(), "/c/cpu".into(), "/c/pids".into()));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_figure_is_found_by_its_whole_name() {
        let stat = "cache 7\nrss 5\nrss_huge 9\nshmem 3\n";
        assert_eq!((figure(stat, "rss"), figure(stat, "shmem"), figure(stat, "rss_")), (Some(5), Some(3), None));
    }

    #[test]
    fn version_2_without_controllers_is_passed_over() {
        let both = format!("none /u cgroup2 rw 0 0\n{V1}");
        assert!(matches!(hierarchy(&both, |_| "hugetlb".into()), Some(Hierarchy::V1 { .. })));
        assert!(matches!(hierarchy(&both, |_| "cpu io memory pids".into()), Some(Hierarchy::V2 { .. })));
        assert!(hierarchy("none /u cgroup2 rw 0 0\n", |_| String::new()).is_none());
    }
}
