//! The real agent as an ordinary process, with a small host at the other end of its pipes. Must be run as root, since
//! the agent changes users; touches nothing of this machine's and leaves no process behind.

mod batches;
mod binding;
mod conditions;
mod cuts;
mod executions;
mod files;
mod host;
mod idling;
mod nonsense;
mod output;
mod quiescing;
mod relays;
mod searches;
mod stdin;
mod terminal;
mod trees;
