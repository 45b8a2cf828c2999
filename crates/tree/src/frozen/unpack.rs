//! Reads an archive of a capture. Whoever made it is not believed: nothing lies outside of the directory of its layer, no
//! link is followed, nothing comes that a layer has not, and the digest at the end must be that of all before it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::FileExt as _;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chownat, fchmod, fchown,
    fsetxattr, ftruncate, futimens, linkat, mkdirat, mknodat, openat, symlinkat, utimensat,
};
use rustix::io::Errno;

use super::pack::Hasher;
use super::{ATTRIBUTE, CAPABILITY, DIGEST, LAYERS, MANIFEST, MANIFEST_BYTES_MAX, OPAQUE};
use crate::beneath::{Beneath, components};
use crate::read::{Bad, Item, Kind, Reader};
use crate::{NAME_BYTES_MAX, PIECE_BYTES, shown};

/// Directories of one layer.
const DIRECTORIES_MAX: usize = 1 << 20;
/// Longest value of a file capability, in bytes.
const CAPABILITY_BYTES_MAX: usize = 64;

/// Where the parts of a capture go.
pub trait FrozenTakes {
    /// The manifest, which comes first.
    ///
    /// # Errors
    /// Why nothing of this capture is wanted.
    fn manifest(&mut self, text: Vec<u8>) -> Result<(), String>;

    /// An empty directory for the layer with this number, 0 for the newest; they come in order.
    ///
    /// # Errors
    /// Why there is none.
    fn layer(&mut self, number: usize) -> Result<OwnedFd, String>;

    /// A new file for what has this name; a stranger's word.
    ///
    /// # Errors
    /// Why there is none.
    fn file(&mut self, name: &str, size: u64) -> Result<File, String>;

    /// So many bytes are about to be written.
    ///
    /// # Errors
    /// Why they must not be.
    fn grows(&mut self, bytes: u64) -> Result<(), String>;
}

struct Hashing<R> {
    input: R,
    hasher: Hasher,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.input.read(buffer)?;
        self.hasher.update(&buffer[..got]);
        Ok(got)
    }
}

/// Why an archive is refused, in a sentence.
type Refusal = String;

/// A directory whose properties are set when nothing more comes into it.
struct Late {
    name: Vec<u8>,
    item: Item,
}

struct Layer {
    number: usize,
    beneath: Beneath,
    late: Vec<Late>,
}

/// Reads an archive to its end.
///
/// # Errors
/// A sentence that says what is wrong, and with which entry. What was taken until then is the caller's to remove.
pub fn read_frozen(archive: impl Read, takes: &mut dyn FrozenTakes) -> Result<(), Refusal> {
    let mut reader = Reader::new(Hashing { input: archive, hasher: Hasher::new() });
    let first = next(&mut reader)?.filter(|item| item.name == MANIFEST.as_bytes() && item.kind == Kind::File);
    let first = first.ok_or("it is no capture: its first entry is no manifest")?;
    if first.size > MANIFEST_BYTES_MAX {
        return Err(format!("its manifest is longer than {MANIFEST_BYTES_MAX} bytes"));
    }
    let mut text = Vec::new();
    contents(&mut reader, &first, &mut |_, piece| {
        text.extend_from_slice(piece);
        Ok(())
    })?;
    takes.manifest(text)?;
    let (mut layer, mut layers) = (None, 0);
    loop {
        reader.pass_over().map_err(told)?;
        // All that came before the entry that may be the digest.
        let before = reader.input().hasher.clone();
        let item = next(&mut reader)?.ok_or("it breaks off: it ends without its digest")?;
        let named = |why: String| format!("{}: {why}", shown(&item.name));
        if item.name == DIGEST.as_bytes() {
            finish_layer(layer.take())?;
            return check_digest(&mut reader, &item, &before);
        }
        if let Some(rest) = item.name.strip_prefix(LAYERS.as_bytes()) {
            let (number, rest) = numbered(rest).ok_or_else(|| named("it is in no layer".into()))?;
            if layer.as_ref().is_none_or(|layer: &Layer| layer.number != number) {
                if number != layers {
                    return Err(named("layers come in the order of their numbers".into()));
                }
                finish_layer(layer.take())?;
                layers += 1;
                layer = Some(Layer { number, beneath: Beneath::new(takes.layer(number)?), late: Vec::new() });
            }
            let Some(layer) = &mut layer else { return Err(named("it is in no layer".into())) };
            layer.put(&item, rest, &mut reader, takes).map_err(named)?;
            continue;
        }
        finish_layer(layer.take())?;
        let name = std::str::from_utf8(&item.name).map_err(|_| named("it has no name that is known".into()))?;
        if item.kind != Kind::File || item.stretches.is_some() || name == MANIFEST {
            return Err(named("it is no part of a capture".into()));
        }
        let mut file = takes.file(name, item.size).map_err(named)?;
        contents(&mut reader, &item, &mut |_, piece| {
            takes.grows(piece.len() as u64)?;
            file.write_all(piece).map_err(|e| e.to_string())
        })
        .map_err(named)?;
    }
}

