//! What is written down of a sandbox's deadline, with its specification. Members are only added.

use remuda_types::wire::{DueTo, Expiry, OnDeadline};
use serde::{Deserialize, Serialize};

/// How long a sandbox may live, and how far that has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Term {
    /// When the deadline was set, in Unix milliseconds.
    pub(crate) set_at_ms: i64,
    /// When it ends, in Unix milliseconds.
    pub(crate) deadline_at_ms: i64,
    pub(crate) on_deadline: OnDeadline,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) idle_timeout_ms: Option<u64>,
    /// How often the deadline was changed: each time there are new keys to carry it out with.
    #[serde(default)]
    pub(crate) round: u32,
    /// That the deadline is near was told.
    #[serde(default)]
    pub(crate) told_soon: bool,
    /// It is being ended: nothing else is done with it any more, also after a restart of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ending: Option<DueTo>,
    /// What was captured of it, and is told: only its removal is left to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) settled: Option<Settled>,
    /// It could not be captured and is kept without processes, until it is removed or has a new deadline.
    #[serde(default)]
    pub(crate) kept: bool,
}

/// What became of a sandbox at its deadline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settled {
    pub(crate) expiry: Expiry,
    /// The same in words.
    pub(crate) reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_of_an_earlier_build_is_read() {
        let least = r#"{"set_at_ms": 1, "deadline_at_ms": 2, "on_deadline": "snapshot"}"#;
        let term: Term = serde_json::from_str(least).unwrap();
        assert_eq!((term.ending, term.kept, term.round, term.settled), (None, false, 0, None));
    }
}
