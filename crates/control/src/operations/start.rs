//! start: reserve the slot's next generation with the key, by which the stopped one ends → hand its files over → boot →
//! launch → running. A machine that does not come up leaves the new generation stopped, with the files.

use std::sync::Arc;

use remuda_journal::{Change, Hold, Holder, NewSandbox, Reservation, SandboxChange};
use remuda_types::wire::{Sandbox, StartSandbox};
use remuda_types::{Error, ErrorCode, Quota, SandboxId, SandboxState, SnapshotMode};
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;

use crate::access::Action;
use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::deadlines::asked;
use crate::ledger::{Entry, Ledger};
use crate::operation::{Ended, Operation, Work, canonical};
use crate::operations::create::Plan as Made;
use crate::operations::raise::{self, Source};
use crate::operations::remove;
use crate::operations::{launch, parts};
use crate::platform::Platform;
use crate::records::{SandboxRecords, SandboxSpec};
use crate::registry::{Predecessor, SandboxCell};

/// Goes on with the files of a stopped sandbox.
pub(crate) struct Start {
    pub(crate) id: SandboxId,
    pub(crate) request: StartSandbox,
}

/// A start that may begin.
pub(crate) struct Plan {
    made: Made,
    before: Arc<SandboxCell>,
    /// Nobody else continues or removes the stopped one meanwhile.
    turn: OwnedMutexGuard<()>,
}

impl Operation for Start {
    const KIND: &'static str = "start";
    const ACTION: Action = Action::StartSandbox;
    const ALWAYS: bool = true;
    type Plan = Plan;
    type Output = Sandbox;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.id)
    }

    fn request(&self) -> Value {
        canonical(&self.request)
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Plan, Reservation), Error> {
        if let Some(recipe) = &self.request.launch {
            launch::check(recipe)?;
            if self.request.skip_launch {
                let message = "a start that skips the launch takes no launch recipe";
                return Err(Error::new(ErrorCode::InvalidRequest, message));
            }
        }
        let before = platform.living(caller, &self.id).await?;
        caller.may_make_sandbox(Some(&self.id.slot), &before.labels)?;
        let turn = before.removing.clone().lock_owned().await;
        // It may have been removed or continued while its turn was waited for.
        let before = platform.living(caller, &before.id).await?;
        if before.state() != SandboxState::Stopped {
            let error = Error::new(ErrorCode::WrongState, format!("{} is {}, not stopped", self.id, before.state()));
            return Err(error.detail("state", before.state().to_string()).remedy("stop it first: remuda stop ID"));
        }
        before.not_ending()?;
        let kept = before.spec.launch.clone().filter(|_| !self.request.skip_launch);
        let launch = self.request.launch.clone().or(kept);
        // A life as long as the last one was to be, from now on.
        let term = before.life.term().map(|term| asked::anew(&term, platform.timeout_ms_max()));
        let spec = SandboxSpec { launch, term, ..before.spec.clone() };
        parts::check(platform, SnapshotMode::Filesystem, &before.parts)
            .map_err(|why| why.told(before.id.to_string()))?;
        let parts = parts::of_copy(platform, SnapshotMode::Filesystem, &before.parts);
        let made = Made::new(platform, before.labels.clone(), spec, before.layers.clone(), parts)?;
        let mut reservation = made.reservation(platform, caller, Some(self.id.slot.clone()))?;
        reservation.sandbox =
            reservation.sandbox.map(|sandbox| NewSandbox { continues: Some(before.id.clone()), ..sandbox });
        // Its files are the same, and count once.
        reservation.holds.insert(0, disk(&Predecessor::of(&before), 0));
        Ok((Plan { made, before, turn }, reservation))
    }

    async fn run(self, platform: &Platform, Plan { made, before, turn }: Plan, work: &Work) -> Ended<Sandbox> {
        let (predecessor, stood) = (Predecessor::of(&before), before.status.borrow().clone());
        remove::end(&before, "it was continued");
        platform.registry().tables().forget_sandbox(&before);
        let started = raise::planned(platform, work, made, Source::Predecessor(predecessor)).await;
        if started.hands_back {
            before.status.send_replace(stood);
            platform.registry().tables().add_sandbox(before);
        }
        drop(turn);
        started
    }
}

fn disk(before: &Predecessor, amount: u64) -> Hold {
    Hold { holder: Holder::from(&before.uid), name: Quota::DiskBytes.to_string(), amount, limit: None }
}

/// Gives the files of the generation before to the one that continues it. May be repeated, also after a crash.
pub(crate) async fn take_files(platform: &Platform, before: &Predecessor, cell: &SandboxCell) -> Result<(), Error> {
    let failed = |e| crate::errors::engine(&before.id, e);
    platform.engine().hand_over(&before.uid, &cell.uid).await.map_err(failed)?;
    // Nothing is in there any more that anybody needs.
    platform.engine().tear_down(&before.uid).await.map(drop).map_err(failed)
}

/// The files are where they were: the generation before holds the slot again, as if this one had never been.
pub(crate) fn hand_back(before: &Predecessor, cell: &Arc<SandboxCell>, error: Error) -> Ended<Sandbox> {
    remove::end(cell, "it never came up");
    let change = SandboxChange::of(&cell.uid).state(SandboxState::Failed).ended(now_unix_ms()).hands_back();
    let mut changes = vec![Change::Sandbox(change), Change::Release(Holder::from(&cell.uid))];
    changes.push(Change::Hold(cell.account.clone(), disk(before, cell.spec.disk_bytes())));
    changes.push(cell.ledger.failed(Some(error.message.clone())));
    Ended { hands_back: true, ..Ended::failed(error, changes).over(cell) }
}

/// What is written down of the generation before when the one that continues it has its outcome.
pub(crate) async fn replaced(platform: &Platform, before: &Predecessor, cell: &SandboxCell, work: &Work) -> Entry {
    let records =
        SandboxRecords { journal: platform.journal().clone(), account: cell.account.clone(), uid: before.uid.clone() };
    let mut entry = Ledger::new(before.id.clone(), records).replaced(work.id.as_ref(), &cell.id).await;
    entry.changes.push(Change::Release(Holder::from(&before.uid)));
    entry
}
