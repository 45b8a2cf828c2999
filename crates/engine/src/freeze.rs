//! Freezes an upper directory: copies it, exactly, while its sandbox stands still.
//!
//! Everything in an upper was named and made by a guest, so nothing of it is believed: every step goes from a directory
//! descriptor to one name below it and follows no link, and sizes, depth and the time of copying are bounded. Kept:
//! modes (with setuid), owners, times, links of both kinds, holes, whiteouts and overlayfs's own attributes.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use remuda_types::limits::{FREEZE_COPY_BYTES_MAX, FREEZE_FILE_BYTES_MAX};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RawMode, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::error::{EngineError, Result, Tried};

/// Deepest nesting of directories that is copied; three descriptors are open for each level.
const DEPTH_MAX: usize = 400;
/// Longest list of attribute names, and longest attribute value, in bytes.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Frozen {
    /// Files, links, whiteouts and directories.
    pub entries: u64,
    /// Bytes as stored.
    pub bytes: u64,
}

/// Copies what is in `upper` into `target`, which must not exist yet. On failure the caller removes `target`.
pub fn freeze(upper: &Path, target: &Path) -> Result<Frozen> {
    let trying = || format!("freeze {} into {}", upper.display(), target.display());
    let source = open_directory(CWD, &c_path(upper).tried(trying)?).tried(trying)?;
    let name = c_path(target).tried(trying)?;
    rustix::fs::mkdirat(CWD, &name, Mode::from_raw_mode(0o700)).tried(trying)?;
    let copy_root = open_directory(CWD, &name).tried(trying)?;
    let root = copy_root.try_clone().tried(trying)?;
    let mut copy = Copy { done: Frozen::default(), links: HashMap::new(), root };
    copy.tree(source, copy_root)?;
    Ok(copy.done)
}

struct Copy {
    done: Frozen,
    /// Where the first name of an inode with several went, below `root`.
    links: HashMap<(u64, u64), CString>,
    root: OwnedFd,
}

/// A directory that is being copied.
struct Level {
    from: OwnedFd,
    to: OwnedFd,
    entries: Dir,
    /// Its path below the root, for messages and hard links.
    place: Vec<u8>,
}

impl Level {
    fn enter(from: OwnedFd, to: OwnedFd, place: Vec<u8>) -> Result<Level> {
        let entries = Dir::read_from(&from).tried(|| format!("list the directory {}", shown(&place)))?;
        Ok(Level { from, to, entries, place })
    }

