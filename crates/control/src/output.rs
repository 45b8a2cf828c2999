//! The retained output of one execution: one ordered log over both streams, the head and a rolling tail of it.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use remuda_types::limits::{OUTPUT_HEAD_BYTES, OUTPUT_TAIL_BYTES};
use remuda_types::wire::OutputStream;

/// Small pieces of one stream are joined up to this size, in bytes, so that a million short lines are not a million
/// allocations.
const JOINED_BYTES_MAX: usize = 64 << 10;

/// One piece of a log.
#[derive(Debug, Clone)]
struct Piece {
    offset: u64,
    stream: OutputStream,
    bytes: BytesMut,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// The log. Offsets count every byte that was ever produced, dropped ones too.
#[derive(Debug, Clone, Default)]
pub(crate) struct OutputLog {
    head: VecDeque<Piece>,
    tail: VecDeque<Piece>,
    head_bytes: usize,
    tail_bytes: usize,
    produced: u64,
    dropped: u64,
}

/// What a read found.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) records: Vec<(u64, OutputStream, Bytes)>,
    pub(crate) next_offset: u64,
    pub(crate) skipped_bytes: u64,
}

impl OutputLog {
    /// Bytes produced so far.
    pub(crate) fn produced(&self) -> u64 {
        self.produced
    }

    /// Bytes of the middle that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Bytes kept now.
    pub(crate) fn kept(&self) -> usize {
        self.head_bytes + self.tail_bytes
    }

    /// Adds bytes at the end. `offset` is where their producer says they stand: what is known already is passed over.
    /// `Err` tells how many bytes are missing before them.
    pub(crate) fn append(&mut self, offset: u64, stream: OutputStream, bytes: &[u8]) -> Result<(), u64> {
        if offset > self.produced {
            return Err(offset - self.produced);
        }
        let known = usize::try_from(self.produced - offset).unwrap_or(usize::MAX).min(bytes.len());
        let mut rest = &bytes[known..];
        if !rest.is_empty() && self.head_bytes < OUTPUT_HEAD_BYTES {
            let (now, later) = rest.split_at(rest.len().min(OUTPUT_HEAD_BYTES - self.head_bytes));
            push(&mut self.head, self.produced, stream, now);
            self.head_bytes += now.len();
            self.produced += now.len() as u64;
            rest = later;
        }
        if !rest.is_empty() {
            push(&mut self.tail, self.produced, stream, rest);
            self.tail_bytes += rest.len();
            self.produced += rest.len() as u64;
            self.trim_tail();
        }
        Ok(())
    }

    fn trim_tail(&mut self) {
        while self.tail_bytes > OUTPUT_TAIL_BYTES {
            let Some(first) = self.tail.front_mut() else { return };
            let surplus = (self.tail_bytes - OUTPUT_TAIL_BYTES).min(first.bytes.len());
            drop(first.bytes.split_to(surplus));
            first.offset += surplus as u64;
            if first.bytes.is_empty() {
                self.tail.pop_front();
            }
            self.tail_bytes -= surplus;
            self.dropped += surplus as u64;
        }
    }

    /// Drops everything that is kept of a log to which nothing more will come; its offsets stay used.
    pub(crate) fn drop_all(&mut self) {
        self.dropped += self.kept() as u64;
        let (produced, dropped) = (self.produced, self.dropped);
        *self = OutputLog { produced, dropped, ..OutputLog::default() };
    }

    /// Reads from `offset` on, at most `max_bytes`.
    pub(crate) fn read(&self, offset: u64, only: Option<OutputStream>, max_bytes: usize) -> Slice {
        let mut slice = Slice { records: Vec::new(), next_offset: offset.min(self.produced), skipped_bytes: 0 };
        let mut room = max_bytes;
        for piece in self.head.iter().chain(&self.tail).filter(|p| p.end() > offset) {
            if room == 0 {
                return slice;
            }
            slice.skipped_bytes += piece.offset.saturating_sub(slice.next_offset);
            let start = usize::try_from(slice.next_offset.saturating_sub(piece.offset)).unwrap_or(0);
            let wanted = only.is_none_or(|only| only == piece.stream);
            let length = (piece.bytes.len() - start).min(if wanted { room } else { usize::MAX });
            if wanted {
                let bytes = Bytes::copy_from_slice(&piece.bytes[start..start + length]);
                slice.records.push((piece.offset + start as u64, piece.stream, bytes));
                room -= length;
            }
            slice.next_offset = piece.offset + (start + length) as u64;
        }
        // Everything behind the last piece was dropped.
        if room > 0 && slice.next_offset < self.produced {
            slice.skipped_bytes += self.produced - slice.next_offset;
            slice.next_offset = self.produced;
        }
        slice
    }

