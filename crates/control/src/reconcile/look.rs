//! Makes the two pictures. The machine is looked at before the records are: whatever is made there has its record first,
//! so that what is seen and has none was not just begun. What is under way is found by what is pending in the journal
//! before and after the look, and by who holds a sandbox's turn or reads a snapshot.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::Path;

use remuda_journal::{Held, Operation as Record, SandboxFilter, SandboxRecord, SnapshotFilter, SnapshotRecord, Whose};
use remuda_types::{Account, Error, ErrorCode, SandboxId, SandboxState, SnapshotId, SnapshotState, Uid};

use super::picture::{Abandoned, OfSandbox, OfSnapshot, Seen, Told};
use crate::pages;
use crate::platform::Platform;
use crate::records::{self, HostRecord, SandboxSpec};
use crate::registry::{SandboxCell, SnapshotCell};

/// Both pictures.
pub(crate) async fn look(platform: &Platform) -> Result<(Seen, Told), Error> {
    // Shares are written with an admission: what holds one now was admitted before, and is on record below.
    let holds = held(platform).await?;
    let mut under_way = UnderWay::default();
    under_way.add(unfinished(platform).await?);
    let seen = seen(platform).await?;
    let mut told = Told { holds, sums: sums(platform).await?, ..Told::default() };
    let (sandboxes, snapshots) = written(platform).await?;
    let pending = unfinished(platform).await?;
    let hands = platform.hands().all();
    told.pending = pending.iter().map(|record| record.id.clone()).collect();
    told.abandoned = abandoned(&pending, &hands);
    under_way.add(pending);
    known(platform, &under_way, sandboxes, snapshots, &mut told);
    ended(platform, &under_way, &seen, &mut told).await?;
    Ok((seen, told))
}

async fn unfinished(platform: &Platform) -> Result<Vec<Record>, Error> {
    pages::all(|paging| platform.journal().unfinished(paging)).await
}

async fn sums(platform: &Platform) -> Result<Vec<remuda_journal::AdriftSum>, Error> {
    platform.journal().adrift_sums().await.map_err(|e| crate::errors::journal(&e))
}

async fn held(platform: &Platform) -> Result<Vec<(Account, Held)>, Error> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = platform.journal().all_held(after).await.map_err(|e| crate::errors::journal(&e))?;
        let Some((_, last)) = page.last() else { return Ok(all) };
        after = Some(last.clone());
        all.extend(page);
    }
}

async fn seen(platform: &Platform) -> Result<Seen, Error> {
    let (engine, logs) = (platform.engine().clone(), platform.execution_places().root().to_owned());
    let looking = tokio::task::spawn_blocking(move || {
        let failed = |cause: String| Error::new(ErrorCode::EngineFailed, "the machine can't be looked at").cause(cause);
        let survey = engine.survey().map_err(|e| failed(crate::errors::chain(&e)))?;
        Ok(Seen { survey, output: names(&logs).map_err(|e| failed(e.to_string()))? })
    });
    looking.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?
}

fn names(directory: &Path) -> io::Result<BTreeSet<String>> {
    match std::fs::read_dir(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        entries => entries?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
    }
}

/// What has not ended by the journal.
async fn written(
    platform: &Platform,
) -> Result<(BTreeMap<Uid, SandboxRecord>, BTreeMap<SnapshotId, SnapshotRecord>), Error> {
    let journal = platform.journal();
    let sandboxes = |paging| journal.sandboxes(Whose::Everyones, SandboxFilter::default(), paging);
    let snapshots = |paging| journal.snapshots(Whose::Everyones, SnapshotFilter::default(), paging);
    let sandboxes = pages::all(sandboxes).await?.into_iter().map(|record| (record.uid.clone(), record));
    let snapshots = pages::all(snapshots).await?.into_iter().map(|record| (record.id.clone(), record));
    Ok((sandboxes.collect(), snapshots.collect()))
}

