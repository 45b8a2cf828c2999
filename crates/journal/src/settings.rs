//! How long things are kept, and how much space is kept back.

use crate::limits::{
    ENDED_RETENTION_MS, EVENTS_RETENTION_MS, KEY_RETENTION_MS, RECEIPTS_RETENTION_MS, RESERVE_BYTES, TOMBSTONE_MS_MIN,
};

/// What a journal is opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long records are kept.
    pub retention: Retention,
    /// Space kept back for outcomes when the disk is full, in bytes.
    pub reserve_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { retention: Retention::default(), reserve_bytes: RESERVE_BYTES }
    }
}

/// How long records are kept, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// An operation, from its admission; one without an outcome is kept until it has one.
    pub key_ms: i64,
    /// A tombstone, from when its operation was evicted; less than 24 hours stand for 24 hours.
    pub tombstone_ms: i64,
    /// An event.
    pub events_ms: i64,
    /// An ended sandbox, a failed or deleted snapshot, a revoked or expired preview or access key, from its end.
    pub ended_ms: i64,
    /// A receipt.
    pub receipts_ms: i64,
}

impl Retention {
    pub(crate) fn tombstone_ms(&self) -> i64 {
        self.tombstone_ms.max(TOMBSTONE_MS_MIN)
    }
}

impl Default for Retention {
    fn default() -> Self {
        Retention {
            key_ms: KEY_RETENTION_MS,
            tombstone_ms: TOMBSTONE_MS_MIN,
            events_ms: EVENTS_RETENTION_MS,
            ended_ms: ENDED_RETENTION_MS,
            receipts_ms: RECEIPTS_RETENTION_MS,
        }
    }
}
