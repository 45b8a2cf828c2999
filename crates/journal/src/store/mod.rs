//! The records in SQLite. Everything that knows SQL is in here, and nothing in here decides for the platform.
//!
//! One thread writes ([`writer`]), some only read ([`readers`]). What stands in a table is in the file of its name.

pub(crate) mod access;
pub(crate) mod accounts;
pub(crate) mod changes;
mod db;
pub(crate) mod events;
pub(crate) mod evict;
pub(crate) mod executions;
mod open;
pub(crate) mod operations;
mod paged;
pub(crate) mod quotas;
pub(crate) mod readers;
pub(crate) mod receipts;
pub(crate) mod reserve;
pub(crate) mod sandboxes;
pub(crate) mod snapshots;
pub(crate) mod tombstones;
pub(crate) mod webhooks;
pub(crate) mod writer;

pub(crate) use db::{Db, Tx};
pub(crate) use open::{open, open_reader};
