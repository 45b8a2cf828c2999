//! Retention: the output of an ended execution goes, its record stays.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use super::frame::{self, FrameKind};
use super::log::{Note, OutputLog};
use super::segment::{Part, Start, create_fresh};

/// What is to be done to the files of an execution that lost its output.
#[derive(Debug)]
pub(crate) struct Burial {
    first: PathBuf,
    beside: PathBuf,
    content: Vec<u8>,
    unneeded: Vec<PathBuf>,
}

impl OutputLog {
    /// Drops everything that is kept of a log to which nothing more will come; its offsets and numbers stay used.
    /// From this moment on reads say so; the files follow with [`Burial::run`], off everybody's way.
    pub(crate) fn bury(&mut self, record: &Note, end: &Note) -> Burial {
        let mut content = Vec::new();
        frame::encode(&mut content, FrameKind::Note, record.at_ms, &record.text);
        let start = Start { offset: self.written, sequence: self.sequence, part: Part::Tail };
        start.encode(&mut content, end.at_ms);
        frame::encode(&mut content, FrameKind::Note, end.at_ms, &end.text);
        let numbered = self.segments.iter().filter(|segment| !segment.first);
        let unneeded = numbered.map(|segment| segment.path(&self.files)).collect();
        self.segments = std::collections::VecDeque::new();
        let first = self.files.first();
        Burial { beside: first.with_extension("new"), first, content, unneeded }
    }
}

impl Burial {
    /// Replaces the first file and removes the others. A kill in the middle leaves the output for the next time.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn run(self) -> std::io::Result<()> {
        // First the space, then the note: on a full disk there is none for it otherwise.
        for path in &self.unneeded {
            super::remove(path)?;
        }
        create_fresh(&self.beside)?.write_all(&self.content)?;
        fs::rename(&self.beside, &self.first)
    }
}