fn told(bad: Bad) -> Refusal {
    match bad {
        Bad::Archive(why) => why,
        Bad::Input(error) => format!("it can't be read on: {error}"),
    }
}

fn next<R: Read>(reader: &mut Reader<Hashing<R>>) -> Result<Option<Item>, Refusal> {
    reader.next().map_err(told)
}

fn check_digest<R: Read>(reader: &mut Reader<Hashing<R>>, item: &Item, before: &Hasher) -> Result<(), Refusal> {
    let mut text = Vec::new();
    if item.kind != Kind::File || item.size != 64 {
        return Err("its digest is none".into());
    }
    contents(reader, item, &mut |_, piece| {
        text.extend_from_slice(piece);
        Ok(())
    })?;
    if text != before.finalize().to_hex().as_bytes() {
        return Err("its digest is another than it says: it was changed, or damaged on its way".into());
    }
    match next(reader)? {
        None => Ok(()),
        Some(_) => Err("something comes behind its digest".into()),
    }
}

/// `0/rest` as a number and what is in it.
fn numbered(rest: &[u8]) -> Option<(usize, &[u8])> {
    let cut = rest.iter().position(|byte| *byte == b'/')?;
    let digits = std::str::from_utf8(&rest[..cut]).ok()?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    Some((digits.parse().ok().filter(|_| plain)?, &rest[cut + 1..]))
}

/// Takes a piece of an entry's data, and where it belongs.
type Take<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), Refusal>;

/// Reads an entry's data in pieces, each with where it belongs.
fn contents<R: Read>(reader: &mut Reader<Hashing<R>>, item: &Item, take: Take<'_>) -> Result<(), Refusal> {
    let mut buffer = vec![0; PIECE_BYTES];
    let whole = [(0, item.size)];
    for (offset, length) in item.stretches.as_deref().unwrap_or(&whole) {
        let mut done = 0;
        while done < *length {
            let most = usize::try_from(length - done).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let got = reader.data(&mut buffer[..most]).map_err(told)?;
            if got == 0 {
                return Err("it has less data than it says".into());
            }
            take(offset + done, &buffer[..got])?;
            done += got as u64;
        }
    }
    Ok(())
}

fn finish_layer(layer: Option<Layer>) -> Result<(), Refusal> {
    let Some(Layer { mut beneath, mut late, .. }) = layer else { return Ok(()) };
    while let Some(Late { name, item }) = late.pop() {
        let named = |why: String| format!("{}: {why}", shown(&item.name));
        let parts = components(&name).map_err(|why| named(why.into()))?;
        let directory = beneath.directory(&parts, false).map_err(|e| named(system(e)))?;
        attributes(directory, &item).and_then(|()| set(directory, &item)).map_err(named)?;
    }
    Ok(())
}

fn system(errno: Errno) -> Refusal {
    match errno {
        Errno::EXIST => "it comes twice".into(),
        Errno::NOTDIR => "a link or file is in the way, where it needs a directory".into(),
        Errno::NOENT => "the directory that it lies in did not come before it".into(),
        errno => io::Error::from(errno).to_string(),
    }
}

