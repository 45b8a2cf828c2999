//! What a caller sees: sandboxes, snapshots and operations by their ids. Of another account, or outside of what a key is
//! narrowed to, each is answered exactly as one that never was.

use std::sync::Arc;

use remuda_journal::{Operation as Record, Paging, SnapshotFilter, Whose};
use remuda_types::wire::Snapshot;
use remuda_types::{Error, ErrorCode, Narrowing, SandboxId, SandboxState, SnapshotId, SnapshotState};

use super::{Known, KnownSnapshot, Platform};
use crate::access::Action;
use crate::caller::Caller;
use crate::operations;
use crate::records;
use crate::registry::{SandboxCell, SnapshotCell};

impl Platform {
    /// The sandbox with that id: living, or ended for good and told as such. One that the caller doesn't see,
    /// since it is of another account or outside of what its key is narrowed to, is as unknown as one that never was.
    pub(crate) async fn living(&self, caller: &Caller, id: &SandboxId) -> Result<Arc<SandboxCell>, Error> {
        match self.known(caller, id).await? {
            Known::Living(cell) => Ok(cell),
            Known::Ended { .. } => Err(self.gone(caller, id).await?),
        }
    }

    /// The sandbox with that id, ended or not. What lives is found without a look into the journal.
    pub(crate) async fn known(&self, caller: &Caller, id: &SandboxId) -> Result<Known, Error> {
        if let Some(cell) = self.registry().sandbox(&caller.account, id) {
            if !caller.sees_sandbox(id, &cell.labels) {
                return Err(unknown(id));
            }
            let status = cell.status.borrow().clone();
            return Ok(match status.ended_at_ms {
                Some(ended_at_ms) if cell.is_over() => Known::Ended { ended_at_ms },
                _ => Known::Living(cell),
            });
        }
        let record = self.journal().sandbox(&caller.account, id).await.map_err(|e| crate::errors::journal(&e))?;
        let record = record.filter(|record| caller.sees_sandbox(id, &record.labels));
        match record.map(|record| record.ended_at_ms) {
            None => Err(unknown(id)),
            Some(Some(ended_at_ms)) => Ok(Known::Ended { ended_at_ms }),
            // Admitted in this moment, and not yet taken in.
            Some(None) => Err(Error::new(ErrorCode::WrongState, format!("{id} is only being made"))
                .detail("state", SandboxState::Starting.to_string())
                .remedy("try again in a moment")),
        }
    }

    /// What is known of a generation that has ended.
    pub(crate) async fn gone(&self, caller: &Caller, id: &SandboxId) -> Result<Error, Error> {
        let failed = |e| crate::errors::journal(&e);
        let account = &caller.account;
        // Its end may be on its way into the journal.
        let (ended_at_ms, reason, continued_as) = match self.registry().sandbox(account, id) {
            Some(cell) => {
                let status = cell.status.borrow().clone();
                (status.ended_at_ms, status.reason, None)
            }
            None => match self.journal().sandbox(account, id).await.map_err(failed)? {
                Some(record) => (record.ended_at_ms, record.reason, record.continued_as),
                None => (None, None, None),
            },
        };
        // It has the same slot and labels, so that whoever sees the one sees the other, but for one narrowed to the one.
        let continued_as = continued_as.filter(|_| !matches!(caller.narrowing(), Some(Narrowing::Sandbox(_))));
        let of_it = SnapshotFilter {
            source: Some(id.clone()),
            state: Some(SnapshotState::Active),
            ..SnapshotFilter::default()
        };
        let captured = self.journal().snapshots(Whose::Of(account), of_it, Paging::first()).await.map_err(failed)?;
        let mut snapshots = Vec::new();
        for record in &captured.items {
            // A fork's own goes with its branches: it can't be restored by itself.
            let (shown, doc) = records::snapshot(record)?;
            if !doc.of_fork && caller.sees_snapshot(Some(&shown.source), &shown.labels) {
                snapshots.push(shown.id.to_string());
            }
        }
        let receipt = self.last_receipt(account, id).await?;
        let newest = self.journal().newest_generation(account, &id.slot).await.map_err(failed)?;
        let error = Error::new(ErrorCode::GenerationGone, format!("{id} has ended"))
            .detail("ended_at_ms", ended_at_ms)
            .detail("snapshots", snapshots.clone())
            .detail("receipt", receipt.map(|id| id.to_string()))
            .detail("continued_as", continued_as.as_ref().map(ToString::to_string));
        // That there is a newer one is told to those who would see it.
        let error = match caller.narrowing() {
            None | Some(Narrowing::Slot(_)) => {
                error.detail("slot_has_newer", newest.is_some_and(|newest| newest > id.generation))
            }
            Some(Narrowing::Sandbox(_) | Narrowing::Label(_)) => error,
        };
        let error = match reason {
            Some(reason) => error.detail("reason", reason.clone()).cause(reason),
            None => error,
        };
        if let Some(next) = continued_as {
            return Ok(error.remedy(format!("another machine goes on with its files: {next}")));
        }
        Ok(match snapshots.last() {
            Some(snapshot) => error.remedy(format!("its work is kept: remuda restore {snapshot}")),
            None => error.remedy("make a new sandbox with: remuda create"),
        })
    }

