//! Receipts on the wire: the durable record of what was done to a generation. They outlive it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Expiry, Labels};
use crate::ids::{Generation, OperationId, ReceiptId, SandboxId, Slot, SnapshotId, Uid};
use crate::keys::Key;
use crate::states::SnapshotMode;

/// A receipt: of a machine's life, or of its deletion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Receipt {
    /// Its id.
    pub id: ReceiptId,
    /// The generation it is about.
    pub sandbox: SandboxId,
    /// The operation that wrote it last; absent where the machine ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationId>,
    /// When it was first written, in Unix milliseconds.
    pub created_at_ms: i64,
    /// What it states of the machine's life; absent in a receipt of a deletion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineReceipt>,
    /// The four facts of the deletion; absent in a receipt of a machine's life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion: Option<DeletionReceipt>,
}

/// `GET /v1/receipts`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReceiptList {
    /// Oldest first.
    pub receipts: Vec<Receipt>,
    /// What to give as `after` for the next page, where there may be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// The life of one machine: how it came to be, what was captured of it, how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MachineReceipt {
    /// The slot that it held.
    pub slot: Slot,
    /// Which incarnation of that slot it was.
    pub generation: Generation,
    /// Its name in host names and directories.
    pub uid: Uid,
    /// The operation that made it.
    pub made_by: OperationId,
    /// The key of the call that made it, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub create_key: Option<Key>,
    /// The caller's labels, such as the thread and the checkpoint that it was made for.
    #[serde(default)]
    #[schema(inline)]
    pub labels: Labels,
    /// The generation whose files it went on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<SandboxId>,
    /// What was captured of it, oldest first; the newest 1,000.
    #[serde(default)]
    pub captured: Vec<Captured>,
    /// How many older captures are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub captured_dropped: u64,
    /// Why it ended by itself, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died: Option<Death>,
    /// The generation that was to be stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_target: Option<SandboxId>,
    /// What became of the stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_result: Option<StopResult>,
    /// When that was known, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_at_ms: Option<i64>,
    /// Why it was stopped, or why the stop was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// What was done when its deadline passed or its idle limit was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<Expiry>,
    /// The generation that went on with its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<SandboxId>,
}

/// One capture of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Captured {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// What it holds.
    pub mode: SnapshotMode,
    /// When the capture was admitted, in Unix milliseconds.
    pub at_ms: i64,
}

/// A machine that ended by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Death {
    /// When that was seen, in Unix milliseconds.
    pub at_ms: i64,
    /// Why.
    pub reason: String,
}

/// What a stop found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopResult {
    /// This stop ended its processes.
    Stopped,
    /// Its processes had ended before; nothing was done.
    AlreadyAbsent,
    /// Nothing was done: the reason says why.
    Refused,
}

/// The four facts of a deletion. Each was checked by itself, after the deed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeletionReceipt {
    /// Whether it is absent from listings.
    pub absent: Fact,
    /// Whether no process of it is left.
    pub processes_gone: Fact,
    /// Whether nothing that led to it is still let in.
    pub credentials_refused: Fact,
    /// Whether its private bytes are gone.
    pub bytes_gone: Fact,
    /// Private bytes that were freed.
    pub bytes_reclaimed: u64,
    /// Snapshots whose frozen files it stood on and that are still kept, since something else needs them.
    #[serde(default)]
    pub still_referenced: Vec<SnapshotId>,
}

/// One fact: whether it holds, when that was looked at, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Fact {
    /// Whether it holds.
    pub holds: bool,
    /// When it was looked at, in Unix milliseconds.
    pub at_ms: i64,
    /// How it was looked at, in a sentence.
    pub method: String,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
