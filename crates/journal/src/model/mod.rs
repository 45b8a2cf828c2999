//! What the journal keeps, as plain data. Nothing in here may know how it is stored.

mod access;
mod account;
mod admission;
mod change;
mod event;
mod execution;
mod operation;
mod page;
mod quota;
mod receipt;
mod sandbox;
mod snapshot;
mod webhook;

pub use access::{AccessKey, Preview};
pub use account::AccountRecord;
pub use admission::{Admission, Admitted, Forbidden, NewExecution, NewSandbox, NewSnapshot, Reservation};
pub use change::Change;
pub use event::{EventPage, EventRecord, NewEvent};
pub use execution::ExecutionRecord;
pub use operation::{Finished, Operation, Outcome, Reserved, Scope, ScopeError, Step, Stepped};
pub use page::{Cursor, CursorError, PageOf, Paging, Whose};
pub use quota::{AdriftSum, Count, Held, Hold, Holder, Used};
pub use receipt::{Receipt, ReceiptKind};
pub use sandbox::{SandboxChange, SandboxFilter, SandboxRecord};
pub use snapshot::{SnapshotChange, SnapshotFilter, SnapshotRecord};
pub use webhook::WebhookRecord;
