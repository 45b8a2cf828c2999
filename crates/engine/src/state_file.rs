//! Reads the state file of a checkpoint, so far as is needed to mend one known fault in it.
//!
//! A checkpoint's state file is a stream of small chunks that hold object graphs in gVisor's own wire format
//! (`pkg/state/wire` and `pkg/compressio` of its source, build 20240729, written without compression and key). Nothing
//! here is needed to restore; whoever cannot make sense of a file leaves it as it is.

use std::collections::HashSet;

/// Why a file makes no sense to this reader.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at} of its stream: {why}")]
pub(crate) struct Unreadable {
    at: usize,
    why: &'static str,
}

type Result<T> = std::result::Result<T, Unreadable>;

/// What a state file begins with.
const MAGIC: &[u8; 8] = b"gVisorSF";
/// Bytes of the keyed hash behind the metadata.
const METADATA_HASH_BYTES: usize = 32;
/// Set in the count that begins a graph whose root exists.
const OBJECT_FLAG: u64 = 1 << 63;
/// Deepest nesting of one object; real ones stay below ten.
const DEPTH_MAX: u32 = 100;

/// Names of the types that matter, as gVisor registers them.
const INTEREST: &str = "pkg/sentry/vfs.epollInterest";
const INTEREST_KEY: &str = "pkg/sentry/vfs.epollInterestKey";

/// The stream without its chunk headers, and where each chunk lies in the file.
struct Stream {
    bytes: Vec<u8>,
    /// Start in the stream, start in the file.
    chunks: Vec<(usize, usize)>,
}

impl Stream {
    fn of(file: &[u8]) -> Result<Stream> {
        let bad = |at, why| Unreadable { at, why };
        let rest = file.strip_prefix(MAGIC).ok_or(bad(0, "it does not begin as a state file does"))?;
        let (length, _) = rest.split_first_chunk::<8>().ok_or(bad(0, "it ends in its header"))?;
        let length = usize::try_from(u64::from_be_bytes(*length)).map_err(|_| bad(0, "its metadata is too long"))?;
        let mut at =
            length.checked_add(MAGIC.len() + 8 + METADATA_HASH_BYTES).ok_or(bad(0, "its metadata is too long"))?;
        let mut stream = Stream { bytes: Vec::with_capacity(file.len() / 4), chunks: Vec::new() };
        while at < file.len() {
            let header = file.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or(bad(at, "a cut chunk"))?;
            let length = u32::from_be_bytes(*header) as usize;
            let data = file.get(at + 4..).and_then(|rest| rest.get(..length)).ok_or(bad(at, "a cut chunk"))?;
            stream.chunks.push((stream.bytes.len(), at + 4));
            stream.bytes.extend_from_slice(data);
            at += 4 + length;
        }
        Ok(stream)
    }

    /// Where a byte of the stream lies in the file.
    fn in_file(&self, at: usize) -> usize {
        let chunk = self.chunks.partition_point(|(start, _)| *start <= at).saturating_sub(1);
        self.chunks.get(chunk).map_or(at, |(start, file)| file + (at - start))
    }
}

/// Tags of the wire format, in its order.
mod tag {
    pub(super) const BOOL: u64 = 0;
    pub(super) const INT: u64 = 1;
    pub(super) const UINT: u64 = 2;
    pub(super) const FLOAT32: u64 = 3;
    pub(super) const FLOAT64: u64 = 4;
    pub(super) const NIL: u64 = 5;
    pub(super) const REF: u64 = 6;
    pub(super) const STRING: u64 = 7;
    pub(super) const SLICE: u64 = 8;
    pub(super) const ARRAY: u64 = 9;
    pub(super) const MAP: u64 = 10;
    pub(super) const STRUCT: u64 = 11;
    pub(super) const NO_OBJECTS: u64 = 12;
    pub(super) const MULTIPLE_OBJECTS: u64 = 13;
    pub(super) const INTERFACE: u64 = 14;
    pub(super) const COMPLEX64: u64 = 15;
    pub(super) const COMPLEX128: u64 = 16;
    pub(super) const TYPE: u64 = 17;
}

