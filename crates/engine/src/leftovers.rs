//! What lies on a data directory, found by its places alone, so that what no record owns can be removed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use remuda_types::{SnapshotId, Uid};

use crate::dirs::Dirs;
use crate::error::{Result, Tried};
use crate::machine::remove_tree;

/// Everything that machines and captures have places under.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Machines of which there is anything: a directory, a cgroup, a pinned namespace. [`crate::Engine::tear_down`] removes it.
    pub machines: BTreeSet<Uid>,
    /// Snapshots of which there is a layer or an image, whole or half-made. [`crate::Engine::remove_capture`] removes them.
    pub snapshots: BTreeSet<SnapshotId>,
    /// What has no name that an engine gives.
    pub strangers: Vec<PathBuf>,
}

impl Leftovers {
    /// Looks through the places of a data directory. Machines may be known by more than what lies there.
    pub fn below(dirs: &Dirs) -> Result<Leftovers> {
        let mut found = Leftovers::default();
        for place in [dirs.sandboxes(), dirs.state().to_owned()] {
            for name in names(&place)? {
                match name.parse() {
                    Ok(uid) => drop(found.machines.insert(uid)),
                    Err(_) => found.strangers.push(place.join(name)),
                }
            }
        }
        for place in [dirs.layers(), dirs.memories()] {
            for name in names(&place)? {
                match name.strip_suffix(".tmp").unwrap_or(&name).parse() {
                    Ok(snapshot) => drop(found.snapshots.insert(snapshot)),
                    Err(_) => found.strangers.push(place.join(name)),
                }
            }
        }
        Ok(found)
    }
}

pub(crate) fn remove_stranger(path: &Path) -> std::io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { remove_tree(path) } else { fs::remove_file(path) }
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
