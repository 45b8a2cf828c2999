//! end_when_due: fence, on record → capture what is to be kept → say what became of it → end and remove; or end the
//! processes and keep the files with the sandbox, where nothing could be captured.
//!
//! Each attempt has a key of its own, which derives from the sandbox's uid, and so has each capture: one that was taken
//! before a crash is found again by its key and not taken twice.

use std::sync::Arc;

use remuda_journal::{Change, Reservation, SandboxChange};
use remuda_types::wire::{DueTo, Expiry, ExpiryResult, OnDeadline, Removal, RemovalResult, StopResult};
use remuda_types::{Error, ErrorCode, SandboxId, SandboxState, SnapshotId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::last_capture::{self, Last};
use super::{Settled, Term};
use crate::access::Action;
use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::ledger::Stop;
use crate::operation::{Ended, Operation, Work};
use crate::operations::{raise, remove};
use crate::platform::Platform;
use crate::registry::SandboxCell;

/// The step after which nothing else is done with the sandbox.
const FENCED: &str = "fenced";
/// The step that says what became of it.
const SETTLED: &str = "settled";

/// Ends a sandbox whose deadline passed, or that was idle for as long as it may be.
pub(crate) struct EndWhenDue {
    pub(crate) sandbox: SandboxId,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct EndedWhenDue {
    /// It, where the operation found something to do.
    pub(crate) expiry: Option<Expiry>,
    /// What the removal found.
    pub(crate) removal: Option<Removal>,
}

impl Operation for EndWhenDue {
    const KIND: &'static str = "end_when_due";
    const ACTION: Action = Action::RemoveSandbox;
    const ALWAYS: bool = true;
    type Plan = (Arc<SandboxCell>, DueTo);
    type Output = EndedWhenDue;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        json!({})
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        platform.admit_work()?;
        let cell = platform.living(caller, &self.sandbox).await?;
        let turn = cell.life.turn().await;
        let due_to = cell.life.fence(cell.is_up());
        drop(turn);
        match due_to {
            Some(due_to) => Ok(((cell, due_to), Reservation::default())),
            None => Err(Error::new(ErrorCode::WrongState, format!("{} is not to be ended now", self.sandbox))),
        }
    }

    async fn run(self, platform: &Platform, (cell, due_to): Self::Plan, work: &Work) -> Ended<EndedWhenDue> {
        match ended(platform, &cell, due_to, work).await {
            Ok(ended) => ended,
            Err(e) => Ended::failed(e, Vec::new()),
        }
    }
}

async fn ended(
    platform: &Platform,
    cell: &Arc<SandboxCell>,
    due_to: DueTo,
    work: &Work,
) -> Result<Ended<EndedWhenDue>, Error> {
    let turn = cell.life.turn().await;
    let Some(term) = cell.life.term() else { return Ok(Ended::done(nothing(), Vec::new())) };
    work.step(FENCED, json!(due_to), vec![cell.with_term(&term)?]).await?;
    drop(turn);
    // One that is only starting can't be ended half-way.
    let _ = cell.status.subscribe().wait_for(|status| status.state != SandboxState::Starting).await;
    if matches!(cell.state(), SandboxState::Failed | SandboxState::Gone) {
        return Ok(Ended::done(nothing(), Vec::new()));
    }
    let settled = match term.settled {
        Some(settled) => settled,
        None => match settle(platform, cell, due_to, &term, work).await? {
            Some(settled) => settled,
            None => return Ok(Ended::done(nothing(), Vec::new())),
        },
    };
    match settled.expiry.result {
        ExpiryResult::Kept => Ok(Ended::done(EndedWhenDue { expiry: Some(settled.expiry), removal: None }, Vec::new())),
        ExpiryResult::Removed => remove(platform, cell, work, settled).await,
    }
}

/// Captures what is to be kept, and writes down what became of it with the receipt and the event that tell so.
async fn settle(
    platform: &Platform,
    cell: &Arc<SandboxCell>,
    due_to: DueTo,
    term: &Term,
    work: &Work,
) -> Result<Option<Settled>, Error> {
    let saved = match term.on_deadline {
        OnDeadline::Delete => Last::default(),
        OnDeadline::Snapshot => last_capture::take(platform, cell, due_to, term.round).await?,
    };
    // Somebody else removed it meanwhile.
    if cell.is_over() {
        return Ok(None);
    }
    let kept = term.on_deadline == OnDeadline::Snapshot && saved.snapshot.is_none();
    let reason = told(cell, due_to, &saved, kept);
    let expiry = Expiry {
        due_to,
        at_ms: now_unix_ms(),
        on_deadline: term.on_deadline,
        result: if kept { ExpiryResult::Kept } else { ExpiryResult::Removed },
        snapshot: saved.snapshot,
        failure: saved.failure,
    };
    let settled = Settled { expiry, reason };
    let _turn = cell.life.turn().await;
    let term = match kept {
        // Nothing is due any more until it has a new deadline.
        true => Term { ending: None, kept, ..term.clone() },
        false => Term { settled: Some(settled.clone()), ..term.clone() },
    };
    let mut entry = cell.ledger.expired(work.id.as_ref(), &settled.expiry, &settled.reason).await;
    entry.changes.push(Change::Sandbox(SandboxChange::of(&cell.uid).reason(Some(settled.reason.clone()))));
    entry.changes.push(cell.with_term(&term)?);
    work.step(SETTLED, json!(settled.expiry.result), std::mem::take(&mut entry.changes)).await?;
    cell.status.send_modify(|status| status.reason = Some(settled.reason.clone()));
    cell.life.set(term);
    Ok(Some(settled))
}

async fn remove(
    platform: &Platform,
    cell: &Arc<SandboxCell>,
    work: &Work,
    Settled { expiry, reason }: Settled,
) -> Result<Ended<EndedWhenDue>, Error> {
    let found = cell.state();
    match remove::end_and_remove(platform, cell).await {
        Ok(mut removal) => {
            let told = |removal| EndedWhenDue { expiry: Some(expiry), removal: Some(removal) };
            if removal.result == RemovalResult::AlreadyAbsent {
                return Ok(Ended::done(told(removal), Vec::new()));
            }
            let result = match found {
                SandboxState::Stopped => StopResult::AlreadyAbsent,
                _ => StopResult::Stopped,
            };
            let stop = Stop { result, reason };
            let entry = cell.ledger.removed(platform, cell, work.id.as_ref(), stop, &mut removal).await;
            Ok(Ended::done(told(removal), raise::ended(cell, SandboxState::Gone)).with(entry).over(cell))
        }
        Err(e) => {
            let stop = Stop { result: StopResult::Refused, reason: e.message.clone() };
            let entry = cell.ledger.stopped(work.id.as_ref(), stop).await;
            Ok(Ended::failed(e, Vec::new()).with(entry))
        }
    }
}

fn nothing() -> EndedWhenDue {
    EndedWhenDue { expiry: None, removal: None }
}

fn is_stopped(cell: &SandboxCell) -> bool {
    cell.state() == SandboxState::Stopped
}

/// Why it is ended, in words.
pub(super) fn why(due_to: DueTo) -> &'static str {
    match due_to {
        DueTo::Deadline => "its deadline passed",
        DueTo::Idle => "it was idle for as long as it may be",
    }
}

fn told(cell: &SandboxCell, due_to: DueTo, saved: &Last, kept: bool) -> String {
    let because = format!("because {}", saved.failure.as_deref().unwrap_or("it had ended"));
    let what = match (&saved.snapshot, kept) {
        (Some(snapshot), _) => place(snapshot, saved, &because),
        (None, true) => format!("; it could not be captured {because}; its files are kept until it is removed"),
        (None, false) => String::new(),
    };
    // One that died, and whose deadline passed later, died.
    match saved.died.as_ref().or(cell.status.borrow().reason.as_ref().filter(|_| is_stopped(cell) && !kept)) {
        Some(died) => format!("{died}; then {}{what}", why(due_to)),
        None => format!("{}{what}", why(due_to)),
    }
}

fn place(snapshot: &SnapshotId, saved: &Last, because: &str) -> String {
    match saved.failure {
        None if saved.died.is_none() => format!("; its memory and files are in {snapshot}"),
        None => format!("; its files are in {snapshot}"),
        Some(_) => format!("; its files are in {snapshot}, and its memory is lost {because}"),
    }
}
