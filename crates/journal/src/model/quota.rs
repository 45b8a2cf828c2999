//! Quotas: amounts that are held for something until it has confirmedly ended, and amounts that only add up.

use std::fmt;

use remuda_types::{Account, OperationId, SnapshotId, Uid};

/// For what an amount is held.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub(crate) String);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Holder {
    /// Its id as text: a sandbox's uid, or a snapshot's or operation's id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&Uid> for Holder {
    fn from(sandbox: &Uid) -> Self {
        Holder(sandbox.to_string())
    }
}

impl From<&SnapshotId> for Holder {
    fn from(snapshot: &SnapshotId) -> Self {
        Holder(snapshot.to_string())
    }
}

impl From<&OperationId> for Holder {
    fn from(operation: &OperationId) -> Self {
        Holder(operation.to_string())
    }
}

/// An amount to be held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// For what.
    pub holder: Holder,
    /// Of what, with its unit: `sandboxes`, `memory_mib`, `disk_bytes`.
    pub name: String,
    /// How much.
    pub amount: u64,
    /// What the account may hold at most; none for no limit.
    pub limit: Option<u64>,
}

/// An amount to be added to a counter for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// Of what: `starts`.
    pub name: String,
    /// In which period, as the caller divides time: `2026-10`.
    pub period: String,
    /// How much.
    pub amount: u64,
    /// What the period allows; none for no limit.
    pub limit: Option<u64>,
}

/// What an account has used of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Used {
    /// Of what.
    pub name: String,
    /// In which period; none for what is held now.
    pub period: Option<String>,
    /// How much.
    pub amount: u64,
}

/// One amount that is held now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// For what.
    pub holder: Holder,
    /// Of what.
    pub name: String,
    /// How much.
    pub amount: u64,
}

/// A sum of what is held that is not what it is the sum of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdriftSum {
    /// Whose.
    pub account: Account,
    /// Of what.
    pub name: String,
    /// What it says.
    pub says: u64,
    /// What is held.
    pub held: u64,
}
