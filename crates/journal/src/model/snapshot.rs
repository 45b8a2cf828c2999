//! Records of snapshots.

use remuda_types::wire::Labels;
use remuda_types::{Account, OperationId, SandboxId, SnapshotId, SnapshotMode, SnapshotState};
use serde_json::Value;

/// A snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotRecord {
    /// Whose it is.
    pub account: Account,
    /// Its id.
    pub id: SnapshotId,
    /// Its name. Unique in the account among those that are `capturing`, `verifying` or `active`.
    pub name: Option<String>,
    /// The operation that made it.
    pub operation: OperationId,
    /// What it holds.
    pub mode: SnapshotMode,
    /// Where it stands.
    pub state: SnapshotState,
    /// The generation it was captured from.
    pub source: Option<SandboxId>,
    /// When it was reserved, in Unix milliseconds.
    pub created_at_ms: i64,
    /// When it failed or was deleted, in Unix milliseconds.
    pub ended_at_ms: Option<i64>,
    /// The caller's labels.
    pub labels: Labels,
    /// Everything else about it.
    pub doc: Value,
}

/// What changes of a snapshot; what is not said stays as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotChange {
    pub(crate) id: SnapshotId,
    pub(crate) state: Option<(SnapshotState, i64)>,
    pub(crate) name: Option<Option<String>>,
    pub(crate) takes_name: Option<String>,
    pub(crate) labels: Option<Labels>,
    pub(crate) doc: Option<Value>,
}

impl SnapshotChange {
    /// No change yet of the snapshot with this id.
    pub fn of(id: &SnapshotId) -> SnapshotChange {
        SnapshotChange { id: id.clone(), state: None, name: None, takes_name: None, labels: None, doc: None }
    }

    /// It stands here now, since this Unix time in milliseconds. A failed or deleted one stays what it is.
    #[must_use]
    pub fn state(mut self, state: SnapshotState, now_ms: i64) -> Self {
        self.state = Some((state, now_ms));
        self
    }

    /// Another name, or none; it must be free.
    #[must_use]
    pub fn name(mut self, name: Option<String>) -> Self {
        self.name = Some(name);
        self
    }

    /// Another name, which the snapshot that has it now loses.
    #[must_use]
    pub fn takes_name(mut self, name: String) -> Self {
        self.takes_name = Some(name);
        self
    }

    /// Other labels.
    #[must_use]
    pub fn labels(mut self, labels: Labels) -> Self {
        self.labels = Some(labels);
        self
    }

    /// Everything else about it.
    #[must_use]
    pub fn doc(mut self, doc: Value) -> Self {
        self.doc = Some(doc);
        self
    }
}

/// Which snapshots are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotFilter {
    /// Failed and deleted ones too.
    pub include_ended: bool,
    /// Only in this state; failed and deleted ones are found by it too.
    pub state: Option<SnapshotState>,
    /// Only with this name.
    pub name: Option<String>,
    /// Only captured from this generation.
    pub source: Option<SandboxId>,
    /// Only those that have this label with this value.
    pub label: Option<(String, String)>,
    /// Only made at or after this Unix time in milliseconds.
    pub since_ms: Option<i64>,
    /// Only made before this Unix time in milliseconds.
    pub before_ms: Option<i64>,
}
