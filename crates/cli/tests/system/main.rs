//! The binary `remuda` as users run it, against real sandboxes. One test binary, so that it is linked once.

mod access;
mod api;
mod bad_input;
mod branches;
mod commands;
mod copies;
mod crowd;
mod damage;
mod death;
mod drills;
mod embedded;
mod events;
mod executions;
mod files;
mod full_disk;
mod guest_files;
mod hostile;
mod input;
mod keys;
mod receipts;
mod refused_checkpoint;
mod retries;
mod server;
mod server_end;
mod usage;
mod world;
