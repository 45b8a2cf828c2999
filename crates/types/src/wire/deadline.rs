//! Deadlines on the wire: how long a sandbox may live, and what becomes of it then.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::SnapshotId;

/// What becomes of a sandbox at its deadline, or when it was idle for as long as it may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnDeadline {
    /// It is captured, then ended and removed: its work is in the snapshot.
    #[default]
    Snapshot,
    /// It is ended and removed.
    Delete,
}

/// `POST /v1/sandboxes/{id}/deadline`: another deadline. Nothing else ever moves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetDeadline {
    /// How long it may live from now on, in milliseconds; also less than it had left.
    pub timeout_ms: u64,
    /// What becomes of it then; as before when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_deadline: Option<OnDeadline>,
}

/// Why the server ended a sandbox by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DueTo {
    /// Its deadline passed.
    Deadline,
    /// It was idle for as long as it may be.
    Idle,
}

/// What was done when a deadline passed or an idle limit was reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Expiry {
    /// Which of both it was.
    pub due_to: DueTo,
    /// When it was carried out, in Unix milliseconds.
    pub at_ms: i64,
    /// What was asked for.
    pub on_deadline: OnDeadline,
    /// What became of it.
    pub result: ExpiryResult,
    /// The snapshot that holds its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// Why less was captured than was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// What became of a sandbox at its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExpiryResult {
    /// It was ended and removed.
    Removed,
    /// It could not be captured: its processes were ended, and its files are kept with it.
    Kept,
}
