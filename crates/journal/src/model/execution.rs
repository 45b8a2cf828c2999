//! Records of executions. Their output is kept elsewhere.

use remuda_types::{Account, ExecutionId, ExecutionState, Uid};
use serde_json::Value;

/// An execution. Whoever writes it writes it whole: it has one owner, its sandbox's driver.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecutionRecord {
    /// Whose it is.
    pub account: Account,
    /// Its id.
    pub id: ExecutionId,
    /// The sandbox it runs in.
    pub sandbox: Uid,
    /// Where it stands.
    pub state: ExecutionState,
    /// When it was admitted, in Unix milliseconds.
    pub started_at_ms: i64,
    /// Everything else about it.
    pub doc: Value,
}
