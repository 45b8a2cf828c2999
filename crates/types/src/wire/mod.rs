//! Requests and answers of the native API under `/v1`. Requests refuse unknown members, so that a misspelt option is
//! an error and not a silence.

mod access;
mod deadline;
mod doctor;
mod event;
mod execution;
mod file;
mod operation;
mod preview;
mod receipt;
mod sandbox;
mod search;
mod server;
mod snapshot;
mod stop;
mod usage;
mod webhook;

pub use access::*;
pub use deadline::*;
pub use doctor::*;
pub use event::*;
pub use execution::*;
pub use file::*;
pub use operation::*;
pub use preview::*;
pub use receipt::*;
pub use sandbox::*;
pub use search::*;
pub use server::*;
pub use snapshot::*;
pub use stop::*;
pub use usage::*;
pub use webhook::*;

/// Labels of a sandbox or snapshot; sorted, so that listings are stable.
pub type Labels = std::collections::BTreeMap<String, String>;
