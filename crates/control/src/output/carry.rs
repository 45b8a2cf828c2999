//! What a snapshot owns of a running execution's log, and how a branch begins with it.
//!
//! Source, snapshot and branches share files that nobody writes into any more, by hard links; each goes on in files of
//! its own. A short open segment is copied instead, so that many captures don't leave many small files.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::log::{Note, OutputLog};
use super::segment::{Files, Segment};

/// Up to this length, in bytes, an open segment is copied.
const COPIED_BYTES_MAX: u64 = 64 << 10;

/// A log as it stood when it was carried. Its files lie in the snapshot's directory under the execution's id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prefix {
    segments: Vec<Segment>,
    written: u64,
    sequence: u64,
}

impl Prefix {
    /// Bytes that are in it or were dropped before it.
    pub(crate) fn produced(&self) -> u64 {
        self.written
    }
}

impl OutputLog {
    /// Puts what is written into another place, without fsync. `writing`: a write is under way or has failed, so that
    /// the open segment's file has more in it than is known.
    ///
    /// # Errors
    /// What the file system says; nothing is lost of this log, and whatever was put there is left there.
    pub(crate) fn carry(&mut self, into: &Files, writing: bool) -> io::Result<Prefix> {
        let long = self.segments.back().is_some_and(|last| last.length > COPIED_BYTES_MAX);
        if long && !writing {
            // Sealed: what comes goes into a new segment, here as there.
            self.open = None;
        }
        let last = self.segments.len().saturating_sub(1);
        let mut segments = Vec::with_capacity(self.segments.len());
        for (n, segment) in self.segments.iter().enumerate().filter(|(_, segment)| segment.bytes > 0) {
            let (from, to) = (segment.path(&self.files), into.numbered(segment.start.offset));
            if n == last && self.open.is_some() {
                copy(&from, &to, segment.length)?;
            } else {
                link(&from, &to, segment.length)?;
            }
            segments.push(Segment { first: false, ..*segment });
        }
        Ok(Prefix { segments, written: self.written, sequence: self.sequence })
    }

    /// A log that begins with a prefix and goes on under a record of its own.
    ///
    /// # Errors
    /// What the file system says; whatever was put there is left there.
    pub(crate) fn branched(files: Files, record: Note, from: &Files, prefix: &Prefix) -> io::Result<OutputLog> {
        for segment in &prefix.segments {
            let offset = segment.start.offset;
            link(&from.numbered(offset), &files.numbered(offset), segment.length)?;
        }
        let segments = VecDeque::from(prefix.segments.clone());
        Ok(OutputLog::of(files, segments, Some(record), prefix.written, prefix.sequence))
    }
}

fn link(from: &Path, to: &Path, length: u64) -> io::Result<()> {
    let linked = super::with_directory(to, || fs::hard_link(from, to));
    match linked.as_ref().err().map(io::Error::kind) {
        // Another file system, or more branches than an inode has room for links.
        Some(io::ErrorKind::CrossesDevices | io::ErrorKind::TooManyLinks) => copy(from, to, length),
        _ => linked,
    }
}

fn copy(from: &Path, to: &Path, length: u64) -> io::Result<()> {
    let source = fs::File::open(from)?;
    let mut target = super::segment::create_fresh(to)?;
    let copied = io::copy(&mut io::Read::take(source, length), &mut target)?;
    if copied < length {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{} is too short", from.display())));
    }
    Ok(())
}
