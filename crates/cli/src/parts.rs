//! The engine's parts for a server: what `remuda setup` installed, and the agent this binary carries.
//! Must never install anything by itself.

use std::path::Path;

use remuda_engine::install::{Cache, CheckReport, Installed, check_machine, place_agent};
use remuda_engine::{Fingerprint, Parts};

use crate::agent;
use crate::failure::{Failure, NOT_READY};

/// Looks whether this machine can run sandboxes in that data directory, finds the parts in the cache and puts the
/// agent beside them.
pub async fn find(cache_dir: &Path, data_dir: &Path) -> anyhow::Result<Parts> {
    let (cache_dir, data_dir) = (cache_dir.to_owned(), data_dir.to_owned());
    tokio::task::spawn_blocking(move || find_blocking(&cache_dir, &data_dir)).await?
}

fn find_blocking(cache_dir: &Path, data_dir: &Path) -> anyhow::Result<Parts> {
    let cache = Cache::new(cache_dir);
    CheckReport { checks: check_machine(&cache, data_dir, false), probe: None }.ready()?;
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
