//! What a server does about an earlier one on the same data directory.
//!
//! ```text
//!  read back what was on record: snapshots, sandboxes, operations without an outcome
//!        │
//!  remove what no record owns
//!        │
//!  each machine: wait for what the dead server had under way in it ─► resume it, if it ran ─► take it over
//!        │                                                        └─► it has ended: stopped, with the reason
//!  calls are taken
//!        │
//!  each operation: finished or undone; what came of it is what a retry with its key is told
//! ```
//!
//! The order matters: while an orphaned checkpoint is being written, its machine stands still and its places are not to
//! be touched; and before anything else, what stands still must go on.

mod adopt;
mod finish;
mod read;

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use remuda_journal::Operation as Record;
use remuda_types::{Error, ErrorCode};

use crate::operations::stop;
use crate::pages;
use crate::platform::Platform;
use read::Fate;

/// How long taking calls waits for machines. What has not been found by then is `unreachable` until it is.
const MACHINES_WAIT_MAX: Duration = Duration::from_secs(5);

/// Takes up what an earlier server left. Whatever takes long goes on behind.
pub(crate) async fn recover(platform: &Platform) -> Result<(), Error> {
    // In the order of their admission.
    let unfinished = pages::all(|paging| platform.journal().unfinished(paging)).await?;
    // Their processes may be gone at any moment, and are not taken over any more.
    let is_ending = |record: &&Record| match record.scope.kind() {
        "remove" => true,
        "stop" => finish::has_step(record, stop::ENDING),
        _ => false,
    };
    let ending: HashSet<_> = unfinished.iter().filter(is_ending).filter_map(target).collect();
    read::snapshots(platform).await?;
    let fates = read::sandboxes(platform, &ending).await?;
    read::layers(platform).await?;
    remove_leftovers(platform).await?;
    let mut adoptions = tokio::task::JoinSet::new();
    for (cell, fate) in fates {
        if let Fate::Adopted(host, wanted) = fate {
            let adopting = adopt::adopt(platform.clone(), cell, host, wanted);
            adoptions.spawn(platform.under_way().track_future(adopting));
        }
    }
    let found = async { while adoptions.join_next().await.is_some() {} };
    if tokio::time::timeout(MACHINES_WAIT_MAX, found).await.is_err() {
        tracing::warn!("{} machines are still being looked for; calls are taken meanwhile", adoptions.len());
    }
    adoptions.detach_all();
    finish::all(platform, unfinished);
    Ok(())
}

fn target(record: &Record) -> Option<remuda_types::SandboxId> {
    record.scope.target().cloned()
}

/// Removes whatever lies on the data directory and belongs to no record: what was half-made when a server was killed
/// after it had written down the end.
async fn remove_leftovers(platform: &Platform) -> Result<(), Error> {
    let failed = |e| {
        Error::new(ErrorCode::EngineFailed, "what an earlier server left can't be removed")
            .cause(crate::errors::chain(&e))
            .remedy("run: remuda setup --check")
    };
    let engine = platform.engine();
    let mut left = engine.leftovers().map_err(failed)?;
    let mut handed_over = BTreeSet::new();
    {
        let tables = platform.registry().tables();
        for cell in tables.sandboxes() {
            left.machines.remove(&cell.uid);
            handed_over.extend(cell.continues.get().map(|before| before.uid.clone()));
            // Its files may still be there.
            if let Some(before) = cell.continues.get().filter(|_| !engine.has_files(&cell.uid)) {
                left.machines.remove(&before.uid);
            }
        }
        for cell in tables.snapshots() {
            left.snapshots.remove(&cell.id);
        }
        for layer in tables.layers_in_use() {
            left.snapshots.remove(&layer);
        }
    }
    let removed = left.machines.len() + left.snapshots.len();
    engine.remove_leftovers(&left).await.map_err(failed)?;
    platform.tell_leftovers(&left, &handed_over).await?;
    if removed > 0 {
        tracing::info!("removed {removed} sandboxes and snapshots that were left half-made by an earlier server");
    }
    Ok(())
}
