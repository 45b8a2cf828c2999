//! Installs and checks what sandboxes need on this machine: a runsc that was tried, and a base image, in the
//! machine-wide cache. `remuda setup` and `remuda setup --check` are thin over it.
//! Must never replace what a sandbox or a snapshot may refer to, and must never download what is there already.

mod agent;
mod apt;
mod base;
mod cache;
mod check;
mod command;
mod digest;
mod distribution;
mod error;
mod local_names;
mod machine_check;
mod node;
mod parts_check;
mod probe;
mod runsc;
mod setup;

pub use agent::{AgentLayer, place_agent};
pub use base::BaseManifest;
pub use cache::{Cache, Current, Held, Kind, Lock};
pub use check::CheckReport;
pub use digest::{BadDigest, Digest, TreeDigest, digest_of_guest, digest_tree};
pub use error::{NotReady, SetupError};
pub use machine_check::{CACHE_FREE_BYTES_MIN, Check, DATA_FREE_BYTES_MIN, check_machine, state_tmpfs};
pub use parts_check::check_parts;
pub use probe::{Capabilities, Probe, ProbeFuture, ProbeReport};
pub use setup::{Installed, Progress, Setup, Step, StepState};