/// What was found in one graph.
#[derive(Default)]
struct Found {
    types: u64,
    /// Type number of an epoll registration, and which of its fields is the mask.
    interest: Option<(u64, u64)>,
    /// Type number of the key under which an epoll instance keeps a registration.
    key: Option<u64>,
    /// Each registration: its object number, and where its mask begins and ends.
    masks: Vec<(u64, usize, usize)>,
    /// Registrations that an epoll instance still knows.
    kept: HashSet<u64>,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bad<T>(&self, why: &'static str) -> Result<T> {
        Err(Unreadable { at: self.at, why })
    }

    fn uint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for i in 0..10 {
            let Some(byte) = self.bytes.get(self.at) else { return self.bad("it ends in a number") };
            self.at += 1;
            value |= u64::from(byte & 0x7f) << (7 * i);
            if *byte < 0x80 {
                return Ok(value);
            }
        }
        self.bad("a number that is too long")
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        let taken = usize::try_from(length).ok().and_then(|n| self.bytes.get(self.at..)?.get(..n));
        let Some(taken) = taken else { return self.bad("it ends in a text") };
        self.at += taken.len();
        Ok(taken)
    }

    fn string(&mut self) -> Result<&'a [u8]> {
        let length = self.uint()?;
        self.take(length)
    }

    fn type_spec(&mut self, depth: u32) -> Result<()> {
        if depth > DEPTH_MAX {
            return self.bad("a type that is nested too deeply");
        }
        match self.uint()? {
            0 => drop(self.uint()?),
            1 | 3 => self.type_spec(depth + 1)?,
            2 => {
                self.uint()?;
                self.type_spec(depth + 1)?;
            }
            4 => {
                self.type_spec(depth + 1)?;
                self.type_spec(depth + 1)?;
            }
            5 => {}
            _ => return self.bad("an unknown kind of type"),
        }
        Ok(())
    }

    /// A reference; returns the number of the object it leads to.
    fn reference(&mut self) -> Result<u64> {
        let root = self.uint()?;
        let dots = self.uint()?;
        for _ in 0..dots {
            // Zigzag: odd ones are names, of as many bytes as the number is below zero.
            let dot = self.uint()?;
            if dot & 1 == 1 {
                self.take((dot >> 1).wrapping_add(1))?;
            }
        }
        if dots > 0 {
            self.type_spec(0)?;
        }
        Ok(root)
    }

    fn object(&mut self, depth: u32) -> Result<()> {
        let tag = self.uint()?;
        self.body(tag, depth)
    }

    /// Passes over an object whose tag was read.
    fn body(&mut self, tag: u64, depth: u32) -> Result<()> {
        if depth > DEPTH_MAX {
            return self.bad("an object that is nested too deeply");
        }
        match tag {
            tag::BOOL | tag::INT | tag::UINT | tag::FLOAT32 | tag::FLOAT64 => drop(self.uint()?),
            tag::NIL | tag::NO_OBJECTS => {}
            tag::REF => drop(self.reference()?),
            tag::STRING => drop(self.string()?),
            tag::SLICE => {
                self.uint()?;
                self.uint()?;
                self.reference()?;
            }
            tag::ARRAY => {
                let length = self.uint()?;
                if length > 0 {
                    let inner = self.uint()?;
                    // All have the tag of the first, which alone is written.
                    for _ in 0..length {
                        self.body(inner, depth + 1)?;
                    }
                }
            }
            tag::MAP => {
                let length = self.uint()?;
                if length > 0 {
                    let key = self.uint()?;
                    self.body(key, depth + 1)?;
                    let value = self.uint()?;
                    self.body(value, depth + 1)?;
                    for _ in 1..length {
                        self.body(key, depth + 1)?;
                        self.body(value, depth + 1)?;
                    }
                }
            }
            tag::STRUCT => {
                self.uint()?;
                self.object(depth + 1)?;
            }
            tag::MULTIPLE_OBJECTS => {
                for _ in 0..self.uint()? {
                    self.object(depth + 1)?;
                }
            }
            tag::INTERFACE => {
                self.type_spec(0)?;
                self.object(depth + 1)?;
            }
            tag::COMPLEX64 | tag::COMPLEX128 => {
                self.uint()?;
                self.uint()?;
            }
            tag::TYPE => {
                self.string()?;
                for _ in 0..self.uint()? {
                    self.string()?;
                }
            }
            _ => return self.bad("an unknown kind of object"),
        }
        Ok(())
    }

    /// One graph: types and objects, in the order of their numbers.
    fn graph(&mut self) -> Result<Found> {
        let count = self.uint()?;
        if count & OBJECT_FLAG == 0 {
            return self.bad("a graph without a root");
        }
        let mut found = Found::default();
        let mut left = count & !OBJECT_FLAG;
        while left > 0 {
            match self.uint()? {
                tag::TYPE => self.register(&mut found)?,
                tag::UINT => {
                    let id = self.uint()?;
                    self.numbered(id, &mut found)?;
                    left -= 1;
                }
                _ => return self.bad("neither a type nor an object's number"),
            }
        }
        Ok(found)
    }

    fn register(&mut self, found: &mut Found) -> Result<()> {
        let name = self.string()?;
        found.types += 1;
        let mut mask = None;
        for field in 0..self.uint()? {
            if self.string()? == b"mask" {
                mask = Some(field);
            }
        }
        if name == INTEREST.as_bytes() {
            found.interest = mask.map(|mask| (found.types, mask));
        } else if name == INTEREST_KEY.as_bytes() {
            found.key = Some(found.types);
        }
        Ok(())
    }

    /// An object that others refer to by number.
    fn numbered(&mut self, id: u64, found: &mut Found) -> Result<()> {
        let start = self.at;
        match (self.uint()?, found.interest) {
            (tag::STRUCT, Some((interest, mask))) if self.uint()? == interest => {
                if self.uint()? != tag::MULTIPLE_OBJECTS {
                    return self.bad("an epoll registration of another form");
                }
                for field in 0..self.uint()? {
                    let kind = self.uint()?;
                    let from = self.at;
                    self.body(kind, 1)?;
                    if field == mask {
                        if kind != tag::UINT {
                            return self.bad("an epoll registration's mask of another form");
                        }
                        found.masks.push((id, from, self.at));
                    }
                }
                Ok(())
            }
            (tag::MAP, _) => self.map(found),
            _ => {
                self.at = start;
                self.object(0)
            }
        }
    }

    /// A map; if it is an epoll instance's, notes which registrations it keeps.
    fn map(&mut self, found: &mut Found) -> Result<()> {
        let length = self.uint()?;
        if length == 0 {
            return Ok(());
        }
        let key = self.uint()?;
        let of_epoll = key == tag::STRUCT && {
            let mut ahead = Reader { bytes: self.bytes, at: self.at };
            Some(ahead.uint()?) == found.key
        };
        self.body(key, 1)?;
        let value = self.uint()?;
        for n in 0..length {
            if n > 0 {
                self.body(key, 1)?;
            }
            if of_epoll && value == tag::REF {
                let kept = self.reference()?;
                found.kept.insert(kept);
            } else {
                self.body(value, 1)?;
            }
        }
        Ok(())
    }
}

