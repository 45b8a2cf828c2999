//! The words of Remuda as Rust types: ids, generations, states, errors, limits and the wire types of the native API.
//!
//! Pure by rule: no I/O, no clock, no randomness, no async. Whoever needs the time or entropy passes it in.

pub mod access;
pub mod error;
pub mod ids;
pub mod keys;
pub mod limits;
pub mod quota;
pub mod states;
pub mod wire;

pub use access::{AccessScope, Label, Narrowing};
pub use error::{Error, ErrorCode};
pub use ids::{
    ACCESS_KEY_PREFIXES, AccessKeyId, ExecutionId, Generation, IdError, OperationId, PreviewId, ReceiptId, SandboxId,
    Slot, SnapshotId, Uid, WebhookId,
};
pub use keys::{Account, Key, NameError};
pub use quota::{Quota, QuotaChanges, QuotaLimits, QuotaSetting};
pub use states::{ExecutionState, OperationState, SandboxState, SnapshotMode, SnapshotState};
