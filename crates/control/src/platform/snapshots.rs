//! Calls about snapshots: captured, looked at, removed, forked, restored.

use std::time::Instant;

use remuda_journal::{SnapshotFilter, SnapshotRecord, Whose};
use remuda_types::SandboxId;
use remuda_types::wire::{CreateSnapshot, Fork, ForkSandbox, RestoreSnapshot, Sandbox, Snapshot, SnapshotRemoval};
use remuda_types::{Error, SnapshotState};

use super::{KnownSnapshot, Platform};
use crate::access::Action;
use crate::caller::Caller;
use crate::operation::{Answered, Call, operate};
use crate::operations::capture::Take;
use crate::operations::fork::ForkOnce;
use crate::operations::remove_snapshot::RemoveSnapshot;
use crate::operations::restore::Restore;
use crate::pages;
use crate::records;

impl Platform {
    /// Captures a sandbox; the snapshot is active when this returns.
    ///
    /// # Errors
    /// `snapshot_in_progress`, `snapshot_name_taken`, `checkpoint_refused`, `disk_full`, `too_large`. The source goes
    /// on in every case.
    pub async fn capture(&self, call: &Call, id: &SandboxId, request: CreateSnapshot) -> Answered<Snapshot> {
        operate(self, call, Take { source: id.clone(), request }).await
    }

    /// Snapshots that the caller sees, oldest first; deleted and failed ones too where asked for, as far as they are on record.
    ///
    /// # Errors
    /// `journal_failed` when those can't be read.
    pub async fn snapshots(&self, caller: &Caller, include_deleted: bool) -> Result<Vec<Snapshot>, Error> {
        caller.may(Action::ListSnapshots)?;
        let cells = self.registry().tables().snapshots();
        let own = cells.iter().filter(|s| s.account == caller.account);
        let ended = |s: &Snapshot| matches!(s.state, SnapshotState::Deleted | SnapshotState::Failed);
        let seen = own.map(|s| s.show()).filter(|s| caller.sees_snapshot(Some(&s.source), &s.labels));
        let mut all: Vec<Snapshot> = seen.filter(|s| include_deleted || !ended(s)).collect();
        if include_deleted {
            let filter = SnapshotFilter { include_ended: true, ..SnapshotFilter::default() };
            let whose = Whose::Of(&caller.account);
            let records = pages::all(|paging| self.journal().snapshots(whose, filter.clone(), paging)).await?;
            let sees = |r: &&SnapshotRecord| caller.sees_snapshot(r.source.as_ref(), &r.labels);
            for record in records.iter().filter(sees).filter(|record| record.ended_at_ms.is_some()) {
                if !all.iter().any(|told| told.id == record.id) {
                    all.push(records::snapshot(record)?.0);
                }
            }
            all.sort_by(|a, b| (a.created_at_ms, &a.id).cmp(&(b.created_at_ms, &b.id)));
        }
        Ok(all)
    }

    /// A snapshot by id or name.
    ///
    /// # Errors
    /// `snapshot_not_found`.
    pub async fn snapshot(&self, caller: &Caller, id_or_name: &str) -> Result<Snapshot, Error> {
        caller.may(Action::ShowSnapshot)?;
        Ok(match self.known_snapshot(caller, id_or_name).await? {
            KnownSnapshot::Kept(cell) => cell.show(),
            KnownSnapshot::Ended(shown) => *shown,
        })
    }

    /// Removes a snapshot. Repeating it is fine and says so. Sandboxes restored from it go on, and its layer stays as
    /// long as something stands on it.
    ///
    /// # Errors
    /// `snapshot_not_found`; `wrong_state` while it is captured.
    pub async fn remove_snapshot(&self, call: &Call, id_or_name: &str) -> Answered<SnapshotRemoval> {
        operate(self, call, RemoveSnapshot { snapshot: id_or_name.to_owned() }).await
    }

    /// Captures once and starts branches from it in parallel.
    ///
    /// # Errors
    /// As for [`Platform::capture`], and `limit_reached` with figures when memory does not suffice. A branch that
    /// fails is told in its place and is no error of the fork.
    pub async fn fork(&self, call: &Call, id: &SandboxId, request: ForkSandbox) -> Answered<Fork> {
        operate(self, call, ForkOnce { source: id.clone(), request, start: Instant::now() }).await
    }

    /// One sandbox from a snapshot.
    ///
    /// # Errors
    /// `snapshot_not_found`, `snapshot_not_active`, `snapshot_damaged`, `engine_mismatch`, `launch_failed`.
    pub async fn restore(&self, call: &Call, id_or_name: &str, request: RestoreSnapshot) -> Answered<Sandbox> {
        operate(self, call, Restore { snapshot: id_or_name.to_owned(), request }).await
    }
}
