//! How much of the disk a guest's files take. The tree is hostile and changes while it is walked: no link is followed, no
//! path is put together (a deep tree would have none that the kernel takes), and every file counts once.

use std::collections::HashSet;
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

/// Directories within each other that are walked; each holds a descriptor open. What lies deeper counts as too much.
const DEPTH_MAX: usize = 256;

/// What lies below a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DiskUse {
    /// Bytes as stored.
    pub(crate) bytes: u64,
    /// Whether there is more, nested deeper than is walked.
    pub(crate) too_deep: bool,
}

/// Walks a tree. What disappears meanwhile counts nothing. It blocks for as long as the walk takes.
///
/// # Errors
/// When the tree's root can't be read.
pub(crate) fn disk_use(root: &Path) -> io::Result<DiskUse> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(root, flags, Mode::empty())?;
    let mut found = DiskUse::default();
    // Only files with several names need to be told apart.
    let mut seen = HashSet::new();
    let mut open = vec![Level::of(root)?];
    while let Some(level) = open.last_mut() {
        let Some(name) = level.next() else {
            open.pop();
            continue;
        };
        let Ok(stat) = rustix::fs::statat(&level.fd, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if is_directory || stat.st_nlink == 1 || seen.insert((stat.st_dev, stat.st_ino)) {
            // The kernel counts blocks in 512 bytes whatever the file system's are.
            found.bytes = found.bytes.saturating_add(u64::try_from(stat.st_blocks).unwrap_or(0) * 512);
        }
        if !is_directory {
            continue;
        }
        if open.len() >= DEPTH_MAX {
            found.too_deep = true;
            continue;
        }
        let Some(level) = open.last() else { continue };
        // It may be another thing by now: then it is left alone.
        if let Ok(below) = rustix::fs::openat(&level.fd, &name, flags, Mode::empty())
            && let Ok(below) = Level::of(below)
        {
            open.push(below);
        }
    }
    Ok(found)
}

/// A directory that is being read.
struct Level {
    fd: OwnedFd,
    entries: Dir,
}

impl Level {
    fn of(fd: OwnedFd) -> io::Result<Level> {
        let entries = Dir::read_from(&fd)?;
        Ok(Level { fd, entries })
    }

    /// The next name in it; none also where reading breaks off.
    fn next(&mut self) -> Option<CString> {
        loop {
            let entry = self.entries.read()?.ok()?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                return Some(name.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    #[test]
    fn files_count_once_as_they_are_stored_and_links_lead_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("upper");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), vec![1; 300_000]).unwrap();
        for n in 0..20 {
            fs::hard_link(root.join("a/b/file"), root.join(format!("a/link{n}"))).unwrap();
        }
        fs::File::create(root.join("sparse")).unwrap().set_len(1 << 40).unwrap();
        fs::write(directory.path().join("outside"), vec![1; 5_000_000]).unwrap();
        symlink(directory.path(), root.join("out")).unwrap();
        symlink(directory.path().join("outside"), root.join("a/out")).unwrap();
        let found = disk_use(&root).unwrap();
        let stored = fs::metadata(root.join("a/b/file")).unwrap().blocks() * 512;
        assert!((stored..stored + 100_000).contains(&found.bytes), "{found:?}, {stored}");
        assert!(!found.too_deep);
        assert!(disk_use(&root.join("absent")).is_err());
        assert!(disk_use(&root.join("out")).is_err(), "not even the root may be a link");
    }

    #[test]
    fn what_is_nested_too_deep_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let mut at = rustix::fs::open(directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        // Names so long that the whole path is none that the kernel takes.
        let name = "x".repeat(200);
        for depth in 0..DEPTH_MAX {
            rustix::fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, &name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
            assert_eq!(disk_use(directory.path()).unwrap().too_deep, depth + 1 >= DEPTH_MAX, "{depth}");
        }
    }
}
