//! Reading a log, page by page. The log is asked where things are; files are read without it, so that a reader never
//! holds the writer up.

use std::fs::File;
use std::io;

use bytes::{Bytes, BytesMut};
use remuda_types::wire::OutputStream;

use super::frame::FrameKind;
use super::log::Step;
use super::pending::RECORD_BYTES_MAX;
use super::segment::{Scanner, Segment};

/// A piece of output. Neighbours of one stream are joined on reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) stream: OutputStream,
    pub(crate) bytes: Bytes,
}

/// What a read by offset found.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) next_offset: u64,
    pub(crate) skipped_bytes: u64,
}

/// One record as it was written. It never changes: not by a restart, and not in a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// Its number; the first is 0.
    pub(crate) sequence: u64,
    /// Where it stands, in bytes of the one log of both streams.
    pub(crate) offset: u64,
    /// When its first byte came in, in Unix milliseconds.
    pub(crate) at_ms: i64,
    pub(crate) stream: OutputStream,
    pub(crate) bytes: Bytes,
}

/// What a read by number found.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) records: Vec<Record>,
    /// Where to go on.
    pub(crate) next_sequence: u64,
    /// Records between the asked one and the first that were dropped at the retention limit.
    pub(crate) skipped: u64,
}

/// Reads from `offset` on, at most `bytes_max` of the wanted stream. `step` asks the log.
pub(crate) fn page(
    mut step: impl FnMut(u64) -> io::Result<Step>,
    offset: u64,
    only: Option<OutputStream>,
    bytes_max: usize,
) -> io::Result<Page> {
    let mut page = Page { next_offset: offset, ..Page::default() };
    let mut joiner = Joiner::default();
    let mut room = bytes_max;
    while room > 0 {
        match step(page.next_offset)? {
            Step::End => break,
            Step::Dropped { offset, .. } => {
                page.skipped_bytes += offset - page.next_offset;
                page.next_offset = offset;
            }
            Step::Pending(pieces) => {
                for (stream, _, bytes) in pieces {
                    let part = take(&mut room, only, stream, &bytes);
                    joiner.add(page.next_offset, stream, &bytes[..part.shown]);
                    page.next_offset += part.passed as u64;
                    if room == 0 {
                        break;
                    }
                }
            }
            Step::Segment { file, segment, from } => {
                for_each(&file, &segment, |offset, _, found| {
                    let skip = usize::try_from(from.saturating_sub(offset)).unwrap_or(usize::MAX);
                    if skip >= found.length() {
                        return Ok(Go::On);
                    }
                    let (stream, bytes) = found.read()?;
                    let part = take(&mut room, only, stream, &bytes[skip..]);
                    joiner.add(offset + skip as u64, stream, &bytes[skip..skip + part.shown]);
                    page.next_offset = offset + (skip + part.passed) as u64;
                    Ok(if room == 0 { Go::NoFurther } else { Go::On })
                })?;
            }
        }
    }
    page.pieces = joiner.finish();
    Ok(page)
}

/// Where the first kept record stands that came in at a moment or later; behind all of them if there is none. What is not
/// written yet counts as later.
pub(crate) fn since(mut step: impl FnMut(u64) -> io::Result<Step>, since_ms: i64) -> io::Result<u64> {
    let mut at = 0;
    loop {
        match step(at)? {
            Step::End | Step::Pending(_) => return Ok(at),
            Step::Dropped { offset, .. } => at = offset,
            Step::Segment { file, segment, .. } => {
                let mut found = false;
                for_each(&file, &segment, |offset, _, met| {
                    if offset + met.length() as u64 <= at {
                        return Ok(Go::On);
                    }
                    if met.at_ms() >= since_ms {
                        (at, found) = (at.max(offset), true);
                        return Ok(Go::NoFurther);
                    }
                    at = offset + met.length() as u64;
                    Ok(Go::On)
                })?;
                if found {
                    return Ok(at);
                }
            }
        }
    }
}