/// What something is being done with.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    sandboxes: HashSet<(Account, SandboxId)>,
    snapshots: HashSet<SnapshotId>,
    /// Snapshots that are being removed, as they were named.
    named: HashSet<(Account, String)>,
}

impl UnderWay {
    /// Whatever these operations are about.
    pub(super) fn add(&mut self, pending: Vec<Record>) {
        for record in pending {
            let sandboxes = [record.scope.target().cloned(), record.reserved.sandbox].into_iter().flatten();
            self.sandboxes.extend(sandboxes.map(|id| (record.account.clone(), id)));
            self.snapshots.extend(record.reserved.snapshot);
            let named = record.request.as_ref().and_then(|request| request["snapshot"].as_str());
            self.named.extend(named.map(|name| (record.account.clone(), name.to_owned())));
        }
    }

    pub(super) fn has_sandbox(&self, account: &Account, id: &SandboxId) -> bool {
        self.sandboxes.contains(&(account.clone(), id.clone()))
    }

    pub(super) fn has_snapshot(&self, account: &Account, id: &SnapshotId, name: Option<&str>) -> bool {
        let named = [Some(id.as_str()), name].into_iter().flatten();
        let is_named = |name: &str| self.named.contains(&(account.clone(), name.to_owned()));
        self.snapshots.contains(id) || named.into_iter().any(is_named)
    }
}

/// A part is seen to by whoever sees to the whole.
fn abandoned(pending: &[Record], hands: &HashSet<remuda_types::OperationId>) -> Vec<Abandoned> {
    let left = |record: &&Record| {
        !hands.contains(&record.id) && record.parent.as_ref().is_none_or(|parent| !hands.contains(parent))
    };
    let told = |record: &Record| Abandoned {
        account: record.account.clone(),
        id: record.id.clone(),
        kind: record.scope.kind().to_owned(),
    };
    pending.iter().filter(left).map(told).collect()
}

/// What memory has, beside what was written.
fn known(
    platform: &Platform,
    under_way: &UnderWay,
    mut sandboxes: BTreeMap<Uid, SandboxRecord>,
    mut snapshots: BTreeMap<SnapshotId, SnapshotRecord>,
    told: &mut Told,
) {
    let tables = platform.registry().tables();
    for cell in tables.sandboxes() {
        let record = sandboxes.remove(&cell.uid);
        let busy = under_way.has_sandbox(&cell.account, &cell.id) || is_held(&cell);
        told.sandboxes.insert(cell.uid.clone(), of_cell(&cell, record.as_ref(), busy));
    }
    for (uid, record) in sandboxes {
        let busy = under_way.has_sandbox(&record.account, &record.id);
        told.sandboxes.insert(uid, of_record(&record, busy));
    }
    for cell in tables.snapshots() {
        let record = snapshots.remove(&cell.id);
        told.snapshots.insert(cell.id.clone(), of_snapshot(&cell, record.as_ref(), under_way));
    }
    for (id, record) in snapshots {
        let busy = under_way.has_snapshot(&record.account, &id, record.name.as_deref());
        told.snapshots.insert(id, of_snapshot_record(&record, busy));
    }
    told.layers_in_use = tables.layers_in_use().into_iter().collect();
}

/// Whether somebody boots, stops, continues, removes or ends it, or still looks for its machine.
pub(super) fn is_held(cell: &SandboxCell) -> bool {
    cell.removing.try_lock().is_err() || !*cell.found.borrow() || cell.life.ending().is_some()
}

fn of_cell(cell: &SandboxCell, record: Option<&SandboxRecord>, busy: bool) -> OfSandbox {
    let (live, state) = (cell.running.get().map(|(live, _)| live), cell.state());
    OfSandbox {
        account: cell.account.clone(),
        id: cell.id.clone(),
        written: record.map(|record| record.state),
        known: Some(state).filter(|state| *state != SandboxState::Gone),
        busy,
        lives: live.is_some_and(|live| !live.machine.has_ended()),
        memory_mib: u64::from(cell.spec.memory_mib),
        disk_bytes: cell.spec.disk_bytes(),
        processes: live.and_then(|live| live.machine.host_facts().ok()),
    }
}

