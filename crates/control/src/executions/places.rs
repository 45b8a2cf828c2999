//! Where logs lie: one directory for each sandbox, by its uid, and one for each snapshot that carried any.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use remuda_types::{SnapshotId, Uid};

/// The places of one server, below its data directory.
#[derive(Debug, Clone)]
pub(crate) struct ExecutionPlaces {
    root: PathBuf,
}

impl ExecutionPlaces {
    /// Below this data directory.
    pub(crate) fn below(data: &Path) -> ExecutionPlaces {
        ExecutionPlaces { root: data.join("executions") }
    }

    /// Where all of them lie.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// A sandbox's. Uids have twenty characters without a hyphen, snapshots' ids have one: neither is the other.
    pub(crate) fn sandbox(&self, uid: &Uid) -> PathBuf {
        self.root.join(uid.as_str())
    }

    /// What a snapshot carries.
    pub(crate) fn snapshot(&self, snapshot: &SnapshotId) -> PathBuf {
        self.root.join(snapshot.as_str())
    }

    /// Removes a sandbox's logs; that there are none is fine. Blocks.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn remove_sandbox(&self, uid: &Uid) -> io::Result<()> {
        remove(&self.sandbox(uid))
    }

    /// Removes the place with this name, which is a uid or a snapshot's id; that there is none is fine. Blocks.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn remove_named(&self, name: &str) -> io::Result<()> {
        remove(&self.root.join(name))
    }

    /// Removes the places of whatever is not named here, by uid or snapshot. Returns how many went. Blocks.
    ///
    /// # Errors
    /// What the file system says about the first that could not be removed; the others were tried.
    pub(crate) fn remove_others(&self, owners: &HashSet<String>) -> io::Result<usize> {
        self.remove_if(|name, _| Ok(!owners.contains(name)))
    }

    /// Likewise, where nothing was written since a moment: what began after `owners` was made is not touched. Blocks.
    ///
    /// # Errors
    /// As for [`ExecutionPlaces::remove_others`].
    pub(crate) fn remove_older(&self, owners: &HashSet<String>, than: SystemTime) -> io::Result<usize> {
        self.remove_if(|name, directory| Ok(!owners.contains(name) && last_written(directory)? < than))
    }

    fn remove_if(&self, which: impl Fn(&str, &Path) -> io::Result<bool>) -> io::Result<usize> {
        let entries = match std::fs::read_dir(&self.root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
            entries => entries?,
        };
        let (mut removed, mut failed) = (0, None);
        for entry in entries {
            let entry = entry?;
            let directory = entry.path();
            let name = entry.file_name();
            let wanted = which(&name.to_string_lossy(), &directory);
            match wanted.and_then(|wanted| if wanted { remove(&directory).map(|()| 1) } else { Ok(0) }) {
                Ok(one) => removed += one,
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(removed), Err)
    }
}

/// When something in a directory of logs was last written.
fn last_written(directory: &Path) -> io::Result<SystemTime> {
    let mut last = std::fs::metadata(directory)?.modified()?;
    for entry in std::fs::read_dir(directory)? {
        last = last.max(entry?.metadata()?.modified()?);
    }
    Ok(last)
}

/// Removes a directory of logs; that there is none is fine. Blocks.
pub(crate) fn remove(directory: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
