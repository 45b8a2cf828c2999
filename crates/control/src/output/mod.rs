//! The output of executions: one ordered log over both streams for each, in files that outlive the server.
//!
//! ```text
//! executions/OWNER/ID.log              record │ segment │ output, notes … │ end
//! executions/OWNER/ID.00000000000fffa0 segment │ notes that stand │ output, notes … │ end
//! ```
//!
//! OWNER is a sandbox's uid or a snapshot. The first file begins with the execution's record and is there before the
//! agent is asked for anything. Output is appended to segments of about 1 MiB; the first 8 MiB are the head and stay,
//! of what comes then the last 8 MiB are kept, and whole segments go as they fall out of that. All of it is frames
//! ([`frame`]) that are whole or cut off.
//!
//! **What survives.** Everything that was written is in the kernel's page cache when `write` returns, and that is when
//! the agent is told that it may forget it: a `kill -9` of the server at any instant loses nothing, since the agent
//! sends again what was not acknowledged. Nothing is flushed: after a loss of power, output of the last half minute or
//! so may be missing, and a log then ends where its files stop making sense.
//!
//! **Numbers.** A record is what one write put under one header: output that comes while an earlier write is under way
//! is joined, stream by stream and up to 64 KiB, *before* it gets its number. What has a number never changes, neither
//! by a restart nor in a branch. Reading by offset joins neighbours again and also shows what waits for its write;
//! reading by number shows what is written, record by record.
//!
//! **Who waits.** Short writes are done where the output arrives. Long ones, and all while an earlier one is under way,
//! are done by a thread that may block. A write that fails (the disk is full) is tried again until it succeeds; what
//! waits is then not acknowledged, so that the agent stops reading the program's pipe at its window and nothing is
//! lost. Readers open files and take their time without the log's lock.

#![allow(dead_code, reason = "reading by number comes with a route")]

mod bury;
mod carry;
mod frame;
mod log;
mod pending;
mod read;
mod recover;
mod segment;
#[cfg(test)]
mod tests;

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

pub(crate) use bury::Burial;
pub(crate) use carry::Prefix;
pub(crate) use log::{Note, OutputLog, Refused, Step, Write};
pub(crate) use read::{Page, Records, page, records, since};
pub(crate) use recover::{Access, Recovered, read_record, recover};
pub(crate) use segment::{Files, Named};

/// Makes a directory for logs and its parents, with mode 0700.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes `path` by `make`, and its directory first if that is what is missing.
fn with_directory<T>(path: &Path, make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match (make(), path.parent()) {
        (Err(e), Some(directory)) if e.kind() == io::ErrorKind::NotFound && !directory.exists() => {
            make_directory(directory)?;
            make()
        }
        (made, _) => made,
    }
}

/// Removes a file; that there is none is fine.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Flushes every file of a directory and the directory itself. Takes as long as the disk does.
///
/// # Errors
/// What the file system says.
pub(crate) fn flush(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        File::open(entry?.path())?.sync_data()?;
    }
    File::open(directory)?.sync_all()
}
