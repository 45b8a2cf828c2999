//! Receipts: what an operation did to which generation. They outlive the sandbox and its record.

use remuda_types::{Account, OperationId, ReceiptId, SandboxId};
use serde_json::Value;

/// What a receipt is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReceiptKind {
    /// The life of a machine: how it came, what was captured of it, how it was stopped.
    Machine,
    /// The four facts of a deletion.
    Deletion,
}

impl ReceiptKind {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            ReceiptKind::Machine => "machine",
            ReceiptKind::Deletion => "deletion",
        }
    }
}

impl std::str::FromStr for ReceiptKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "machine" => Ok(ReceiptKind::Machine),
            "deletion" => Ok(ReceiptKind::Deletion),
            _ => Err(format!("{text:?} is no kind of receipt")),
        }
    }
}

/// A receipt. Writing one with an id that exists replaces it.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    /// Whose it is.
    pub account: Account,
    /// Its id.
    pub id: ReceiptId,
    /// What it is about.
    pub kind: ReceiptKind,
    /// The generation.
    pub sandbox: SandboxId,
    /// The operation that wrote it last, if one did.
    pub operation: Option<OperationId>,
    /// When it was first written, in Unix milliseconds.
    pub created_at_ms: i64,
    /// What it states.
    pub doc: Value,
}
