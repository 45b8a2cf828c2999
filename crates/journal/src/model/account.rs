//! Accounts: whose things they are, and what is set for them.

use remuda_types::Account;
use serde_json::Value;

/// An account that was made on purpose.
#[derive(Debug, Clone, PartialEq)]
pub struct AccountRecord {
    /// Its name.
    pub account: Account,
    /// When it was made, in Unix milliseconds. The first time that is written stays.
    pub created_at_ms: i64,
    /// What is set for it: quotas of its own.
    pub doc: Value,
}
