//! Stopping and starting on the wire.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{LaunchRecipe, Sandbox, StopResult};
use crate::ids::ReceiptId;

/// What `POST /v1/sandboxes/{id}/stop` found and did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stop {
    /// The sandbox, which is `stopped`: it has no processes, and its files are kept.
    pub sandbox: Sandbox,
    /// Whether this call stopped it or it had no processes before.
    pub result: StopResult,
    /// Whether what its kernel still held of files was written back before its processes were ended: not where its
    /// agent did not do that in time, nor where its processes had ended before.
    pub flushed: bool,
    /// The receipt of its life, which states the stop.
    pub receipt: ReceiptId,
}

/// `POST /v1/sandboxes/{id}/start`: go on with the files of a stopped sandbox, as the next generation of its slot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartSandbox {
    /// What must run before it counts as up; what the sandbox was made with when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchRecipe>,
    /// Run no recipe, neither now nor at later starts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_launch: bool,
}