fn of_record(record: &SandboxRecord, busy: bool) -> OfSandbox {
    let host: Option<HostRecord> = serde_json::from_value(record.host.clone()).ok();
    let spec: Option<SandboxSpec> = serde_json::from_value(record.spec.clone()).ok();
    OfSandbox {
        account: record.account.clone(),
        id: record.id.clone(),
        written: record.ended_at_ms.is_none().then_some(record.state),
        known: None,
        busy,
        lives: false,
        memory_mib: spec.as_ref().map_or(0, |spec| u64::from(spec.memory_mib)),
        disk_bytes: spec.as_ref().map_or(0, SandboxSpec::disk_bytes),
        processes: host.map(|host| host.processes),
    }
}

fn of_snapshot(cell: &SnapshotCell, record: Option<&SnapshotRecord>, under_way: &UnderWay) -> OfSnapshot {
    let inner = cell.inner();
    let shown = &inner.doc.shown;
    let over = matches!(shown.state, SnapshotState::Failed | SnapshotState::Deleted);
    OfSnapshot {
        account: cell.account.clone(),
        // Those that have ended are not among what was listed; that they have is what memory says too.
        written: record.map(|record| record.state).or(over.then_some(shown.state)),
        known: Some(shown.state),
        busy: inner.readers > 0 || under_way.has_snapshot(&cell.account, &cell.id, shown.name.as_deref()),
        memory_kept: shown.memory_kept,
        bytes: shown.bytes,
        of_fork: inner.doc.of_fork,
    }
}

fn of_snapshot_record(record: &SnapshotRecord, busy: bool) -> OfSnapshot {
    let doc = records::snapshot(record).map(|(_, doc)| doc).ok();
    OfSnapshot {
        account: record.account.clone(),
        written: Some(record.state),
        known: None,
        busy,
        memory_kept: doc.as_ref().is_some_and(|doc| doc.shown.memory_kept),
        bytes: doc.as_ref().map_or(0, |doc| doc.shown.bytes),
        of_fork: doc.is_some_and(|doc| doc.of_fork),
    }
}

/// What has ended and of which there is something all the same.
async fn ended(platform: &Platform, under_way: &UnderWay, seen: &Seen, told: &mut Told) -> Result<(), Error> {
    let failed = |e| crate::errors::journal(&e);
    let names = || {
        let held = told.holds.iter().map(|(_, hold)| hold.holder.as_str());
        held.chain(seen.output.iter().map(String::as_str)).collect::<Vec<_>>()
    };
    let uids = names().into_iter().filter_map(|name| name.parse::<Uid>().ok());
    let uids: BTreeSet<Uid> = uids.chain(seen.survey.sandboxes.keys().cloned()).collect();
    let ids = names().into_iter().filter_map(|name| name.parse::<SnapshotId>().ok());
    let ids: BTreeSet<SnapshotId> = ids.chain(seen.survey.snapshots.keys().cloned()).collect();
    for uid in uids.into_iter().filter(|uid| !told.sandboxes.contains_key(uid)).collect::<Vec<_>>() {
        if let Some(record) = platform.journal().sandbox_by_uid(&uid).await.map_err(failed)? {
            let busy = under_way.has_sandbox(&record.account, &record.id);
            told.sandboxes.insert(uid, of_record(&record, busy));
        }
    }
    for id in ids.into_iter().filter(|id| !told.snapshots.contains_key(id)).collect::<Vec<_>>() {
        if let Some(record) = platform.journal().snapshot_of_any(&id).await.map_err(failed)? {
            let busy = under_way.has_snapshot(&record.account, &id, record.name.as_deref());
            told.snapshots.insert(id, of_snapshot_record(&record, busy));
        }
    }
    Ok(())
}
