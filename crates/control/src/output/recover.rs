//! Reads a log back from its files, whatever instant its writer was killed at.
//!
//! What is found is a prefix of what was written, and all of what was acknowledged. A frame that is not whole is cut
//! off; a file that is shared with a snapshot is left as it is and goes on in another.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use super::frame::FrameKind;
use super::log::{Note, OutputLog};
use super::segment::{Files, Scanner, Segment, Start};

/// A log that was read back.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) log: OutputLog,
    /// What its first file begins with.
    pub(crate) record: Note,
    /// What was noted since, as far as it is told by the last segment, which repeats what stands.
    pub(crate) notes: Vec<Note>,
}

/// What a scan of one file found.
struct Found {
    record: Option<Note>,
    segment: Segment,
    notes: Vec<Note>,
}

/// Whose a log is that is read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nobody else's: torn ends are cut off, it can be gone on with.
    Own,
    /// Perhaps still another's: nothing is changed, and nothing will be.
    Look,
}

/// Reads a log back. `numbered` are the offsets in its files' names. `None` where there is no whole record, so that
/// nobody was ever handed the execution; what there is of it is removed.
///
/// # Errors
/// What the file system says. Nothing was changed then but torn ends.
pub(crate) fn recover(files: Files, mut numbered: Vec<u64>, access: Access) -> io::Result<Option<Recovered>> {
    let remove = |path: &Path| if access == Access::Own { super::remove(path) } else { Ok(()) };
    numbered.sort_unstable();
    let first = scan(&files.first(), true, true)?;
    let Some((first, record)) = first.and_then(|mut found| found.record.take().map(|record| (found, record))) else {
        remove(&files.first())?;
        for offset in numbered {
            remove(&files.numbered(offset))?;
        }
        return Ok(None);
    };
    let mut found = vec![first];
    let newest = numbered.last().copied();
    for offset in numbered {
        match scan(&files.numbered(offset), false, Some(offset) == newest)? {
            Some(segment) => found.push(segment),
            // Killed before it was begun.
            None => remove(&files.numbered(offset))?,
        }
    }
    // The first file comes before one that begins at the same place: it is empty then.
    found.sort_by_key(|found| (found.segment.start.offset, !found.segment.first));
    for n in 1..found.len() {
        let next = found[n].segment.start;
        let segment = &mut found[n - 1].segment;
        if segment.end() > next.offset {
            // Its file holds more than was known when it was carried.
            segment.bytes = next.offset - segment.start.offset;
            segment.records = next.sequence - segment.start.sequence;
        }
    }
    let Some(last) = found.last_mut() else { return Ok(None) };
    let notes = std::mem::take(&mut last.notes);
    let last = last.segment;
    let open = if access == Access::Own { reopen(&last.path(&files), last.length)? } else { None };
    let segments: VecDeque<Segment> = found.iter().map(|found| found.segment).collect();
    let sequence = last.start.sequence + last.records;
    let mut log = OutputLog::of(files, segments, None, last.end(), sequence);
    log.open = open.map(Arc::new);
    log.standing.clone_from(&notes);
    Ok(Some(Recovered { log, record, notes }))
}

/// Reads the record that an execution's first file begins with; `None` where there is no whole one.
///
/// # Errors
/// What the file system says.
pub(crate) fn read_record(first: &Path) -> io::Result<Option<Note>> {
    let file = File::open(first)?;
    let mut scanner = Scanner::new(&file);
    let Some(header) = scanner.header()?.filter(|header| header.kind == FrameKind::Note) else { return Ok(None) };
    let text = scanner.payload(&header)?;
    Ok(text.map(|text| Note { at_ms: header.at_ms, text: text.to_owned() }))
}

/// Reads one file up to the last frame that is whole; `None` where it does not even say where it stands. Output is
/// checked where it may be torn: in a segment that was written to when the server ended.
fn scan(path: &Path, first: bool, check_output: bool) -> io::Result<Option<Found>> {
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let on_disk = file.metadata()?.len();
    let mut scanner = Scanner::new(&file);
    let (mut record, mut start, mut notes) = (None, None, Vec::new());
    let (mut bytes, mut records) = (0, 0);
    while let Some(header) = scanner.header()? {
        if start.is_some() && !check_output && header.kind.is_output() {
            if scanner.position() + header.frame_bytes() > on_disk {
                break;
            }
            scanner.pass_over(&header);
            bytes += header.length as u64;
            records += 1;
            continue;
        }
        let Some(payload) = scanner.payload(&header)? else { break };
        match header.kind {
            // A segment that was shared with the log it was carried from may hold that one's record.
            FrameKind::Note if start.is_none() => {
                record = Some(Note { at_ms: header.at_ms, text: payload.to_owned() });
            }
            FrameKind::Note => notes.push(Note { at_ms: header.at_ms, text: payload.to_owned() }),
            FrameKind::Segment if start.is_none() => start = Start::decode(payload),
            FrameKind::Segment => break,
            FrameKind::Stdout | FrameKind::Stderr if start.is_none() => break,
            FrameKind::Stdout | FrameKind::Stderr => {
                bytes += payload.len() as u64;
                records += 1;
            }
        }
    }
    let length = scanner.position();
    Ok(start.map(|start| Found { record, segment: Segment { start, bytes, records, length, first }, notes }))
}

/// Opens a segment for more, cut to what is whole in it; `None` where it is shared and nobody may write into it.
fn reopen(path: &Path, length: u64) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let found = file.metadata()?;
    if found.nlink() > 1 {
        return Ok(None);
    }
    if found.len() > length {
        file.set_len(length)?;
    }
    Ok(Some(file))
}
