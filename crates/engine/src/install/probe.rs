//! What a runsc can do, found by trying and bound to its digest.
//! Must never conclude from a version what a trial can tell.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;

use serde::{Deserialize, Serialize};

use super::digest::Digest;

/// What a trial of one runsc showed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// The platform it ran on, such as `systrap`.
    pub platform: String,
    /// A sandbox was created by command line, and given its network and started by the control socket.
    pub control_socket: bool,
    /// Pause and resume worked, and the program went on with its memory.
    pub pause_resume: bool,
    /// A checkpoint was taken and the source went on.
    pub checkpoint: bool,
    /// That checkpoint was restored, and the program went on with its memory.
    pub restore: bool,
    /// A checkpoint works while a deleted file of the root file system is open; `None`: not tried.
    #[serde(default)]
    pub deleted_open_files: Option<bool>,
}

impl Capabilities {
    /// What is needed and was not shown; empty for a runsc that will do.
    pub fn missing(&self) -> Vec<&'static str> {
        [
            (self.control_socket, "start by the control socket"),
            (self.pause_resume, "pause and resume"),
            (self.checkpoint, "checkpoint"),
            (self.restore, "restore"),
        ]
        .into_iter()
        .filter_map(|(shown, name)| (!shown).then_some(name))
        .collect()
    }
}

/// A probe's answer, or a sentence on why it could not be carried through.
pub type ProbeFuture<'a> = Pin<Box<dyn Future<Output = Result<Capabilities, String>> + Send + 'a>>;

/// The trial itself: start a sandbox, checkpoint it, restore it. The engine's machinery implements it.
pub trait Probe: Send + Sync {
    /// Tries the binary `runsc` with the root directory `base`, and leaves nothing behind.
    fn probe<'a>(&'a self, runsc: &'a Path, base: &'a Path) -> ProbeFuture<'a>;
}

/// What `current.json` keeps of one runsc.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// The binary it is about.
    pub runsc_digest: Digest,
    /// As the binary tells it; for display, never for decisions but the refusal of known wrong builds.
    pub version: String,
    /// The Go release that built it, such as `1.24.4`, where the binary tells.
    pub go_version: Option<String>,
    /// What it can do.
    pub can: Capabilities,
    /// When it was tried, in milliseconds since 1970 UTC.
    pub checked_at_unix_ms: i64,
}
