//! A server's data directory: its one owner, its socket, and the hash of its access key.
//! Must never be shared by two servers, nor hold the key itself.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::FlockOperation;

use crate::failure::{Failure, NOT_READY, USAGE};

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

    /// The digest of the only access key, where a server kept it in a file of its own: keys are in the journal now.
    pub fn old_access_key(&self) -> anyhow::Result<Option<String>> {
        let path = self.old_access_key_path();
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| format!("failed to read {}", path.display())),
        }
    }

    /// Removes that file, once the journal has what it said.
    pub fn forget_old_access_key(&self) -> anyhow::Result<()> {
        let path = self.old_access_key_path();
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(e).with_context(|| format!("failed to remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    fn old_access_key_path(&self) -> PathBuf {
        self.path.join("access-key")
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
