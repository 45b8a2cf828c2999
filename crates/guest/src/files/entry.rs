//! What a path is, as the host is told. Never follows a link at the path's end.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use remuda_guest_proto::{AgentError, Entry, EntryKind};

use super::named;
use crate::errors::failed_io;

/// Looks at a path.
pub fn of(path: &Path) -> Result<Entry, AgentError> {
    let meta = fs::symlink_metadata(path).map_err(|error| failed_io(format!("look at {}", named(path)), &error))?;
    Ok(from(path, &meta))
}

/// Describes a path that was looked at.
pub fn from(path: &Path, meta: &Metadata) -> Entry {
    let kind = match meta.file_type() {
        kind if kind.is_file() => EntryKind::File,
        kind if kind.is_dir() => EntryKind::Directory,
        kind if kind.is_symlink() => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let target = match kind {
        EntryKind::Symlink => fs::read_link(path).ok().map(|target| target.to_string_lossy().into_owned()),
        _ => None,
    };
    Entry {
        path: path.to_string_lossy().into_owned(),
        kind,
        size: meta.size(),
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        modified_ms: meta.mtime().saturating_mul(1000).saturating_add(meta.mtime_nsec() / 1_000_000),
        target,
        digest: None,
    }
}
