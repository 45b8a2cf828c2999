//! Events on the wire: what happened in an account, in an order that everybody sees alike.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::RepairTold;
use crate::ids::{AccessKeyId, PreviewId, ReceiptId, SandboxId, SnapshotId};

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number in the account: 1, 2, 3, … without a gap.
    pub sequence: u64,
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// What: `sandbox.running`, `sandbox.paused`, `sandbox.hook_failed`, `sandbox.stopped`, `sandbox.gone`,
    /// `sandbox.failed`, `snapshot.active`, `snapshot.failed`, `snapshot.deleted`, `snapshot.damaged`, `access_key.made`,
    /// `access_key.revoked`, `preview.made`, `preview.rotated`, `preview.renewed`, `preview.revoked`, `server.repaired`.
    /// More may be added.
    pub kind: String,
    /// What it is about.
    #[serde(flatten)]
    pub about: EventAbout,
}

/// What an event is about; what does not apply is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventAbout {
    /// The sandbox; of a snapshot's event, the one it was captured from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// The snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotId>,
    /// The preview, of which something is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<PreviewId>,
    /// Why, where that is not plain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The receipt that tells more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<ReceiptId>,
    /// The access key, of which something is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_key: Option<AccessKeyId>,
    /// The access key by which it was done, of an access key's event; absent on the server's own socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<AccessKeyId>,
    /// What was put right, of a `server.repaired`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<Box<RepairTold>>,
}

/// `GET /v1/events`: events above a number, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// They. Go on with the last one's number as `after`.
    pub events: Vec<Event>,
    /// The oldest number that is still kept; one above `newest` when none is.
    pub oldest: u64,
    /// The newest number that was ever given; 0 when none was.
    pub newest: u64,
    /// How many events between `after` and the first one here are no longer kept.
    pub missed: u64,
}
