//! Writes a capture as an archive. The same capture gives the same bytes each time, so that a reader who was cut off can go
//! on where it was. Follows no link.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

use super::{ATTRIBUTE, CAPABILITY, DIGEST, LAYERS, OPAQUE};
use crate::beneath::open_directory;
use crate::format::{BLOCK_BYTES, Meta, entry, extended, padding, sparse};
use crate::{NAME_BYTES_MAX, PIECE_BYTES, STRETCHES_MAX, shown};

/// Longest value of an attribute, in bytes.
const ATTRIBUTE_BYTES_MAX: usize = 4096;

/// Why a capture was not packed to its end.
#[derive(Debug, thiserror::Error)]
pub enum FrozenError {
    /// What is to be packed can't be read.
    #[error("{0}")]
    Source(String),
    /// Where the archive goes failed.
    #[error("{0}")]
    Output(#[source] io::Error),
}

/// An archive on its way out.
pub struct FrozenWriter<W> {
    out: W,
    hasher: Hasher,
    header: Vec<u8>,
    buffer: Vec<u8>,
}

pub(crate) type Hasher = blake3::Hasher;

struct Level {
    fd: OwnedFd,
    /// Names that are still to come, last first.
    names: Vec<Vec<u8>>,
    path: Vec<u8>,
}

impl<W: Write> FrozenWriter<W> {
    /// Nothing is written yet. The manifest comes first, then layers by their numbers, then whatever else.
    pub fn new(out: W) -> Self {
        FrozenWriter { out, hasher: Hasher::new(), header: Vec::new(), buffer: vec![0; PIECE_BYTES] }
    }

    /// Adds a file from memory.
    ///
    /// # Errors
    /// [`FrozenError::Output`].
    pub fn text(&mut self, name: &str, bytes: &[u8]) -> Result<(), FrozenError> {
        let meta = Meta { mode: 0o600, ..Meta::default() };
        entry(&mut self.header, name.as_bytes(), b'0', bytes.len() as u64, &meta, b"");
        self.flush()?;
        self.put(bytes)?;
        self.pad(bytes.len() as u64)
    }

    /// Adds a file from the disk, as long as it is now.
    ///
    /// # Errors
    /// Both.
    pub fn file(&mut self, name: &str, path: &Path) -> Result<(), FrozenError> {
        let failed = |e: io::Error| FrozenError::Source(format!("{}: {e}", path.display()));
        let mut file = File::open(path).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        let meta = Meta { mode: 0o600, ..Meta::default() };
        entry(&mut self.header, name.as_bytes(), b'0', size, &meta, b"");
        self.flush()?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut left = size;
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let got = file.read(&mut self.buffer[..most]).map_err(failed)?;
            if got == 0 {
                return Err(FrozenError::Source(format!("{}: it became shorter", path.display())));
            }
            let piece = std::mem::take(&mut self.buffer);
            let put = self.put(&piece[..got]);
            self.buffer = piece;
            put?;
            left -= got as u64;
        }
        self.pad(size)
    }

