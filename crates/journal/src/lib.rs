//! The durable records of Remuda: operations with their keys, steps and outcomes; sandboxes by slot and generation;
//! snapshots, executions, previews, access keys, receipts, quotas and events.
//!
//! The interface speaks of admitting, stepping and finishing. It must never show how records are stored, never take
//! the time from a clock of its own, and never answer for something that a crash could take back.
//!
//! A keyed call goes like this:
//!
//! ```no_run
//! # use remuda_journal::*;
//! # async fn create(journal: Journal, admission: Admission, now_ms: i64) -> Result<(), JournalError> {
//! match journal.admit(admission).await? {
//!     // Key, request and reservation are on the disk. Now, and not before, something may be done.
//!     Admitted::New(operation) => {
//!         journal.step(&operation.id, "network", serde_json::json!({ "name": "net-1" }), vec![]).await?;
//!         // … effects, each behind its step …
//!         journal.finish(&operation.id, Outcome::Done(serde_json::json!({})), vec![], now_ms).await?;
//!     }
//!     // It was done before: say its outcome again.
//!     Admitted::Replay(operation) => drop(operation.outcome),
//!     Admitted::InFlight(operation) => drop(operation.id),
//!     Admitted::Conflict(operation) => drop(operation.id),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! After a crash, [`Journal::unfinished`] tells which operations had begun, with the steps they had taken.

mod announcer;
mod calls;
mod canonical;
mod error;
mod gate;
mod journal;
pub mod limits;
mod model;
mod settings;
mod store;

pub use error::{JournalError, OpenError, Refusal};
pub use gate::{Gate, Passage};
pub use journal::{Journal, Underway};
pub use model::*;
pub use settings::{Retention, Settings};
pub use store::evict::Evicted;
