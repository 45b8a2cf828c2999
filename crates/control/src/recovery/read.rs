//! Reads sandboxes and snapshots that have not ended back into memory.

use std::collections::HashSet;
use std::sync::Arc;

use remuda_journal::{SandboxFilter, SandboxRecord, SnapshotFilter, SnapshotRecord, Whose};
use remuda_types::{Account, Error, ErrorCode, SandboxId, SandboxState};

use crate::driver::Status;
use crate::executions::{Executions, Retention};
use crate::pages;
use crate::platform::Platform;
use crate::records::{self, HostRecord, SandboxRecords, SandboxSpec, SnapshotDoc};
use crate::registry::{Ground, Predecessor, SandboxCell, SnapshotCell};

/// What is to be done about a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fate {
    /// Its machine is looked for, and is to be in this state.
    Adopted(HostRecord, SandboxState),
    /// It has no machine, or one that nobody has heard of: whatever operation is about it goes on from there.
    Left,
}

/// Reads snapshots back.
pub(super) async fn snapshots(platform: &Platform) -> Result<(), Error> {
    let journal = platform.journal();
    let list = |paging| journal.snapshots(Whose::Everyones, SnapshotFilter::default(), paging);
    pages::all(list).await?.iter().try_for_each(|record| take_in(platform, record))
}

fn take_in(platform: &Platform, record: &SnapshotRecord) -> Result<(), Error> {
    let (shown, doc) = records::snapshot(record)?;
    let cell = SnapshotCell::new(record.account.clone(), SnapshotDoc { shown, ..doc });
    platform.registry().tables().add_snapshot(cell);
    Ok(())
}

/// Reads back the snapshots that were removed while something stood on their layers, which holds them as long as it
/// stands: what is restored on a layer is held against its seal, and the layer goes with the last that stands on it.
pub(super) async fn layers(platform: &Platform) -> Result<(), Error> {
    let missing = platform.registry().tables().layers_without_snapshot();
    for (id, account) in missing {
        let record = platform.journal().snapshot(&account, &id).await.map_err(|e| crate::errors::journal(&e))?;
        match record {
            Some(record) => take_in(platform, &record)?,
            None => tracing::warn!("the layer of {id} is in use, and its record is no longer kept"),
        }
    }
    Ok(())
}

/// Reads sandboxes back, with what is to be done about each. `ending` are being removed: their machines are not taken
/// over any more.
pub(super) async fn sandboxes(
    platform: &Platform,
    ending: &HashSet<SandboxId>,
) -> Result<Vec<(Arc<SandboxCell>, Fate)>, Error> {
    let journal = platform.journal();
    let list = |paging| journal.sandboxes(Whose::Everyones, SandboxFilter::default(), paging);
    let mut all = Vec::new();
    for record in pages::all(list).await? {
        all.push(sandbox(platform, record, ending).await?);
    }
    Ok(all)
}

/// Reads one back that holds its slot again, since what was to continue it never came up.
pub(super) async fn handed_back(platform: &Platform, account: &Account, id: &SandboxId) -> Result<(), Error> {
    let record = platform.journal().sandbox(account, id).await.map_err(|e| crate::errors::journal(&e))?;
    match record.filter(|record| record.ended_at_ms.is_none()) {
        Some(record) => sandbox(platform, record, &HashSet::new()).await.map(drop),
        None => Ok(()),
    }
}

async fn sandbox(
    platform: &Platform,
    record: SandboxRecord,
    ending: &HashSet<SandboxId>,
) -> Result<(Arc<SandboxCell>, Fate), Error> {
    let what = format!("the record of {}", record.id);
    let spec: SandboxSpec = records::read(&what, &record.spec)?;
    // Builds before 2026-12 left no machine running and wrote down less.
    let host: Option<HostRecord> = serde_json::from_value(record.host.clone()).ok();
    let unheard = host.is_none() && record.state == SandboxState::Starting;
    let (places, uid) = (platform.execution_places().clone(), record.uid.clone());
    let reading = tokio::task::spawn_blocking(move || {
        if unheard {
            // Its machine is made from the beginning, and so are the executions that come with it.
            places.remove_sandbox(&uid)?;
        }
        Executions::recover(places.sandbox(&uid), Retention::default())
    });
    let executions = reading.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
    let executions = executions.map_err(|e| {
        Error::new(ErrorCode::EngineFailed, format!("what ran in {} can't be read back", record.id)).cause(e)
    })?;
    let fate = match (&host, record.state) {
        _ if ending.contains(&record.id) => Fate::Left,
        (Some(host), SandboxState::Paused) => Fate::Adopted(host.clone(), SandboxState::Paused),
        (Some(host), SandboxState::Starting | SandboxState::Running) => {
            Fate::Adopted(host.clone(), SandboxState::Running)
        }
        _ => Fate::Left,
    };
    let mut status = Status { state: record.state, reason: record.reason, ended_at_ms: record.ended_at_ms };
    if host.is_none() && matches!(record.state, SandboxState::Running | SandboxState::Paused) {
        status.state = SandboxState::Stopped;
        status.reason = Some("its processes are not on record: an earlier build of the server made it".to_owned());
    }
    let records = SandboxRecords { journal: platform.journal().clone(), account: record.account, uid: record.uid };
    let parts = records::read(&format_args!("the parts of {}", record.id), &record.parts)?;
    let ground = Ground { layers: record.layers, parts };
    let cell = SandboxCell::new(record.id, records, record.labels, spec, ground, executions, status);
    if record.state == SandboxState::Stopped {
        // A server that was killed just after the machine had died may not have written down the ends of all.
        cell.executions.sandbox_ended(false);
        let died_at_ms = cell.ledger.died_at_ms().await;
        cell.status.send_modify(|status| status.ended_at_ms = died_at_ms);
    }
    if let Some(before) = record.continues {
        let found = platform.journal().sandbox(&cell.account, &before).await.map_err(|e| crate::errors::journal(&e))?;
        if let Some(found) = found {
            // It is new: nobody else has set it.
            let _ = cell.continues.set(Predecessor { id: before, uid: found.uid });
        }
    }
    cell.found.send_replace(!matches!(fate, Fate::Adopted(..)));
    platform.registry().tables().add_sandbox(cell.clone());
    Ok((cell, fate))
}
