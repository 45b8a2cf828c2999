//! Data on its way in on one channel: what the host sent and nobody consumed yet. Holds at most a window. No I/O here.

use remuda_guest_proto::WINDOW_BYTES;

use crate::limits::CREDIT_STEP_BYTES;

/// How the data ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All of it came.
    Whole,
    /// The host broke off.
    BrokenOff,
}

/// The data of one channel.
#[derive(Default)]
pub struct Inbox {
    waiting: Vec<u8>,
    received: u64,
    consumed: u64,
    credited: u64,
    ending: Option<Ending>,
}

impl Inbox {
    /// Takes what came; `false` when the host went beyond its window or its own end, and nothing was taken.
    #[must_use]
    pub fn receive(&mut self, bytes: &[u8]) -> bool {
        let received = self.received + bytes.len() as u64;
        if self.ending.is_some() || received - self.consumed > WINDOW_BYTES {
            return false;
        }
        self.received = received;
        self.waiting.extend_from_slice(bytes);
        true
    }

    /// Bytes that may come now.
    pub fn room(&self) -> usize {
        (WINDOW_BYTES - (self.received - self.consumed)) as usize
    }

    /// Nothing more will come.
    pub fn end(&mut self, ending: Ending) {
        self.ending.get_or_insert(ending);
    }

    /// How the data ended, once all of it is taken.
    pub fn ended(&self) -> Option<Ending> {
        match self.ending {
            Some(Ending::Whole) if !self.waiting.is_empty() => None,
            other => other,
        }
    }

    /// Whether something waits to be taken.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes all that waits, leaving `buffer` (cleared) in its place.
    pub fn take(&mut self, mut buffer: Vec<u8>) -> Vec<u8> {
        buffer.clear();
        std::mem::replace(&mut self.waiting, buffer)
    }

    /// Counts bytes as consumed.
    pub fn consume(&mut self, bytes: usize) {
        self.consumed = (self.consumed + bytes as u64).min(self.received);
    }

    /// Drops what waits and counts it as consumed: nobody will ever want it.
    pub fn discard(&mut self) {
        self.waiting = Vec::new();
        self.consumed = self.received;
    }

    /// The credit to send now, if one is worth sending: a step's worth, or all there was.
    pub fn credit_due(&mut self) -> Option<u64> {
        let behind = self.consumed - self.credited;
        if behind >= CREDIT_STEP_BYTES || (behind > 0 && self.consumed == self.received) {
            self.credited = self.consumed;
            return Some(self.consumed);
        }
        None
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Whether nothing more will come.
    pub fn is_closed(&self) -> bool {
        self.ending.is_some()
    }

    /// Bytes consumed so far.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_beyond_its_window_is_noticed() {
        let mut inbox = Inbox::default();
        assert!(inbox.receive(&vec![1; WINDOW_BYTES as usize]));
        assert!(!inbox.receive(b"x"));
        let taken = inbox.take(Vec::new());
        assert!(!inbox.receive(b"x"), "taken is not consumed");
        inbox.consume(taken.len());
        assert!(inbox.receive(b"x"));
    }

    #[test]
    fn the_end_comes_after_the_data_and_nothing_after_the_end() {
        let mut inbox = Inbox::default();
        assert!(inbox.receive(b"abc"));
        inbox.end(Ending::Whole);
        assert_eq!(inbox.ended(), None);
        assert_eq!(inbox.take(Vec::new()), b"abc");
        assert_eq!(inbox.ended(), Some(Ending::Whole));
        assert!(!inbox.receive(b"d"));
    }

    #[test]
    fn credits_come_in_steps_and_at_the_end() {
        let mut inbox = Inbox::default();
        assert!(inbox.receive(&vec![0; CREDIT_STEP_BYTES as usize + 10]));
        inbox.consume(10);
        assert_eq!(inbox.credit_due(), None);
        inbox.consume(CREDIT_STEP_BYTES as usize - 5);
        assert_eq!(inbox.credit_due(), Some(CREDIT_STEP_BYTES + 5));
        inbox.consume(5);
        assert_eq!(inbox.credit_due(), Some(CREDIT_STEP_BYTES + 10));
        assert_eq!(inbox.credit_due(), None);
    }
}
