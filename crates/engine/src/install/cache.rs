//! The machine-wide cache: engine binaries, agents and base images, each under its digest.
//! Must never replace or change an entry in place: everything is made beside its place, then renamed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::error::SetupError;
use super::probe::ProbeReport;

/// Name of the file that says what is in use.
const CURRENT: &str = "current.json";
/// Largest `current.json` that is read, in bytes.
const CURRENT_BYTES_MAX: u64 = 1 << 20;

/// A cache directory. Making one touches nothing.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// What kind of entry something is; each kind has its own directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `runsc/<digest>/runsc`
    Runsc,
    /// `agents/<digest>/usr/lib/remuda/agent`
    Agent,
    /// `bases/<digest>/{root,manifest.json}`
    Base,
}

impl Kind {
    fn directory(self) -> &'static str {
        match self {
            Self::Runsc => "runsc",
            Self::Agent => "agents",
            Self::Base => "bases",
        }
    }
}

/// What `current.json` says: the entries in use, and what is known of each runsc.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Current {
    /// The runsc in use.
    pub runsc: Option<Digest>,
    /// The base image in use.
    pub base: Option<Digest>,
    /// Results of the probe, by runsc digest.
    #[serde(default)]
    pub probes: BTreeMap<Digest, ProbeReport>,
}

/// Who excludes whom: a setup takes half a minute, placing an agent must not wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Held by a setup from its first look to its last word.
    Setup,
    /// Held while an agent is placed.
    Agents,
}

impl Lock {
    fn file(self) -> &'static str {
        match self {
            Self::Setup => "setup.lock",
            Self::Agents => "agents.lock",
        }
    }

    fn staging_prefix(self) -> &'static str {
        match self {
            Self::Setup => ".staging-setup-",
            Self::Agents => ".staging-agents-",
        }
    }
}

/// A held lock. It is given to every tool as its standard input, so that it stays held until the last orphan of a
/// killed setup has ended, and nobody sweeps under a program that still writes.
#[derive(Debug)]
pub struct Held {
    file: File,
    lock: Lock,
}

impl Held {
    /// A second descriptor of the same lock.
    pub(super) fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

impl Cache {
    /// Where the cache is unless somebody says otherwise.
    pub const DEFAULT_ROOT: &'static str = "/var/cache/remuda";

    /// The cache at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of one entry, whether it exists or not.
    pub fn entry(&self, kind: Kind, digest: &Digest) -> PathBuf {
        self.root.join(kind.directory()).join(digest.as_str())
    }

    /// The binary of one runsc.
    pub fn runsc(&self, digest: &Digest) -> PathBuf {
        self.entry(Kind::Runsc, digest).join("runsc")
    }

    /// The root directory of one base image: an overlay's lowest directory.
    pub fn base_root(&self, digest: &Digest) -> PathBuf {
        self.entry(Kind::Base, digest).join("root")
    }

    /// The digests that exist of one kind, in order.
    ///
    /// # Errors
    /// When the directory exists and cannot be read.
    pub fn list(&self, kind: Kind) -> Result<Vec<Digest>, SetupError> {
        let dir = self.root.join(kind.directory());
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(SetupError::io("list", &dir)(error)),
        };
        let mut digests = Vec::new();
        for entry in entries {
            let entry = entry.map_err(SetupError::io("list", &dir))?;
            if let Some(digest) = entry.file_name().to_str().and_then(|n| n.parse().ok()) {
                digests.push(digest);
            }
        }
        digests.sort();
        Ok(digests)
    }

