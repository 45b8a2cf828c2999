//! Carries out what is certain, looking once more before it touches anything: nothing in memory may have it now, and
//! nothing may be under way with it. What it does is done by the same calls as everything else.

use remuda_journal::{Change, Hold, Holder};
use remuda_types::wire::EventAbout;
use remuda_types::{Error, ErrorCode, SandboxState, SnapshotId, SnapshotState, Uid};

use super::finding::{Finding, Holds, Repair};
use super::look::{UnderWay, is_held};
use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::events;
use crate::ledger::{self, Entry};
use crate::pages;
use crate::platform::Platform;
use crate::records::snapshot_is;
use crate::registry::SnapshotCell;

/// Does what the finding says. Tells whether it did: what is no longer as it was found is left alone.
pub(super) async fn repair(platform: &Platform, finding: &Finding) -> Result<bool, Error> {
    let Some(repair) = &finding.repair else { return Ok(false) };
    let mut under_way = UnderWay::default();
    under_way.add(pages::all(|paging| platform.journal().unfinished(paging)).await?);
    let engine = |e| {
        Error::new(ErrorCode::EngineFailed, format!("{} {} can't be repaired", finding.thing.word(), finding.name))
            .cause(crate::errors::chain(&e))
    };
    let of_sandbox_busy = || match (&finding.account, &finding.sandbox) {
        (Some(account), Some(id)) => {
            under_way.has_sandbox(account, id) || platform.registry().sandbox(account, id).is_some()
        }
        _ => false,
    };
    match repair {
        Repair::TearDown(uid) => {
            if of_sandbox_busy() || lives(platform, uid) {
                return Ok(false);
            }
            let torn = platform.engine().tear_down(uid).await.map_err(engine)?;
            if !torn.processes_gone || !torn.files_gone {
                let message = format!("not everything of the machine {uid} could be removed");
                return Err(Error::new(ErrorCode::EngineFailed, message)
                    .detail("processes_gone", torn.processes_gone)
                    .detail("files_gone", torn.files_gone));
            }
        }
        Repair::EndProcess(process) => {
            if of_sandbox_busy() || !platform.engine().end_process(*process).await.map_err(engine)? {
                return Ok(false);
            }
        }
        Repair::LayDown(account, id) => {
            let Some(cell) = platform.registry().sandbox(account, id) else { return Ok(false) };
            // Whoever stops, continues or removes it has its turn.
            let Ok(_turn) = cell.removing.try_lock() else { return Ok(false) };
            if cell.state() != SandboxState::Stopped || under_way.has_sandbox(account, id) {
                return Ok(false);
            }
            if !platform.engine().lay_down(&cell.uid).await.map_err(engine)? {
                return Err(Error::new(ErrorCode::EngineFailed, format!("the processes of {id} can't be ended")));
            }
        }
        Repair::RemoveCapture(id) => {
            // One that is in memory is removed as snapshots are.
            let cell = platform.registry().tables().snapshot_by_id(id);
            match cell {
                Some(cell) if is_quiet(&cell, &under_way) && cell.is_over() => {
                    platform.drop_memory(&cell).await;
                }
                Some(_) => return Ok(false),
                None => {}
            }
            if platform.registry().tables().layers_in_use().contains(id) {
                return Ok(false);
            }
            platform.engine().remove_capture(id).await.map_err(engine)?;
        }
        Repair::RemoveHalves(id) => {
            let places = platform.engine().capture_places(id, true);
            if !quiet_snapshot(platform, id, &under_way) {
                return Ok(false);
            }
            let memory = places.memory.map(|(_, half)| half);
            for half in [Some(places.layer_tmp), memory].into_iter().flatten() {
                platform.engine().remove_directory(half).await.map_err(engine)?;
            }
        }
        Repair::RemoveMemory(id) => {
            let kept = || platform.registry().tables().snapshot_by_id(id).is_some_and(|cell| cell.show().memory_kept);
            if !quiet_snapshot(platform, id, &under_way) || kept() {
                return Ok(false);
            }
            let memory = platform.engine().dirs().memory(id);
            platform.engine().remove_directory(memory).await.map_err(engine)?;
        }
        Repair::RemoveOutput(name) => {
            if !is_nobodys_output(platform, name).await? {
                return Ok(false);
            }
            let (places, name) = (platform.execution_places().clone(), name.clone());
            let removing = tokio::task::spawn_blocking(move || places.remove_named(&name));
            let removed = removing.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
            removed.map_err(|e| Error::new(ErrorCode::EngineFailed, "output can't be removed").cause(e))?;
        }
        Repair::WriteDeath(account, id) => {
            let Some(cell) = platform.registry().sandbox(account, id) else { return Ok(false) };
            if is_held(&cell) || cell.state() != SandboxState::Stopped || under_way.has_sandbox(account, id) {
                return Ok(false);
            }
            let status = cell.status.borrow().clone();
            let reason = status.reason.unwrap_or_else(|| "its processes ended".to_owned());
            cell.ledger.died(status.ended_at_ms.unwrap_or_else(now_unix_ms), &reason).await;
        }
        // These are one write with what tells of them.
        Repair::Release(..) | Repair::Hold { .. } | Repair::Recount(..) | Repair::WriteSnapshot(_) => {}
    }
    // With the turn of a receipt that is among them, which is held until it is on the disk.
    let Some(mut entry) = entry(platform, repair, &under_way).await? else { return Ok(false) };
    entry.changes.push(told(finding, repair.words()));
    platform.journal().apply(std::mem::take(&mut entry.changes)).await.map_err(|e| crate::errors::journal(&e))?;
    tracing::warn!("repaired {} {}: {}; {}", finding.thing.word(), finding.name, finding.found, repair.words());
    Ok(true)
}

