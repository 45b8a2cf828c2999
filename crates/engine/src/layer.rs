//! A frozen layer on disk, and how to tell that it is still what was frozen.
//!
//! Overlayfs shows a changed lower file without a word, so layers are held against a digest. As for memory images, a
//! restore compares what the kernel says of the files and reads them only if that differs.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::{EngineError, Result, Tried};
use crate::install::digest_of_guest;

/// What is known of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSeal {
    /// Digest of its contents: names, kinds, modes, owners, data.
    digest: String,
    /// Digest of what the kernel says of each file: inode, size and times.
    witness: String,
}

impl LayerSeal {
    /// Reads a layer once, flushes it to disk, and keeps both digests. Blocks for as long as that takes.
    pub fn of(layer: &Path) -> Result<LayerSeal> {
        let directory = fs::File::open(layer).tried(|| format!("open {}", layer.display()))?;
        rustix::fs::syncfs(&directory).tried(|| format!("flush {}", layer.display()))?;
        Ok(LayerSeal { digest: contents(layer)?, witness: witness(layer)? })
    }

    /// Digest of its contents.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Whether the layer is still what was sealed; read only if the kernel says that something of it was touched.
    pub fn check(&self, layer: &Path) -> Result<()> {
        if witness(layer)? == self.witness {
            return Ok(());
        }
        self.check_whole(layer)
    }

    /// The same, read in any case. Blocks for as long as that takes.
    pub fn check_whole(&self, layer: &Path) -> Result<()> {
        if contents(layer)? == self.digest {
            return Ok(());
        }
        let name = layer.file_name().map_or_else(String::new, |n| n.display().to_string());
        let why = "its digest is not the one that was recorded".into();
        Err(EngineError::Damaged { what: format!("the layer {name}"), why })
    }
}

fn contents(layer: &Path) -> Result<String> {
    let digest = digest_of_guest(layer).tried(|| format!("read the layer {}", layer.display()))?;
    Ok(digest.to_string())
}

/// A walk that opens no file.
fn witness(layer: &Path) -> Result<String> {
    let trying = || format!("look through the layer {}", layer.display());
    let mut hasher = blake3::Hasher::new();
    let mut directories = vec![layer.to_owned()];
    while let Some(directory) = directories.pop() {
        let mut entries =
            fs::read_dir(&directory).and_then(Iterator::collect::<std::io::Result<Vec<_>>>).tried(trying)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let meta = entry.metadata().tried(trying)?;
            hasher.update(entry.file_name().as_bytes());
            let facts =
                [meta.ino(), u64::from(meta.mode()), meta.size(), meta.mtime() as u64, meta.mtime_nsec() as u64];
            for fact in facts.into_iter().chain([meta.ctime() as u64, meta.ctime_nsec() as u64]) {
                hasher.update(&fact.to_le_bytes());
            }
            if meta.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_found_and_a_touched_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/text"), "hello").unwrap();
        let seal = LayerSeal::of(dir.path()).unwrap();
        seal.check(dir.path()).unwrap();
        fs::write(dir.path().join("a/text"), "hello").unwrap();
        seal.check(dir.path()).unwrap();
        fs::write(dir.path().join("a/text"), "hallo").unwrap();
        assert!(matches!(seal.check(dir.path()), Err(EngineError::Damaged { .. })));
    }

    #[test]
    fn an_added_and_a_removed_file_are_found() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("text"), "hello").unwrap();
        let seal = LayerSeal::of(dir.path()).unwrap();
        fs::write(dir.path().join("more"), "").unwrap();
        assert!(seal.check(dir.path()).is_err());
        fs::remove_file(dir.path().join("more")).unwrap();
        seal.check(dir.path()).unwrap();
        fs::remove_file(dir.path().join("text")).unwrap();
        assert!(seal.check(dir.path()).is_err());
    }

    #[test]
    fn a_file_costs_what_it_holds_and_not_what_it_is_long() {
        use std::os::unix::fs::FileExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let file = fs::File::create(&path).unwrap();
        // Read byte by byte this would take longer than anybody waits.
        const LENGTH: u64 = 8 << 40;
        file.set_len(LENGTH).unwrap();
        file.write_at(b"in the middle", LENGTH / 2 + 5).unwrap();
        let seal = LayerSeal::of(dir.path()).unwrap();
        // Zeros that are written are no other content than a hole; its times differ, so that it is read.
        file.write_at(&[0; 100_000], 1 << 30).unwrap();
        seal.check(dir.path()).unwrap();
        file.write_at(b"I", LENGTH / 2 + 5).unwrap();
        assert!(seal.check(dir.path()).is_err());
        file.write_at(b"i", LENGTH / 2 + 5).unwrap();
        seal.check(dir.path()).unwrap();
        file.set_len(LENGTH - 1).unwrap();
        assert!(seal.check(dir.path()).is_err(), "a length is content");
    }
}
