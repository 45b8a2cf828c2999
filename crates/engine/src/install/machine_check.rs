//! Checks whether this machine can run sandboxes at all: privileges, control groups, file systems, space.
//! Must never change the machine: what a check makes to try something is gone when it returns.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FileType, Mode};
use serde::{Deserialize, Serialize};

use super::cache::Cache;
use super::local_names::local_names;

/// Free space a setup that builds something needs in the cache, in bytes.
pub const CACHE_FREE_BYTES_MIN: u64 = 2 << 30;
/// Free space the data directory needs, in bytes.
pub const DATA_FREE_BYTES_MIN: u64 = 1 << 30;

const OVERLAYFS_MAGIC: i64 = 0x794c_7630;
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Control-group controllers the limits of sandboxes need.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// A short name, such as `cgroups`.
    pub name: String,
    /// Whether it is as it must be.
    pub ok: bool,
    /// A sentence on what was found.
    pub detail: String,
    /// What to do, when it is not.
    pub remedy: Option<String>,
}

impl Check {
    pub(super) fn good(name: &str, detail: impl Into<String>) -> Self {
        Self { name: name.to_owned(), ok: true, detail: detail.into(), remedy: None }
    }

    pub(super) fn bad(name: &str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { name: name.to_owned(), ok: false, detail: detail.into(), remedy: Some(remedy.into()) }
    }
}

/// A tmpfs for runsc's own state: the first of `/run` and `/dev/shm` that is one.
pub fn state_tmpfs() -> Option<PathBuf> {
    ["/run", "/dev/shm"].into_iter().map(PathBuf::from).find(|path| magic(path).is_ok_and(|magic| magic == TMPFS_MAGIC))
}

/// Looks at everything. `builds`: whether something must still be fetched or built, which needs space and tools.
/// Blocks for some tens of milliseconds.
pub fn check_machine(cache: &Cache, data_dir: &Path, builds: bool) -> Vec<Check> {
    let mut checks = vec![root()];
    // Each of the others would fail for that reason, and hide it.
    if !checks[0].ok {
        return checks;
    }
    checks.extend([
        architecture(),
        cgroups("/proc/self/mounts"),
        overlay(data_dir),
        fifos(data_dir),
        tmpfs(),
        space("data space", "data directory", data_dir, DATA_FREE_BYTES_MIN),
        local_names(),
    ]);
    if builds {
        let needed = CACHE_FREE_BYTES_MIN;
        checks.push(space("cache space", "cache", cache.root(), needed));
        checks.push(tools());
    }
    checks
}

fn root() -> Check {
    const NAME: &str = "root";
    if rustix::process::geteuid().is_root() {
        Check::good(NAME, "running as root")
    } else {
        Check::bad(
            NAME,
            "Remuda must run as root: restoring a sandbox and making its network and file systems need it",
            "run the same command with `sudo`",
        )
    }
}

fn architecture() -> Check {
    const NAME: &str = "architecture";
    match std::env::consts::ARCH {
        "x86_64" => Check::good(NAME, "x86_64"),
        other => Check::bad(
            NAME,
            format!("this machine is {other}; the base image and the tests are made for x86_64"),
            "use an x86_64 machine",
        ),
    }
}

fn cgroups(mounts: &str) -> Check {
    const NAME: &str = "cgroups";
    let text = fs::read_to_string(mounts).unwrap_or_default();
    let missing = match controllers(&text) {
        Found::V1(places) => {
            let unusable = places.iter().find_map(|place| try_cgroup(place).err().map(|e| (place, e)));
            return match unusable {
                None => Check::good(NAME, "version 1 with memory, cpu and pids"),
                Some((place, error)) => Check::bad(
                    NAME,
                    format!("no control group can be made in {}: {error}", place.display()),
                    "run on the machine itself, or give the container its own writable control groups",
                ),
            };
        }
        Found::V2(place) => {
            let offered = fs::read_to_string(place.join("cgroup.controllers")).unwrap_or_default();
            let missing: Vec<&str> =
                CONTROLLERS.into_iter().filter(|name| !offered.split_whitespace().any(|each| each == *name)).collect();
            if missing.is_empty() {
                return match try_cgroup(&place) {
                    Ok(()) => Check::good(NAME, "version 2 with memory, cpu and pids"),
                    Err(error) => Check::bad(
                        NAME,
                        format!("no control group can be made in {}: {error}", place.display()),
                        "run on the machine itself, or with `Delegate=yes` under systemd",
                    ),
                };
            }
            missing.join(", ")
        }
        Found::Nothing => CONTROLLERS.join(", "),
    };
    Check::bad(
        NAME,
        format!("these control-group controllers are missing: {missing}; sandboxes would have no limits"),
        "boot with `cgroup_enable=memory`, or mount them: `mount -t cgroup2 none /sys/fs/cgroup`",
    )
}

