//! The words of Remuda as Rust types: ids, generations, states, errors, limits and the wire types of the native API.
//!
//! Pure by rule: no I/O, no clock, no randomness, no async. Whoever needs the time or entropy passes it in.

pub mod error;
pub mod ids;
pub mod limits;
pub mod states;
pub mod wire;

pub use error::{Error, ErrorCode};
pub use ids::{ExecutionId, Generation, IdError, SandboxId, Slot, SnapshotId, Uid};
pub use states::{ExecutionState, SandboxState, SnapshotMode, SnapshotState};