/// The event of a repair; of what is nobody's it is the operator's.
pub(crate) fn told(finding: &Finding, done: &str) -> Change {
    let account = finding.account.clone().unwrap_or_else(|| Caller::operator().account);
    let about = EventAbout {
        sandbox: finding.sandbox.clone(),
        snapshot: finding.snapshot.clone(),
        repair: Some(Box::new(finding.repair_told(done))),
        ..EventAbout::default()
    };
    events::event(&account, events::SERVER_REPAIRED, &about)
}

/// What is written; none where it is no longer to be.
async fn entry(platform: &Platform, repair: &Repair, under_way: &UnderWay) -> Result<Option<Entry>, Error> {
    let failed = |e| crate::errors::journal(&e);
    let of = |changes| Entry { changes, ..Entry::default() };
    Ok(match repair {
        Repair::Release(account, whose) => {
            let holder = whose.holder();
            let ended = match whose {
                Holds::Sandbox(uid) => match platform.journal().sandbox_by_uid(uid).await.map_err(failed)? {
                    Some(record) => record.ended_at_ms.is_some() && !under_way.has_sandbox(account, &record.id),
                    None => !lives(platform, uid),
                },
                Holds::Snapshot(id) => match platform.registry().tables().snapshot_by_id(id) {
                    Some(cell) => cell.is_over() && is_quiet(&cell, under_way),
                    None => !under_way.has_snapshot(account, id, None),
                },
                // A finished one stays so.
                Holds::Operation(_) => true,
            };
            ended.then(|| of(vec![Change::Release(holder)]))
        }
        Repair::Hold { account, holder, name, from, to } => {
            let quiet = match holder {
                Holds::Sandbox(uid) => {
                    let cells = platform.registry().tables().sandboxes();
                    cells.iter().find(|cell| cell.uid == *uid).is_some_and(|cell| {
                        !is_held(cell) && !cell.is_over() && !under_way.has_sandbox(account, &cell.id)
                    })
                }
                Holds::Snapshot(id) => quiet_snapshot(platform, id, under_way),
                Holds::Operation(_) => false,
            };
            let held = platform.journal().held(account, &holder.holder()).await.map_err(failed)?;
            let now = held.iter().find(|held| held.name == *name).map_or(0, |held| held.amount);
            // What lives is there already, so that it counts whatever the limit is.
            let hold = Hold { holder: holder.holder(), name: name.clone(), amount: *to, limit: None };
            (quiet && now == *from).then(|| of(vec![Change::Hold(account.clone(), hold)]))
        }
        Repair::Recount(account, _) => Some(of(vec![Change::Recount(account.clone())])),
        Repair::WriteSnapshot(id) => {
            let Some(cell) = platform.registry().tables().snapshot_by_id(id) else { return Ok(None) };
            if !is_quiet(&cell, under_way) {
                return Ok(None);
            }
            match cell.show().state {
                SnapshotState::Active => {
                    let mut entry = ledger::of_snapshot(platform, &cell, None).await;
                    entry.changes.extend(cell.doc().change());
                    Some(entry)
                }
                state @ (SnapshotState::Failed | SnapshotState::Deleted) => {
                    let event = events::snapshot(&cell.account, &cell.show());
                    let ended = [snapshot_is(id, state), Change::Release(Holder::from(id))];
                    Some(of(ended.into_iter().chain(event).collect()))
                }
                _ => None,
            }
        }
        _ => Some(Entry::default()),
    })
}

fn lives(platform: &Platform, uid: &Uid) -> bool {
    let tables = platform.registry().tables();
    tables.sandboxes().iter().any(|cell| {
        // What is handed over lies under the generation before until it is.
        cell.uid == *uid || cell.continues.get().is_some_and(|before| before.uid == *uid && !cell.is_up())
    })
}

fn is_quiet(cell: &SnapshotCell, under_way: &UnderWay) -> bool {
    let inner = cell.inner();
    inner.readers == 0 && !under_way.has_snapshot(&cell.account, &cell.id, inner.doc.shown.name.as_deref())
}

/// Whether it has come to rest, so that nobody writes beside its bytes.
fn quiet_snapshot(platform: &Platform, id: &SnapshotId, under_way: &UnderWay) -> bool {
    let found = platform.registry().tables().snapshot_by_id(id);
    let at_rest = |cell: &SnapshotCell| {
        let state = cell.show().state;
        matches!(state, SnapshotState::Active | SnapshotState::Failed | SnapshotState::Deleted)
    };
    found.is_some_and(|cell| is_quiet(&cell, under_way) && at_rest(&cell))
}

async fn is_nobodys_output(platform: &Platform, name: &str) -> Result<bool, Error> {
    if let Ok(uid) = name.parse::<Uid>() {
        let record = platform.journal().sandbox_by_uid(&uid).await.map_err(|e| crate::errors::journal(&e))?;
        return Ok(record.is_none() && !lives(platform, &uid));
    }
    let Ok(id) = name.parse::<SnapshotId>() else { return Ok(false) };
    let cell = platform.registry().tables().snapshot_by_id(&id);
    Ok(cell.is_none_or(|cell| {
        let shown = cell.show();
        !shown.memory_kept && !matches!(shown.state, SnapshotState::Capturing | SnapshotState::Verifying)
    }))
}

impl Holds {
    fn holder(&self) -> Holder {
        match self {
            Holds::Sandbox(uid) => uid.into(),
            Holds::Snapshot(id) => id.into(),
            Holds::Operation(id) => id.into(),
        }
    }
}
