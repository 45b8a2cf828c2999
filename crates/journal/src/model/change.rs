//! Changes: what a step, an outcome or a moment of the platform's life writes beside itself, in the same transaction.

use remuda_types::{Account, ExecutionId, WebhookId};

use super::{
    AccessKey, AccountRecord, ExecutionRecord, Hold, Holder, NewEvent, NewSnapshot, Preview, Receipt, SandboxChange,
    SnapshotChange, WebhookRecord,
};

/// One change. All changes of a call are applied in their order, all or none.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A sandbox changes.
    Sandbox(SandboxChange),
    /// A snapshot changes.
    Snapshot(SnapshotChange),
    /// A snapshot comes to be within an operation, as one that a fork makes for itself. In a step or an outcome only.
    NewSnapshot {
        /// Which.
        snapshot: NewSnapshot,
        /// Unix time in milliseconds.
        now_ms: i64,
    },
    /// An execution's record, whole.
    Execution(ExecutionRecord),
    /// An execution's record is dropped; the key of its call goes the way of all keys from this Unix time on.
    ForgetExecution {
        /// Which.
        id: ExecutionId,
        /// Unix time in milliseconds.
        now_ms: i64,
    },
    /// A preview, whole.
    Preview(Preview),
    /// An access key, whole.
    AccessKey(AccessKey),
    /// A webhook, whole; one that was forgotten does not come back by it, unless it is `new`.
    Webhook {
        /// It.
        record: WebhookRecord,
        /// Whether it comes to be.
        new: bool,
    },
    /// A webhook is dropped. Repeating it changes nothing.
    ForgetWebhook(WebhookId),
    /// An account, whole; the time of its making stays.
    Account(AccountRecord),
    /// A receipt, whole.
    Receipt(Receipt),
    /// Something happened.
    Event(NewEvent),
    /// An amount is held, or another than before by the same holder. It is refused beyond the limit only where it
    /// grows.
    Hold(Account, Hold),
    /// Everything that was held for this is released. Repeating it changes nothing.
    Release(Holder),
    /// The sums of what an account holds are made anew from what is held.
    Recount(Account),
}
