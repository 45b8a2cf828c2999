//! restore: check the snapshot → reserve slot and generation → build on its layers → fill or start → launch → running.

use std::sync::Arc;

use remuda_types::wire::{Labels, LaunchRecipe, Origin, RestoreSnapshot, Sandbox};
use remuda_types::{Error, ErrorCode, Slot, SnapshotMode, SnapshotState, Uid};

use crate::boot::{Life, boot};
use crate::caller::Caller;
use crate::clock::id_entropy;
use crate::operations::create::check_labels;
use crate::operations::{launch, remove};
use crate::platform::Platform;
use crate::registry::{Reservation, SandboxCell, SnapshotCell};

/// Restores one sandbox from a snapshot that stands by itself.
pub(crate) async fn restore(
    platform: &Platform,
    caller: &Caller,
    id_or_name: &str,
    request: RestoreSnapshot,
) -> Result<Sandbox, Error> {
    check_labels(&request.labels)?;
    platform.admit_work()?;
    let snapshot = platform.registry().tables().snapshot(&caller.account, id_or_name)?;
    // Counted as a reader before it is looked at, so that a deletion in between waits for nothing and takes nothing.
    let _reading = Reading::begin(&snapshot);
    let recipe = {
        let inner = snapshot.inner();
        if inner.shown.state != SnapshotState::Active {
            let message = format!("snapshot {} is {}, not active", snapshot.id, inner.shown.state);
            return Err(Error::new(ErrorCode::SnapshotNotActive, message));
        }
        if inner.shown.mode == SnapshotMode::Memory && inner.memory.is_none() {
            let message = format!("the memory image of {} was dropped when its fork was complete", snapshot.id);
            return Err(
                Error::new(ErrorCode::SnapshotNotActive, message).remedy("capture again with: remuda snapshot create")
            );
        }
        request.launch.or_else(|| inner.shown.launch.clone())
    };
    if let Some(recipe) = &recipe {
        if snapshot.show().mode == SnapshotMode::Memory {
            let message = "a memory snapshot wakes up running and takes no launch recipe";
            return Err(Error::new(ErrorCode::InvalidRequest, message));
        }
        launch::check(recipe)?;
    }
    check_layers(platform, &snapshot).await?;
    branch(platform, &snapshot, request.slot, request.labels, recipe).await.map(|cell| cell.show())
}

/// A restore that reads a snapshot's bytes; they stay while it does.
pub(crate) struct Reading<'a>(&'a SnapshotCell);

impl<'a> Reading<'a> {
    pub(crate) fn begin(snapshot: &'a SnapshotCell) -> Self {
        snapshot.inner().readers += 1;
        Reading(snapshot)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.inner().readers -= 1;
    }
}

/// Every layer below a snapshot is what was frozen. Overlayfs would show a changed one without a word.
async fn check_layers(platform: &Platform, snapshot: &SnapshotCell) -> Result<(), Error> {
    let parts = &platform.engine().parts().fingerprint;
    if snapshot.fingerprint != *parts {
        let message = format!("snapshot {} was made with other parts than this server has", snapshot.id);
        return Err(Error::new(ErrorCode::EngineMismatch, message)
            .cause(format!("made with {:?}, here are {parts:?}", snapshot.fingerprint)));
    }
    let mut expected = Vec::new();
    {
        let tables = platform.registry().tables();
        for id in &snapshot.layers {
            let seal = tables.snapshot_by_id(id).and_then(|s| s.inner().layer_seal.clone());
            // The layer of a fork that is not verified yet has no seal to be held against.
            expected.extend(seal.map(|seal| (platform.engine().dirs().layer(id), seal)));
        }
    }
    let checking = tokio::task::spawn_blocking(move || expected.iter().try_for_each(|(layer, seal)| seal.check(layer)));
    let checked = checking.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
    checked.map_err(|e| crate::errors::engine(&snapshot.source, e).detail("snapshot", snapshot.id.to_string()))
}

/// One sandbox on a snapshot, running and, if there is a recipe, serving. The caller holds a [`Reading`].
///
/// Runs as a task of its own, so that a caller who goes away leaves no half-made sandbox behind.
pub(crate) async fn branch(
    platform: &Platform,
    snapshot: &Arc<SnapshotCell>,
    slot: Option<Slot>,
    labels: Labels,
    recipe: Option<LaunchRecipe>,
) -> Result<Arc<SandboxCell>, Error> {
    let cell = platform.registry().tables().reserve(Reservation {
        account: snapshot.account.clone(),
        slot,
        uid: Uid::from_entropy(id_entropy()?),
        labels,
        memory_mib: snapshot.memory_mib,
        origin: Origin::Snapshot { snapshot: snapshot.id.clone(), source: snapshot.source.clone() },
        layers: snapshot.layers.clone(),
    })?;
    let life = {
        let inner = snapshot.inner();
        match (inner.shown.mode, &inner.memory) {
            (SnapshotMode::Memory, Some(image)) => {
                Life::Restored { snapshot: snapshot.id.clone(), image: image.clone(), carried: inner.carried.clone() }
            }
            _ => Life::Fresh { snapshot: Some(snapshot.id.clone()) },
        }
    };
    let (platform, booting) = (platform.clone(), cell.clone());
    let task = tokio::spawn(async move {
        boot(&platform, &booting, life).await?;
        if let Some(recipe) = recipe
            && let Err(e) = launch::launch(&booting, &recipe).await
        {
            // A sandbox that does not serve is not what was asked for; nothing of it is kept.
            if let Err(cleanup) = remove::end_and_remove(&platform, &booting).await {
                tracing::error!("failed to remove {}, whose launch failed: {cleanup}", booting.id);
            }
            return Err(e);
        }
        Ok(())
    });
    task.await.map_err(|e| Error::new(ErrorCode::Internal, "a restore ended unexpectedly").cause(e))??;
    Ok(cell)
}
