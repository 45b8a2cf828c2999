//! One file an operation: how it is judged, its steps, and what it undoes when a step fails.

pub(crate) mod capture;
pub(crate) mod create;
pub(crate) mod execute;
pub(crate) mod files;
pub(crate) mod fork;
pub(crate) mod halt;
pub(crate) mod launch;
pub(crate) mod raise;
pub(crate) mod remove;
pub(crate) mod remove_snapshot;
pub(crate) mod restore;
pub(crate) mod write_file;
