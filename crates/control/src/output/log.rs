//! The log of one execution: what is in its files, what waits to be written, and which of it is still kept.
//!
//! Nothing here waits and nothing is written behind the caller's back: [`OutputLog::next_write`] says what is to be
//! done, [`Write::run`] does it, without the log if it may take long, and [`OutputLog::commit`] takes note. A write
//! that failed is asked for again by the next `next_write`, whole and at the same place.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use remuda_types::limits::{OUTPUT_HEAD_BYTES, OUTPUT_TAIL_BYTES};
use remuda_types::wire::OutputStream;

use super::frame::{self, FrameKind, HEADER_BYTES};
use super::pending::{Flood, Pending};
use super::segment::{Files, Part, Segment, Start, create_fresh};

/// Output that one segment holds, in bytes.
pub(crate) const SEGMENT_BYTES: u64 = 1 << 20;
/// Frames may weigh as much again as what they hold: a program that prints single bytes reaches the limits earlier,
/// and its files stay within twice their size.
const WEIGHT_FACTOR: u64 = 2;
/// What one write takes along, in bytes.
const WRITE_BYTES: usize = 256 << 10;

const HEAD_BYTES: u64 = OUTPUT_HEAD_BYTES as u64;
const TAIL_BYTES: u64 = OUTPUT_TAIL_BYTES as u64;

/// Why output was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// So many bytes before it are missing.
    Gap(u64),
    /// More than may be unacknowledged.
    Flood,
}

/// The log. Offsets count every byte that was ever produced, dropped ones too.
#[derive(Debug)]
pub(crate) struct OutputLog {
    pub(super) files: Files,
    /// Oldest first.
    pub(super) segments: VecDeque<Segment>,
    /// The last segment's file, while it may grow. A segment that is shared with a snapshot never does.
    pub(super) open: Option<Arc<File>>,
    /// The record of an execution whose first file is not there yet.
    record: Option<Note>,
    /// Notes that wait for the next write.
    notes: Vec<Note>,
    /// Notes that each new segment repeats, so that the last one tells everything.
    pub(super) standing: Vec<Note>,
    pending: Pending,
    /// The last note, due when all output is written.
    end: Option<Note>,
    /// Whether notes are worth a write of their own.
    urgent: bool,
    pub(super) written: u64,
    pub(super) sequence: u64,
}

/// Something about the execution, in the words of whoever keeps the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) at_ms: i64,
    pub(crate) text: Vec<u8>,
}

/// One write that is to be done.
#[derive(Debug)]
pub(crate) struct Write {
    target: Target,
    /// Where its output begins in the log.
    offset: u64,
    at: u64,
    buffer: Vec<u8>,
    bytes: u64,
    records: u64,
    notes: usize,
    ends: bool,
}

#[derive(Debug)]
enum Target {
    Open(Arc<File>),
    Create { path: PathBuf, segment: Segment, made: Option<File> },
}

/// Where a reader finds what comes at an offset.
#[derive(Debug)]
pub(crate) enum Step {
    /// In this file, from this offset on up to its end.
    Segment { file: File, segment: Segment, from: u64 },
    /// Not written yet: stream, time and bytes.
    Pending(Vec<(OutputStream, i64, Bytes)>),
    /// It was dropped, up to this offset and record.
    Dropped { offset: u64, sequence: u64 },
    /// Nothing was produced beyond.
    End,
}

impl OutputLog {
    /// The log of a new execution; its first file comes with the first write, and begins with this record.
    pub(crate) fn new(files: Files, record: Note) -> OutputLog {
        OutputLog::of(files, VecDeque::new(), Some(record), 0, 0)
    }

    pub(super) fn of(
        files: Files,
        segments: VecDeque<Segment>,
        record: Option<Note>,
        written: u64,
        sequence: u64,
    ) -> OutputLog {
        OutputLog {
            files,
            segments,
            open: None,
            record,
            notes: Vec::new(),
            standing: Vec::new(),
            pending: Pending::default(),
            end: None,
            urgent: false,
            written,
            sequence,
        }
    }

    /// Its files' names.
    pub(crate) fn files(&self) -> &Files {
        &self.files
    }