    /// A snapshot by id or name, deleted or not.
    pub(crate) async fn known_snapshot(&self, caller: &Caller, id_or_name: &str) -> Result<KnownSnapshot, Error> {
        let account = &caller.account;
        let sees = |shown: &Snapshot| caller.sees_snapshot(Some(&shown.source), &shown.labels);
        let kept = self.registry().tables().snapshot(account, id_or_name);
        if let Some(cell) = kept {
            return if sees(&cell.show()) { Ok(KnownSnapshot::Kept(cell)) } else { Err(unknown_snapshot(id_or_name)) };
        }
        // A name belongs to one that is kept; what has ended has only its id.
        if let Ok(id) = id_or_name.parse::<SnapshotId>() {
            let record = self.journal().snapshot(account, &id).await.map_err(|e| crate::errors::journal(&e))?;
            if let Some(record) = record {
                let (shown, _) = records::snapshot(&record)?;
                if sees(&shown) {
                    return Ok(KnownSnapshot::Ended(Box::new(shown)));
                }
            }
        }
        Err(unknown_snapshot(id_or_name))
    }

    /// A snapshot by id or name whose bytes are kept.
    pub(crate) async fn kept_snapshot(&self, caller: &Caller, id_or_name: &str) -> Result<Arc<SnapshotCell>, Error> {
        match self.known_snapshot(caller, id_or_name).await? {
            KnownSnapshot::Kept(cell) => Ok(cell),
            KnownSnapshot::Ended(shown) => {
                let message = format!("snapshot {} is {}, not active", shown.id, shown.state);
                Err(Error::new(ErrorCode::SnapshotNotActive, message))
            }
        }
    }

    /// Whether a caller sees an operation of its account: one whose sandbox or snapshot it sees.
    pub(crate) async fn sees_operation(&self, caller: &Caller, record: &Record) -> Result<bool, Error> {
        if caller.narrowing().is_none() {
            return Ok(true);
        }
        let made = &record.reserved;
        // Of one without either, its outcome says what it was about.
        let told = |name: &str| record.outcome.as_ref()?.domain()[name].as_str().map(str::to_owned);
        let told_id = told("id").unwrap_or_default();
        let sandbox = record.scope.target().or(made.sandbox.as_ref()).cloned().or_else(|| told_id.parse().ok());
        if let Some(sandbox) = sandbox {
            return found(self.known(caller, &sandbox).await.map(drop));
        }
        match made.snapshot.as_ref().cloned().or_else(|| told_id.parse().ok()) {
            Some(snapshot) => found(self.known_snapshot(caller, snapshot.as_str()).await.map(drop)),
            None => Ok(false),
        }
    }

    /// Whether a caller could have made the call that became this operation.
    ///
    /// # Errors
    /// `forbidden`, with the scope that is missing.
    pub(crate) fn may_look_at(caller: &Caller, kind: &str) -> Result<(), Error> {
        match operations::action_of(kind) {
            Some(action) => caller.may(action),
            // Of a kind that another build had.
            None => caller.may(Action::ShowSandbox),
        }
    }
}

/// Whether a look found something; what is found and can't be used right now is found too.
fn found(look: Result<(), Error>) -> Result<bool, Error> {
    match look {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.code, ErrorCode::SandboxNotFound | ErrorCode::SnapshotNotFound) => Ok(false),
        Err(e) if e.code == ErrorCode::WrongState => Ok(true),
        Err(e) => Err(e),
    }
}

fn unknown(id: &SandboxId) -> Error {
    Error::new(ErrorCode::SandboxNotFound, format!("there is no sandbox {id} here")).remedy("list them with: remuda ls")
}

fn unknown_snapshot(id_or_name: &str) -> Error {
    let shown: String = id_or_name.chars().take(80).collect();
    Error::new(ErrorCode::SnapshotNotFound, format!("there is no snapshot {shown:?}"))
        .remedy("list them with: remuda snapshot ls")
}