    /// Takes a lock, waiting for its holder; makes the cache's directories, and removes what interrupted holders left.
    /// Blocks: call it where blocking is allowed.
    ///
    /// # Errors
    /// When the directories or the lock file cannot be made.
    pub fn lock(&self, lock: Lock) -> Result<Held, SetupError> {
        make_dir(&self.root, 0o755)?;
        make_dir(&self.root.join(Kind::Runsc.directory()), 0o755)?;
        make_dir(&self.root.join(Kind::Agent.directory()), 0o755)?;
        // A base holds setuid programs that nobody updates: no other user of this machine may reach them.
        make_dir(&self.root.join(Kind::Base.directory()), 0o700)?;
        let path = self.root.join(lock.file());
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(SetupError::io("open", &path))?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(SetupError::io("lock", &path)(error.into())),
            }
        }
        let held = Held { file, lock };
        self.sweep(&held)?;
        Ok(held)
    }

    /// Whether somebody holds the lock now.
    pub fn is_locked(&self, lock: Lock) -> bool {
        let Ok(file) = File::open(self.root.join(lock.file())) else {
            return false;
        };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// A fresh directory beside the entries. Dropping it removes it.
    pub(super) fn stage(&self, held: &Held) -> Result<tempfile::TempDir, SetupError> {
        tempfile::Builder::new()
            .prefix(held.lock.staging_prefix())
            // apt downloads as a user of its own, which must be able to pass, not to look around.
            .permissions(fs::Permissions::from_mode(0o711))
            .tempdir_in(&self.root)
            .map_err(SetupError::io("make a directory in", &self.root))
    }

    fn sweep(&self, held: &Held) -> Result<(), SetupError> {
        let entries = fs::read_dir(&self.root).map_err(SetupError::io("list", &self.root))?;
        for entry in entries {
            let entry = entry.map_err(SetupError::io("list", &self.root))?;
            let name = entry.file_name();
            let ours = name.to_str().is_some_and(|name| name.starts_with(held.lock.staging_prefix()));
            if ours {
                let path = entry.path();
                fs::remove_dir_all(&path).map_err(SetupError::io("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Gives a finished directory its name. When the entry exists already, that one stays and `staged` is left to its
    /// owner. Everything is on disk before the name is.
    pub(super) fn publish(&self, staged: &Path, kind: Kind, digest: &Digest) -> Result<PathBuf, SetupError> {
        let place = self.entry(kind, digest);
        if place.exists() {
            return Ok(place);
        }
        let opened = File::open(staged).map_err(SetupError::io("open", staged))?;
        rustix::fs::syncfs(&opened).map_err(|error| SetupError::io("write out", staged)(error.into()))?;
        match rustix::fs::renameat_with(
            rustix::fs::CWD,
            staged,
            rustix::fs::CWD,
            &place,
            rustix::fs::RenameFlags::NOREPLACE,
        ) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => return Ok(place),
            Err(error) => return Err(SetupError::io("publish", &place)(error.into())),
        }
        sync_dir(&self.root.join(kind.directory()))?;
        Ok(place)
    }

    /// What is in use, or `None` before the first setup.
    ///
    /// # Errors
    /// When the file exists and cannot be read or understood.
    pub fn current(&self) -> Result<Option<Current>, SetupError> {
        let path = self.root.join(CURRENT);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(SetupError::io("open", &path)(error)),
        };
        let text =
            io::read_to_string(io::Read::take(file, CURRENT_BYTES_MAX)).map_err(SetupError::io("read", &path))?;
        let current = serde_json::from_str(&text).map_err(|error| SetupError::Wrong {
            what: path.display().to_string(),
            cause: error.to_string(),
            remedy: format!("remove that file and {}", super::error::RUN_SETUP),
        })?;
        Ok(Some(current))
    }

    /// Says what is in use from now on, atomically.
    pub(super) fn set_current(&self, held: &Held, current: &Current) -> Result<(), SetupError> {
        debug_assert_eq!(held.lock, Lock::Setup);
        let path = self.root.join(CURRENT);
        let write = || -> io::Result<()> {
            let mut file = tempfile::Builder::new()
                .prefix(".current-")
                .permissions(fs::Permissions::from_mode(0o644))
                .tempfile_in(&self.root)?;
            serde_json::to_writer_pretty(&mut file, current)?;
            file.write_all(b"\n")?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(SetupError::io("write", &path))?;
        sync_dir(&self.root)
    }
}

fn make_dir(path: &Path, mode: u32) -> Result<(), SetupError> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(SetupError::io("make", path))
}

fn sync_dir(path: &Path) -> Result<(), SetupError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(SetupError::io("write out", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::probe::Capabilities;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// What a setup killed in the middle leaves behind: a staging directory that nobody removed.
    fn abandon(cache: &Cache) -> PathBuf {
        let held = cache.lock(Lock::Setup).unwrap();
        let staged = cache.stage(&held).unwrap().keep();
        fs::create_dir_all(staged.join("base/root/etc")).unwrap();
        fs::write(staged.join("base/root/etc/half"), "half").unwrap();
        staged
    }

    #[test]
    fn an_interrupted_setup_publishes_nothing_and_is_swept_by_the_next() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path());
        let staged = abandon(&cache);
        assert!(staged.exists());
        assert!(cache.list(Kind::Base).unwrap().is_empty());
        assert_eq!(cache.current().unwrap(), None);
        // Another lock's holder must leave it alone.
        drop(cache.lock(Lock::Agents).unwrap());
        assert!(staged.exists());
        drop(cache.lock(Lock::Setup).unwrap());
        assert_eq!(names(root.path()), ["agents", "agents.lock", "bases", "runsc", "setup.lock"]);
    }

    #[test]
    fn a_published_entry_is_never_replaced() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path());
        let held = cache.lock(Lock::Setup).unwrap();
        let digest = Digest::of_bytes(b"entry");
        for content in ["first", "second"] {
            let staging = cache.stage(&held).unwrap();
            let entry = staging.path().join("entry");
            fs::create_dir(&entry).unwrap();
            fs::write(entry.join("runsc"), content).unwrap();
            let place = cache.publish(&entry, Kind::Runsc, &digest).unwrap();
            assert_eq!(place, cache.entry(Kind::Runsc, &digest));
        }
        assert_eq!(fs::read_to_string(cache.runsc(&digest)).unwrap(), "first");
        assert_eq!(cache.list(Kind::Runsc).unwrap(), [digest]);
    }

    #[test]
    fn a_setup_waits_for_the_other_and_for_its_orphans() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path());
        let held = cache.lock(Lock::Setup).unwrap();
        let orphan = held.share().unwrap();
        drop(held);
        assert!(cache.is_locked(Lock::Setup));
        assert!(!cache.is_locked(Lock::Agents));
        std::thread::scope(|scope| {
            let second = scope.spawn(|| cache.lock(Lock::Setup).unwrap());
            drop(orphan);
            second.join().unwrap();
        });
        assert!(!cache.is_locked(Lock::Setup));
    }

    #[test]
    fn what_is_in_use_is_read_back_and_damage_is_told_with_a_remedy() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path());
        let held = cache.lock(Lock::Setup).unwrap();
        let digest = Digest::of_bytes(b"runsc");
        let report = ProbeReport {
            runsc_digest: digest.clone(),
            version: "1".to_owned(),
            go_version: None,
            can: Capabilities::default(),
            checked_at_unix_ms: 7,
        };
        let current = Current { runsc: Some(digest.clone()), base: None, probes: [(digest, report)].into() };
        cache.set_current(&held, &current).unwrap();
        assert_eq!(cache.current().unwrap(), Some(current));
        fs::write(root.path().join(CURRENT), r#"{"runsc":"../../../etc"}"#).unwrap();
        let text = cache.current().unwrap_err().to_string();
        assert!(text.contains(CURRENT) && text.contains("remuda setup"), "{text}");
    }

    #[test]
    fn other_users_cannot_reach_the_setuid_programs_of_a_base() {
        let root = tempfile::tempdir().unwrap();
        let cache = Cache::new(root.path().join("made/too"));
        drop(cache.lock(Lock::Setup).unwrap());
        let bases = fs::metadata(cache.root().join("bases")).unwrap();
        assert_eq!(bases.permissions().mode() & 0o777, 0o700);
    }
}
