//! The one task that watches over every deadline: it sleeps until the next moment at which something is due, and is
//! woken when that may have changed. It decides nothing and ends nothing by itself: each end is an operation.

use std::sync::{Arc, Weak};
use std::time::Duration;

use remuda_types::{Error, ErrorCode, Key, SandboxState};
use tokio::time::Instant;

use super::{EndWhenDue, Term, last_capture};
use crate::caller::Caller;
use crate::operation::{Answered, Call, operate};
use crate::platform::{Platform, Shared};
use crate::registry::SandboxCell;

/// Longest sleep, in milliseconds: a clock that was set is noticed within it.
const SLEEP_MS_MAX: u64 = 60_000;
/// Attempts at one end, over all lives of the server; each has a key of its own.
const ATTEMPTS_MAX: u32 = 100_000;

/// Begins to watch. What is due already is fenced before this returns, so that a server that starts lets no work in
/// where a deadline passed while there was none.
pub(crate) fn start(platform: &Platform) {
    for cell in platform.registry().tables().sandboxes() {
        cell.life.fence(cell.is_up());
    }
    tokio::spawn(run(Arc::downgrade(platform.shared())));
}

async fn run(shared: Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let (platform, alarm) = (Platform::of(shared.clone()), shared.registry.tables().alarm());
        if platform.admit_work().is_err() {
            return;
        }
        let next = look(&platform).await;
        drop((platform, shared));
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = alarm.notified() => {}
        }
    }
}

/// Sees to all that is due now, and tells when to look again.
async fn look(platform: &Platform) -> Instant {
    let mut next = Instant::now() + Duration::from_millis(SLEEP_MS_MAX);
    let cells = platform.registry().tables().sandboxes();
    for cell in cells {
        if matches!(cell.state(), SandboxState::Gone | SandboxState::Failed) {
            continue;
        }
        let look = cell.life.look(cell.is_up());
        if look.tell_soon
            && let Err(e) = tell_soon(&cell).await
        {
            tracing::error!("that the deadline of {} is near is not told: {e}", cell.id);
        }
        if look.due.is_some() {
            match cell.life.take_up() {
                Ok(()) => drop(platform.under_way().spawn(carry_out(platform.clone(), cell.clone()))),
                Err(at) => next = at.map_or(next, |at| at.min(next)),
            }
        }
        if let Some(wait) = look.again_in_ms {
            next = next.min(Instant::now() + Duration::from_millis(wait.min(SLEEP_MS_MAX)));
        }
    }
    next
}

/// Tells once that the deadline is near: event and mark are written in one transaction.
async fn tell_soon(cell: &SandboxCell) -> Result<(), Error> {
    let _turn = cell.life.turn().await;
    let Some(before) = cell.life.term().filter(|term| term.ending.is_none() && !term.told_soon) else { return Ok(()) };
    let after = Term { told_soon: true, ..before };
    let changes = vec![cell.ledger.deadline_soon(after.deadline_at_ms), cell.with_term(&after)?];
    let written = cell.records.journal.apply(changes).await;
    // Also where it could not be written: it is looked at again and again otherwise.
    cell.life.set(after);
    written.map_err(|e| crate::errors::journal(&e))
}

/// Waits until it is gone.
async fn over(cell: &SandboxCell) {
    let mut status = cell.status.subscribe();
    let _ = status.wait_for(|status| status.state == SandboxState::Gone).await;
}

/// Ends one sandbox. Keys that an earlier life of the server used up are passed over.
async fn carry_out(platform: Platform, cell: Arc<SandboxCell>) {
    // What became of its machine while there was no server.
    tokio::select! {
        () = cell.found() => {}
        () = over(&cell) => return,
        () = platform.closing().cancelled() => return,
    }
    let round = cell.life.term().map_or(0, |term| term.round);
    for number in 1..=ATTEMPTS_MAX {
        let Ok(key) = format!("end-{}-{round}-{number}", cell.uid).parse::<Key>() else { break };
        let call = Call { caller: Caller::platform(cell.account.clone()), key: Some(key) };
        let Answered { result, replayed } = operate(&platform, &call, EndWhenDue { sandbox: cell.id.clone() }).await;
        match result {
            // It was done by then, and undone since: as by a start that gave the files back.
            Ok(_) if replayed && cell.life.ending().is_some() && !cell.is_over() => {}
            Ok(_) => return cell.life.let_go(false),
            // The server ends, or somebody else ended it: nothing is left to be done here.
            Err(e) if matches!(e.code, ErrorCode::ShuttingDown | ErrorCode::GenerationGone) => return,
            Err(e) if replayed || last_capture::used_up(&e) => {}
            // An earlier server had begun it: how that ended is being found out.
            Err(e) if e.code == ErrorCode::OperationInProgress => return cell.life.let_go(true),
            // It was not due after all.
            Err(e) if e.code == ErrorCode::WrongState && cell.life.ending().is_none() => {
                return cell.life.let_go(false);
            }
            Err(e) => {
                tracing::error!("{} could not be ended at its deadline, and that is tried again: {e}", cell.id);
                return cell.life.let_go(true);
            }
        }
    }
    cell.life.let_go(true);
}
