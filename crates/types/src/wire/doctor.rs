//! What a server finds where it compares its records, its memory and its machine, on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{SandboxId, SnapshotId};
use crate::keys::Account;

/// `GET /v1/doctor`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Doctor {
    /// Whether nothing was found wanting: no finding, and every check good.
    pub well: bool,
    /// When this look ended, in Unix milliseconds.
    pub looked_at_ms: i64,
    /// When the server started, in Unix milliseconds.
    pub since_ms: i64,
    /// What differs and is as it was found: not repaired, or not asked to be.
    pub findings: Vec<Finding>,
    /// What was repaired since the server started, oldest first; of many, the latest.
    pub repairs: Vec<Repaired>,
    /// How many repairs that were in all.
    pub repaired: u64,
    /// The machine and what the server stands on. Empty to a caller of another account than the operator's.
    pub environment: Vec<Checked>,
}

/// What something is that was found or repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThingKind {
    /// What the machine has of a sandbox: processes, control group, mounts, namespaces, directories. By its uid.
    Machine,
    /// A process of the host. By its pid.
    Process,
    /// Layer or memory image of a snapshot. By its id.
    Capture,
    /// Output of executions. By the uid or snapshot it is of.
    Output,
    /// A share of a quota. By its holder.
    Hold,
    /// The sum of what an account holds of one quota.
    Sum,
    /// A sandbox as the server knows it. By its id.
    Sandbox,
    /// A snapshot as the server knows it. By its id.
    Snapshot,
    /// A call without an outcome. By the operation's id.
    Operation,
    /// A file, directory or mount.
    Path,
}

/// Something that is not as the rest says it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// What it is.
    pub thing: ThingKind,
    /// Which.
    pub name: String,
    /// Whose; absent where it is nobody's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// The sandbox it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// The snapshot it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// What was found.
    pub found: String,
    /// What a repair does about it; absent where it is not certain enough to be repaired by the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<String>,
    /// What to do.
    pub remedy: String,
}

/// Something that was put right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Repaired {
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// Whose; absent where it was nobody's. Its event is then the operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// What, and what was done.
    #[serde(flatten)]
    pub repair: RepairTold,
}

/// A repair, as its event tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepairTold {
    /// What was repaired.
    pub thing: ThingKind,
    /// Which.
    pub name: String,
    /// What was found.
    pub found: String,
    /// What was done.
    pub done: String,
}

/// One thing that a server stands on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checked {
    /// A short name, such as `cgroups`.
    pub name: String,
    /// Whether it is as it must be.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// What to do, when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl ThingKind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            ThingKind::Machine => "machine",
            ThingKind::Process => "process",
            ThingKind::Capture => "capture",
            ThingKind::Output => "output",
            ThingKind::Hold => "hold",
            ThingKind::Sum => "sum",
            ThingKind::Sandbox => "sandbox",
            ThingKind::Snapshot => "snapshot",
            ThingKind::Operation => "operation",
            ThingKind::Path => "path",
        }
    }
}
