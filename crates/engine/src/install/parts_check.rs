//! Looks whether the parts that a running server stands on are still there as they were when it started. Must never
//! change anything.

use super::cache::Cache;
use super::digest::Digest;
use super::machine_check::Check;
use crate::parts::{AGENT_PATH, Parts};

const RESTORE: &str = "run as root: remuda setup; then restart the server";

/// Engine, agent and base image, by their places, and that the engine's build was tried on this machine. Contents are
/// looked at by `remuda setup --check`.
pub fn check_parts(parts: &Parts) -> Vec<Check> {
    let place = |name: &str, what: &str, path: &std::path::Path, there: bool| match there {
        true => Check::good(name, format!("{what} {}", path.display())),
        false => Check::bad(name, format!("{what} {} is gone", path.display()), RESTORE),
    };
    let agent = parts.agent_dir.join(AGENT_PATH.trim_start_matches('/'));
    vec![
        place("engine", &parts.runsc_version, &parts.runsc, parts.runsc.is_file()),
        tried(parts),
        place("agent", "the agent", &agent, agent.is_file()),
        place("base image", "the base image", &parts.base_dir, parts.base_dir.is_dir()),
    ]
}

fn tried(parts: &Parts) -> Check {
    const NAME: &str = "probe";
    let digest = parts.fingerprint.runsc.parse::<Digest>();
    let current = parts.cache().current();
    let report = match (digest, current) {
        (Ok(digest), Ok(Some(current))) => current.probes.get(&digest).cloned(),
        _ => None,
    };
    match report {
        Some(report) if report.can.missing().is_empty() => {
            Check::good(NAME, format!("{} was tried on this machine", report.version))
        }
        _ => Check::bad(NAME, "this build of the engine was never tried on this machine", RESTORE),
    }
}

impl Parts {
    /// The cache that they lie in.
    pub fn cache(&self) -> Cache {
        // `runsc/<digest>/runsc`
        Cache::new(self.runsc.ancestors().nth(3).unwrap_or(&self.runsc))
    }
}
