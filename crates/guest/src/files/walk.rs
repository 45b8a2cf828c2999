//! Walks through a directory: a directory before what is in it, names in byte order, by descriptors and without following
//! a link. It can go on where another walk stopped, whatever has changed since, and holds few names however many there
//! are. Never goes into what is no place for files, such as `/proc`.

use std::collections::{BinaryHeap, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use remuda_guest_proto::AgentError;
use remuda_tree::open_directory;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstatfs, open, statat};
use rustix::io::Errno;

use crate::errors::{failed, reason, shown};
use crate::limits::{PATH_BYTES_MAX, SENTENCES_MAX, WALK_DEPTH_MAX, WALK_NAMES_MAX, WALK_VISITS_MAX};

/// File systems in which nothing is looked for unless they were named: what is in them is made while it is looked at.
/// proc, sysfs, cgroup, cgroup2, devpts.
const NO_PLACES: [u64; 5] = [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270, 0x1cd1];

/// A directory on the way.
struct Level {
    fd: OwnedFd,
    /// Length of its path.
    length: usize,
    /// The next names, in order.
    names: VecDeque<(Vec<u8>, FileType)>,
    /// The last name that was taken; what comes before it is done.
    last: Vec<u8>,
    /// Whether there are more names than these.
    more: bool,
}

/// What was found.
pub struct Found<'a> {
    /// The directory it is in.
    pub at: BorrowedFd<'a>,
    /// Its path below the one that is walked through.
    pub below: &'a [u8],
    /// What it is.
    pub kind: FileType,
}

