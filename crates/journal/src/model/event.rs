//! Events: what happened in an account, in an order that everybody sees alike.

use remuda_types::Account;
use serde_json::Value;

/// Something that happened; it gets its number when it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// In which account.
    pub account: Account,
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// What: `sandbox.running`, …; 1 to 64 bytes.
    pub kind: String,
    /// Everything else about it.
    pub doc: Value,
}

/// An event with its number.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRecord {
    /// Its number in the account: 1, 2, 3, … without a gap. Who sees N has seen, or could see, all below it.
    pub sequence: u64,
    /// When, in Unix milliseconds. Where the clock steps back, it does so too.
    pub at_ms: i64,
    /// What.
    pub kind: String,
    /// Everything else about it.
    pub doc: Value,
}

/// Events of an account, from a number on.
#[derive(Debug, Clone, PartialEq)]
pub struct EventPage {
    /// They, in order.
    pub events: Vec<EventRecord>,
    /// The oldest number that is still kept; one above `newest` when none is.
    pub oldest: u64,
    /// The newest number that was ever given; 0 when none was.
    pub newest: u64,
}

impl EventPage {
    /// How many events after `after` are no longer kept: a reader must be told.
    pub fn missed_since(&self, after: u64) -> u64 {
        self.oldest.saturating_sub(after.saturating_add(1))
    }
}
