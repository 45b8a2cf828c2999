//! A server's data directory: its one owner, its socket, and the hash of its access key.
//! Must never be shared by two servers, nor hold the key itself.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use remuda_gateway::{AccessKey, KeyHash};
use rustix::fs::FlockOperation;

use crate::failure::{Failure, NEGATIVE, NOT_READY, USAGE};

/// Longest path of a unix socket in bytes, without the final zero (Linux `sun_path`).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Where the server of a data directory listens for local commands.
pub fn socket_of(data_dir: &Path) -> PathBuf {
    data_dir.join("remuda.sock")
}

/// A data directory that this process owns until it is dropped.
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Makes the directory where needed, mode 0700, and takes it.
    pub fn claim(path: &Path) -> anyhow::Result<Self> {
        make_private(path)?;
        let path = path.canonicalize().with_context(|| format!("the data directory {}", path.display()))?;
        if socket_of(&path).as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            let message = format!("the path {} is too long for a unix socket", socket_of(&path).display());
            return Err(Failure::new(USAGE, message).remedy("choose a shorter --data-dir").into());
        }
        let lock = take(&path.join("server.lock"))?.ok_or_else(|| {
            Failure::new(NOT_READY, format!("another server uses the data directory {}", path.display()))
                .remedy("end that server first, or choose another --data-dir")
        })?;
        Ok(DataDir { path, _lock: lock })
    }

    /// The directory itself, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The hash of its access key; on first use a key is made and given away, this once.
    pub fn access_key(&self) -> anyhow::Result<(KeyHash, Option<AccessKey>)> {
        let path = self.path.join("access-key");
        match fs::read_to_string(&path) {
            Ok(text) => {
                let hash = text.trim_end().parse().map_err(|e| {
                    Failure::new(NEGATIVE, format!("{} is damaged", path.display()))
                        .cause(e)
                        .remedy("remove that file; the next start makes a new key and the old one no longer works")
                })?;
                Ok((hash, None))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let key = AccessKey::generate()?;
                let hash = key.hash();
                self.store(&path, &hash.to_string()).with_context(|| format!("failed to write {}", path.display()))?;
                Ok((hash, Some(key)))
            }
            Err(e) => Err(e).with_context(|| format!("failed to read {}", path.display())),
        }
    }

    /// Writes a small private file whole or not at all.
    fn store(&self, path: &Path, text: &str) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.path)?;
        writeln!(file, "{text}")?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(&self.path)?.sync_all()
    }
}

/// Opens a lock file and takes its lock; `None` where somebody holds it.
fn take(path: &Path) -> anyhow::Result<Option<File>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    let file = file.with_context(|| format!("failed to open {}", path.display()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(e).with_context(|| format!("failed to lock {}", path.display())),
    }
}

fn make_private(path: &Path) -> anyhow::Result<()> {
    if let Err(e) = DirBuilder::new().recursive(true).mode(0o700).create(path) {
        let message = format!("the data directory {} can't be made", path.display());
        return Err(Failure::new(NOT_READY, message)
            .cause(e)
            .remedy("run as root, or choose another --data-dir")
            .into());
    }
    let about = || format!("the data directory {}", path.display());
    let metadata = fs::metadata(path).with_context(about)?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        let message = format!("{} belongs to another user", about());
        return Err(Failure::new(NOT_READY, message).remedy("run as root, or choose another --data-dir").into());
    }
    if metadata.mode() & 0o077 == 0 {
        return Ok(());
    }
    // A directory that holds something may be one that others need, such as /tmp: not ours to close.
    if fs::read_dir(path).with_context(about)?.next().is_some() {
        let message = format!("{} is open to others: its mode is {:04o}", about(), metadata.mode() & 0o7777);
        let remedy = format!("if it is Remuda's alone, run `chmod 700 {}`; else choose another", path.display());
        return Err(Failure::new(NOT_READY, message).remedy(remedy).into());
    }
    fs::set_permissions(path, Permissions::from_mode(0o700)).with_context(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn one_owner_at_a_time() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a/data");
        let first = DataDir::claim(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        let refused = DataDir::claim(&path).err().unwrap();
        assert!(refused.to_string().contains("another server uses"), "{refused}");
        drop(first);
        DataDir::claim(&path).unwrap();
    }

    #[test]
    fn the_key_is_made_once_and_only_its_hash_is_kept() {
        let temp = tempfile::tempdir().unwrap();
        let data = DataDir::claim(temp.path()).unwrap();
        let (hash, key) = data.access_key().unwrap();
        let file = temp.path().join("access-key");
        let stored = fs::read_to_string(&file).unwrap();
        assert_eq!(mode(&file), 0o600);
        assert!(!stored.contains(&key.unwrap().reveal()[4..]));
        let (again, none) = data.access_key().unwrap();
        assert!(none.is_none());
        assert_eq!(hash.to_string(), again.to_string());
        fs::write(&file, "nonsense").unwrap();
        assert!(data.access_key().is_err());
    }

    #[test]
    fn a_directory_that_others_use_is_not_closed() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("shared");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        fs::write(path.join("file"), "").unwrap();
        assert!(DataDir::claim(&path).err().unwrap().to_string().contains("open to others"));
        assert_eq!(mode(&path), 0o755);
        fs::remove_file(path.join("file")).unwrap();
        DataDir::claim(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let error = DataDir::claim(&temp.path().join("x".repeat(120))).err().unwrap();
        assert!(error.to_string().contains("too long"), "{error}");
    }
}
