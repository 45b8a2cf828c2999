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
    /// Whether it takes its name from the snapshot that has it, in the moment in which it becomes active itself; that one
    /// is kept, without a name. Not for keys that are narrowed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
    /// What to capture; when absent memory, or the files of a sandbox that is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SnapshotMode>,
    /// Labels to find it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schema(inline)]
    pub labels: Labels,
    /// What must run so that a filesystem restore comes up serving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchRecipe>,
    /// How long the call waits for it to be active, in milliseconds; as long as that takes when absent. The capture goes on
    /// in any case. No part of the request that its key stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// What must run in a sandbox that begins with files alone, and how to tell that it serves. What it starts is an execution
/// like any other.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
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
    /// Path that must answer over HTTP, with `ready_status`; a TCP connection is enough when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_path: Option<String>,
    /// Status that `ready_path` must answer with, 100 to 599; any of 200–399 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_status: Option<u16>,
    /// Whether it is started again when it ends after it served.
    #[serde(default, skip_serializing_if = "Restart::is_never")]
    pub restart: Restart,
    /// How long it may take, in milliseconds; 30,000 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// Whether what a launch recipe started is started again when it ends. One that is cancelled is not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Restart {
    /// Its end is its end.
    #[default]
    Never,
    /// When it ended with another exit code than 0, or by a signal.
    OnFailure,
    /// However it ended.
    Always,
}

impl Restart {
    fn is_never(&self) -> bool {
        *self == Restart::Never
    }
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
    /// Memory limit of its source, and so of what is restored from it, in MiB.
    #[serde(default)]
    pub memory_mib: u32,
    /// Whether its source reaches the internet, and so does what is restored from it.
    #[serde(default)]
    pub internet: bool,
    /// The base image that it stands on, by digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
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
    /// What is wrong with its bytes on the disk, where a check of all of them found something: it is not restored then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

impl Snapshot {
    /// The same, with what follows from the rest.
    #[must_use]
    pub fn judged(mut self) -> Snapshot {
        let whole = self.mode == SnapshotMode::Filesystem || self.memory_kept;
        self.restorable = self.state == SnapshotState::Active && whole && self.damage.is_none();
        self
    }
}

/// `PATCH /v1/snapshots/{snapshot}`: other labels. What was captured never changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateSnapshot {
    /// Labels by name: a value sets one, null removes one; those that are not named stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, Option<String>>,
}

/// `GET /v1/snapshots`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// Oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Where the next page begins, to be given back as `after`; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// `POST /v1/snapshots/{id}/verify`: what a check of every byte and a trial came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Verification {
    /// Which snapshot.
    pub snapshot: SnapshotId,
    /// Whether all of it is what was captured, and the trial, if there was one, came up.
    pub sound: bool,
    /// Each layer that it stands on, its own first, and its memory image, as far as they are kept.
    pub parts: Vec<VerifiedPart>,
    /// A sandbox that was restored from it without a way out, and removed again; absent where nothing can be restored, or
    /// a part is damaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trial: Option<TrialRestore>,
}

/// A part of a snapshot that was read whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VerifiedPart {
    /// Which: `layer snap-…` or `memory image`.
    pub part: String,
    /// Whether it is what was captured.
    pub sound: bool,
    /// What is wrong with it, or why nothing can be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A trial of a restore.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TrialRestore {
    /// How long it took until its agent answered, in milliseconds.
    pub took_ms: f64,
    /// Why it did not come up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}

/// `GET /v1/snapshots/{id}/diff`: which files differ from those of another snapshot, or from what its source began with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotDiff {
    /// What it was compared with; absent where that is what its source was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<SnapshotId>,
    /// What was compared.
    pub to: SnapshotId,
    /// Paths that are not the same, in their order.
    pub changes: Vec<FileDifference>,
    /// Whether a limit was reached and there may be more.
    pub truncated: bool,
}

/// A path that differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileDifference {
    /// Absolute path; what is not UTF-8 in it is replaced.
    pub path: String,
    /// What happened to it.
    pub change: ChangeKind,
    /// What it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<FileFacts>,
    /// What it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<FileFacts>,
    /// Whether contents of a file differ, and not only what stands beside them.
    pub contents: bool,
    /// The change as a unified patch, where that was asked for and it is text of bounded length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
}

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It was not there.
    Added,
    /// It is another, or has other properties.
    Changed,
    /// It is not there any more.
    Removed,
}

/// What is told of a path on one side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileFacts {
    /// `file`, `directory`, `symlink` or `other`.
    pub kind: String,
    /// Permission bits, set-id and sticky ones included.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size of a file, in bytes.
    pub size: u64,
    /// Where a link leads; what is not UTF-8 in it is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// `GET` and `PUT /v1/imports/{digest}`: how much of an exported file the server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportState {
    /// Bytes from its beginning: where the next piece goes.
    pub received: u64,
}

/// `POST /v1/imports/{digest}/snapshot`: a snapshot from a file that the server has whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportSnapshot {
    /// A name to find it by, unique among active ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What to take: what the file holds when absent. The files of a memory snapshot can be taken without its memory, which
    /// is bound to the engine that it was captured with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<SnapshotMode>,
    /// Labels to find it by; those of the exported one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub labels: Option<Labels>,
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
    /// What to capture; when absent memory, or the files of a sandbox that is stopped.
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
