//! Packs a directory, or one file, as an archive. Walks by descriptors and follows no link beneath the path that was named;
//! reads nothing but directories and regular files. A tree that changes meanwhile is packed as it is found: a file has the
//! length that its header says, filled with zeros where it became shorter.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, open, openat, readlinkat, statat};
use rustix::io::Errno;

use crate::beneath::open_directory;
use crate::format::{BLOCK_BYTES, Meta, entry, padding, skipped, sparse};
use crate::{Counts, DEPTH_MAX, LINKED_FILES_MAX, NAME_BYTES_MAX, PIECE_BYTES, STRETCHES_MAX, shown};

/// What was packed.
#[derive(Debug, Clone, Default)]
pub struct Packed {
    /// How much.
    pub counts: Counts,
    /// Entries that are not in it; each is named in the archive.
    pub skipped: u64,
}

/// Why nothing more was packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// The path that was named can't be read.
    #[error("{0}")]
    Source(#[source] io::Error),
    /// It is neither a directory nor a regular file.
    #[error("it is neither a directory nor a regular file")]
    Kind,
    /// Where the archive goes failed.
    #[error("{0}")]
    Output(#[source] io::Error),
}

/// A tree that was looked at and is ready to be packed.
#[derive(Debug)]
pub struct Source {
    fd: OwnedFd,
    stat: Stat,
    name: Vec<u8>,
}

impl Source {
    /// Opens what a path leads to. Nothing else of the tree is looked at yet.
    ///
    /// # Errors
    /// [`PackError::Source`] and [`PackError::Kind`].
    pub fn open(path: &Path) -> Result<Source, PackError> {
        let wrong = |errno: Errno| PackError::Source(errno.into());
        // Looked at first, since opening a FIFO or a device may do something; and again, since it may have been replaced.
        let of_kind = |stat: &Stat| match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory | FileType::RegularFile => Ok(()),
            _ => Err(PackError::Kind),
        };
        of_kind(&statat(CWD, path, AtFlags::empty()).map_err(wrong)?)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::empty()).map_err(wrong)?;
        let stat = fstat(&fd).map_err(wrong)?;
        of_kind(&stat)?;
        let name = path.file_name().map_or(b"file".to_vec(), |name| name.as_bytes().to_vec());
        Ok(Source { fd, stat, name })
    }
}

struct Level {
    fd: OwnedFd,
    dir: Dir,
    /// Length of its name within the path.
    length: usize,
}

struct Packing<'a> {
    out: &'a mut dyn Write,
    told: &'a mut dyn FnMut(&[u8], Counts),
    packed: Packed,
    /// Files with several names, by device and inode, and the first name.
    linked: HashMap<(u64, u64), Vec<u8>>,
    header: Vec<u8>,
    buffer: Vec<u8>,
}

/// Packs a tree; names are relative to it. `told` hears of every entry when it is written.
///
/// # Errors
/// [`PackError::Output`], and [`PackError::Source`] where the directory itself can't be listed.
pub fn pack(source: Source, out: &mut dyn Write, told: &mut dyn FnMut(&[u8], Counts)) -> Result<Packed, PackError> {
    let packed = Packed::default();
    let mut packing =
        Packing { out, told, packed, linked: HashMap::new(), header: Vec::new(), buffer: vec![0; PIECE_BYTES] };
    let Source { fd, stat, name } = source;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        packing.tree(fd, &stat)?;
    } else {
        packing.file(fd, &stat, &name).map_err(PackError::Output)?;
    }
    // The end mark.
    packing.header.resize(2 * BLOCK_BYTES, 0);
    packing.flush().map_err(PackError::Output)?;
    Ok(packing.packed)
}

