//! Drives gVisor. Its API is plain data, so that it can become a process of its own; it keeps no records and never
//! touches the journal.

mod adoption;
mod alarm;
mod bundle;
mod cgroup;
mod control_socket;
mod dialer;
mod dirs;
mod engine;
mod error;
mod freeze;
mod halt;
mod host_facts;
mod image;
pub mod install;
mod launch;
mod layer;
mod leftovers;
mod machine;
mod network;
mod parts;
mod process;
mod rootfs;
mod settle;
mod site;
mod state_file;
mod trial;

pub use adoption::{Adopted, Survivor};
pub use alarm::OomAlarm;
pub use cgroup::Limits;
pub use dirs::{Dirs, SandboxDirs, free_bytes};
pub use engine::{Engine, TornDown, disk_usage};
pub use error::{EngineError, Result};
pub use freeze::Frozen;
pub use host_facts::{HostFacts, ProcessFacts};
pub use image::{ImageFiles, MemoryImage};
pub use layer::LayerSeal;
pub use leftovers::Leftovers;
pub use machine::{CapturePlaces, Captured, Death, Machine, MachineSpec};
pub use parts::{AGENT_PATH, Fingerprint, Parts};
pub use settle::Settled;
pub use site::{ChannelEnds, Life, Site};
pub use trial::Trial;