impl Found<'_> {
    /// Its name.
    pub fn name(&self) -> &[u8] {
        self.below.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

/// A walk.
pub struct Walk {
    base: PathBuf,
    way: Vec<Level>,
    /// The path of what was found last.
    path: Vec<u8>,
    /// A directory that was found last and is to be gone into.
    into: bool,
    visits_left: u64,
    /// What was not looked at.
    pub skipped: Vec<String>,
}

impl Walk {
    /// A walk through a directory, from its beginning or from behind a path below it.
    pub fn begin(base: &Path, after: Option<&[u8]>) -> Result<Walk, AgentError> {
        let cannot = |errno| failed(format!("look through {}", shown(&base.to_string_lossy())), errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = open(base, flags, Mode::empty()).map_err(cannot)?;
        let mut walk = Walk {
            base: base.to_owned(),
            way: Vec::new(),
            path: Vec::new(),
            into: false,
            visits_left: WALK_VISITS_MAX,
            skipped: Vec::new(),
        };
        walk.enter(fd, 0, Vec::new()).map_err(cannot)?;
        if let Some(after) = after {
            walk.go_behind(after);
        }
        Ok(walk)
    }

    /// Whether so much was looked at that the rest is for another call.
    pub fn is_exhausted(&self) -> bool {
        self.visits_left == 0
    }

    /// The path of what was found last: where another walk goes on.
    pub fn place(&self) -> &[u8] {
        &self.path
    }

    /// An absolute path for one below.
    pub fn whole(&self, below: &[u8]) -> PathBuf {
        self.base.join(OsStr::from_bytes(below))
    }

    /// The next one; none at the end, and where the walk is exhausted.
    pub fn next(&mut self) -> Option<Found<'_>> {
        if std::mem::take(&mut self.into) {
            self.descend();
        }
        let kind = loop {
            let level = self.way.last_mut()?;
            if self.visits_left == 0 {
                return None;
            }
            let Some((name, kind)) = level.names.pop_front() else {
                if !level.more {
                    self.way.pop();
                } else if let Err(errno) = level.fill(&mut self.visits_left) {
                    let length = level.length;
                    self.way.pop();
                    self.path.truncate(length);
                    self.skip(errno);
                }
                continue;
            };
            self.visits_left -= 1;
            self.path.truncate(level.length);
            if level.length > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            level.last.clone_from(&name);
            let kind = match kind {
                FileType::Unknown => match statat(&level.fd, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    // It has gone since it was listed.
                    Err(_) => continue,
                },
                kind => kind,
            };
            if self.path.len() > PATH_BYTES_MAX {
                self.skip(Errno::NAMETOOLONG);
                continue;
            }
            break kind;
        };
        self.into = kind == FileType::Directory;
        Some(Found { at: self.way.last()?.fd.as_fd(), below: &self.path, kind })
    }

    /// Notes that what was found last could not be looked at.
    pub fn skip(&mut self, errno: Errno) {
        // It was there a moment ago, and nothing of it is missed.
        if errno == Errno::NOENT {
            return;
        }
        self.skip_for(&reason(errno));
    }

    fn skip_for(&mut self, why: &str) {
        if self.skipped.len() < SENTENCES_MAX {
            let path = self.whole(&self.path);
            self.skipped.push(format!("{}: {why}", shown(&path.to_string_lossy())));
        }
    }

    /// Goes into the directory that was found last.
    fn descend(&mut self) {
        let Some(level) = self.way.last() else { return };
        let name = self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        match open_directory(level.fd.as_fd(), name) {
            // It became something else.
            Err(Errno::NOTDIR) => {}
            Err(errno) => self.skip(errno),
            Ok(fd) if fstatfs(&fd).is_ok_and(|fs| NO_PLACES.contains(&(fs.f_type as u64))) => {
                self.skip_for("it is no place for files");
            }
            Ok(_) if self.way.len() >= WALK_DEPTH_MAX => self.skip_for("it lies too deep"),
            Ok(fd) => {
                if let Err(errno) = self.enter(fd, self.path.len(), Vec::new()) {
                    self.skip(errno);
                }
            }
        }
    }

    /// Takes a directory as the next on the way, with its first names behind `last`.
    fn enter(&mut self, fd: OwnedFd, length: usize, last: Vec<u8>) -> Result<(), Errno> {
        let mut level = Level { fd, length, names: VecDeque::new(), last, more: false };
        level.fill(&mut self.visits_left)?;
        self.way.push(level);
        Ok(())
    }

    /// Goes to what comes behind a path: down to it as far as it is there, and past what comes before.
    fn go_behind(&mut self, after: &[u8]) {
        let parts: Vec<&[u8]> = after.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
        for (at, part) in parts.iter().enumerate() {
            let Some(level) = self.way.last_mut() else { return };
            level.last = part.to_vec();
            let Ok(()) = level.fill(&mut self.visits_left) else { return };
            let (length, below) = (level.length, level.fd.as_fd());
            self.path.truncate(length);
            if length > 0 {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(part);
            // What it ends in was found itself, and if it is a directory nothing of what is in it.
            let is_way = !matches!(*part, b"." | b"..") && at < WALK_DEPTH_MAX;
            let Some(fd) = is_way.then(|| open_directory(below, part).ok()).flatten() else { return };
            if fstatfs(&fd).is_ok_and(|fs| NO_PLACES.contains(&(fs.f_type as u64))) {
                return;
            }
            if self.enter(fd, self.path.len(), Vec::new()).is_err() {
                return;
            }
        }
    }
}

impl Level {
    /// Reads the first names behind the last one that was taken.
    fn fill(&mut self, visits_left: &mut u64) -> Result<(), Errno> {
        // The greatest on top, which goes when there are too many.
        let mut first: BinaryHeap<(Vec<u8>, u8)> = BinaryHeap::new();
        self.more = false;
        for found in Dir::read_from(&self.fd)? {
            let found = found?;
            let name = found.file_name().to_bytes();
            if matches!(name, b"." | b"..") || name <= self.last.as_slice() {
                continue;
            }
            first.push((name.to_vec(), number(found.file_type())));
            if first.len() > WALK_NAMES_MAX {
                first.pop();
                self.more = true;
                // Names that are read again and again count, lest a vast directory take for ever.
                *visits_left = visits_left.saturating_sub(1);
            }
        }
        self.names = first.into_sorted_vec().into_iter().map(|(name, kind)| (name, kind_of(kind))).collect();
        Ok(())
    }
}

// What a heap can hold.
fn number(kind: FileType) -> u8 {
    match kind {
        FileType::RegularFile => 1,
        FileType::Directory => 2,
        FileType::Symlink => 3,
        FileType::Unknown => 0,
        _ => 4,
    }
}

fn kind_of(number: u8) -> FileType {
    match number {
        1 => FileType::RegularFile,
        2 => FileType::Directory,
        3 => FileType::Symlink,
        0 => FileType::Unknown,
        _ => FileType::Fifo,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn all(walk: &mut Walk) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(one) = walk.next() {
            found.push(String::from_utf8(one.below.to_vec()).unwrap());
        }
        found
    }

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
        fs::create_dir_all(dir.path().join("a.d")).unwrap();
        for file in ["a/b/c/one", "a/b/two", "a/z", "a.d/three", "b"] {
            fs::write(dir.path().join(file), file).unwrap();
        }
        symlink("..", dir.path().join("a/up")).unwrap();
        symlink("a", dir.path().join("link")).unwrap();
        dir
    }

    #[test]
    fn a_walk_goes_on_behind_every_place_and_follows_no_link() {
        let dir = tree();
        let whole = all(&mut Walk::begin(dir.path(), None).unwrap());
        let expected = ["a", "a/b", "a/b/c", "a/b/c/one", "a/b/two", "a/up", "a/z", "a.d", "a.d/three", "b", "link"];
        assert_eq!(whole, expected);
        for at in 0..whole.len() {
            let mut walk = Walk::begin(dir.path(), Some(whole[at].as_bytes())).unwrap();
            assert_eq!(all(&mut walk), whole[at + 1..], "behind {}", whole[at]);
        }
        // Also where what it stopped at has gone, or never was.
        fs::remove_dir_all(dir.path().join("a/b")).unwrap();
        let mut walk = Walk::begin(dir.path(), Some(b"a/b/c")).unwrap();
        assert_eq!(all(&mut walk), ["a/up", "a/z", "a.d", "a.d/three", "b", "link"]);
        for odd in [b"../..".as_slice(), b"a/../..", b"/", b"", b"zzz/..", b"a/up/a/b"] {
            let found = all(&mut Walk::begin(dir.path(), Some(odd)).unwrap());
            assert!(found.iter().all(|one| !one.contains("..")), "{found:?}");
        }
    }

    #[test]
    fn more_names_than_are_held_come_all_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..WALK_NAMES_MAX + 700).map(|number| format!("{number:06}")).collect();
        for name in &names {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(all(&mut Walk::begin(dir.path(), None).unwrap()), names);
    }

    #[test]
    fn proc_is_gone_into_only_where_it_was_named() {
        let named = Walk::begin(Path::new("/proc/self"), None).unwrap().next().is_some();
        assert!(named);
        let mut walk = Walk::begin(Path::new("/"), Some(b"pro")).unwrap();
        let found = walk.next().map(|found| found.below.to_vec());
        assert_eq!(found.as_deref(), Some(b"proc".as_slice()));
        let next = walk.next().map(|found| found.below.to_vec()).unwrap();
        assert!(!next.starts_with(b"proc/"), "{next:?}");
        assert_eq!(walk.skipped, ["/proc: it is no place for files"]);
    }
}
