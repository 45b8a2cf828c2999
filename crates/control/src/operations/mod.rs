//! One file an operation: what it admits, its steps, and what it undoes when a step fails.

pub(crate) mod capture;
pub(crate) mod create;
pub(crate) mod execute;
pub(crate) mod files;
pub(crate) mod fork;
pub(crate) mod launch;
pub(crate) mod remove;
pub(crate) mod restore;
