//! Operations on the wire: what became of a call, found by its id or its key.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::Error;
use crate::ids::{ExecutionId, OperationId, SandboxId, SnapshotId};
use crate::keys::Key;
use crate::states::OperationState;

/// An operation: the intent of a call, and its outcome once it has one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// What is done: `create`, `capture`, `fork`, …
    pub kind: String,
    /// The sandbox that it addresses, if it addresses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// Its key, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// The operation that it is a part of, as a branch is of its fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<OperationId>,
    /// Where it stands.
    pub state: OperationState,
    /// When it was admitted, in Unix milliseconds.
    pub admitted_at_ms: i64,
    /// When it had its outcome, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at_ms: Option<i64>,
    /// What was set aside for it.
    #[serde(default, skip_serializing_if = "Made::is_nothing")]
    pub made: Made,
    /// Names of the steps it has taken, where a single operation was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
    /// What came of it, where it is done: as the call answered, but for an execution, which is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<serde_json::Value>,
    /// Why it failed, or what is known where its outcome is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
    /// What is held of the account's quotas for what it was to make, where it is not done: what failed and is undone
    /// holds nothing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(inline)]
    pub holds: BTreeMap<String, u64>,
    /// Whether this is all that is left of an older record: its outcome may be missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evicted: bool,
}

/// What was set aside for an operation when it was admitted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Made {
    /// The new generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// The new snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// The new execution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionId>,
}

impl Made {
    fn is_nothing(&self) -> bool {
        *self == Made::default()
    }
}

/// `GET /v1/operations?key=K`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OperationList {
    /// One for each kind and sandbox that the key was used with, sorted by those.
    pub operations: Vec<Operation>,
}

/// `POST /v1/operations/cancel`: cancel a call by its key, also one that may still be on its way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelOperation {
    /// What the call does: `create`, `capture`, `fork`, …
    pub kind: String,
    /// The sandbox that it addresses, if it addresses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// Its key.
    pub key: Key,
}

/// What became of a key that was to be cancelled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Cancellation {
    /// Which of both.
    pub result: CancelResult,
    /// The operation, where it had been admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
}

/// Whether a key was cancelled in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelResult {
    /// No call with this key had come; whichever comes now is refused with `operation_cancelled`.
    Cancelled,
    /// The call had been admitted before; nothing was cancelled.
    Admitted,
}
