//! Unpacks an archive beneath a directory, entry by entry into place: what was there is replaced file by file, directories
//! are kept and added to. What is refused ends it, with what was done until then; nothing of that is taken back.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, chownat, fchmod, fchown, ftruncate, futimens,
    linkat, mkdirat, openat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use crate::beneath::{Beneath, components, open_directory};
use crate::read::{Bad, Item, Kind, Reader};
use crate::{Counts, DIRECTORIES_LATE_MAX, NAME_BYTES_MAX, PIECE_BYTES, shown};

/// How to unpack.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unpack {
    /// Whether owners are those of the archive, which only root may give, and set-id bits are kept.
    pub owners: bool,
    /// Whether the directory itself gets mode and time of the archive's.
    pub itself: bool,
}

/// What was unpacked.
#[derive(Debug, Clone, Default)]
pub struct Unpacked {
    /// How much.
    pub counts: Counts,
    /// What the archive says that it lacks, one sentence each.
    pub skipped: Vec<String>,
}

/// Why an archive was not unpacked to its end.
#[derive(Debug)]
pub struct UnpackError {
    /// The entry, if it is about one.
    pub entry: Option<String>,
    /// What is wrong.
    pub cause: UnpackCause,
    /// What was done until then, and stays.
    pub done: Counts,
}

/// What is wrong.
#[derive(Debug)]
pub enum UnpackCause {
    /// The archive is none, breaks off, or has what is not unpacked.
    Archive(String),
    /// The system said no.
    System(Errno),
    /// What the archive comes from failed.
    Input(io::Error),
}

impl std::fmt::Display for UnpackCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UnpackCause::Archive(why) => f.write_str(why),
            UnpackCause::System(errno) => write!(f, "{}", io::Error::from(*errno)),
            UnpackCause::Input(error) => write!(f, "{error}"),
        }
    }
}

impl From<Errno> for UnpackCause {
    fn from(errno: Errno) -> Self {
        UnpackCause::System(errno)
    }
}

impl From<Bad> for UnpackCause {
    fn from(bad: Bad) -> Self {
        match bad {
            Bad::Archive(why) => UnpackCause::Archive(why),
            Bad::Input(error) => UnpackCause::Input(error),
        }
    }
}

impl From<io::Error> for UnpackCause {
    fn from(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(errno) => UnpackCause::System(errno),
            None => UnpackCause::Input(error),
        }
    }
}

fn refused<T>(why: impl Into<String>) -> Result<T, UnpackCause> {
    Err(UnpackCause::Archive(why.into()))
}

/// Least number of zeros for which a file is given a hole, in bytes.
const GRAIN_BYTES: usize = 4 << 10;

/// A directory whose mode and time are set when nothing more comes into it.
struct Late {
    name: Vec<u8>,
    item: Item,
}

struct Unpacking {
    beneath: Beneath,
    how: Unpack,
    counts: Counts,
    late: Vec<Late>,
    buffer: Vec<u8>,
}

/// Unpacks beneath a directory; `told` hears of every entry by its name when it is there.
///
/// # Errors
/// Names the entry and what was done until then.
pub fn unpack(
    archive: impl Read,
    into: OwnedFd,
    how: Unpack,
    told: &mut dyn FnMut(&[u8], Counts),
) -> Result<Unpacked, UnpackError> {
    let mut reader = Reader::new(archive);
    let mut unpacking =
        Unpacking { beneath: Beneath::new(into), how, counts: Counts::default(), late: Vec::new(), buffer: Vec::new() };
    loop {
        let item = match reader.next() {
            Ok(Some(item)) => item,
            Ok(None) => break,
            Err(bad) => return Err(UnpackError { entry: None, cause: bad.into(), done: unpacking.counts }),
        };
        if let Err(cause) = unpacking.put(&item, &mut reader) {
            return Err(UnpackError { entry: Some(shown(&item.name)), cause, done: unpacking.counts });
        }
        told(&item.name, unpacking.counts);
    }
    while let Some(Late { name, item }) = unpacking.late.pop() {
        if let Err(cause) = unpacking.finish_directory(&name, &item) {
            return Err(UnpackError { entry: Some(shown(&name)), cause, done: unpacking.counts });
        }
    }
    Ok(Unpacked { counts: unpacking.counts, skipped: reader.skipped })
}

