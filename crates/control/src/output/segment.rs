//! One file of a log: where it stands in the log, what it is called, and how it is read frame by frame.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use remuda_types::ExecutionId;
use serde::{Deserialize, Serialize};

use super::frame::{self, FrameKind, HEADER_BYTES, Header};

/// How far a scanner reads ahead, in bytes: little at first, since most logs are short.
const READ_AHEAD_BYTES: std::ops::RangeInclusive<usize> = 4 << 10..=128 << 10;

/// Which part of a log a segment belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    /// The beginning, which is kept.
    Head,
    /// The end, which rolls.
    Tail,
}

/// Where a segment begins; its first frame, or the one behind the execution's record, says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Offset of its first byte of output.
    pub(crate) offset: u64,
    /// Number of its first record.
    pub(crate) sequence: u64,
    /// Which part it belongs to.
    pub(crate) part: Part,
}

impl Start {
    /// Adds the frame that says it.
    pub(crate) fn encode(&self, buffer: &mut Vec<u8>, at_ms: i64) {
        let mut payload = [0; 17];
        payload[..8].copy_from_slice(&self.offset.to_le_bytes());
        payload[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        payload[16] = u8::from(self.part == Part::Tail);
        frame::encode(buffer, FrameKind::Segment, at_ms, &payload);
    }

    /// Reads the payload of such a frame.
    pub(crate) fn decode(payload: &[u8]) -> Option<Start> {
        let (offset, rest) = payload.split_first_chunk::<8>()?;
        let (sequence, rest) = rest.split_first_chunk::<8>()?;
        let part = match rest {
            [0] => Part::Head,
            [1] => Part::Tail,
            _ => return None,
        };
        Some(Start { offset: u64::from_le_bytes(*offset), sequence: u64::from_le_bytes(*sequence), part })
    }
}

/// What is known of a segment without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Segment {
    /// Where it begins.
    pub(crate) start: Start,
    /// Bytes of output in it.
    pub(crate) bytes: u64,
    /// Records in it.
    pub(crate) records: u64,
    /// Bytes of the file that hold whole frames.
    pub(crate) length: u64,
    /// Whether it is the execution's first file, which also holds its record and is never removed alone.
    pub(crate) first: bool,
}

impl Segment {
    /// Offset behind its last byte of output.
    pub(crate) fn end(&self) -> u64 {
        self.start.offset + self.bytes
    }

    /// Its file.
    pub(crate) fn path(&self, files: &Files) -> PathBuf {
        if self.first { files.first() } else { files.numbered(self.start.offset) }
    }
}

/// The files of one execution: `ID.log` and, where one was not enough, `ID.OFFSET` with 16 hex digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) directory: PathBuf,
    pub(crate) id: ExecutionId,
}

impl Files {
    /// The file with the execution's record.
    pub(crate) fn first(&self) -> PathBuf {
        self.directory.join(format!("{}.log", self.id))
    }

    /// The segment that begins at this offset.
    pub(crate) fn numbered(&self, offset: u64) -> PathBuf {
        self.directory.join(format!("{}.{offset:016x}", self.id))
    }
}

/// What a file in a directory of logs is, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    First(ExecutionId),
    Numbered(ExecutionId, u64),
}

impl Named {
    pub(crate) fn of(name: &str) -> Option<Named> {
        let (id, rest) = name.split_once('.')?;
        let id = id.parse().ok()?;
        match rest {
            "log" => Some(Named::First(id)),
            digits if digits.len() == 16 => Some(Named::Numbered(id, u64::from_str_radix(digits, 16).ok()?)),
            _ => None,
        }
    }
}

/// Makes a file that did not exist. One that is left of an attempt which failed is unlinked and never emptied: its
/// bytes may belong to a snapshot too.
pub(crate) fn create_fresh(path: &Path) -> io::Result<File> {
    let open = || OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    match super::with_directory(path, open) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(path)?;
            open()
        }
        opened => opened,
    }
}

/// Reads a segment frame by frame. It ends at the first frame that is not whole.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    file: &'a File,
    at: u64,
    buffer: Vec<u8>,
    buffer_at: u64,
    read_ahead: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(file: &'a File) -> Self {
        Scanner { file, at: 0, buffer: Vec::new(), buffer_at: 0, read_ahead: *READ_AHEAD_BYTES.start() }
    }

    /// Where the next frame begins: everything before is whole, or was passed over.
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// The next frame's header; the scanner stays before it.
    pub(crate) fn header(&mut self) -> io::Result<Option<Header>> {
        let Some(bytes) = self.bytes(0, HEADER_BYTES)? else { return Ok(None) };
        Ok(bytes.first_chunk::<HEADER_BYTES>().and_then(Header::decode))
    }

    /// The payload of the frame whose header was seen, and goes on behind it; `None` where it is not whole.
    pub(crate) fn payload(&mut self, header: &Header) -> io::Result<Option<&[u8]>> {
        let at = self.at;
        match self.bytes(HEADER_BYTES, header.length)? {
            Some(payload) if header.fits(payload) => {}
            _ => return Ok(None),
        }
        self.at = at + header.frame_bytes();
        let from = (at - self.buffer_at) as usize + HEADER_BYTES;
        Ok(self.buffer.get(from..from + header.length))
    }

    /// Goes on behind a frame without looking at its payload.
    pub(crate) fn pass_over(&mut self, header: &Header) {
        self.at += header.frame_bytes();
    }

    /// `length` bytes that begin `skip` bytes behind the current place, if the file has them.
    fn bytes(&mut self, skip: usize, length: usize) -> io::Result<Option<&[u8]>> {
        let needed = skip + length;
        let held = (self.at.checked_sub(self.buffer_at)).and_then(|before| usize::try_from(before).ok());
        let from = match held.filter(|from| from + needed <= self.buffer.len()) {
            Some(from) => from,
            None => {
                self.fill(needed.max(self.read_ahead))?;
                self.read_ahead = (self.read_ahead * 4).min(*READ_AHEAD_BYTES.end());
                0
            }
        };
        Ok(self.buffer.get(from + skip..from + needed))
    }

    fn fill(&mut self, wanted: usize) -> io::Result<()> {
        self.buffer.resize(wanted, 0);
        self.buffer_at = self.at;
        let mut filled = 0;
        while filled < wanted {
            match self.file.read_at(&mut self.buffer[filled..], self.at + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.buffer.truncate(filled);
        Ok(())
    }
}
