//! The exact engine parts that a sandbox is made with, each by digest: a snapshot refers to them and nothing is
//! replaced under it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Digests of the parts a sandbox stands on; written into every snapshot's manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The runsc binary.
    pub runsc: String,
    /// The guest agent.
    pub agent: String,
    /// The base image.
    pub base: String,
}

/// Where the parts lie on this machine.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Their digests.
    pub fingerprint: Fingerprint,
    /// What `runsc --version` says, first line.
    pub runsc_version: String,
    /// The runsc binary.
    pub runsc: PathBuf,
    /// Overlay lower directory that holds the agent at [`AGENT_PATH`].
    pub agent_dir: PathBuf,
    /// Root of the base image, the lowest overlay directory.
    pub base_dir: PathBuf,
}

/// Where a guest finds its agent.
pub const AGENT_PATH: &str = "/usr/lib/remuda/agent";