#[derive(Debug, PartialEq, Eq)]
enum Found {
    /// One mount for each controller, in the order of [`CONTROLLERS`].
    V1(Vec<PathBuf>),
    V2(PathBuf),
    Nothing,
}

/// Finds the controllers in the text of `/proc/self/mounts`. Version 1 goes first: on machines with both, version 2 is
/// mounted without useful controllers.
fn controllers(mounts: &str) -> Found {
    let mount = |wanted: &dyn Fn(&str, &str) -> bool| {
        mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let (place, kind, options) = (words.get(1)?, words.get(2)?, words.get(3)?);
            wanted(kind, options).then(|| PathBuf::from(place))
        })
    };
    let v1: Vec<PathBuf> = CONTROLLERS
        .iter()
        .filter_map(|name| mount(&|kind, options| kind == "cgroup" && options.split(',').any(|each| each == *name)))
        .collect();
    if v1.len() == CONTROLLERS.len() {
        return Found::V1(v1);
    }
    mount(&|kind, _| kind == "cgroup2").map_or(Found::Nothing, Found::V2)
}

fn try_cgroup(place: &Path) -> io::Result<()> {
    // Several checks may run at once, in one process too.
    static MADE: AtomicU64 = AtomicU64::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let dir = place.join(format!("remuda-check-{}-{number}", std::process::id()));
    fs::create_dir(&dir)?;
    fs::remove_dir(&dir)
}

fn overlay(data_dir: &Path) -> Check {
    const NAME: &str = "overlayfs";
    let place = existing(data_dir);
    match magic(&place) {
        Ok(OVERLAYFS_MAGIC) => {
            return Check::bad(
                NAME,
                format!(
                    "the data directory {} is itself on overlayfs, which cannot hold a sandbox's writable layer",
                    data_dir.display()
                ),
                "give a directory on a real file system with `--data-dir`; in a container, mount a volume there",
            );
        }
        Ok(_) => {}
        Err(error) => return unreadable(NAME, &place, &error),
    }
    match try_overlay(&place) {
        Ok(()) => Check::good(NAME, format!("can be mounted on {}", place.display())),
        Err(error) => Check::bad(
            NAME,
            format!("overlayfs cannot be mounted on {}: {error}", place.display()),
            "run `modprobe overlay`; in a container, run with the right to mount (CAP_SYS_ADMIN)",
        ),
    }
}

fn try_overlay(place: &Path) -> io::Result<()> {
    let dir = tempfile::Builder::new().prefix(".remuda-check-").tempdir_in(place)?;
    for name in ["lower", "upper", "work", "merged"] {
        fs::create_dir(dir.path().join(name))?;
    }
    // In a mount namespace of its own, which ends with the command: nothing can stay mounted.
    let output = std::process::Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--", "mount", "-t", "overlay", "overlay", "-o"])
        .arg("lowerdir=lower,upperdir=upper,workdir=work,redirect_dir=nofollow,metacopy=off,index=off")
        .arg("merged")
        .current_dir(dir.path())
        .stdin(std::process::Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(text.lines().next().unwrap_or("mount failed").to_owned()))
}

fn fifos(data_dir: &Path) -> Check {
    const NAME: &str = "fifos";
    let place = existing(data_dir);
    let made = || -> io::Result<()> {
        let dir = tempfile::Builder::new().prefix(".remuda-check-").tempdir_in(&place)?;
        rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        Ok(())
    };
    match made() {
        Ok(()) => Check::good(NAME, format!("can be made on {}", place.display())),
        Err(error) => Check::bad(
            NAME,
            format!("no FIFO can be made on {}: {error}", place.display()),
            "give a directory on a local file system with `--data-dir`",
        ),
    }
}