/// Reads records from a number on, until they hold `bytes_max` or little more.
pub(crate) fn records(
    mut step: impl FnMut(u64) -> io::Result<Step>,
    sequence: u64,
    bytes_max: usize,
) -> io::Result<Records> {
    let mut found = Records { next_sequence: sequence, ..Records::default() };
    let mut room = bytes_max;
    while room > 0 {
        match step(found.next_sequence)? {
            Step::End | Step::Pending(_) => break,
            Step::Dropped { sequence, .. } => {
                found.skipped += sequence - found.next_sequence;
                found.next_sequence = sequence;
            }
            Step::Segment { file, segment, .. } => for_each(&file, &segment, |offset, sequence, frame| {
                if sequence < found.next_sequence {
                    return Ok(Go::On);
                }
                let at_ms = frame.at_ms();
                let (stream, bytes) = frame.read()?;
                room = room.saturating_sub(bytes.len());
                let bytes = Bytes::copy_from_slice(bytes);
                found.records.push(Record { sequence, offset, at_ms, stream, bytes });
                found.next_sequence = sequence + 1;
                Ok(if room == 0 { Go::NoFurther } else { Go::On })
            })?,
        }
    }
    Ok(found)
}

/// How much of a piece is shown and how much is passed by it.
struct Part {
    shown: usize,
    passed: usize,
}

fn take(room: &mut usize, only: Option<OutputStream>, stream: OutputStream, bytes: &[u8]) -> Part {
    if only.is_some_and(|only| only != stream) {
        return Part { shown: 0, passed: bytes.len() };
    }
    let length = bytes.len().min(*room);
    *room -= length;
    Part { shown: length, passed: length }
}

/// Joins neighbours.
#[derive(Default)]
struct Joiner {
    done: Vec<Piece>,
    last: Option<(u64, OutputStream, BytesMut)>,
}

impl Joiner {
    fn add(&mut self, offset: u64, stream: OutputStream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some((start, last, joined)) = &mut self.last
            && *last == stream
            && *start + joined.len() as u64 == offset
            && joined.len() + bytes.len() <= RECORD_BYTES_MAX
        {
            joined.extend_from_slice(bytes);
            return;
        }
        self.next();
        self.last = Some((offset, stream, BytesMut::from(bytes)));
    }

    fn next(&mut self) {
        if let Some((offset, stream, bytes)) = self.last.take() {
            self.done.push(Piece { offset, stream, bytes: bytes.freeze() });
        }
    }

    fn finish(mut self) -> Vec<Piece> {
        self.next();
        self.done
    }
}

enum Go {
    On,
    NoFurther,
}

/// A frame of output that was met; reading it checks it.
struct Met<'s, 'f> {
    scanner: &'s mut Scanner<'f>,
    header: super::frame::Header,
    taken: &'s mut bool,
}

impl<'s> Met<'s, '_> {
    fn length(&self) -> usize {
        self.header.length
    }

    fn at_ms(&self) -> i64 {
        self.header.at_ms
    }

    fn read(self) -> io::Result<(OutputStream, &'s [u8])> {
        *self.taken = true;
        let stream = if self.header.kind == FrameKind::Stderr { OutputStream::Stderr } else { OutputStream::Stdout };
        let payload = self.scanner.payload(&self.header)?.ok_or_else(damaged)?;
        Ok((stream, payload))
    }
}

/// Meets the output of a segment, as much as the log says is in it.
fn for_each(
    file: &File,
    segment: &Segment,
    mut meet: impl FnMut(u64, u64, Met<'_, '_>) -> io::Result<Go>,
) -> io::Result<()> {
    let mut scanner = Scanner::new(file);
    let (mut offset, mut sequence) = (segment.start.offset, segment.start.sequence);
    while offset < segment.end() {
        let header = scanner.header()?.ok_or_else(damaged)?;
        if !header.kind.is_output() {
            scanner.pass_over(&header);
            continue;
        }
        let mut taken = false;
        let go = meet(offset, sequence, Met { scanner: &mut scanner, header, taken: &mut taken })?;
        if !taken {
            scanner.pass_over(&header);
        }
        offset += header.length as u64;
        sequence += 1;
        if matches!(go, Go::NoFurther) {
            break;
        }
    }
    Ok(())
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a file of the log is not what was written")
}
