//! What differs between the files of two machines, found by the layers that only one of them stands on: what neither has
//! changed since they parted is not looked at.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, OFlags, RawMode};
use rustix::io::Errno;

use crate::dirs::Dirs;
use crate::error::{Result, Tried};
use crate::view::{Found, View};

/// Paths that are looked at for one comparison.
const LOOKS_MAX: usize = 1_000_000;

/// One side: its layers' directory names, newest first, and what lies below them.
#[derive(Debug, Clone)]
pub struct Side {
    /// Frozen layers, newest first.
    pub layers: Vec<String>,
    /// Agent and base image.
    pub below: (PathBuf, PathBuf),
}

/// What is told of one path on one side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, with set-id and sticky ones.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size of a file, in bytes.
    pub size: u64,
    /// Where a link leads.
    pub target: Option<Vec<u8>>,
}

/// Kinds of what is in a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// Anything else.
    Other,
}

/// A path that is not the same on both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The path, beginning with `/`; a guest's word.
    pub path: Vec<u8>,
    /// What it was; absent where it was not there.
    pub before: Option<Facts>,
    /// What it is; absent where it is not there.
    pub after: Option<Facts>,
    /// Whether the contents of a file differ.
    pub contents: bool,
    /// Contents of both sides, where they were asked for and both are short enough.
    pub texts: Option<(Vec<u8>, Vec<u8>)>,
}

/// How much is told.
#[derive(Debug, Clone, Copy)]
pub struct DiffLimits {
    /// Differences at most.
    pub differences_max: usize,
    /// Largest file whose contents come along, in bytes; 0 for none.
    pub text_bytes_max: u64,
    /// Contents that come along in all, in bytes.
    pub texts_bytes_max: u64,
}

/// All that differs, by path.
#[derive(Debug, Default)]
pub struct Differences {
    /// In the order of their paths' bytes.
    pub found: Vec<Difference>,
    /// Whether a limit was reached and there may be more.
    pub truncated: bool,
}

/// Compares two sides. Blocks for as long as that takes.
pub(crate) fn differences(dirs: &Dirs, before: &Side, after: &Side, limits: DiffLimits) -> Result<Differences> {
    let common = before.layers.iter().rev().zip(after.layers.iter().rev()).take_while(|(a, b)| a == b).count();
    let of = |side: &Side| side.layers[..side.layers.len() - common].to_vec();
    let mut candidates = BTreeSet::new();
    for layer in of(before).iter().chain(&of(after)) {
        candidates_in(&dirs.layers().join(layer), &mut candidates)?;
    }
    let views = (View::of(dirs, &before.layers, &before.below)?, View::of(dirs, &after.layers, &after.below)?);
    let mut comparison =
        Comparison { before: &views.0, after: &views.1, limits, looks: 0, texts_bytes: 0, all: Differences::default() };
    // Those that were compared with all that is in them: what lies below was compared with them.
    let mut with_all: BTreeSet<Vec<u8>> = BTreeSet::new();
    for Candidate { path, whole } in candidates {
        let ways_up = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at]);
        if ways_up.chain([path.as_slice()]).any(|way| with_all.contains(way)) {
            continue;
        }
        if comparison.compare(&path, whole)? {
            with_all.insert(path);
        }
        if comparison.all.truncated {
            break;
        }
    }
    comparison.all.found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(comparison.all)
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    path: Vec<u8>,
    /// Whether all that is below it may differ, since one layer hides what is below.
    whole: bool,
}

/// Every name in a layer: a file, a link, a directory of its own properties, or the mark that one is gone.
fn candidates_in(layer: &Path, into: &mut BTreeSet<Candidate>) -> Result<()> {
    let trying = || format!("look through the layer {}", layer.display());
    let mut directories = vec![(layer.to_owned(), Vec::new())];
    while let Some((directory, place)) = directories.pop() {
        for entry in std::fs::read_dir(&directory).tried(trying)? {
            let entry = entry.tried(trying)?;
            let name = entry.file_name();
            let path = if place.is_empty() {
                name.as_bytes().to_vec()
            } else {
                [&place, b"/".as_slice(), name.as_bytes()].concat()
            };
            let kind = entry.file_type().tried(trying)?;
            if kind.is_dir() {
                let whole = is_opaque(&entry.path()).tried(trying)?;
                into.insert(Candidate { path: path.clone(), whole });
                if !whole {
                    directories.push((entry.path(), path));
                }
            } else {
                // The mark of something that is gone is a device, which a guest can't make.
                debug_assert!(!kind.is_char_device() || entry.metadata().is_ok_and(|meta| meta.rdev() == 0));
                into.insert(Candidate { path, whole: false });
            }
        }
    }
    Ok(())
}