impl Layer {
    fn put<R: Read>(
        &mut self,
        item: &Item,
        rest: &[u8],
        reader: &mut Reader<Hashing<R>>,
        takes: &mut dyn FrozenTakes,
    ) -> Result<(), Refusal> {
        let mut parts = components(rest).map_err(String::from)?;
        let Some(last) = parts.pop_back() else {
            if item.kind != Kind::Directory {
                return Err("it has no name and is no directory".into());
            }
            return self.late(Vec::new(), item);
        };
        let at = self.beneath.directory(&parts, false).map_err(system)?;
        match item.kind {
            Kind::Directory => {
                mkdirat(at, last, Mode::from_raw_mode(0o700)).map_err(system)?;
                return self.late(rest.to_vec(), item);
            }
            Kind::File => {}
            Kind::Symlink => {
                if item.link.is_empty() || item.link.len() > NAME_BYTES_MAX || item.link.contains(&0) {
                    return Err("its target makes no sense".into());
                }
                none(item)?;
                symlinkat(item.link.as_slice(), at, last).map_err(system)?;
                return set_link(at, last, item).map_err(system);
            }
            Kind::Device if item.device == Some((0, 0)) && item.character => {
                none(item)?;
                let mode = Mode::from_raw_mode(item.mode & 0o7777);
                mknodat(at, last, FileType::CharacterDevice, mode, 0).map_err(system)?;
                return set_link(at, last, item).map_err(system);
            }
            Kind::HardLink => return self.hard_link(&parts, last, item),
            Kind::Device => return Err("it is a device, which no layer has".into()),
            Kind::Fifo => return Err("it is a FIFO, which no layer has".into()),
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(at, last, flags, Mode::RUSR | Mode::WUSR).map_err(system)?);
        contents(reader, item, &mut |offset, piece| {
            takes.grows(piece.len() as u64)?;
            file.write_all_at(piece, offset).map_err(|e| e.to_string())
        })?;
        if item.stretches.is_some() {
            ftruncate(&file, item.size).map_err(system)?;
        }
        attributes(file.as_fd(), item)?;
        set(file.as_fd(), item)
    }

    fn late(&mut self, name: Vec<u8>, item: &Item) -> Result<(), Refusal> {
        if self.late.len() >= DIRECTORIES_MAX {
            return Err(format!("a layer has more than {DIRECTORIES_MAX} directories"));
        }
        self.late.push(Late { name, item: Item { link: Vec::new(), ..item.clone() } });
        Ok(())
    }

    fn hard_link(&mut self, parts: &VecDeque<&[u8]>, last: &[u8], item: &Item) -> Result<(), Refusal> {
        let own = format!("{LAYERS}{}/", self.number);
        let link = item.link.strip_prefix(own.as_bytes()).ok_or("it is another name of what is not in its layer")?;
        let mut target = components(link).map_err(|why| format!("of what it is another name, {why}"))?;
        let Some(target_last) = target.pop_back() else { return Err("it is another name of a directory".into()) };
        none(item)?;
        let root = rustix::io::fcntl_dupfd_cloexec(self.beneath.root(), 0).map_err(system)?;
        // By a way of its own, which does not disturb the other.
        let mut of_target = Beneath::new(root);
        let from = of_target.directory(&target, false).map_err(system)?;
        let at = self.beneath.directory(parts, false).map_err(system)?;
        linkat(from, target_last, at, last, AtFlags::empty()).map_err(system)
    }
}

/// It must have no attributes.
fn none(item: &Item) -> Result<(), Refusal> {
    if item.attributes.is_empty() { Ok(()) } else { Err("it has attributes, which nothing of its kind has".into()) }
}

/// Gives a file or directory the attributes that it comes with, if they are of those that a layer has.
fn attributes(fd: BorrowedFd<'_>, item: &Item) -> Result<(), Refusal> {
    for (key, value) in &item.attributes {
        let name = key.strip_prefix(ATTRIBUTE).unwrap_or(key);
        let right = match name {
            OPAQUE => item.kind == Kind::Directory && value == b"y",
            CAPABILITY => item.kind == Kind::File && value.len() <= CAPABILITY_BYTES_MAX,
            _ => false,
        };
        if !right {
            return Err(format!("it has the attribute {}, which is not taken", shown(name)));
        }
        if name == OPAQUE {
            fsetxattr(fd, name, value, XattrFlags::empty()).map_err(system)?;
        }
    }
    Ok(())
}

fn times(item: &Item) -> Timestamps {
    let (seconds, nanoseconds) = item.modified;
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
    }
}

fn owner(item: &Item) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(item.uid)), Some(Gid::from_raw(item.gid)))
}

/// Owner, mode, capability and time: in this order, since a change of owner takes set-id bits and capabilities away.
fn set(at: BorrowedFd<'_>, item: &Item) -> Result<(), Refusal> {
    let (uid, gid) = owner(item);
    fchown(at, uid, gid).map_err(system)?;
    fchmod(at, Mode::from_raw_mode(item.mode & 0o7777)).map_err(system)?;
    for (key, value) in &item.attributes {
        if key.strip_prefix(ATTRIBUTE) == Some(CAPABILITY) {
            fsetxattr(at, CAPABILITY, value, XattrFlags::empty()).map_err(system)?;
        }
    }
    futimens(at, &times(item)).map_err(system)
}

fn set_link(at: BorrowedFd<'_>, name: &[u8], item: &Item) -> Result<(), Errno> {
    let (uid, gid) = owner(item);
    chownat(at, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    utimensat(at, name, &times(item), AtFlags::SYMLINK_NOFOLLOW)
}
