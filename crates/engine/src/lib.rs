//! Drives gVisor. Its API is plain data, so that it can become a process of its own; it keeps no records and never
//! touches the journal.

mod alarm;
mod bundle;
mod cgroup;
mod control_socket;
mod dialer;
mod dirs;
mod engine;
mod error;
mod freeze;
mod image;
pub mod install;
mod layer;
mod machine;
mod network;
mod parts;
mod process;
mod rootfs;
mod site;
mod state_file;
mod trial;

pub use alarm::OomAlarm;
pub use cgroup::Limits;
pub use dirs::{Dirs, SandboxDirs, free_bytes};
pub use engine::{Engine, TornDown, disk_usage};
pub use error::{EngineError, Result};
pub use freeze::Frozen;
pub use image::{ImageFiles, MemoryImage};
pub use layer::LayerSeal;
pub use machine::{CapturePlaces, Captured, Death, Machine, MachineSpec};
pub use parts::{AGENT_PATH, Fingerprint, Parts};
pub use site::{ChannelEnds, Life, Site};
pub use trial::Trial;
