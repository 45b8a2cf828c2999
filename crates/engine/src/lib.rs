//! Drives gVisor. Its API is plain data, so that it can become a process of its own; it keeps no records and never
//! touches the journal.

pub mod install;
mod parts;

pub use parts::{AGENT_PATH, Fingerprint, Parts};
