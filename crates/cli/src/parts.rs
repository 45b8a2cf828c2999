//! The engine's parts for a server: what `remuda setup` installed, and the agent this binary carries.
//! Must never install anything by itself.

use std::path::Path;

use remuda_engine::install::{Cache, Installed, place_agent};
use remuda_engine::{Fingerprint, Parts};

use crate::agent;
use crate::failure::{Failure, NOT_READY};

/// Finds the parts in the cache and puts the agent beside them.
pub async fn find(cache_dir: &Path) -> anyhow::Result<Parts> {
    let root = cache_dir.to_owned();
    tokio::task::spawn_blocking(move || find_blocking(&root)).await?
}

fn find_blocking(cache_dir: &Path) -> anyhow::Result<Parts> {
    if !rustix::process::geteuid().is_root() {
        let failure = Failure::new(NOT_READY, "sandboxes need root: namespaces, mounts and cgroups are made for each");
        return Err(failure.remedy("run this command as root").into());
    }
    let cache = Cache::new(cache_dir);
    let Some(installed) = Installed::load(&cache)? else {
        let message = format!("no engine and base image are installed in {}", cache_dir.display());
        return Err(Failure::new(NOT_READY, message).remedy("run `remuda setup` as root").into());
    };
    let placed = place_agent(&cache, agent::BYTES)?;
    Ok(Parts {
        fingerprint: Fingerprint {
            runsc: installed.runsc_digest.to_string(),
            agent: placed.digest.to_string(),
            base: installed.base_digest.to_string(),
        },
        runsc_version: installed.runsc_version,
        runsc: installed.runsc,
        agent_dir: placed.dir,
        base_dir: installed.base_root,
    })
}