    /// Adds a layer: each directory before what is in it, in the order of the names' bytes.
    ///
    /// # Errors
    /// Both.
    pub fn layer(&mut self, number: usize, root: &Path) -> Result<(), FrozenError> {
        let prefix = format!("{LAYERS}{number}/").into_bytes();
        let fd = open_directory(CWD, root.as_os_str().as_bytes()).map_err(|e| source(b"the layer", e))?;
        let stat = fstat(&fd).map_err(|e| source(b"the layer", e))?;
        let mut linked: HashMap<(u64, u64), Vec<u8>> = HashMap::new();
        self.directory(&prefix, fd.as_fd(), &stat)?;
        let top = names(&fd, b"/")?;
        let mut way = vec![Level { fd, names: top, path: Vec::new() }];
        while let Some(level) = way.last_mut() {
            let Some(name) = level.names.pop() else {
                way.pop();
                continue;
            };
            let path =
                if level.path.is_empty() { name.clone() } else { [&level.path, b"/".as_slice(), &name].concat() };
            let full = [&prefix, path.as_slice()].concat();
            if full.len() > NAME_BYTES_MAX {
                return Err(FrozenError::Source(format!("{}: its name is too long", shown(&path))));
            }
            let at = level.fd.as_fd();
            let stat = statat(at, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW).map_err(|e| source(&path, e))?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let fd = open_directory(at, &name).map_err(|e| source(&path, e))?;
                self.directory(&[&full, b"/".as_slice()].concat(), fd.as_fd(), &stat)?;
                let names = names(&fd, &path)?;
                way.push(Level { fd, names, path });
            } else {
                self.leaf(at, &name, &full, &stat, &mut linked)?;
            }
        }
        Ok(())
    }

    fn directory(&mut self, name: &[u8], fd: BorrowedFd<'_>, stat: &Stat) -> Result<(), FrozenError> {
        self.records(name, Some(fd), stat)?;
        entry(&mut self.header, name, b'5', 0, &meta(stat), b"");
        self.flush()
    }

    fn leaf(
        &mut self,
        at: BorrowedFd<'_>,
        name: &[u8],
        full: &[u8],
        stat: &Stat,
        linked: &mut HashMap<(u64, u64), Vec<u8>>,
    ) -> Result<(), FrozenError> {
        if stat.st_nlink > 1 {
            if let Some(first) = linked.get(&(stat.st_dev, stat.st_ino)).cloned() {
                entry(&mut self.header, full, b'1', 0, &meta(stat), &first);
                return self.flush();
            }
            linked.insert((stat.st_dev, stat.st_ino), full.to_vec());
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = openat(at, name, flags, Mode::empty()).map_err(|e| source(full, e))?;
                self.records(full, Some(file.as_fd()), stat)?;
                self.contents(&File::from(file), stat, full)
            }
            FileType::Symlink => {
                let target = readlinkat(at, name, Vec::new()).map_err(|e| source(full, e))?;
                self.records(full, None, stat)?;
                entry(&mut self.header, full, b'2', 0, &meta(stat), target.to_bytes());
                self.flush()
            }
            // A whiteout.
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                self.records(full, None, stat)?;
                entry(&mut self.header, full, b'3', 0, &meta(stat), b"");
                self.flush()
            }
            _ => Err(FrozenError::Source(format!("{}: no layer has such a file", shown(full)))),
        }
    }

    fn contents(&mut self, file: &File, stat: &Stat, full: &[u8]) -> Result<(), FrozenError> {
        let size = stat.st_size as u64;
        let stretches = stretches(file, size).map_err(|e| source(full, e))?;
        match stretches.as_slice() {
            [(0, length)] if *length == size => entry(&mut self.header, full, b'0', size, &meta(stat), b""),
            [] if size == 0 => entry(&mut self.header, full, b'0', 0, &meta(stat), b""),
            _ => {
                let mut told = stretches.clone();
                if told.last().is_none_or(|(begin, length)| begin + length < size) {
                    // The hole at the end.
                    told.push((size, 0));
                }
                sparse(&mut self.header, full, size, &meta(stat), &told);
            }
        }
        self.flush()?;
        let mut sum = 0;
        for (offset, length) in stretches {
            let mut done = 0;
            while done < length {
                let most = usize::try_from(length - done).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
                let mut piece = std::mem::take(&mut self.buffer);
                let read = file.read_exact_at(&mut piece[..most], offset + done);
                let put = match read {
                    Ok(()) => self.put(&piece[..most]),
                    Err(e) => Err(FrozenError::Source(format!("{}: {e}", shown(full)))),
                };
                self.buffer = piece;
                put?;
                done += most as u64;
            }
            sum += length;
        }
        self.pad(sum)
    }

    /// What a header has no place for.
    fn records(&mut self, name: &[u8], fd: Option<BorrowedFd<'_>>, stat: &Stat) -> Result<(), FrozenError> {
        let mut records: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        if stat.st_mtime >= 0 {
            records.push((b"mtime".to_vec(), format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec).into_bytes()));
        }
        for attribute in [OPAQUE, CAPABILITY] {
            let Some(fd) = fd else { break };
            let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
            match rustix::fs::fgetxattr(fd, attribute, &mut value[..]) {
                Ok(length) => records.push(([ATTRIBUTE, attribute].concat(), value[..length].to_vec())),
                Err(Errno::NODATA | Errno::NOTSUP) => {}
                Err(e) => return Err(source(name, e)),
            }
        }
        let records: Vec<(&[u8], &[u8])> =
            records.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
        extended(&mut self.header, &records);
        Ok(())
    }

    /// Writes the digest and the end mark.
    ///
    /// # Errors
    /// [`FrozenError::Output`].
    pub fn finish(mut self) -> Result<W, FrozenError> {
        let digest = self.hasher.finalize().to_hex();
        self.text(DIGEST, digest.as_bytes())?;
        self.header.resize(2 * BLOCK_BYTES, 0);
        self.flush()?;
        Ok(self.out)
    }

    fn flush(&mut self) -> Result<(), FrozenError> {
        let header = std::mem::take(&mut self.header);
        self.put(&header)
    }

    fn pad(&mut self, bytes: u64) -> Result<(), FrozenError> {
        self.header.resize(padding(bytes), 0);
        self.flush()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), FrozenError> {
        self.hasher.update(bytes);
        self.out.write_all(bytes).map_err(FrozenError::Output)
    }

    /// An entry without contents, whatever is in it.
    #[cfg(test)]
    pub(super) fn raw(
        &mut self,
        name: &[u8],
        kind: u8,
        link: &[u8],
        records: &[(&[u8], &[u8])],
    ) -> Result<(), FrozenError> {
        if !records.is_empty() {
            extended(&mut self.header, records);
        }
        entry(&mut self.header, name, kind, 0, &Meta { mode: 0o644, ..Meta::default() }, link);
        self.flush()
    }
}

fn source(path: &[u8], e: Errno) -> FrozenError {
    FrozenError::Source(format!("{}: {}", shown(path), io::Error::from(e)))
}

/// Names in a directory, last first.
fn names(fd: &OwnedFd, path: &[u8]) -> Result<Vec<Vec<u8>>, FrozenError> {
    let mut names = Vec::new();
    for entry in Dir::read_from(fd).map_err(|e| source(path, e))? {
        let entry = entry.map_err(|e| source(path, e))?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    names.sort_unstable_by(|a, b| b.cmp(a));
    Ok(names)
}

/// Where a file has data, by what the file system keeps; where there is too much to tell, the shortest way is to take holes
/// for data.
fn stretches(file: &File, size: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < size {
        let begin = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            Ok(begin) => begin,
            Err(Errno::NXIO) => break,
            Err(e) => return Err(e),
        };
        let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(begin))?.min(size);
        match found.last_mut() {
            Some((first, length)) if *first + *length == begin => *length = end - *first,
            _ => found.push((begin, end - begin)),
        }
        if found.len() >= STRETCHES_MAX {
            let first = found[0].0;
            return Ok(vec![(first, size - first)]);
        }
        at = end;
    }
    Ok(found)
}

fn meta(stat: &Stat) -> Meta {
    Meta { mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid, modified: stat.st_mtime }
}
