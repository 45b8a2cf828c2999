//! Sandboxes on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Labels, LaunchRecipe, OnDeadline};
use crate::ids::{ReceiptId, SandboxId, Slot, SnapshotId, Uid};
use crate::states::SandboxState;

/// `POST /v1/sandboxes`: make a sandbox from the base image.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSandbox {
    /// The slot to take; the first free of `c1`, `c2`, … when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// Labels to find it by.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    #[schema(inline)]
    pub labels: Labels,
    /// Memory limit, in MiB; 2048 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
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
    /// Private files that it may hold, in MiB; 8192 when absent. It is paused where it holds more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
    /// Whether it reaches the internet: public addresses and a name server. As the server can when absent
    /// (`GET /v1/capabilities`); what is made from it keeps the choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internet: Option<bool>,
    /// What must run before it counts as up. It is kept for a later start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchRecipe>,
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    /// `slot@generation`.
    pub id: SandboxId,
    /// Its name in host names and directories.
    pub uid: Uid,
    /// Where its machine stands.
    pub state: SandboxState,
    /// Why it is in that state, where that is not plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was made, in Unix milliseconds; the generation in numbers.
    pub created_at_ms: i64,
    /// When it ended, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<i64>,
    /// Its labels.
    #[serde(default)]
    #[schema(inline)]
    pub labels: Labels,
    /// Memory limit, in MiB.
    pub memory_mib: u32,
    /// Private files that it may hold, in MiB. It is paused where it holds more.
    #[serde(default)]
    pub disk_mib: u64,
    /// Whether it reaches the internet.
    #[serde(default)]
    pub internet: bool,
    /// What it was made from.
    pub origin: Origin,
    /// The generation whose files it went on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<SandboxId>,
    /// When it ends, in Unix milliseconds, whatever happens in it; absent only where an earlier build made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_at_ms: Option<i64>,
    /// How long it may go without work, in milliseconds, where that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// When it ends if nothing is done with it until then, in Unix milliseconds; absent without an idle limit, and
    /// while something is under way in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_at_ms: Option<i64>,
    /// What becomes of it then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_deadline: Option<OnDeadline>,
}

/// What a sandbox was made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Origin {
    /// The base image, by digest.
    Image {
        /// Its digest.
        digest: String,
    },
    /// A snapshot.
    Snapshot {
        /// Which.
        snapshot: SnapshotId,
        /// The sandbox it was captured from.
        source: SandboxId,
    },
}

/// `GET /v1/sandboxes`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SandboxList {
    /// Sorted by creation, then id; ended ones only where asked for.
    pub sandboxes: Vec<Sandbox>,
}

/// What `DELETE /v1/sandboxes/{id}` found and did. Each fact was checked by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Removal {
    /// Which generation.
    pub id: SandboxId,
    /// Whether this call removed it or it was gone before.
    pub result: RemovalResult,
    /// When it ended, in Unix milliseconds.
    pub ended_at_ms: i64,
    /// Whether no process of it is left on the host (asked of the kernel).
    pub processes_gone: bool,
    /// Whether its directory, mounts, namespaces and cgroups are gone.
    pub files_gone: bool,
    /// Bytes of private files that were freed.
    pub bytes_reclaimed: u64,
    /// The receipt of the deletion, kept after the sandbox is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<ReceiptId>,
}

/// How a removal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RemovalResult {
    /// This call removed it.
    Removed,
    /// It was gone before; nothing was done.
    AlreadyAbsent,
}
