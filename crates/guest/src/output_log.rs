//! One execution's output that the host has not acknowledged: the bytes of both streams in the order they were read.
//! Holds at most a window of them and drops none that was not acknowledged. No I/O here.

use std::collections::VecDeque;

use remuda_guest_proto::{OUTPUT_PREFIX_BYTES, Stream, WINDOW_BYTES};

use crate::limits::{CHUNK_BYTES, OUTPUT_RUNS_MAX};

/// The log; offsets count from the execution's first byte.
#[derive(Default)]
pub struct OutputLog {
    bytes: VecDeque<u8>,
    /// Offset of the first byte kept: everything before is acknowledged.
    base: u64,
    /// Offset of the first byte not yet given to the channel.
    sent: u64,
    /// Where each stretch of one stream begins. The first begins at or before `base`.
    runs: VecDeque<(u64, Stream)>,
    /// Whether nothing will be appended any more.
    closed: bool,
}

/// Capacity that an empty log keeps for what comes, in bytes.
const KEPT_CAPACITY_BYTES: usize = 64 << 10;

impl OutputLog {
    /// Bytes of output so far.
    pub fn produced(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Bytes that may be appended now.
    pub fn room(&self) -> usize {
        if self.runs.len() >= OUTPUT_RUNS_MAX {
            return 0;
        }
        (WINDOW_BYTES as usize).saturating_sub(self.bytes.len())
    }

    /// Whether something waits to be sent.
    pub fn has_unsent(&self) -> bool {
        self.sent < self.produced()
    }

    /// Adds what was read; the caller keeps to [`OutputLog::room`].
    pub fn append(&mut self, stream: Stream, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.runs.back().is_none_or(|(_, last)| *last != stream) {
            self.runs.push_back((self.produced(), stream));
        }
        let needed = self.bytes.len() + bytes.len();
        if needed > self.bytes.capacity() {
            // By doubling, but never beyond the window.
            let capacity = needed.max((self.bytes.capacity() * 2).min(WINDOW_BYTES as usize));
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend(bytes);
    }

    /// The payload of the next output frame, built in `buffer`; `None` when all is sent.
    pub fn take(&mut self, mut buffer: Vec<u8>) -> Option<Vec<u8>> {
        let produced = self.produced();
        let run = self.runs.partition_point(|(start, _)| *start <= self.sent).checked_sub(1)?;
        let (_, stream) = *self.runs.get(run)?;
        let run_end = self.runs.get(run + 1).map_or(produced, |(start, _)| *start);
        let length = usize::try_from(run_end.saturating_sub(self.sent)).ok()?.min(CHUNK_BYTES);
        let from = usize::try_from(self.sent.checked_sub(self.base)?).ok()?;
        if length == 0 {
            return None;
        }
        buffer.clear();
        buffer.reserve(OUTPUT_PREFIX_BYTES + length);
        buffer.extend_from_slice(&self.sent.to_le_bytes());
        buffer.push(stream as u8);
        let (front, back) = self.bytes.as_slices();
        let cut = from.min(front.len());
        let front = &front[cut..];
        let back = &back[from - cut..];
        let of_front = length.min(front.len());
        buffer.extend_from_slice(&front[..of_front]);
        buffer.extend_from_slice(&back[..length - of_front]);
        self.sent += length as u64;
        Some(buffer)
    }

    /// Frees what the host has consumed. More than was sent is the host's mistake and counts as what was sent.
    pub fn acknowledge(&mut self, consumed: u64) {
        let consumed = consumed.min(self.sent);
        let Some(freed) = consumed.checked_sub(self.base) else { return };
        self.bytes.drain(..freed as usize);
        self.base = consumed;
        if self.bytes.is_empty() {
            self.runs.clear();
            self.free();
        }
        while self.runs.get(1).is_some_and(|(start, _)| *start <= self.base) {
            self.runs.pop_front();
        }
    }

    /// Nothing will be appended any more.
    pub fn close(&mut self) {
        self.closed = true;
        if self.bytes.is_empty() {
            self.free();
        }
    }

    fn free(&mut self) {
        if self.closed || self.bytes.capacity() > KEPT_CAPACITY_BYTES {
            self.bytes = VecDeque::new();
            self.runs = VecDeque::new();
        }
    }

    /// A new host: drops what it has up to `have`, if it says so, and sends all the rest again.
    pub fn resume(&mut self, have: Option<u64>) {
        if let Some(have) = have {
            self.sent = self.produced();
            self.acknowledge(have);
        }
        self.sent = self.base;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use remuda_guest_proto::OutputChunk;

    use super::*;

    fn sent(log: &mut OutputLog) -> Vec<(u64, Stream, Vec<u8>)> {
        std::iter::from_fn(|| {
            let payload = log.take(Vec::new())?;
            let chunk = OutputChunk::decode(&payload).unwrap();
            Some((chunk.offset, chunk.stream, chunk.bytes.to_vec()))
        })
        .collect()
    }

    #[test]
    fn streams_keep_their_order_and_runs_coalesce() {
        let mut log = OutputLog::default();
        log.append(Stream::Stdout, b"ab");
        log.append(Stream::Stdout, b"c");
        log.append(Stream::Stderr, b"E");
        log.append(Stream::Stdout, b"d");
        assert_eq!(
            sent(&mut log),
            [
                (0, Stream::Stdout, b"abc".to_vec()),
                (3, Stream::Stderr, b"E".to_vec()),
                (4, Stream::Stdout, b"d".to_vec())
            ]
        );
        log.resume(Some(2));
        assert_eq!(sent(&mut log)[0], (2, Stream::Stdout, b"c".to_vec()));
        log.acknowledge(5);
        assert_eq!((log.produced(), log.room(), log.has_unsent()), (5, WINDOW_BYTES as usize, false));
    }

    #[test]
    fn a_window_is_all_it_takes() {
        let mut log = OutputLog::default();
        log.append(Stream::Stdout, &vec![7; WINDOW_BYTES as usize]);
        assert_eq!(log.room(), 0);
        log.acknowledge(99);
        assert_eq!(log.room(), 0, "nothing was sent, so nothing can be acknowledged");
        let whole: usize = sent(&mut log).iter().map(|(_, _, bytes)| bytes.len()).sum();
        assert_eq!(whole as u64, WINDOW_BYTES);
        log.acknowledge(10);
        assert_eq!(log.room(), 10);
    }

    #[test]
    fn too_many_changes_between_streams_fill_it_too() {
        let mut log = OutputLog::default();
        for i in 0..OUTPUT_RUNS_MAX {
            log.append(if i % 2 == 0 { Stream::Stdout } else { Stream::Stderr }, b"x");
        }
        assert_eq!(log.room(), 0);
        sent(&mut log);
        log.acknowledge(100);
        assert!(log.room() > 0);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Append(bool, Vec<u8>),
        Take,
        Acknowledge(u64),
        Resume(Option<u64>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (any::<bool>(), proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(s, b)| Step::Append(s, b)),
            Just(Step::Take),
            (0u64..900).prop_map(Step::Acknowledge),
            proptest::option::of(0u64..900).prop_map(Step::Resume),
        ]
    }

    proptest! {
        /// Whatever the host says, each byte that is sent is the byte of that offset, and after a resume from what it
        /// has, nothing is missing.
        #[test]
        fn every_byte_sent_is_the_one_that_was_read(steps in proptest::collection::vec(step(), 0..60)) {
            let mut log = OutputLog::default();
            let mut truth: Vec<(bool, u8)> = Vec::new();
            let mut acknowledged = 0u64;
            let check = |truth: &[(bool, u8)], payload: &[u8]| {
                let chunk = OutputChunk::decode(payload).unwrap();
                for (i, byte) in chunk.bytes.iter().enumerate() {
                    assert_eq!(truth[chunk.offset as usize + i], (chunk.stream == Stream::Stderr, *byte));
                }
                (chunk.offset, chunk.bytes.len() as u64)
            };
            for step in steps {
                match step {
                    Step::Append(err, bytes) => {
                        truth.extend(bytes.iter().map(|b| (err, *b)));
                        log.append(if err { Stream::Stderr } else { Stream::Stdout }, &bytes);
                    }
                    Step::Take => {
                        if let Some(payload) = log.take(Vec::new()) {
                            check(&truth, &payload);
                        }
                    }
                    Step::Acknowledge(n) => {
                        log.acknowledge(n);
                        acknowledged = acknowledged.max(log.base);
                    }
                    Step::Resume(have) => {
                        log.resume(have);
                        acknowledged = acknowledged.max(log.base);
                    }
                }
                prop_assert_eq!(log.produced(), truth.len() as u64);
            }
            log.resume(None);
            let mut at = acknowledged;
            while let Some(payload) = log.take(Vec::new()) {
                let (offset, length) = check(&truth, &payload);
                prop_assert_eq!(offset, at);
                at += length;
            }
            prop_assert_eq!(at, truth.len() as u64);
        }
    }
}
