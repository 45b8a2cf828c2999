//! What a log has been given and has not written yet. Bounded: nothing here is acknowledged to the agent, which stays
//! within one window. No I/O here.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use remuda_guest_proto::WINDOW_BYTES;
use remuda_types::wire::OutputStream;

use super::frame::{self, FrameKind};

/// Largest record, in bytes. What waits is joined up to it before it gets its number, so that a million short lines
/// that come faster than they are written are not a million records.
pub(crate) const RECORD_BYTES_MAX: usize = 64 << 10;
/// Most pieces that wait. An agent leaves a program's pipes alone at 16,384 unacknowledged changes between its
/// streams; joining adds no more than a window's worth of whole records.
const PIECES_MAX: usize = (16 << 10) + 2 * (WINDOW_BYTES as usize / RECORD_BYTES_MAX);

/// Bytes of one stream.
#[derive(Debug)]
struct Piece {
    stream: OutputStream,
    at_ms: i64,
    bytes: BytesMut,
}

/// Output that waits.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    pieces: VecDeque<Piece>,
    bytes: usize,
}

/// The agent sent more than it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flood;

impl Pending {
    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds bytes at the end.
    pub(crate) fn push(&mut self, stream: OutputStream, at_ms: i64, bytes: &[u8]) -> Result<(), Flood> {
        if bytes.len() > WINDOW_BYTES as usize - self.bytes.min(WINDOW_BYTES as usize) {
            return Err(Flood);
        }
        let mut rest = bytes;
        if let Some(last) = self.pieces.back_mut()
            && last.stream == stream
        {
            let (joined, more) = rest.split_at(rest.len().min(RECORD_BYTES_MAX.saturating_sub(last.bytes.len())));
            last.bytes.extend_from_slice(joined);
            self.bytes += joined.len();
            rest = more;
        }
        for piece in rest.chunks(RECORD_BYTES_MAX) {
            if self.pieces.len() >= PIECES_MAX {
                return Err(Flood);
            }
            self.pieces.push_back(Piece { stream, at_ms, bytes: BytesMut::from(piece) });
            self.bytes += piece.len();
        }
        Ok(())
    }

    /// Adds frames of what waits to a buffer, at most `bytes_max` bytes of output, until the buffer holds
    /// `buffer_bytes_max` or little more. They go on waiting until [`Pending::written`]. Returns bytes and records.
    pub(crate) fn encode(&self, buffer: &mut Vec<u8>, bytes_max: u64, buffer_bytes_max: usize) -> (u64, u64) {
        let (mut room, mut records) = (usize::try_from(bytes_max).unwrap_or(usize::MAX), 0);
        let before = room;
        for piece in &self.pieces {
            if room == 0 || buffer.len() >= buffer_bytes_max {
                break;
            }
            let part = &piece.bytes[..piece.bytes.len().min(room)];
            let kind = match piece.stream {
                OutputStream::Stdout => FrameKind::Stdout,
                OutputStream::Stderr => FrameKind::Stderr,
            };
            frame::encode(buffer, kind, piece.at_ms, part);
            room -= part.len();
            records += 1;
        }
        ((before - room) as u64, records)
    }

    /// The first `bytes` are in the file.
    pub(crate) fn written(&mut self, bytes: u64) {
        let mut left = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.bytes);
        self.bytes -= left;
        while left > 0
            && let Some(first) = self.pieces.front_mut()
        {
            // It may have grown since it was written.
            let part = left.min(first.bytes.len());
            first.bytes.advance(part);
            left -= part;
            if first.bytes.is_empty() {
                self.pieces.pop_front();
            }
        }
    }

    /// What waits, from `skip` bytes on: stream, time and bytes of each piece.
    pub(crate) fn from(&self, skip: u64) -> impl Iterator<Item = (OutputStream, i64, Bytes)> {
        let mut skip = usize::try_from(skip).unwrap_or(usize::MAX);
        self.pieces.iter().filter_map(move |piece| {
            let passed = skip.min(piece.bytes.len());
            skip -= passed;
            let rest = &piece.bytes[passed..];
            (!rest.is_empty()).then(|| (piece.stream, piece.at_ms, Bytes::copy_from_slice(rest)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_joined_by_stream_up_to_a_records_size() {
        let mut pending = Pending::default();
        for n in 0..10 {
            pending.push(OutputStream::Stdout, n, b"abc").unwrap();
        }
        pending.push(OutputStream::Stderr, 20, b"x").unwrap();
        pending.push(OutputStream::Stdout, 21, &vec![1; RECORD_BYTES_MAX + 5]).unwrap();
        let all: Vec<_> = pending.from(28).map(|(stream, at, bytes)| (stream, at, bytes.len())).collect();
        use OutputStream::{Stderr, Stdout};
        assert_eq!(all, [(Stdout, 0, 2), (Stderr, 20, 1), (Stdout, 21, RECORD_BYTES_MAX), (Stdout, 21, 5)]);
        let mut buffer = Vec::new();
        assert_eq!(pending.encode(&mut buffer, 31, usize::MAX), (31, 2));
        // What is added to a piece while it is written stays.
        pending.written(29);
        assert_eq!(pending.bytes(), 2 + RECORD_BYTES_MAX + 5);
    }

    #[test]
    fn more_than_a_window_or_too_many_pieces_is_a_flood() {
        let mut pending = Pending::default();
        pending.push(OutputStream::Stdout, 0, &vec![1; WINDOW_BYTES as usize]).unwrap();
        assert_eq!(pending.push(OutputStream::Stdout, 0, b"x"), Err(Flood));
        let mut pending = Pending::default();
        let pushed = (0..PIECES_MAX + 1).map(|n| {
            let stream = if n % 2 == 0 { OutputStream::Stdout } else { OutputStream::Stderr };
            pending.push(stream, 0, b"x")
        });
        assert_eq!(pushed.filter(Result::is_err).count(), 1);
    }
}
