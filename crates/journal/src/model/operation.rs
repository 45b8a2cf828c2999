//! Operations: the journaled intent of a call, its steps, its outcome.

use std::fmt;
use std::str::FromStr;

use remuda_types::{Account, ExecutionId, Key, OperationId, OperationState, SandboxId, SnapshotId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Within what a key is unique: the operation's kind, and the generation where it addresses one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// What is done: `create`, `capture`, … ; 1 to 64 of `[a-z0-9_.-]`.
    kind: String,
    /// To which generation.
    target: Option<SandboxId>,
}

/// The text is no scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a scope: a kind of 1 to 64 of a-z, 0-9, '_', '.' and '-', and '@' and a sandbox id if it has one"
)]
pub struct ScopeError(String);

impl Scope {
    /// The scope of calls that address no generation.
    ///
    /// # Errors
    /// When `kind` is not 1 to 64 of `[a-z0-9_.-]`.
    pub fn new(kind: &str) -> Result<Scope, ScopeError> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'.' | b'-');
        if (1..=crate::limits::WORD_BYTES_MAX).contains(&kind.len()) && kind.bytes().all(allowed) {
            Ok(Scope { kind: kind.to_owned(), target: None })
        } else {
            Err(ScopeError(kind.chars().take(80).collect()))
        }
    }

    /// The scope of calls that address this generation.
    ///
    /// # Errors
    /// As for [`Scope::new`].
    pub fn on(kind: &str, target: SandboxId) -> Result<Scope, ScopeError> {
        Ok(Scope { target: Some(target), ..Scope::new(kind)? })
    }

    /// What is done.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The generation that is addressed.
    pub fn target(&self) -> Option<&SandboxId> {
        self.target.as_ref()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Some(target) => write!(f, "{}@{target}", self.kind),
            None => f.write_str(&self.kind),
        }
    }
}

impl FromStr for Scope {
    type Err = ScopeError;
    fn from_str(text: &str) -> Result<Self, ScopeError> {
        match text.split_once('@') {
            None => Scope::new(text),
            Some((kind, target)) => {
                let target = target.parse().map_err(|_| ScopeError(text.chars().take(160).collect()))?;
                Scope::on(kind, target)
            }
        }
    }
}

/// How an operation ended, in the platform's words and never in those of a protocol.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// It did what was asked; what came of it.
    Done(Value),
    /// It failed and is undone; why.
    Failed(Value),
    /// Its effect was handed over and nobody can say whether it took place; what is known.
    Indeterminate(Value),
}

impl Outcome {
    /// The state that goes with it.
    pub fn state(&self) -> OperationState {
        match self {
            Outcome::Done(_) => OperationState::Done,
            Outcome::Failed(_) => OperationState::Failed,
            Outcome::Indeterminate(_) => OperationState::Indeterminate,
        }
    }

    /// What came of it, why it failed, or what is known.
    pub fn domain(&self) -> &Value {
        match self {
            Outcome::Done(domain) | Outcome::Failed(domain) | Outcome::Indeterminate(domain) => domain,
        }
    }

    pub(crate) fn new(state: OperationState, domain: Value) -> Option<Outcome> {
        match state {
            OperationState::Pending => None,
            OperationState::Done => Some(Outcome::Done(domain)),
            OperationState::Failed => Some(Outcome::Failed(domain)),
            OperationState::Indeterminate => Some(Outcome::Indeterminate(domain)),
        }
    }
}

/// What an admission set aside; stored with the operation, so that a caller who lost everything but the key, and the
/// recovery after a crash, find it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
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

/// One journaled step of an operation.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Its name; unique within the operation.
    pub name: String,
    /// What it wrote down.
    pub data: Value,
}

/// What became of a step that was to be journaled.
#[derive(Debug, Clone, PartialEq)]
pub enum Stepped {
    /// It is journaled now.
    New,
    /// It had been journaled before, with this data. Its changes were not applied again.
    Before(Value),
}

/// An operation as the journal has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// Whose it is.
    pub account: Account,
    /// Within what its key is unique; its kind, and the generation it addresses.
    pub scope: Scope,
    /// Its key, if the caller gave one.
    pub key: Option<Key>,
    /// The operation it is a part of, as a branch is of its fork.
    pub parent: Option<OperationId>,
    /// The request, in its canonical form before defaults were filled in; absent in a tombstone.
    pub request: Option<Value>,
    /// What the admission set aside; empty in a tombstone.
    pub reserved: Reserved,
    /// Where it stands.
    pub state: OperationState,
    /// When it was admitted, in Unix milliseconds.
    pub admitted_at_ms: i64,
    /// When its outcome was journaled, in Unix milliseconds.
    pub finished_at_ms: Option<i64>,
    /// Its steps in the order in which they were journaled; only where a single operation or the unfinished ones were
    /// asked for, else empty.
    pub steps: Vec<Step>,
    /// Its outcome; the value is null in a tombstone where it was too long to be kept.
    pub outcome: Option<Outcome>,
    /// Whether this is a tombstone: what is left of a record that was evicted.
    pub evicted: bool,
}

/// What became of an outcome that was to be journaled.
#[derive(Debug, Clone, PartialEq)]
pub enum Finished {
    /// It is the outcome now.
    Now(Operation),
    /// The operation had an outcome, and that one stands; the changes were not applied.
    Before(Operation),
}

impl Finished {
    /// The operation with the outcome that stands.
    pub fn operation(&self) -> &Operation {
        match self {
            Finished::Now(operation) | Finished::Before(operation) => operation,
        }
    }
}
