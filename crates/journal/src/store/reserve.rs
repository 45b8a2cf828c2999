//! Space kept back: a file that is removed when the disk is full, so that the outcomes of what has begun can still be
//! written, and that is made anew before anything else may begin. It must hold nothing that anybody needs.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Bytes written at once.
const PIECE: &[u8] = &[0x52; 64 << 10];

pub(crate) struct Reserve {
    path: PathBuf,
    bytes: u64,
    held: bool,
}

impl Reserve {
    /// A reserve at this place, as it was left.
    pub(crate) fn at(path: PathBuf, bytes: u64) -> Reserve {
        let held = std::fs::metadata(&path).is_ok_and(|m| m.len() >= bytes);
        Reserve { path, bytes, held }
    }

    /// Whether it is there.
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Takes the space, if it isn't taken; tells whether it is now.
    pub(crate) fn take(&mut self) -> bool {
        if !self.held && has_room(&self.path, self.bytes) {
            match write(&self.path, self.bytes) {
                Ok(()) => self.held = true,
                Err(e) => {
                    // What was written so far would only make it worse.
                    let _ = std::fs::remove_file(&self.path);
                    tracing::warn!("the journal's reserve {} can't be taken: {e}", self.path.display());
                }
            }
        }
        self.held
    }

    /// Gives the space back to the disk; tells whether there was any.
    pub(crate) fn release(&mut self) -> bool {
        let had = std::mem::take(&mut self.held);
        match std::fs::remove_file(&self.path) {
            Ok(()) => had,
            Err(e) => {
                tracing::warn!("the journal's reserve {} can't be released: {e}", self.path.display());
                false
            }
        }
    }
}

/// Whether the disk has room for twice that, without trying: a reserve must not be what fills it.
fn has_room(path: &Path, bytes: u64) -> bool {
    let directory = path.parent().unwrap_or(path);
    // Where the file system can't say, writing will.
    rustix::fs::statvfs(directory).map_or(true, |s| s.f_bavail.saturating_mul(s.f_frsize) / 2 >= bytes)
}

/// Real bytes, since a hole reserves nothing.
fn write(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    let mut left = bytes;
    while left > 0 {
        let piece = usize::try_from(left).map_or(PIECE.len(), |left| left.min(PIECE.len()));
        file.write_all(&PIECE[..piece])?;
        left -= piece as u64;
    }
    file.sync_all()
}
