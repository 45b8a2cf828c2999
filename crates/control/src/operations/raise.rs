//! raise: what create, restore and every branch of a fork have in common once their sandbox is admitted: build → fill or
//! start → bind → launch → running. Also how recovery takes up one that was interrupted.

use std::sync::Arc;

use remuda_journal::{Change, Holder, SandboxChange};
use remuda_types::wire::Sandbox;
use remuda_types::{Error, ErrorCode, SandboxState};

use crate::boot::{Life, boot};
use crate::clock::now_unix_ms;
use crate::driver::Status;
use crate::executions::{Executions, Retention};
use crate::keeping;
use crate::operation::{Ended, Work};
use crate::operations::create::Plan;
use crate::operations::restore::Reading;
use crate::operations::{hooks, launch, remove, start, stop};
use crate::platform::Platform;
use crate::records::SandboxRecords;
use crate::registry::{Ground, Predecessor, SandboxCell};
use crate::usage::Quotas;

/// What a sandbox is raised from.
pub(crate) enum Source {
    /// The base image.
    Image,
    /// A snapshot, which is kept for as long as it is read.
    Snapshot(Reading),
    /// The files of the generation before.
    Predecessor(Predecessor),
}

/// Raises a sandbox that has just been admitted.
pub(crate) async fn planned(platform: &Platform, work: &Work, plan: Plan, source: Source) -> Ended<Sandbox> {
    let Plan { room, uid, labels, spec, layers, parts } = plan;
    let Some(id) = work.reserved.sandbox.clone() else {
        return Ended::failed(Error::new(ErrorCode::Internal, "a sandbox was admitted without an id"), Vec::new());
    };
    let records = SandboxRecords { journal: platform.journal().clone(), account: work.account.clone(), uid };
    let executions = Executions::new(platform.execution_places().sandbox(&records.uid), Retention::default());
    let cell = SandboxCell::new(id, records, labels, spec, Ground { layers, parts }, executions, Status::starting());
    if let Source::Predecessor(before) = &source {
        // It is new: nobody else has set it.
        let _ = cell.continues.set(before.clone());
    }
    platform.registry().tables().add_sandbox(cell.clone());
    drop(room);
    raise(platform, work, &cell, source).await
}

/// Raises a sandbox that is in the registry. On failure nothing of it is left but its record, which says why.
pub(crate) async fn raise(platform: &Platform, work: &Work, cell: &Arc<SandboxCell>, source: Source) -> Ended<Sandbox> {
    if let Source::Predecessor(before) = &source
        && let Err(e) = start::take_files(platform, before, cell).await
    {
        if !platform.engine().has_files(&cell.uid) {
            return start::hand_back(before, cell, e);
        }
        // They are here, and of where they were nothing is needed.
        if let Err(e) = platform.engine().tear_down(&before.uid).await {
            tracing::error!("what is left of {} is not removed: {}", before.id, crate::errors::chain(&e));
        }
    }
    let up = match come_up(platform, cell, source).await {
        Ok(()) => {
            hooks::run(platform, cell).await;
            serve(platform, cell).await
        }
        Err(e) => Err(e),
    };
    told(platform, cell, work, up).await
}

/// Goes on with one whose machine an earlier server gave life to and did not tell anybody of.
pub(crate) async fn go_on(platform: &Platform, work: &Work, cell: &Arc<SandboxCell>) -> Ended<Sandbox> {
    hooks::run(platform, cell).await;
    let up = serve(platform, cell).await;
    told(platform, cell, work, up).await
}

/// Gives up on one that can't be gone on with: nothing of it is left but its record.
pub(crate) async fn give_up(platform: &Platform, work: &Work, cell: &Arc<SandboxCell>, error: Error) -> Ended<Sandbox> {
    let removing = cell.removing.lock().await;
    platform.tear_down_failed(cell, &error).await;
    drop(removing);
    told(platform, cell, work, Err(error)).await
}

async fn told(platform: &Platform, cell: &Arc<SandboxCell>, work: &Work, up: Result<(), Error>) -> Ended<Sandbox> {
    let ended = outcome(cell, work, up).await;
    match cell.continues.get() {
        // However that came out, its files are here now.
        Some(before) => ended.with(start::replaced(platform, before, cell, work).await),
        None => ended,
    }
}

async fn outcome(cell: &Arc<SandboxCell>, work: &Work, up: Result<(), Error>) -> Ended<Sandbox> {
    match up {
        Ok(()) => {
            cell.life.came_up();
            let mut change = SandboxChange::of(&cell.uid);
            // A removal may have overtaken it; a death is told by its driver.
            if cell.state() == SandboxState::Running {
                change = change.state(SandboxState::Running);
            }
            Ended::done(cell.show(), vec![Change::Sandbox(change)]).with(cell.ledger.running(work.id.as_ref()).await)
        }
        Err(error) => failed(cell, error),
    }
}

fn failed(cell: &Arc<SandboxCell>, error: Error) -> Ended<Sandbox> {
    if cell.continues.get().is_some() {
        let reason = cell.status.borrow().reason.clone().unwrap_or_default();
        let error = error
            .detail("stopped_as", cell.id.to_string())
            .remedy(format!("the files are kept in {}; start that one, or remove it", cell.id));
        let change = SandboxChange::of(&cell.uid).state(SandboxState::Stopped).reason(Some(reason.clone()));
        let mut changes = vec![Change::Sandbox(change), cell.ledger.at_rest(&reason)];
        changes.extend(Quotas::at_rest(&cell.account, &cell.uid));
        return Ended::failed(error, changes);
    }
    let mut changes = ended(cell, SandboxState::Failed);
    changes.push(cell.ledger.failed(cell.status.borrow().reason.clone()));
    Ended::failed(error, changes).over(cell)
}

async fn come_up(platform: &Platform, cell: &Arc<SandboxCell>, source: Source) -> Result<(), Error> {
    let life = match &source {
        Source::Image | Source::Predecessor(_) => Life::Fresh,
        Source::Snapshot(reading) => match reading.snapshot().memory() {
            Some(memory) => Life::Restored { snapshot: reading.snapshot().id.clone(), memory },
            None => Life::Fresh,
        },
    };
    boot(platform, cell, life).await
}

/// What its recipe names runs and serves.
async fn serve(platform: &Platform, cell: &Arc<SandboxCell>) -> Result<(), Error> {
    if let Some(recipe) = &cell.spec.launch
        && let Err(e) = launch::launch(cell, recipe).await
    {
        // A sandbox that does not serve is not what was asked for; nothing of it is kept but files that were there before.
        let why = format!("it never came up: {}", e.message);
        cell.status.send_modify(|status| {
            status.reason.get_or_insert(why);
        });
        let cleared = match cell.continues.get() {
            None => remove::end_and_remove(platform, cell).await.map(drop),
            Some(_) => stop::end_and_keep(platform, cell).await,
        };
        if let Err(cleanup) = cleared {
            tracing::error!("failed to clear away {}, whose launch failed: {cleanup}", cell.id);
        }
        return Err(e);
    }
    keeping::keep(platform, cell);
    Ok(())
}

/// What is written down of a sandbox that has ended for good: it gives up its slot and all that was held for it.
pub(crate) fn ended(cell: &SandboxCell, state: SandboxState) -> Vec<Change> {
    let Status { reason, ended_at_ms, .. } = cell.status.borrow().clone();
    let change = SandboxChange::of(&cell.uid).state(state).reason(reason);
    vec![
        Change::Sandbox(change.ended(ended_at_ms.unwrap_or_else(now_unix_ms))),
        Change::Release(Holder::from(&cell.uid)),
    ]
}
