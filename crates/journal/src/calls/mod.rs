//! What can be asked of the journal, in the platform's words.

mod events;
mod operations;
mod reconciliation;
mod records;
