//! Reads the wire format of a state file, and notes where epoll's objects lie in it.

use std::collections::HashSet;

/// Why a file makes no sense to this reader.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at byte {at} of its stream: {why}")]
pub(crate) struct Unreadable {
    at: usize,
    why: &'static str,
}

pub(super) type Result<T> = std::result::Result<T, Unreadable>;

/// What a state file begins with.
pub(super) const MAGIC: &[u8; 8] = b"gVisorSF";
/// Bytes of the keyed hash behind the metadata.
const METADATA_HASH_BYTES: usize = 32;
/// Set in the count that begins a graph whose root exists.
pub(super) const OBJECT_FLAG: u64 = 1 << 63;
/// Deepest nesting of one object; real ones stay below ten.
const DEPTH_MAX: u32 = 100;

/// Names of the types that matter, as gVisor registers them.
pub(super) const INTEREST: &str = "pkg/sentry/vfs.epollInterest";
pub(super) const INTEREST_KEY: &str = "pkg/sentry/vfs.epollInterestKey";
pub(super) const INSTANCE: &str = "pkg/sentry/vfs.EpollInstance";

/// The stream without its chunk headers, and where each chunk lies in the file.
pub(super) struct Stream {
    pub(super) bytes: Vec<u8>,
    /// Start in the stream, start in the file.
    chunks: Vec<(usize, usize)>,
}

impl Stream {
    pub(super) fn of(file: &[u8]) -> Result<Stream> {
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
    pub(super) fn in_file(&self, at: usize) -> usize {
        let chunk = self.chunks.partition_point(|(start, _)| *start <= at).saturating_sub(1);
        self.chunks.get(chunk).map_or(at, |(start, file)| file + (at - start))
    }
}

/// Tags of the wire format, in its order.
pub(super) mod tag {
    pub(in crate::state_file) const BOOL: u64 = 0;
    pub(in crate::state_file) const INT: u64 = 1;
    pub(in crate::state_file) const UINT: u64 = 2;
    pub(in crate::state_file) const FLOAT32: u64 = 3;
    pub(in crate::state_file) const FLOAT64: u64 = 4;
    pub(in crate::state_file) const NIL: u64 = 5;
    pub(in crate::state_file) const REF: u64 = 6;
    pub(in crate::state_file) const STRING: u64 = 7;
    pub(in crate::state_file) const SLICE: u64 = 8;
    pub(in crate::state_file) const ARRAY: u64 = 9;
    pub(in crate::state_file) const MAP: u64 = 10;
    pub(in crate::state_file) const STRUCT: u64 = 11;
    pub(in crate::state_file) const NO_OBJECTS: u64 = 12;
    pub(in crate::state_file) const MULTIPLE_OBJECTS: u64 = 13;
    pub(in crate::state_file) const INTERFACE: u64 = 14;
    pub(in crate::state_file) const COMPLEX64: u64 = 15;
    pub(in crate::state_file) const COMPLEX128: u64 = 16;
    pub(in crate::state_file) const TYPE: u64 = 17;
}

/// Bytes of the stream, from and to.
pub(super) type Span = (usize, usize);

/// A type that matters: its number, and which of its fields is looked for.
#[derive(Clone, Copy)]
struct Known {
    number: u64,
    /// `mask` of a registration.
    mask: Option<u64>,
    /// `ready` of a registration, a truth value; `ready` of an instance, its list of ready registrations.
    ready: Option<u64>,
}

/// An epoll registration.
pub(super) struct Registration {
    pub(super) id: u64,
    pub(super) mask: Option<Span>,
    /// Where it says that it is in its instance's list, and whether it does.
    pub(super) ready: Option<(Span, bool)>,
}

/// One end of an epoll instance's list of ready registrations.
pub(super) struct ListEnd {
    /// Object that it leads to.
    pub(super) leads_to: u64,
    /// Where that object's number is written.
    pub(super) number: Span,
}

/// What was found in one graph.
#[derive(Default)]
pub(super) struct Found {
    types: u64,
    interest: Option<Known>,
    instance: Option<Known>,
    /// Type number of the key under which an epoll instance keeps a registration.
    key: Option<u64>,
    pub(super) registrations: Vec<Registration>,
    pub(super) ends: Vec<ListEnd>,
    /// Registrations that an epoll instance still knows.
    pub(super) kept: HashSet<u64>,
}

pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    fn bad<T>(&self, why: &'static str) -> Result<T> {
        Err(Unreadable { at: self.at, why })
    }