impl Packing<'_> {
    fn tree(&mut self, fd: OwnedFd, stat: &Stat) -> Result<(), PackError> {
        let dir = Dir::read_from(&fd).map_err(|errno| PackError::Source(errno.into()))?;
        self.put(b"./", b'5', 0, stat, b"").map_err(PackError::Output)?;
        self.packed.counts.directories += 1;
        let mut way = vec![Level { fd, dir, length: 0 }];
        let mut path = Vec::new();
        while let Some(level) = way.last_mut() {
            let length = level.length;
            path.truncate(length);
            let found = match level.dir.next() {
                None => {
                    way.pop();
                    continue;
                }
                Some(Ok(found)) => found,
                Some(Err(errno)) => {
                    self.skip(&path, errno).map_err(PackError::Output)?;
                    way.pop();
                    continue;
                }
            };
            let name = found.file_name().to_bytes();
            if [b".".as_slice(), b".."].contains(&name) {
                continue;
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            let below = self.one(level.fd.as_fd(), name, &path).map_err(PackError::Output)?;
            if let Some((fd, dir)) = below {
                if way.len() >= DEPTH_MAX {
                    self.skip_for(&path, "it lies too deep").map_err(PackError::Output)?;
                } else {
                    way.push(Level { fd, dir, length: path.len() });
                }
            }
        }
        Ok(())
    }

    /// Packs one entry; a directory is given back to be gone into. Only what goes wrong with the output is an error.
    fn one(&mut self, at: BorrowedFd<'_>, name: &[u8], path: &[u8]) -> io::Result<Option<(OwnedFd, Dir)>> {
        if path.len() > NAME_BYTES_MAX {
            self.skip_for(path, "its name is too long")?;
            return Ok(None);
        }
        let stat = match statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // It has gone since it was listed.
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return self.skip(path, errno).map(|()| None),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let opened = open_directory(at, name).and_then(|fd| Ok((Dir::read_from(&fd)?, fd)));
                let (dir, fd) = match opened {
                    Ok(opened) => opened,
                    Err(errno) => return self.skip(path, errno).map(|()| None),
                };
                self.put(&[path, b"/"].concat(), b'5', 0, &stat, b"")?;
                self.packed.counts.directories += 1;
                Ok(Some((fd, dir)))
            }
            FileType::Symlink => {
                match readlinkat(at, name, Vec::new()) {
                    Ok(target) => {
                        self.put(path, b'2', 0, &stat, target.to_bytes())?;
                        self.packed.counts.links += 1;
                    }
                    Err(errno) => self.skip(path, errno)?,
                }
                Ok(None)
            }
            FileType::RegularFile => {
                if let Some(first) = self.linked.get(&identity(&stat)).cloned() {
                    self.put(path, b'1', 0, &stat, &first)?;
                    self.packed.counts.links += 1;
                    return Ok(None);
                }
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                let opened = openat(at, name, flags, Mode::empty()).and_then(|fd| Ok((fstat(&fd)?, fd)));
                match opened {
                    Ok((stat, fd)) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
                        self.file(fd, &stat, path)?;
                    }
                    Ok(_) | Err(Errno::NOENT) => {}
                    Err(errno) => self.skip(path, errno)?,
                }
                Ok(None)
            }
            FileType::Socket => self.skip_for(path, "it is a socket").map(|()| None),
            FileType::Fifo => self.skip_for(path, "it is a FIFO").map(|()| None),
            _ => self.skip_for(path, "it is a device").map(|()| None),
        }
    }

    fn file(&mut self, fd: OwnedFd, stat: &Stat, path: &[u8]) -> io::Result<()> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if stat.st_nlink > 1 && self.linked.len() < LINKED_FILES_MAX {
            self.linked.insert(identity(stat), path.to_vec());
        }
        let file = File::from(fd);
        let stretches = match self.may_have_holes(&file, stat, size) {
            true => self.stretches(&file, size).ok().flatten(),
            false => None,
        };
        let whole = [(0, size)];
        match &stretches {
            Some(stretches) => sparse(&mut self.header, path, size, &meta(stat), stretches),
            None => entry(&mut self.header, path, b'0', size, &meta(stat), b""),
        }
        self.flush()?;
        let mut sum = 0;
        let mut became = None;
        for (offset, length) in stretches.as_deref().unwrap_or(&whole) {
            let mut done = 0;
            while done < *length {
                let most = usize::try_from(length - done).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
                let mut got = 0;
                if became.is_none() {
                    got = match file.read_at(&mut self.buffer[..most], offset + done) {
                        Ok(got) => got,
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                        Err(e) => {
                            became = Some(e.to_string());
                            0
                        }
                    };
                }
                if got == 0 {
                    became.get_or_insert_with(|| "it became shorter while it was read".to_owned());
                    self.buffer[..most].fill(0);
                    got = most;
                }
                self.out.write_all(&self.buffer[..got])?;
                done += got as u64;
            }
            sum += length;
        }
        self.header.resize(padding(sum), 0);
        self.flush()?;
        if let Some(why) = became {
            self.skip_for(path, &format!("{why}; the rest is zeros"))?;
        }
        self.packed.counts.files += 1;
        self.packed.counts.bytes += sum;
        (self.told)(path, self.packed.counts);
        Ok(())
    }

    /// Whether a file is worth to be looked through for holes: much less is stored than is in it, or, since not every kernel
    /// tells what is stored, half of the places that are looked at hold zeros.
    fn may_have_holes(&mut self, file: &File, stat: &Stat, size: u64) -> bool {
        const PLACES: u64 = 32;
        const PLACE_BYTES: usize = 4 << 10;
        if size < 4 * PIECE_BYTES as u64 {
            return false;
        }
        let stored = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
        if stored.saturating_add(PIECE_BYTES as u64) < size {
            return true;
        }
        let zeros = (0..PLACES).filter(|place| {
            let piece = &mut self.buffer[..PLACE_BYTES];
            file.read_exact_at(piece, size / PLACES * place).is_ok() && piece.iter().all(|byte| *byte == 0)
        });
        zeros.count() as u64 * 2 >= PLACES
    }

    /// Where a file has anything but zeros, in pieces; found by reading it, since not every kernel tells.
    fn stretches(&mut self, file: &File, size: u64) -> io::Result<Option<Vec<(u64, u64)>>> {
        const GRAIN_BYTES: usize = 64 << 10;
        let mut found: Vec<(u64, u64)> = Vec::new();
        let mut at = 0;
        while at < size {
            let most = usize::try_from(size - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let mut got = 0;
            // Whole pieces, so that every stretch but the last ends at a grain.
            while got < most {
                match file.read_at(&mut self.buffer[got..most], at + got as u64) {
                    Ok(0) => return Ok(None),
                    Ok(more) => got += more,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            for (n, grain) in self.buffer[..got].chunks(GRAIN_BYTES).enumerate() {
                let offset = at + (n * GRAIN_BYTES) as u64;
                if grain.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let full = found.len() >= STRETCHES_MAX - 1;
                match found.last_mut() {
                    Some((begin, length)) if *begin + *length == offset => *length += grain.len() as u64,
                    // The map is full: the hole before this one is taken for data.
                    Some((begin, length)) if full => {
                        *length = offset + grain.len() as u64 - *begin;
                    }
                    _ => found.push((offset, grain.len() as u64)),
                }
            }
            at += got as u64;
        }
        if found.last().is_none_or(|(begin, length)| begin + length < size) {
            // The hole at the end.
            found.push((size, 0));
        }
        Ok(Some(found))
    }

    fn put(&mut self, path: &[u8], kind: u8, size: u64, stat: &Stat, link: &[u8]) -> io::Result<()> {
        entry(&mut self.header, path, kind, size, &meta(stat), link);
        self.flush()?;
        (self.told)(path, self.packed.counts);
        Ok(())
    }

    fn skip(&mut self, path: &[u8], errno: Errno) -> io::Result<()> {
        self.skip_for(path, &io::Error::from(errno).to_string())
    }

    fn skip_for(&mut self, path: &[u8], why: &str) -> io::Result<()> {
        self.packed.skipped += 1;
        skipped(&mut self.header, &format!("{}: {why}", shown(path)));
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.header)?;
        self.header.clear();
        Ok(())
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn meta(stat: &Stat) -> Meta {
    Meta { mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid, modified: stat.st_mtime }
}
