//! Admission: what a call brings along, what it wants set aside, and how it is received.

use remuda_types::wire::Labels;
use remuda_types::{
    Account, ExecutionId, Key, OperationId, SandboxId, Slot, SnapshotId, SnapshotMode, SnapshotState, Uid,
};
use serde_json::Value;

use super::{Count, Hold, Operation, Scope};

/// A call that wants to begin.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// The id it will have if it is new.
    pub id: OperationId,
    /// Who calls.
    pub account: Account,
    /// What is done, and to which generation.
    pub scope: Scope,
    /// The caller's key; without one the call is always new.
    pub key: Option<Key>,
    /// The operation this one is a part of.
    pub parent: Option<OperationId>,
    /// The request as it came, before defaults are filled in. Integers beyond 2^53 are refused: they have no canonical
    /// form.
    pub request: Value,
    /// Unix time in milliseconds.
    pub now_ms: i64,
    /// What is set aside together with it.
    pub reservation: Reservation,
}

/// What is set aside in the same transaction that stores the key: all of it or nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reservation {
    /// A slot and a new generation in it.
    pub sandbox: Option<NewSandbox>,
    /// A snapshot id and name.
    pub snapshot: Option<NewSnapshot>,
    /// An execution's record. The operation's key then lives as long as that record, and no less than other keys.
    pub execution: Option<NewExecution>,
    /// Amounts that are held until they are released.
    pub holds: Vec<Hold>,
    /// Amounts that only add up, as starts in a month.
    pub counts: Vec<Count>,
}

/// A sandbox to be: it is recorded as `starting`.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSandbox {
    /// The slot to take; the first free of `c1`, `c2`, … when absent.
    pub slot: Option<Slot>,
    /// Its uid.
    pub uid: Uid,
    /// The generation it continues, which must hold the slot and thereby gives it up.
    pub continues: Option<SandboxId>,
    /// The caller's labels.
    pub labels: Labels,
    /// What it is to be: limits, origin, whatever the platform needs to make it.
    pub spec: Value,
    /// Which engine, agent and base it is made with.
    pub parts: Value,
    /// Frozen layers below its upper, newest first.
    pub layers: Vec<SnapshotId>,
}

/// A snapshot to be.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Its name, which must be free among those that are or will be active.
    pub name: Option<String>,
    /// What it will hold.
    pub mode: SnapshotMode,
    /// Where it begins, as a rule `capturing`.
    pub state: SnapshotState,
    /// The generation it is captured from; absent for one that was imported.
    pub source: Option<SandboxId>,
    /// The caller's labels.
    pub labels: Labels,
    /// Everything else about it.
    pub doc: Value,
}

/// An execution to be: it is recorded as `running` before it is handed over.
#[derive(Debug, Clone, PartialEq)]
pub struct NewExecution {
    /// Its id.
    pub id: ExecutionId,
    /// The sandbox it is to run in.
    pub sandbox: Uid,
    /// Everything else about it.
    pub doc: Value,
}

/// How a call was received.
#[derive(Debug, Clone, PartialEq)]
pub enum Admitted {
    /// It is new and durable, with everything that was set aside. Its steps may begin.
    New(Operation),
    /// It has been done before; here is its outcome. Nothing may be done again.
    Replay(Operation),
    /// It has been admitted before and is under way.
    InFlight(Operation),
    /// The key was used for another request.
    Conflict(Operation),
}

/// What became of a key that was to be cancelled before its admission.
#[derive(Debug, Clone, PartialEq)]
pub enum Forbidden {
    /// Whoever comes with it from now on is refused.
    Forbidden,
    /// It was admitted before; this is its operation.
    Admitted(Box<Operation>),
}
