//! The two pictures that are compared: what the machine has, and what records and memory say. Plain data, so that a
//! comparison can be tried without either.

use std::collections::{BTreeMap, BTreeSet};

use remuda_engine::{HostFacts, Survey};
use remuda_journal::{AdriftSum, Held};
use remuda_types::{Account, OperationId, SandboxId, SandboxState, SnapshotId, SnapshotState, Uid};

/// What the machine has.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Sandboxes' and snapshots' places, processes, groups and mounts.
    pub(crate) survey: Survey,
    /// Names of the directories in which output of executions lies.
    pub(crate) output: BTreeSet<String>,
}

/// What journal and memory say.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// All that have not ended, and of the others those of which anything was seen.
    pub(crate) sandboxes: BTreeMap<Uid, OfSandbox>,
    /// Likewise.
    pub(crate) snapshots: BTreeMap<SnapshotId, OfSnapshot>,
    /// Layers that something stands on.
    pub(crate) layers_in_use: BTreeSet<SnapshotId>,
    /// What is held by quota.
    pub(crate) holds: Vec<(Account, Held)>,
    /// Sums that are not those of their holds.
    pub(crate) sums: Vec<AdriftSum>,
    /// Operations without an outcome.
    pub(crate) pending: BTreeSet<OperationId>,
    /// Those of them that nobody in this server sees to.
    pub(crate) abandoned: Vec<Abandoned>,
}

/// What is said of one sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OfSandbox {
    pub(crate) account: Account,
    pub(crate) id: SandboxId,
    /// Where the journal has it; none for one that has ended there.
    pub(crate) written: Option<SandboxState>,
    /// Where memory has it; none for one that is not there, or is over.
    pub(crate) known: Option<SandboxState>,
    /// Whether something is under way with it: then nothing about it is a difference.
    pub(crate) busy: bool,
    /// Whether its machine has not ended, as far as memory knows.
    pub(crate) lives: bool,
    pub(crate) memory_mib: u64,
    pub(crate) disk_bytes: u64,
    /// Its processes as they were recorded.
    pub(crate) processes: Option<HostFacts>,
}

/// What is said of one snapshot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OfSnapshot {
    pub(crate) account: Account,
    /// Where the journal has it; none where it has no record.
    pub(crate) written: Option<SnapshotState>,
    /// Where memory has it; none for one that is not there.
    pub(crate) known: Option<SnapshotState>,
    /// As for a sandbox.
    pub(crate) busy: bool,
    pub(crate) memory_kept: bool,
    pub(crate) bytes: u64,
    pub(crate) of_fork: bool,
}

/// An operation that waits for the next server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Abandoned {
    pub(crate) account: Account,
    pub(crate) id: OperationId,
    pub(crate) kind: String,
}

impl OfSandbox {
    /// Whether it has ended, by record and memory both.
    pub(crate) fn is_over(&self) -> bool {
        self.written.is_none() && self.known.is_none()
    }
}

impl OfSnapshot {
    /// Whether it failed or was deleted, or is being so, by record and memory both.
    pub(crate) fn is_over(&self) -> bool {
        let over =
            |state: Option<SnapshotState>| matches!(state, None | Some(SnapshotState::Failed | SnapshotState::Deleted));
        over(self.written) && over(self.known)
    }
}
