//! The exact engine parts that a sandbox is made with, each by digest: a snapshot refers to them and nothing is
//! replaced under it.

use std::path::{Path, PathBuf};

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

impl Parts {
    /// Where agent and base image of another fingerprint lie: each under its digest, beside the one in use. A machine
    /// that goes on with files or memory of an earlier one stands on what that one stood on, also when another base image
    /// or agent is in use by now.
    ///
    /// # Errors
    /// What is not there, in words.
    pub fn below(&self, machine: &Fingerprint) -> Result<(PathBuf, PathBuf), String> {
        let mut below = (self.agent_dir.clone(), self.base_dir.clone());
        if machine.agent != self.fingerprint.agent {
            below.0.set_file_name(&machine.agent);
            present("agent", &below.0)?;
        }
        if machine.base != self.fingerprint.base {
            let of_all = self.base_dir.parent().and_then(Path::parent).unwrap_or(Path::new(""));
            below.1 = of_all.join(&machine.base).join("root");
            present("base image", &below.1)?;
        }
        Ok(below)
    }
}

fn present(what: &str, dir: &Path) -> Result<(), String> {
    if dir.is_dir() { Ok(()) } else { Err(format!("its {what} is not at {}", dir.display())) }
}

/// Where a guest finds its agent.
pub const AGENT_PATH: &str = "/usr/lib/remuda/agent";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_stands_on_its_own_parts_whatever_is_in_use() {
        let cache = tempfile::tempdir().unwrap();
        let fingerprint =
            |agent: &str, base: &str| Fingerprint { runsc: "r".into(), agent: agent.into(), base: base.into() };
        let (agent, base) =
            (|name| cache.path().join("agents").join(name), |name| cache.path().join("bases").join(name));
        let parts = Parts {
            fingerprint: fingerprint("a2", "b2"),
            runsc_version: String::new(),
            runsc: PathBuf::new(),
            agent_dir: agent("a2"),
            base_dir: base("b2").join("root"),
        };
        for dir in [agent("a1"), agent("a2"), base("b1").join("root"), base("b2").join("root")] {
            std::fs::create_dir_all(dir).unwrap();
        }
        assert_eq!(parts.below(&fingerprint("a1", "b1")), Ok((agent("a1"), base("b1").join("root"))));
        assert_eq!(parts.below(&fingerprint("a2", "b1")), Ok((agent("a2"), base("b1").join("root"))));
        assert_eq!(parts.below(&parts.fingerprint), Ok((agent("a2"), base("b2").join("root"))));
        assert!(parts.below(&fingerprint("a2", "b3")).unwrap_err().contains("base image"));
        assert!(parts.below(&fingerprint("a3", "b1")).unwrap_err().contains("agent"));
    }
}