impl Unpacking {
    fn put<R: Read>(&mut self, item: &Item, reader: &mut Reader<R>) -> Result<(), UnpackCause> {
        let mut parts = components(&item.name).map_err(|why| UnpackCause::Archive(why.into()))?;
        let Some(last) = parts.pop_back() else {
            // The directory itself.
            if item.kind != Kind::Directory {
                return refused("it has no name and is no directory");
            }
            if self.how.itself {
                self.late.push(Late { name: Vec::new(), item: item.clone() });
            }
            self.counts.directories += 1;
            return Ok(());
        };
        match item.kind {
            Kind::Device => return refused("it is a device, which is not unpacked"),
            Kind::Fifo => return refused("it is a FIFO, which is not unpacked"),
            Kind::Directory => return self.directory(parts, last, item),
            Kind::HardLink => return self.hard_link(parts, last, item),
            Kind::File | Kind::Symlink => {}
        }
        let how = self.how;
        let at = self.beneath.directory(&parts, true).map_err(on_the_way)?;
        if item.kind == Kind::Symlink {
            if item.link.is_empty() || item.link.len() > NAME_BYTES_MAX || item.link.contains(&0) {
                return refused("its target makes no sense");
            }
            replacing(at, last, || symlinkat(item.link.as_slice(), at, last))?;
            if how.owners {
                chownat(
                    at,
                    last,
                    Some(Uid::from_raw(item.uid)),
                    Some(Gid::from_raw(item.gid)),
                    AtFlags::SYMLINK_NOFOLLOW,
                )?;
            }
            utimensat(at, last, &times(item), AtFlags::SYMLINK_NOFOLLOW)?;
            self.counts.links += 1;
            return Ok(());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(replacing(at, last, || openat(at, last, flags, Mode::RUSR | Mode::WUSR))?);
        self.buffer.resize(PIECE_BYTES, 0);
        let whole = [(0, item.size)];
        let mut holes = item.stretches.is_some();
        for (offset, length) in item.stretches.as_deref().unwrap_or(&whole) {
            let mut done = 0;
            while done < *length {
                let most = usize::try_from(length - done).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
                let got = reader.data(&mut self.buffer[..most])?;
                if got == 0 {
                    return refused("it has less data than it says");
                }
                // What is all zeros is left a hole, whoever packed it.
                if got < GRAIN_BYTES || self.buffer[..got].iter().any(|byte| *byte != 0) {
                    file.write_all_at(&self.buffer[..got], offset + done)?;
                } else {
                    holes = true;
                }
                done += got as u64;
                self.counts.bytes += got as u64;
            }
        }
        if holes {
            ftruncate(&file, item.size)?;
        }
        set(file.as_fd(), how, item)?;
        self.counts.files += 1;
        Ok(())
    }

    fn directory<'n>(
        &mut self,
        mut parts: std::collections::VecDeque<&'n [u8]>,
        last: &'n [u8],
        item: &Item,
    ) -> Result<(), UnpackCause> {
        let at = self.beneath.directory(&parts, true).map_err(on_the_way)?;
        // What is to go into it must be able to, whatever its own mode is in the end.
        match mkdirat(at, last, Mode::from_raw_mode(0o700)) {
            Ok(()) => {}
            Err(Errno::EXIST) => drop(open_directory(at, last).map_err(|errno| match errno {
                Errno::NOTDIR => UnpackCause::Archive("something that is no directory is in the way".into()),
                errno => errno.into(),
            })?),
            Err(errno) => return Err(errno.into()),
        }
        self.counts.directories += 1;
        parts.push_back(last);
        let name = Vec::from(parts).join(&b'/');
        if self.late.len() < DIRECTORIES_LATE_MAX {
            self.late.push(Late { name, item: Item { link: Vec::new(), ..item.clone() } });
            return Ok(());
        }
        self.finish_directory(&name, item)
    }

    fn finish_directory(&mut self, name: &[u8], item: &Item) -> Result<(), UnpackCause> {
        let parts = components(name).map_err(|why| UnpackCause::Archive(why.into()))?;
        let how = self.how;
        let directory = self.beneath.directory(&parts, false).map_err(on_the_way)?;
        set(directory, how, item)
    }

    fn hard_link(
        &mut self,
        parts: std::collections::VecDeque<&[u8]>,
        last: &[u8],
        item: &Item,
    ) -> Result<(), UnpackCause> {
        let mut target = match components(&item.link) {
            Ok(target) => target,
            Err(why) => return refused(format!("it is another name of {}, and of that {why}", shown(&item.link))),
        };
        let Some(target_last) = target.pop_back() else { return refused("it is another name of a directory") };
        // By a way of its own, which does not disturb the other.
        let mut of_target = Beneath::new(rustix::io::fcntl_dupfd_cloexec(self.beneath.root(), 0)?);
        let from = of_target.directory(&target, false).map_err(on_the_way)?;
        if (target.iter().eq(parts.iter())) && target_last == last {
            return refused("it is another name of itself");
        }
        let at = self.beneath.directory(&parts, true).map_err(on_the_way)?;
        replacing(at, last, || linkat(from, target_last, at, last, AtFlags::empty()))?;
        self.counts.links += 1;
        Ok(())
    }
}

/// A way that is none, in the words of an archive.
fn on_the_way(errno: Errno) -> UnpackCause {
    match errno {
        Errno::NOTDIR => UnpackCause::Archive("a link or file is in the way, where it needs a directory".into()),
        errno => errno.into(),
    }
}

/// Makes something, in the place of what is there, unless that is a directory.
fn replacing<T>(at: BorrowedFd<'_>, name: &[u8], make: impl Fn() -> Result<T, Errno>) -> Result<T, UnpackCause> {
    const ATTEMPTS_MAX: usize = 8;
    for _ in 0..ATTEMPTS_MAX {
        match make() {
            Err(Errno::EXIST) => match unlinkat(at, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR | Errno::PERM) => return refused("a directory is in the way"),
                Err(errno) => return Err(errno.into()),
            },
            made => return Ok(made?),
        }
    }
    Err(Errno::EXIST.into())
}

fn times(item: &Item) -> Timestamps {
    let (seconds, nanoseconds) = item.modified;
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}

/// Owner, mode and time: in this order, since a change of owner takes set-id bits away.
fn set(at: BorrowedFd<'_>, how: Unpack, item: &Item) -> Result<(), UnpackCause> {
    if how.owners {
        fchown(at, Some(Uid::from_raw(item.uid)), Some(Gid::from_raw(item.gid)))?;
    }
    fchmod(at, Mode::from_raw_mode(item.mode & if how.owners { 0o7777 } else { 0o1777 }))?;
    futimens(at, &times(item))?;
    Ok(())
}
