//! The digest of a file's contents: SHA-256 in hex. Never moves a file's offset.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use sha2::{Digest as _, Sha256};

use crate::limits::CHUNK_BYTES;

/// A digest in the making.
#[derive(Default)]
pub struct Digest(Sha256);

impl Digest {
    /// Adds what comes next.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all that was added.
    pub fn finish(self) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
        self.0.finalize().iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
    }
}

/// The digest of an open file; `None` for one whose length is not what it says, such as those of `/proc`, or that changes
/// while it is read.
pub fn of(file: &File) -> io::Result<Option<String>> {
    let before = file.metadata()?;
    let mut buffer = vec![0; CHUNK_BYTES.min(before.len() as usize + 1)];
    let (mut digest, mut at) = (Digest::default(), 0);
    loop {
        match file.read_at(&mut buffer, at) {
            Ok(0) => break,
            Ok(bytes) => {
                digest.update(&buffer[..bytes]);
                at += bytes as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if at > before.len() {
            return Ok(None);
        }
    }
    let after = file.metadata()?;
    let same = at == before.len() && after.len() == at && after.modified()? == before.modified()?;
    Ok(same.then(|| digest.finish()))
}