fn tmpfs() -> Check {
    const NAME: &str = "tmpfs";
    match state_tmpfs() {
        Some(path) => Check::good(NAME, format!("{} holds the engine's state", path.display())),
        None => Check::bad(
            NAME,
            "neither /run nor /dev/shm is a tmpfs; the engine's state must not outlive a boot",
            "run `mount -t tmpfs tmpfs /dev/shm`",
        ),
    }
}

fn space(name: &str, what: &str, dir: &Path, needed_bytes: u64) -> Check {
    let place = existing(dir);
    match rustix::fs::statvfs(&place) {
        Ok(told) => {
            let free_bytes = told.f_bavail.saturating_mul(told.f_frsize);
            let (free, needed) = (mib(free_bytes), mib(needed_bytes));
            if free_bytes >= needed_bytes {
                Check::good(name, format!("{free} MiB free of {needed} needed"))
            } else {
                Check::bad(
                    name,
                    format!("the {what} {} has {free} MiB free; {needed} MiB are needed", dir.display()),
                    format!("free {} MiB on {}", needed - free, place.display()),
                )
            }
        }
        Err(error) => unreadable(name, &place, &error.into()),
    }
}

fn tools() -> Check {
    const NAME: &str = "tools";
    let missing: Vec<&str> = ["apt-get", "dpkg-deb", "npm", "tar", "unshare", "chroot"]
        .into_iter()
        .filter(|tool| find_tool(tool).is_none())
        .collect();
    if missing.is_empty() {
        return Check::good(NAME, "apt, dpkg, npm, tar, unshare and chroot are there");
    }
    Check::bad(
        NAME,
        format!("these programs are missing: {}", missing.join(", ")),
        "run `apt-get install apt dpkg npm tar util-linux coreutils`; on systems other than Debian's family, build \
         the cache on Debian and copy it",
    )
}

/// Where a program is, root's directories included.
pub(super) fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

/// The directory itself, or its nearest ancestor that exists: that is where it would be made.
fn existing(dir: &Path) -> PathBuf {
    dir.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_owned()
}

fn magic(path: &Path) -> io::Result<i64> {
    Ok(rustix::fs::statfs(path)?.f_type)
}

fn unreadable(name: &str, place: &Path, error: &io::Error) -> Check {
    Check::bad(name, format!("{} cannot be looked at: {error}", place.display()), "choose another directory")
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
        cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";

    #[test]
    fn checks_at_once_do_not_disturb_each_other() {
        let place = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            let all: Vec<_> =
                (0..8).map(|_| scope.spawn(|| (0..50).try_for_each(|_| try_cgroup(place.path())))).collect();
            for each in all {
                each.join().unwrap().unwrap();
            }
        });
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn version_1_goes_before_an_empty_version_2() {
        let Found::V1(places) = controllers(V1) else {
            panic!("not found");
        };
        assert_eq!(places[0], Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(places[1], Path::new("/sys/fs/cgroup/cpu,cpuacct"));
    }

    #[test]
    fn half_of_version_1_is_not_enough() {
        let half: String = V1.lines().skip(1).map(|line| format!("{line}\n")).collect();
        assert_eq!(controllers(&half), Found::V2("/sys/fs/cgroup/unified".into()));
        assert_eq!(controllers("proc /proc proc rw 0 0\n"), Found::Nothing);
    }

    #[test]
    fn missing_controllers_are_named_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let (mounts, v2) = (dir.path().join("mounts"), dir.path().join("v2"));
        fs::create_dir(&v2).unwrap();
        fs::write(v2.join("cgroup.controllers"), "cpu io\n").unwrap();
        fs::write(&mounts, format!("cgroup2 {} cgroup2 rw 0 0\n", v2.display())).unwrap();
        let check = cgroups(mounts.to_str().unwrap());
        assert!(!check.ok && check.remedy.is_some());
        assert!(check.detail.contains("memory, pids") && !check.detail.contains("cpu,"));
    }

    #[test]
    fn too_little_space_is_told_in_figures() {
        let dir = tempfile::tempdir().unwrap();
        let check = space("cache space", "cache", &dir.path().join("not/yet"), u64::MAX);
        assert!(!check.ok && check.detail.contains("MiB free"), "{check:?}");
        assert!(space("cache space", "cache", dir.path(), 1).ok);
    }

    #[test]
    fn the_nearest_existing_ancestor_stands_for_a_directory_to_be() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(existing(&dir.path().join("a/b")), dir.path());
    }
}