/// Whether overlayfs hides what is below a directory.
pub(crate) fn is_opaque(directory: &Path) -> io::Result<bool> {
    let mut value = [0; 8];
    match rustix::fs::lgetxattr(directory, c"trusted.overlay.opaque", &mut value[..]) {
        Ok(length) => Ok(value[..length] == *b"y"),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

struct Comparison<'a> {
    before: &'a View,
    after: &'a View,
    limits: DiffLimits,
    looks: usize,
    texts_bytes: u64,
    all: Differences,
}

impl Comparison<'_> {
    /// Compares one path, and all below it where it must be. Returns whether it did that.
    fn compare(&mut self, path: &[u8], whole: bool) -> Result<bool> {
        let mut ways = vec![path.to_vec()];
        let mut with_all = false;
        while let Some(path) = ways.pop() {
            self.looks += 1;
            if self.looks > LOOKS_MAX || self.all.found.len() >= self.limits.differences_max {
                self.all.truncated = true;
                return Ok(with_all);
            }
            let (before, after) = (self.before.look(&path)?, self.after.look(&path)?);
            let directory =
                |found: &Option<Found>| found.as_ref().is_some_and(|found| kind(found) == FileKind::Directory);
            // One that is there on one side alone is there with all that is in it.
            let deeper = whole || directory(&before) != directory(&after);
            let children = deeper && (directory(&before) || directory(&after));
            self.one(&path, before, after)?;
            if children {
                with_all = true;
                let mut names = BTreeSet::new();
                for view in [self.before, self.after] {
                    names.extend(list(view, &path)?);
                }
                // The last is taken first.
                ways.extend(names.into_iter().rev().map(|name| [&path, b"/".as_slice(), &name].concat()));
            }
        }
        Ok(with_all)
    }

    fn one(&mut self, path: &[u8], before: Option<Found>, after: Option<Found>) -> Result<()> {
        let trying = || format!("compare {}", String::from_utf8_lossy(path).escape_debug());
        let facts = |found: &Option<Found>| found.as_ref().map(facts).transpose().tried(trying);
        let (was, is) = (facts(&before)?, facts(&after)?);
        let file = |facts: &Option<Facts>| facts.as_ref().is_some_and(|facts| facts.kind == FileKind::File);
        let contents = match (&was, &is) {
            (Some(a), Some(b)) if file(&was) && file(&is) => {
                a.size != b.size || differ(self.before, self.after, path).tried(trying)?
            }
            _ => file(&was) || file(&is),
        };
        if was == is && !contents {
            return Ok(());
        }
        let texts = if contents && self.limits.text_bytes_max > 0 {
            self.texts(path, (&was, file(&was)), (&is, file(&is))).tried(trying)?
        } else {
            None
        };
        let path = [b"/".as_slice(), path].concat();
        self.all.found.push(Difference { path, before: was, after: is, contents, texts });
        Ok(())
    }

    fn texts(
        &mut self,
        path: &[u8],
        (was, was_file): (&Option<Facts>, bool),
        (is, is_file): (&Option<Facts>, bool),
    ) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
        let size = |facts: &Option<Facts>, file| facts.as_ref().filter(|_| file).map_or(0, |facts| facts.size);
        let (a, b) = (size(was, was_file), size(is, is_file));
        if a.max(b) > self.limits.text_bytes_max || self.texts_bytes + a + b > self.limits.texts_bytes_max {
            return Ok(None);
        }
        let read = |view: &View, file: bool, size: u64| -> io::Result<Vec<u8>> {
            let mut text = Vec::new();
            if file {
                open_file(view, path)?.take(size).read_to_end(&mut text)?;
            }
            Ok(text)
        };
        self.texts_bytes += a + b;
        Ok(Some((read(self.before, was_file, a)?, read(self.after, is_file, b)?)))
    }
}

fn list(view: &View, path: &[u8]) -> Result<Vec<Vec<u8>>> {
    let trying = || format!("list {}", String::from_utf8_lossy(path).escape_debug());
    let fd = match view.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Vec::new()),
        Err(e) => return Err(e).tried(trying),
    };
    let mut names = Vec::new();
    for entry in Dir::new(fd).tried(trying)? {
        let entry = entry.tried(trying)?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

fn kind(found: &Found) -> FileKind {
    match FileType::from_raw_mode(found.stat.st_mode as RawMode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

fn facts(found: &Found) -> io::Result<Facts> {
    let (stat, kind) = (&found.stat, kind(found));
    let target = match kind {
        FileKind::Symlink => Some(rustix::fs::readlinkat(found.fd(), c"", Vec::new())?.into_bytes()),
        _ => None,
    };
    let size = if kind == FileKind::File { stat.st_size as u64 } else { 0 };
    Ok(Facts { kind, mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid, size, target })
}

fn open_file(view: &View, path: &[u8]) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(view.open(path, flags)?))
}

/// Whether two files of one size hold other data. What is a hole in both is not read.
fn differ(before: &View, after: &View, path: &[u8]) -> io::Result<bool> {
    use std::os::unix::fs::FileExt as _;
    const PIECE_BYTES: usize = 256 << 10;
    let (a, b) = (open_file(before, path)?, open_file(after, path)?);
    let (mut x, mut y) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    let data = |file: &File, at: u64| match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO) => Ok(None),
        // Where nobody tells, all of it is data.
        Err(Errno::INVAL) => Ok(Some(at)),
        Err(e) => Err(io::Error::from(e)),
    };
    let mut at = 0;
    loop {
        let next = match (data(&a, at)?, data(&b, at)?) {
            (None, None) => return Ok(false),
            (Some(x), Some(y)) => x.min(y),
            (Some(only), None) | (None, Some(only)) => only,
        };
        at = next;
        let (n, m) = (read_full(&a, &mut x, at)?, read_full(&b, &mut y, at)?);
        if x[..n] != y[..m] {
            return Ok(true);
        }
        if n == 0 {
            return Ok(false);
        }
        at += n as u64;
    }

    fn read_full(file: &File, into: &mut [u8], at: u64) -> io::Result<usize> {
        let mut got = 0;
        while got < into.len() {
            match file.read_at(&mut into[got..], at + got as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(got)
    }
}
