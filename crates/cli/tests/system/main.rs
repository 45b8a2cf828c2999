//! The binary `remuda` as users run it, against real sandboxes. One test binary, so that it is linked once.

mod copies;
mod embedded;
mod executions;
mod files;
mod server;
mod usage;
mod world;