    pub(super) fn uint(&mut self) -> Result<u64> {
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
    pub(super) fn graph(&mut self) -> Result<Found> {
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
        let mut known = Known { number: found.types, mask: None, ready: None };
        for field in 0..self.uint()? {
            match self.string()? {
                b"mask" => known.mask = Some(field),
                b"ready" => known.ready = Some(field),
                _ => {}
            }
        }
        if name == INTEREST.as_bytes() {
            found.interest = Some(known);
        } else if name == INSTANCE.as_bytes() {
            found.instance = Some(known);
        } else if name == INTEREST_KEY.as_bytes() {
            found.key = Some(found.types);
        }
        Ok(())
    }

    /// An object that others refer to by number.
    fn numbered(&mut self, id: u64, found: &mut Found) -> Result<()> {
        let start = self.at;
        match self.uint()? {
            tag::STRUCT => {
                let number = self.uint()?;
                if let Some(interest) = found.interest.filter(|known| known.number == number) {
                    return self.registration(id, interest, found);
                }
                if let Some(instance) = found.instance.filter(|known| known.number == number) {
                    return self.instance(instance, found);
                }
            }
            tag::MAP => return self.map(found),
            _ => {}
        }
        self.at = start;
        self.object(0)
    }

    /// How many fields follow of a struct whose type was read.
    fn fields(&mut self) -> Result<u64> {
        match self.uint()? {
            tag::MULTIPLE_OBJECTS => self.uint(),
            _ => self.bad("a type of epoll in another form"),
        }
    }

    fn registration(&mut self, id: u64, known: Known, found: &mut Found) -> Result<()> {
        let mut registration = Registration { id, mask: None, ready: None };
        for field in 0..self.fields()? {
            let kind = self.uint()?;
            let from = self.at;
            if Some(field) == known.ready {
                // What is zero is written as nothing.
                match kind {
                    tag::NIL => registration.ready = Some(((from, from), false)),
                    tag::BOOL => {
                        let ready = self.uint()? != 0;
                        registration.ready = Some(((from, self.at), ready));
                    }
                    _ => return self.bad("an epoll registration's readiness of another form"),
                }
                continue;
            }
            self.body(kind, 1)?;
            if Some(field) == known.mask {
                if kind != tag::UINT {
                    return self.bad("an epoll registration's mask of another form");
                }
                registration.mask = Some((from, self.at));
            }
        }
        found.registrations.push(registration);
        Ok(())
    }

    fn instance(&mut self, known: Known, found: &mut Found) -> Result<()> {
        for field in 0..self.fields()? {
            let kind = self.uint()?;
            if Some(field) != known.ready {
                self.body(kind, 1)?;
                continue;
            }
            if kind != tag::STRUCT {
                return self.bad("an epoll instance's list of another form");
            }
            self.uint()?;
            for _ in 0..self.fields()? {
                match self.uint()? {
                    tag::NIL => {}
                    tag::REF => {
                        let from = self.at;
                        let leads_to = self.uint()?;
                        let number = (from, self.at);
                        self.at = from;
                        self.reference()?;
                        found.ends.push(ListEnd { leads_to, number });
                    }
                    _ => return self.bad("an end of an epoll instance's list of another form"),
                }
            }
        }
        Ok(())
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
