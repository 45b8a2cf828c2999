//! What an account uses: four figures that are never mixed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::keys::Account;

/// `GET /v1/usage`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Whose usage.
    pub account: Account,
    /// What its snapshots hold, each counted whole.
    pub captured: CapturedBytes,
    /// What is on the disk for it, each file counted once.
    pub held: HeldBytes,
    /// What is reserved by quota now, whether it is used or not.
    pub reserved: Vec<Reserved>,
    /// What was counted in each month, newest first.
    pub months: Vec<MonthUsage>,
}

/// Logical bytes captured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CapturedBytes {
    /// Snapshots that are kept.
    pub snapshots: u64,
    /// Bytes in them. What two of them share counts in both.
    pub bytes: u64,
}

/// Physical bytes held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldBytes {
    /// Frozen layers of files.
    pub layers: u64,
    /// Memory images.
    pub memory_images: u64,
    /// Private files of sandboxes.
    pub sandboxes: u64,
}

impl HeldBytes {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.layers.saturating_add(self.memory_images).saturating_add(self.sandboxes)
    }
}

/// An amount that is reserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reserved {
    /// The quota's name, with its unit.
    pub quota: String,
    /// How much.
    pub amount: u64,
    /// How much may be; null where there is no limit.
    pub limit: Option<u64>,
}

/// What was counted in a month.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MonthUsage {
    /// Which, in UTC: `2026-10`.
    pub month: String,
    /// What was counted.
    pub counters: Vec<Reserved>,
}