    /// Gives the copy the directory's own properties.
    fn finish(&self) -> Result<()> {
        let copying = || -> io::Result<()> {
            let stat = rustix::fs::fstat(&self.from)?;
            copy_xattrs(self.from.as_fd(), self.to.as_fd())?;
            rustix::fs::fchown(&self.to, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
            rustix::fs::fchmod(&self.to, mode(&stat))?;
            Ok(rustix::fs::futimens(&self.to, &times(&stat))?)
        };
        copying().tried(|| format!("copy the properties of {}", shown(&self.place)))
    }
}

impl Copy {
    /// Walks the tree with a stack of its own, not the thread's: a guest decides how deep it is. A directory's own
    /// properties come after its entries, since making those changes its times.
    fn tree(&mut self, from: OwnedFd, to: OwnedFd) -> Result<()> {
        let mut levels = vec![Level::enter(from, to, Vec::new())?];
        while let Some(level) = levels.last_mut() {
            let Some(entry) = level.entries.next() else {
                level.finish()?;
                levels.pop();
                continue;
            };
            let entry = entry.tried(|| format!("list the directory {}", shown(&level.place)))?;
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            let place = [&level.place, &b"/"[..], entry.file_name().to_bytes()].concat();
            if let Some(below) = self.entry(level, entry.file_name(), place)? {
                levels.push(below);
                if levels.len() > DEPTH_MAX {
                    return Err(EngineError::TooLarge {
                        limit: "freeze_depth_max",
                        limit_bytes: DEPTH_MAX as u64,
                        what: "its directories are nested too deeply".into(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Copies one entry; of a directory, returns the level below.
    fn entry(&mut self, level: &Level, name: &CStr, place: Vec<u8>) -> Result<Option<Level>> {
        let (from, to) = (level.from.as_fd(), level.to.as_fd());
        let trying = || format!("copy {}", shown(&place));
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW).tried(trying)?;
        let kind = FileType::from_raw_mode(stat.st_mode as RawMode);
        self.count(&stat, &place)?;
        if kind == FileType::Directory {
            rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o700)).tried(trying)?;
            let below = (open_directory(from, name).tried(trying)?, open_directory(to, name).tried(trying)?);
            return Level::enter(below.0, below.1, place).map(Some);
        }
        if stat.st_nlink > 1 {
            let inode = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.links.get(&inode) {
                rustix::fs::linkat(&self.root, first.as_c_str(), to, name, AtFlags::empty()).tried(trying)?;
                return Ok(None);
            }
            let first = CString::new(place.strip_prefix(b"/").unwrap_or(&place)).map_err(io::Error::from);
            self.links.insert(inode, first.tried(trying)?);
        }
        match kind {
            FileType::RegularFile => {
                copy_file(from, to, name, &stat).tried(trying)?;
                return Ok(None);
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new()).tried(trying)?;
                rustix::fs::symlinkat(&target, to, name).tried(trying)?;
            }
            // A whiteout: how overlayfs says that a lower name is gone.
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                rustix::fs::mknodat(to, name, kind, mode(&stat), 0).tried(trying)?;
            }
            // Guests cannot make others: mknod is refused there, and pipes and sockets live in the sentry.
            _ => return Err(Errno::INVAL).tried(|| format!("copy {}, a file of kind {kind:?}", shown(&place))),
        }
        let owner = (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
        rustix::fs::chownat(to, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW).tried(trying)?;
        rustix::fs::utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW).tried(trying)?;
        Ok(None)
    }

    /// Counts an entry against the limits.
    fn count(&mut self, stat: &Stat, place: &[u8]) -> Result<()> {
        self.done.entries += 1;
        // Blocks are of 512 bytes whatever the file system's own are.
        self.done.bytes += stat.st_blocks as u64 * 512;
        if stat.st_size as u64 > FREEZE_FILE_BYTES_MAX {
            return Err(EngineError::TooLarge {
                limit: "freeze_file_bytes_max",
                limit_bytes: FREEZE_FILE_BYTES_MAX,
                what: format!("{} says it is {} bytes long", shown(place), stat.st_size),
            });
        }
        if self.done.bytes > FREEZE_COPY_BYTES_MAX {
            return Err(EngineError::TooLarge {
                limit: "freeze_copy_bytes_max",
                limit_bytes: FREEZE_COPY_BYTES_MAX,
                what: format!("its changed files are larger, {} is where the limit was met", shown(place)),
            });
        }
        Ok(())
    }
}

fn copy_file(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> io::Result<()> {
    let reading = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let source = rustix::fs::openat(from, name, reading, Mode::empty())?;
    let writing = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let copy = rustix::fs::openat(to, name, writing, Mode::from_raw_mode(0o600))?;
    let size = stat.st_size as u64;
    // A file system that can share extents does it whole and at once.
    if size > 0 && rustix::fs::ioctl_ficlone(&copy, &source).is_err() {
        copy_extents(&source, &copy, size)?;
    }
    copy_xattrs(source.as_fd(), copy.as_fd())?;
    rustix::fs::fchown(&copy, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    // After the owner: changing that clears setuid.
    rustix::fs::fchmod(&copy, mode(stat))?;
    rustix::fs::futimens(&copy, &times(stat))?;
    Ok(())
}

/// Copies what is data and leaves holes holes.
fn copy_extents(source: &OwnedFd, copy: &OwnedFd, size: u64) -> io::Result<()> {
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole to the end.
            Err(Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let end = rustix::fs::seek(source, SeekFrom::Hole(start))?;
        let (mut read_at, mut write_at) = (start, start);
        while read_at < end {
            let wanted = usize::try_from(end - read_at).unwrap_or(usize::MAX).min(1 << 30);
            let n = rustix::fs::copy_file_range(source, Some(&mut read_at), copy, Some(&mut write_at), wanted)?;
            if n == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file shrank while it was copied"));
            }
        }
        at = end;
    }
    Ok(rustix::fs::ftruncate(copy, size)?)
}

/// Overlayfs's own attributes and file capabilities; guests can set no others.
fn copy_xattrs(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> io::Result<()> {
    let mut names = vec![0; XATTR_BYTES_MAX];
    let n = match rustix::fs::flistxattr(from, &mut names[..]) {
        Ok(n) => n,
        Err(Errno::NOTSUP) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    for name in names[..n].split(|b| *b == 0).filter(|name| !name.is_empty()) {
        if name.starts_with(b"trusted.overlay.") || name == b"security.capability" {
            let name = CString::new(name)?;
            let mut value = vec![0; XATTR_BYTES_MAX];
            let n = rustix::fs::fgetxattr(from, &name, &mut value[..])?;
            rustix::fs::fsetxattr(to, &name, &value[..n], XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn open_directory(at: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_encoded_bytes())?)
}

fn mode(stat: &Stat) -> Mode {
    Mode::from_raw_mode((stat.st_mode & 0o7777) as RawMode)
}

fn times(stat: &Stat) -> Timestamps {
    let time = |sec: i64, nsec: u64| Timespec { tv_sec: sec, tv_nsec: nsec as _ };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// A guest's path in a message: printable, and of bounded length.
fn shown(place: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(place).escape_debug().take(200).collect();
    if text.is_empty() { "/".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

    #[test]
    fn a_copy_is_equal_in_everything_that_counts() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("upper");
        fs::create_dir_all(upper.join("a/b")).unwrap();
        fs::write(upper.join("a/text"), "hello").unwrap();
        fs::set_permissions(upper.join("a/text"), fs::Permissions::from_mode(0o4755)).unwrap();
        std::os::unix::fs::chown(upper.join("a/b"), Some(1000), Some(1001)).unwrap();
        fs::hard_link(upper.join("a/text"), upper.join("a/b/same")).unwrap();
        symlink("/etc/passwd", upper.join("a/link")).unwrap();
        let sparse = fs::File::create(upper.join("sparse")).unwrap();
        sparse.write_at(b"end", 64 << 20).unwrap();
        let whiteout = c_path(&upper.join("gone")).unwrap();
        rustix::fs::mknodat(CWD, &whiteout, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        let opaque = fs::File::open(upper.join("a/b")).unwrap();
        rustix::fs::fsetxattr(&opaque, c"trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        let odd = upper.join("new\nline \u{1F40E}");
        fs::write(&odd, "").unwrap();

        let copy = dir.path().join("layer");
        let frozen = freeze(&upper, &copy).unwrap();
        assert_eq!(frozen.entries, 8);
        let meta =
            |p: &str| (fs::symlink_metadata(upper.join(p)).unwrap(), fs::symlink_metadata(copy.join(p)).unwrap());
        for path in ["a", "a/b", "a/text", "a/link", "sparse", "gone", "new\nline \u{1F40E}"] {
            let (x, y) = meta(path);
            assert_eq!((x.mode(), x.uid(), x.gid(), x.size()), (y.mode(), y.uid(), y.gid(), y.size()), "{path}");
            assert_eq!((x.mtime(), x.mtime_nsec(), x.rdev()), (y.mtime(), y.mtime_nsec(), y.rdev()), "{path}");
        }
        assert_eq!(meta("a/text").1.ino(), meta("a/b/same").1.ino());
        assert!(meta("sparse").1.blocks() < 100, "the hole was filled");
        assert_eq!(fs::read(copy.join("a/text")).unwrap(), b"hello");
        let copied = fs::File::open(copy.join("a/b")).unwrap();
        let mut value = [0; 8];
        assert_eq!(rustix::fs::fgetxattr(&copied, c"trusted.overlay.opaque", &mut value[..]).unwrap(), 1);
    }

    #[test]
    fn a_link_out_of_the_tree_is_copied_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("upper");
        fs::create_dir(&upper).unwrap();
        symlink("/", upper.join("root")).unwrap();
        let frozen = freeze(&upper, &dir.path().join("layer")).unwrap();
        assert_eq!(frozen.entries, 1);
    }

    #[test]
    fn a_file_that_says_it_is_huge_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("upper");
        fs::create_dir(&upper).unwrap();
        fs::File::create(upper.join("huge")).unwrap().set_len(FREEZE_FILE_BYTES_MAX + 1).unwrap();
        let error = freeze(&upper, &dir.path().join("layer")).unwrap_err();
        assert!(matches!(error, EngineError::TooLarge { limit: "freeze_file_bytes_max", .. }), "{error}");
    }

    #[test]
    fn endless_nesting_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("upper");
        let mut deep = upper.clone();
        for _ in 0..DEPTH_MAX + 2 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        let error = freeze(&upper, &dir.path().join("layer")).unwrap_err();
        assert!(matches!(error, EngineError::TooLarge { limit: "freeze_depth_max", .. }), "{error}");
    }
}