    /// The record that its first file begins with, or will.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn record(&self) -> io::Result<Option<Note>> {
        match &self.record {
            Some(record) => Ok(Some(record.clone())),
            None => super::read_record(&self.files.first()),
        }
    }

    /// All of its files, the one with the record last.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let numbered = self.segments.iter().filter(|segment| !segment.first).map(|segment| segment.path(&self.files));
        numbered.chain([self.files.first()]).collect()
    }

    /// Bytes produced so far.
    pub(crate) fn produced(&self) -> u64 {
        self.written + self.pending.bytes() as u64
    }

    /// Bytes that a killed server would still have; what may be acknowledged.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Bytes of the middle that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.written - self.kept()
    }

    /// Bytes kept in files now.
    pub(crate) fn kept(&self) -> u64 {
        self.part_bytes(Part::Head) + self.part_bytes(Part::Tail).min(TAIL_BYTES)
    }

    /// Bytes that wait to be written, the record's among them.
    pub(crate) fn unwritten(&self) -> usize {
        self.pending.bytes() + self.record.as_ref().map_or(0, |note| note.text.len())
    }

    /// Whether everything is in the files, the end too if it is known.
    pub(crate) fn is_settled(&self) -> bool {
        self.record.is_none() && self.pending.bytes() == 0 && self.end.is_none() && !self.urgent
    }

    fn of_part(&self, part: Part) -> impl DoubleEndedIterator<Item = &Segment> {
        self.segments.iter().filter(move |segment| segment.start.part == part)
    }

    fn part_bytes(&self, part: Part) -> u64 {
        self.of_part(part).map(|segment| segment.bytes).sum()
    }

    fn part_weight(&self, part: Part) -> u64 {
        self.of_part(part).map(weight).sum()
    }

    /// Offset from which on the tail is kept.
    fn tail_start(&self) -> u64 {
        self.written - self.part_bytes(Part::Tail).min(TAIL_BYTES)
    }

    /// Adds bytes at the end. `offset` is where their producer says they stand: what is known already is passed over.
    pub(crate) fn append(
        &mut self,
        offset: u64,
        stream: OutputStream,
        at_ms: i64,
        bytes: &[u8],
    ) -> Result<(), Refused> {
        let produced = self.produced();
        if offset > produced {
            return Err(Refused::Gap(offset - produced));
        }
        let known = usize::try_from(produced - offset).unwrap_or(usize::MAX).min(bytes.len());
        self.pending.push(stream, at_ms, &bytes[known..]).map_err(|Flood| Refused::Flood)
    }

    /// Adds a note; one that is not urgent waits for whatever is written next.
    pub(crate) fn note(&mut self, note: Note, urgent: bool) {
        self.notes.push(note);
        self.urgent |= urgent;
    }

    /// Adds the last note. It is written behind all output.
    pub(crate) fn end(&mut self, note: Note) {
        self.end = Some(note);
    }

    /// What is to be written next, if anything is. Nobody asks again before it was done or has failed.
    pub(crate) fn next_write(&self, now_ms: i64) -> Option<Write> {
        if self.is_settled() {
            return None;
        }
        let mut buffer = Vec::new();
        let (target, at, segment) = match (&self.open, self.segments.back()) {
            (Some(file), Some(last)) if !self.is_full(last) => (Target::Open(file.clone()), last.length, *last),
            _ => {
                let first = self.record.is_some();
                let start = Start { offset: self.written, sequence: self.sequence, part: self.next_part() };
                let segment = Segment { start, bytes: 0, records: 0, length: 0, first };
                if let Some(record) = &self.record {
                    frame::encode(&mut buffer, FrameKind::Note, record.at_ms, &record.text);
                }
                start.encode(&mut buffer, now_ms);
                for note in &self.standing {
                    frame::encode(&mut buffer, FrameKind::Note, note.at_ms, &note.text);
                }
                (Target::Create { path: segment.path(&self.files), segment, made: None }, 0, segment)
            }
        };
        for note in &self.notes {
            frame::encode(&mut buffer, FrameKind::Note, note.at_ms, &note.text);
        }
        let mut room = SEGMENT_BYTES.saturating_sub(segment.bytes).min(WRITE_BYTES as u64);
        if segment.start.part == Part::Head {
            room = room.min(HEAD_BYTES - self.part_bytes(Part::Head));
        }
        let buffer_bytes_max = buffer.len() + WRITE_BYTES * WEIGHT_FACTOR as usize;
        let (bytes, records) = self.pending.encode(&mut buffer, room, buffer_bytes_max);
        let end = self.end.as_ref().filter(|_| bytes == self.pending.bytes() as u64);
        if let Some(end) = end {
            frame::encode(&mut buffer, FrameKind::Note, end.at_ms, &end.text);
        }
        Some(Write {
            target,
            offset: self.written,
            at,
            buffer,
            bytes,
            records,
            notes: self.notes.len(),
            ends: end.is_some(),
        })
    }

    fn is_full(&self, last: &Segment) -> bool {
        last.bytes >= SEGMENT_BYTES
            || weight(last) >= SEGMENT_BYTES * WEIGHT_FACTOR
            || last.start.part != self.next_part()
    }

    fn next_part(&self) -> Part {
        let tail = self.segments.iter().any(|segment| segment.start.part == Part::Tail);
        let full = self.part_bytes(Part::Head) >= HEAD_BYTES
            || self.part_weight(Part::Head) >= HEAD_BYTES * WEIGHT_FACTOR
            // The head was dropped: what comes does not join on to it.
            || self.segments.is_empty() && self.written > 0;
        if tail || full { Part::Tail } else { Part::Head }
    }

    /// Takes note of a write that was done. Returns files that are no longer needed.
    ///
    /// # Panics
    /// If another write was committed since this one was taken: the file is no longer what the log says.
    pub(crate) fn commit(&mut self, write: Write) -> Vec<PathBuf> {
        assert_eq!(write.offset, self.written, "two wrote one log at once");
        if let Target::Create { segment, made: Some(file), .. } = write.target {
            self.record = None;
            self.segments.push_back(segment);
            self.open = Some(Arc::new(file));
        }
        if let Some(last) = self.segments.back_mut() {
            last.bytes += write.bytes;
            last.records += write.records;
            last.length = write.at + write.buffer.len() as u64;
        }
        self.standing.extend(self.notes.drain(..write.notes));
        self.urgent &= !self.notes.is_empty();
        self.pending.written(write.bytes);
        self.written += write.bytes;
        self.sequence += write.records;
        let unneeded = self.trim();
        if write.ends {
            self.end = None;
            self.close();
        }
        unneeded
    }

    /// Nothing more will come. What is kept of the log in memory is near nothing from now on.
    pub(crate) fn close(&mut self) {
        self.open = None;
        self.standing = Vec::new();
        self.notes = Vec::new();
        self.pending = Pending::default();
        self.segments.shrink_to_fit();
    }

    /// Lets go of the oldest segments of a tail that is too long.
    fn trim(&mut self) -> Vec<PathBuf> {
        let mut unneeded = Vec::new();
        while let Some(oldest) = self.segments.iter().position(|segment| segment.start.part == Part::Tail)
            && oldest + 1 < self.segments.len()
            && (self.segments[oldest].end() <= self.tail_start()
                || self.part_weight(Part::Tail) > TAIL_BYTES * WEIGHT_FACTOR)
            && let Some(segment) = self.segments.remove(oldest)
        {
            // The first file holds the record: it goes with the execution.
            if !segment.first {
                unneeded.push(segment.path(&self.files));
            }
        }
        unneeded
    }

    /// Where what comes at `offset` is found. Opens the file at once, so that it can be read after it was removed.
    pub(crate) fn step(&self, offset: u64) -> io::Result<Step> {
        let tail_start = self.tail_start();
        let kept_from = |segment: &Segment| match segment.start.part {
            Part::Head => segment.start.offset,
            Part::Tail => segment.start.offset.max(tail_start),
        };
        match self.segments.iter().find(|segment| segment.end() > offset.max(kept_from(segment))) {
            Some(segment) if kept_from(segment) > offset => {
                Ok(Step::Dropped { offset: kept_from(segment), sequence: segment.start.sequence })
            }
            Some(segment) => self.open(segment, offset),
            None => Ok(self.behind(offset)),
        }
    }

    /// Where the record with this number is found; what waits has no number yet.
    pub(crate) fn step_to_record(&self, sequence: u64) -> io::Result<Step> {
        let end = |segment: &Segment| segment.start.sequence + segment.records;
        match self.segments.iter().find(|segment| end(segment) > sequence) {
            Some(segment) if segment.start.sequence > sequence => {
                Ok(Step::Dropped { offset: segment.start.offset, sequence: segment.start.sequence })
            }
            Some(segment) => self.open(segment, segment.start.offset),
            None if sequence < self.sequence => Ok(Step::Dropped { offset: self.written, sequence: self.sequence }),
            None => Ok(Step::End),
        }
    }

    fn open(&self, segment: &Segment, from: u64) -> io::Result<Step> {
        let file = File::open(segment.path(&self.files))?;
        Ok(Step::Segment { file, segment: *segment, from })
    }

    fn behind(&self, offset: u64) -> Step {
        if offset < self.written {
            Step::Dropped { offset: self.written, sequence: self.sequence }
        } else if offset < self.produced() {
            Step::Pending(self.pending.from(offset - self.written).collect())
        } else {
            Step::End
        }
    }
}

/// What a segment's output weighs in its file.
fn weight(segment: &Segment) -> u64 {
    segment.bytes + segment.records * HEADER_BYTES as u64
}

impl Write {
    /// Does it. After an error nothing is committed, and what it left in the file is written over.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        match &mut self.target {
            Target::Open(file) => file.write_all_at(&self.buffer, self.at),
            Target::Create { path, made, .. } => {
                let file = create_fresh(path)?;
                file.write_all_at(&self.buffer, self.at)?;
                *made = Some(file);
                Ok(())
            }
        }
    }
}
