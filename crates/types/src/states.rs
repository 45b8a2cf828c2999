//! The states that sandboxes, snapshots and executions can be in. What leads from one to another is decided in `control`.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where the machine of a generation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// Being built or restored; not yet bound.
    Starting,
    /// Bound and serving.
    Running,
    /// Its processes are halted and keep their memory.
    Paused,
    /// On its way to `stopped` or `gone`.
    Stopping,
    /// No processes; files kept.
    Stopped,
    /// Ended and removed.
    Gone,
    /// It never came up; the reason is in `reason`.
    Failed,
}

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotMode {
    /// Files only: a restore starts fresh processes.
    Filesystem,
    /// The whole running machine: processes, pids, heaps, listeners, and the files.
    Memory,
}

/// Where a snapshot stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotState {
    /// The source is being read.
    Capturing,
    /// Read; its manifest is being held against the disk. Branches of a fork may already run.
    Verifying,
    /// Manifest and disk agree.
    Active,
    /// The capture failed; the source goes on.
    Failed,
    /// Its bytes are being removed.
    Deleting,
    /// Gone.
    Deleted,
}

/// Where an execution stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionState {
    /// Its leader has not ended.
    Running,
    /// Its leader ended by itself or by a signal.
    Exited,
    /// It was killed at its time limit; exit code 124.
    TimedOut,
    /// It was killed on request; exit code 137.
    Cancelled,
    /// The whole sandbox was killed for want of memory.
    Oom,
    /// The sandbox ended before the execution did.
    SandboxGone,
    /// It was handed over and the sandbox died before telling.
    Unknown,
    /// It never started; nothing ran.
    NotStarted,
}

/// Where an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// Admitted; its steps are under way.
    Pending,
    /// It did what was asked.
    Done,
    /// It failed, and what it had begun is undone.
    Failed,
    /// The effect was handed over and the sandbox died before telling.
    Indeterminate,
}

macro_rules! display_as_serde {
    ($($t:ty),*) => {$(
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )*};
}
display_as_serde!(SandboxState, SnapshotMode, SnapshotState, ExecutionState, OperationState);

impl ExecutionState {
    /// Whether nothing more will happen to it.
    pub fn is_final(self) -> bool {
        self != ExecutionState::Running
    }
}
