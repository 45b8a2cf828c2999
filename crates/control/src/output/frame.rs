//! Frames of a log's files: what is written whole or not at all, as far as a reader is concerned. No I/O here.
//!
//! A header of 16 bytes, little endian, and the payload behind it:
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 | length of the payload |
//! | 4 | checksum of the length, the next eight bytes and the payload |
//! | 1 | kind |
//! | 7 | when it was made, in Unix milliseconds |
//!
//! A process that is killed in the middle of a `write` leaves a frame that is too short: the length shows that. After
//! a loss of power, parts of a file may be zeros or old: the checksum shows that. It is no protection against somebody
//! who can write into the data directory.

/// Bytes before a payload.
pub(crate) const HEADER_BYTES: usize = 16;
/// Largest payload, in bytes: a command of the largest size as JSON, every character of it escaped, fits.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 8 << 20;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    /// What is to be known of the execution, as JSON.
    Note = 1,
    /// Where a segment stands in the log.
    Segment = 2,
    /// Bytes of standard output.
    Stdout = 3,
    /// Bytes of standard error.
    Stderr = 4,
}

impl FrameKind {
    fn of(byte: u8) -> Option<FrameKind> {
        [FrameKind::Note, FrameKind::Segment, FrameKind::Stdout, FrameKind::Stderr]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }

    /// Whether it holds output.
    pub(crate) fn is_output(self) -> bool {
        matches!(self, FrameKind::Stdout | FrameKind::Stderr)
    }
}

/// A header that makes sense. Its payload may still not be the one it was made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: FrameKind,
    /// Of the payload, in bytes.
    pub(crate) length: usize,
    /// In Unix milliseconds.
    pub(crate) at_ms: i64,
    checksum: [u8; 4],
    about: [u8; 8],
}

impl Header {
    /// Reads a header; `None` where it is none.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (checksum, about) = rest.split_first_chunk::<4>()?;
        let about: [u8; 8] = about.try_into().ok()?;
        let length = u32::from_le_bytes(*length) as usize;
        let kind = FrameKind::of(about[0])?;
        if length > PAYLOAD_BYTES_MAX {
            return None;
        }
        let at_ms = i64::from_le_bytes(about) >> 8;
        Some(Header { kind, length, at_ms, checksum: *checksum, about })
    }

    /// Length of the whole frame, in bytes.
    pub(crate) fn frame_bytes(&self) -> u64 {
        (HEADER_BYTES + self.length) as u64
    }

    /// Whether this is the payload it was made for.
    pub(crate) fn fits(&self, payload: &[u8]) -> bool {
        payload.len() == self.length && checksum(payload, self.about) == self.checksum
    }
}

/// Adds a frame to a buffer.
///
/// # Panics
/// If the payload is longer than [`PAYLOAD_BYTES_MAX`]: whoever makes one keeps to that.
pub(crate) fn encode(buffer: &mut Vec<u8>, kind: FrameKind, at_ms: i64, payload: &[u8]) {
    assert!(payload.len() <= PAYLOAD_BYTES_MAX, "a frame of {} bytes", payload.len());
    let mut about = (at_ms << 8).to_le_bytes();
    about[0] = kind as u8;
    buffer.reserve(HEADER_BYTES + payload.len());
    buffer.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    buffer.extend_from_slice(&checksum(payload, about));
    buffer.extend_from_slice(&about);
    buffer.extend_from_slice(payload);
}

fn checksum(payload: &[u8], about: [u8; 8]) -> [u8; 4] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(payload.len() as u32).to_le_bytes());
    hasher.update(&about);
    hasher.update(payload);
    let digest = hasher.finalize();
    let [a, b, c, d, ..] = *digest.as_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_is_what_it_was_made_of() {
        for at_ms in [0, 1, 1_790_000_000_000, (1 << 55) - 1] {
            let mut buffer = vec![9];
            encode(&mut buffer, FrameKind::Stderr, at_ms, b"hello");
            let (header, payload) = buffer[1..].split_first_chunk::<HEADER_BYTES>().unwrap();
            let header = Header::decode(header).unwrap();
            assert_eq!((header.kind, header.at_ms, header.length), (FrameKind::Stderr, at_ms, 5));
            assert!(header.fits(payload));
        }
    }

    proptest! {
        #[test]
        fn a_changed_bit_is_seen(payload in proptest::collection::vec(any::<u8>(), 0..200), bit in any::<prop::sample::Index>()) {
            let mut buffer = Vec::new();
            encode(&mut buffer, FrameKind::Stdout, 1_790_000_000_000, &payload);
            let bit = bit.index(buffer.len() * 8);
            buffer[bit / 8] ^= 1 << (bit % 8);
            let (header, payload) = buffer.split_first_chunk::<HEADER_BYTES>().unwrap();
            prop_assert!(Header::decode(header).is_none_or(|header| !header.fits(payload)));
        }

        #[test]
        fn nonsense_is_no_frame_or_a_short_one(bytes in any::<[u8; HEADER_BYTES]>()) {
            if let Some(header) = Header::decode(&bytes) {
                prop_assert!(header.length <= PAYLOAD_BYTES_MAX);
            }
        }
    }
}
