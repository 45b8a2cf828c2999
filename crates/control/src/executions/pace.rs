//! How far an execution's output may run ahead of those who follow it as it comes. A program that prints faster than it
//! is read waits for its readers, as it would for the reader of a pipe; but for none who stands still, so that no client
//! can stop a program for good. No I/O and no clock here.

use std::time::{Duration, Instant};

use remuda_types::limits::{FOLLOW_AHEAD_BYTES_MAX, FOLLOW_STALL_MS_MAX};

/// A reader's number among those of its execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Number(u64);

/// Who follows an execution, and where each stands.
#[derive(Debug, Default)]
pub(super) struct Pace {
    readers: Vec<Reader>,
    next: u64,
    /// Whoever reads by calls of which each says where it stands. They can't be told from each other, nor does one say
    /// that it goes: the last call counts, until it has been silent for too long.
    pager: Option<Number>,
    /// Whether somebody looks again when a reader that is waited for may have stalled.
    pub(super) watched: bool,
}

#[derive(Debug)]
struct Reader {
    number: Number,
    /// What it has been given, up to here.
    at: u64,
    /// Since when it has not come back for more; none while it waits for some.
    busy_since: Option<Instant>,
}

impl Reader {
    fn stalls_at(&self) -> Option<Instant> {
        self.busy_since.map(|since| since + Duration::from_millis(FOLLOW_STALL_MS_MAX))
    }
}

impl Pace {
    /// Somebody reads from here on.
    pub(super) fn join(&mut self, at: u64) -> Number {
        let number = Number(self.next);
        self.next += 1;
        self.readers.push(Reader { number, at, busy_since: None });
        number
    }

    /// A reader by calls, of which one comes now.
    pub(super) fn pager(&mut self, at: u64) -> Number {
        match self.pager {
            Some(number) => number,
            None => {
                let number = self.join(at);
                self.pager = Some(number);
                number
            }
        }
    }

    /// It has come for what is at this place, having done with all before it.
    pub(super) fn asks(&mut self, number: Number, at: u64) {
        self.change(number, |reader| (reader.at, reader.busy_since) = (at, None));
    }

    /// It was given what it asked for.
    pub(super) fn given(&mut self, number: Number, now: Instant) {
        self.change(number, |reader| reader.busy_since = Some(now));
    }

    /// It is gone.
    pub(super) fn leave(&mut self, number: Number) {
        self.readers.retain(|reader| reader.number != number);
    }

    fn change(&mut self, number: Number, change: impl FnOnce(&mut Reader)) {
        if let Some(reader) = self.readers.iter_mut().find(|reader| reader.number == number) {
            change(reader);
        }
    }

    /// Up to where output may come, and when that may be further without a reader's doing.
    pub(super) fn limit(&self, now: Instant) -> Option<(u64, Option<Instant>)> {
        let waited_for = self.readers.iter().filter(|reader| reader.stalls_at().is_none_or(|at| at > now));
        let slowest = waited_for.min_by_key(|reader| reader.at)?;
        Some((slowest.at + FOLLOW_AHEAD_BYTES_MAX, slowest.stalls_at()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_millis(FOLLOW_STALL_MS_MAX);

    #[test]
    fn output_waits_for_the_slowest_who_reads_and_for_none_who_stands_still() {
        let now = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(pace.limit(now), None);
        let (fast, slow) = (pace.join(0), pace.join(0));
        pace.asks(fast, 1000);
        assert_eq!(pace.limit(now), Some((FOLLOW_AHEAD_BYTES_MAX, None)));
        pace.given(slow, now);
        assert_eq!(pace.limit(now), Some((FOLLOW_AHEAD_BYTES_MAX, Some(now + STALL))));
        assert_eq!(pace.limit(now + STALL), Some((1000 + FOLLOW_AHEAD_BYTES_MAX, None)));
        // It counts again when it comes back.
        pace.asks(slow, 500);
        assert_eq!(pace.limit(now + STALL * 2), Some((500 + FOLLOW_AHEAD_BYTES_MAX, None)));
        pace.leave(slow);
        assert_eq!(pace.limit(now), Some((1000 + FOLLOW_AHEAD_BYTES_MAX, None)));
        pace.leave(fast);
        assert_eq!(pace.limit(now), None);
    }
}