/// Takes the events out of every epoll registration in a state file that no epoll instance knows any more, in place.
/// Returns how many there were.
///
/// Builds of gVisor before March 2026 link the registrations that a `epoll_wait` found not ready to each other and
/// leave it at that. One that is removed later (its file was closed) is still reached from its neighbour, so that a
/// checkpoint takes it along, and a restore marks it ready: the copy's `epoll_wait` returns at once, for ever, for a
/// descriptor that was closed, and takes whatever has that number next for broken. With no events left in its mask
/// such a registration is looked at once and never again.
pub(crate) fn silence_removed_registrations(file: &mut [u8]) -> Result<usize> {
    let stream = Stream::of(file)?;
    let mut reader = Reader { bytes: &stream.bytes, at: 0 };
    let mut removed = Vec::new();
    while reader.at < stream.bytes.len() {
        let found = reader.graph()?;
        removed.extend(found.masks.into_iter().filter(|(id, ..)| !found.kept.contains(id)));
    }
    for (_, from, to) in &removed {
        // The same number of bytes, all of them saying nothing but that another follows.
        for at in *from..*to {
            let last = at + 1 == *to;
            if let Some(byte) = file.get_mut(stream.in_file(at)) {
                *byte = if last { 0 } else { 0x80 };
            }
        }
    }
    Ok(removed.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn uint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    fn string(text: &str) -> Vec<u8> {
        [uint(text.len() as u64), text.as_bytes().to_vec()].concat()
    }

    fn type_of(name: &str, fields: &[&str]) -> Vec<u8> {
        let fields_encoded: Vec<u8> = fields.iter().flat_map(|f| string(f)).collect();
        [uint(tag::TYPE), string(name), uint(fields.len() as u64), fields_encoded].concat()
    }

    /// A registration as object `id`: a mask and a reference.
    fn registration(id: u64, mask: u64) -> Vec<u8> {
        let fields = [uint(tag::UINT), uint(mask), uint(tag::REF), uint(9), uint(0)].concat();
        [uint(tag::UINT), uint(id), uint(tag::STRUCT), uint(1), uint(tag::MULTIPLE_OBJECTS), uint(2), fields].concat()
    }

    /// An epoll instance's map that keeps `ids`.
    fn map(id: u64, ids: &[u64]) -> Vec<u8> {
        let mut bytes = [uint(tag::UINT), uint(id), uint(tag::MAP), uint(ids.len() as u64)].concat();
        for (n, id) in ids.iter().enumerate() {
            if n == 0 {
                bytes.extend(uint(tag::STRUCT));
            }
            bytes.extend([uint(2), uint(tag::NO_OBJECTS)].concat());
            if n == 0 {
                bytes.extend(uint(tag::REF));
            }
            bytes.extend([uint(*id), uint(0)].concat());
        }
        bytes
    }

    /// A file of one graph, in chunks of one to three bytes.
    fn file(objects: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = uint(OBJECT_FLAG | objects.len() as u64);
        stream.extend(type_of(INTEREST, &["mask", "epoll"]));
        stream.extend(type_of(INTEREST_KEY, &["file"]));
        stream.extend(objects.concat());
        let metadata = b"{}";
        let mut bytes = [&MAGIC[..], &(metadata.len() as u64).to_be_bytes(), metadata, &[7; 32]].concat();
        let mut left = stream.as_slice();
        for n in (1..=3).cycle() {
            let (chunk, rest) = left.split_at(n.min(left.len()));
            bytes.extend((chunk.len() as u32).to_be_bytes());
            bytes.extend(chunk);
            left = rest;
            if left.is_empty() {
                return bytes;
            }
        }
        bytes
    }

    #[test]
    fn only_registrations_that_nobody_keeps_lose_their_events() {
        let before = |mask| [registration(1, 0x19), registration(2, mask), registration(3, 0x2019), map(4, &[1, 3])];
        let mut mended = file(&before(0x2019));
        assert_eq!(silence_removed_registrations(&mut mended), Ok(1));
        let stream = Stream::of(&mended).unwrap();
        let found = Reader { bytes: &stream.bytes, at: 0 }.graph().unwrap();
        let masks: Vec<u64> =
            found.masks.iter().map(|(_, from, _)| Reader { bytes: &stream.bytes, at: *from }.uint().unwrap()).collect();
        assert_eq!(masks, [0x19, 0, 0x2019]);
        assert_eq!(mended.len(), file(&before(0x2019)).len());
        assert_eq!(silence_removed_registrations(&mut mended), Ok(1), "and once more is harmless");
    }

    #[test]
    fn a_file_in_which_all_are_kept_is_left_as_it_is() {
        let whole = file(&[registration(1, 0x19), map(2, &[1]), map(3, &[])]);
        let mut after = whole.clone();
        assert_eq!(silence_removed_registrations(&mut after), Ok(0));
        assert_eq!(after, whole);
    }

    proptest! {
        #[test]
        fn nonsense_is_an_error_and_changes_nothing(at in 50usize..200, byte: u8, cut in 0usize..300) {
            let whole = file(&[registration(1, 0x19), registration(2, 0x2019), map(3, &[1])]);
            let mut broken = whole.clone();
            if let Some(changed) = broken.get_mut(at) { *changed = byte }
            broken.truncate(cut.max(10));
            let before = broken.clone();
            if silence_removed_registrations(&mut broken).is_err() {
                prop_assert_eq!(broken, before);
            }
        }
    }
}