    /// All that is kept of one stream.
    pub(crate) fn text(&self, only: OutputStream) -> String {
        let mut all = Vec::new();
        for piece in self.head.iter().chain(&self.tail).filter(|p| p.stream == only) {
            all.extend_from_slice(&piece.bytes);
        }
        String::from_utf8(all).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }
}

fn push(pieces: &mut VecDeque<Piece>, offset: u64, stream: OutputStream, bytes: &[u8]) {
    if let Some(last) = pieces.back_mut()
        && last.stream == stream
        && last.end() == offset
        && last.bytes.len() + bytes.len() <= JOINED_BYTES_MAX
    {
        last.bytes.extend_from_slice(bytes);
    } else {
        pieces.push_back(Piece { offset, stream, bytes: BytesMut::from(bytes) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(bytes: usize) -> OutputLog {
        let mut log = OutputLog::default();
        let chunk: Vec<u8> = (0..250u8).cycle().take(100_000).collect();
        let mut at = 0;
        while at < bytes {
            let n = chunk.len().min(bytes - at);
            log.append(at as u64, OutputStream::Stdout, &chunk[..n]).unwrap();
            at += n;
        }
        log
    }

    #[test]
    fn a_gap_is_refused_and_a_repetition_passed_over() {
        let mut log = OutputLog::default();
        log.append(0, OutputStream::Stdout, b"hello").unwrap();
        assert_eq!(log.append(7, OutputStream::Stdout, b"x"), Err(2));
        log.append(3, OutputStream::Stdout, b"lo you").unwrap();
        log.append(0, OutputStream::Stdout, b"hel").unwrap();
        assert_eq!(log.text(OutputStream::Stdout), "hello you");
    }

    #[test]
    fn the_middle_goes_and_is_told() {
        let size = OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES + 12_345;
        let log = filled(size);
        assert_eq!((log.produced(), log.dropped()), (size as u64, 12_345));
        assert_eq!(log.kept(), OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES);
        let slice = log.read(OUTPUT_HEAD_BYTES as u64 - 10, None, 100);
        assert_eq!(slice.skipped_bytes, 12_345);
        assert_eq!(slice.records.iter().map(|r| r.2.len()).sum::<usize>(), 100);
        assert_eq!(slice.records[1].0, OUTPUT_HEAD_BYTES as u64 + 12_345);
    }

    #[test]
    fn what_was_dropped_whole_is_skipped_whole() {
        let mut log = filled(1000);
        log.drop_all();
        let slice = log.read(10, None, 100);
        assert_eq!((slice.records.len(), slice.next_offset, slice.skipped_bytes), (0, 1000, 990));
    }

    proptest! {
        #[test]
        fn reading_page_by_page_gives_what_was_written(
            writes in proptest::collection::vec((any::<bool>(), proptest::collection::vec(any::<u8>(), 0..300)), 0..40),
            page in 1usize..500,
        ) {
            let mut log = OutputLog::default();
            let (mut all, mut errors) = (Vec::new(), Vec::new());
            for (error, bytes) in &writes {
                let stream = if *error { OutputStream::Stderr } else { OutputStream::Stdout };
                log.append(all.len() as u64, stream, bytes).unwrap();
                all.extend_from_slice(bytes);
                if *error { errors.extend_from_slice(bytes) }
            }
            for (only, expected) in [(None, &all), (Some(OutputStream::Stderr), &errors)] {
                let (mut at, mut got) = (0, Vec::new());
                loop {
                    let slice = log.read(at, only, page);
                    prop_assert_eq!(slice.skipped_bytes, 0);
                    slice.records.iter().for_each(|r| got.extend_from_slice(&r.2));
                    if slice.next_offset == at { break }
                    at = slice.next_offset;
                }
                prop_assert_eq!(&got, expected);
            }
        }
    }
}
