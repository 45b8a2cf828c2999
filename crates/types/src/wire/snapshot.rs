//! Snapshots, forks, restores and launch recipes on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Labels, OnDeadline, RemovalResult, Sandbox};
use crate::error::Error;
use crate::ids::{SandboxId, Slot, SnapshotId};
use crate::states::{SnapshotMode, SnapshotState};

/// `POST /v1/sandboxes/{id}/snapshots`: capture a sandbox. The source goes on whatever becomes of the capture.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// A name to find it by, unique among active ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What to capture; memory when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SnapshotMode>,
    /// Labels to find it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schema(inline)]
    pub labels: Labels,
    /// What must run so that a filesystem restore comes up serving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchRecipe>,
}

/// What must run after a filesystem restore, and how to tell that it serves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LaunchRecipe {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory; `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Guest user; `user` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Port on which it must listen.
    pub port: u16,
    /// Path that must answer 200–399 over HTTP; a TCP connection is enough when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_path: Option<String>,
    /// How long it may take, in milliseconds; 30,000 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its id.
    pub id: SnapshotId,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it holds.
    pub mode: SnapshotMode,
    /// Where it stands.
    pub state: SnapshotState,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Error>,
    /// The sandbox it was captured from.
    pub source: SandboxId,
    /// When the capture was admitted, in Unix milliseconds.
    pub created_at_ms: i64,
    /// Its labels.
    #[serde(default)]
    #[schema(inline)]
    pub labels: Labels,
    /// Its launch recipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchRecipe>,
    /// How long the source stood still, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// Outside TCP connections of the source that the capture reset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections_dropped: Option<u32>,
    /// Bytes captured: the layer's files and the memory image. Of a fork's own snapshot, once its memory is gone, those of
    /// the layer.
    pub bytes: u64,
    /// What the capture left out of what was there, one sentence each.
    #[serde(default)]
    pub excluded: Vec<String>,
    /// Whether its memory image is still kept; a fork's own snapshot loses it once all branches are bound.
    pub memory_kept: bool,
    /// Whether a sandbox can be started from it: it is active, and what its mode says is still kept. A fork's own snapshot
    /// of memory is active as the layer that its branches stand on, and can't be restored.
    #[serde(default)]
    pub restorable: bool,
}

impl Snapshot {
    /// The same, with what follows from the rest.
    #[must_use]
    pub fn judged(mut self) -> Snapshot {
        let whole = self.mode == SnapshotMode::Filesystem || self.memory_kept;
        self.restorable = self.state == SnapshotState::Active && whole;
        self
    }
}

/// `GET /v1/snapshots`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// Oldest first.
    pub snapshots: Vec<Snapshot>,
}

/// What `DELETE /v1/snapshots/{id}` did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotRemoval {
    /// Which snapshot.
    pub id: SnapshotId,
    /// Whether this call removed it or it was gone before.
    pub result: RemovalResult,
    /// Bytes that were freed.
    pub bytes_reclaimed: u64,
    /// Bytes that stay, since sandboxes or snapshots still stand on its layer.
    pub bytes_still_referenced: u64,
}

/// `POST /v1/sandboxes/{id}/forks`: capture once, start `count` branches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSandbox {
    /// How many branches, 1–100.
    pub count: u32,
    /// What to capture; memory when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SnapshotMode>,
    /// Labels of every branch.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schema(inline)]
    pub labels: Labels,
    /// Slots of the branches; as many as `count`, or absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<Vec<Slot>>,
    /// What must run in each branch of a filesystem fork.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchRecipe>,
    /// How long each branch may live, in milliseconds from its start, whatever happens in it; one hour when absent. It is never
    /// extended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How long each may go without work, in milliseconds; without limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// What becomes of each then; `snapshot` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_deadline: Option<OnDeadline>,
}

/// A fork: one capture and a result for each branch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Fork {
    /// The capture all branches stand on.
    pub snapshot: Snapshot,
    /// One result each, in order.
    pub branches: Vec<Branch>,
    /// Where the time went.
    pub timings: ForkTimings,
}

/// One branch of a fork: a sandbox or an error; one failing branch fails only itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Branch {
    /// It runs.
    Sandbox(Sandbox),
    /// It did not come up.
    Error(Error),
}

/// Where a fork's time went, in milliseconds since the request was admitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkTimings {
    /// The source went on.
    pub captured_ms: f64,
    /// The first branch was bound.
    pub first_branch_ms: f64,
    /// The last branch was bound.
    pub last_branch_ms: f64,
}

/// `POST /v1/snapshots/{id}/restore`: one sandbox from a snapshot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreSnapshot {
    /// The slot to take; the first free one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// Labels of the new sandbox.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schema(inline)]
    pub labels: Labels,
    /// Replaces the snapshot's launch recipe; filesystem snapshots only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchRecipe>,
    /// How long it may live, in milliseconds from now, whatever happens in it; one hour when absent. It is never
    /// extended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// How long it may go without work, in milliseconds; without limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// What becomes of it then; `snapshot` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_deadline: Option<OnDeadline>,
}
