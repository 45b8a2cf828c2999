//! Calls about snapshots: captured, looked at, removed, forked, restored.

use std::time::{Duration, Instant};

use remuda_journal::{Cursor, Paging, SnapshotFilter, Whose};
use remuda_types::limits::WAIT_MS_MAX;
use remuda_types::wire::{
    CreateSnapshot, Fork, ForkSandbox, RestoreSnapshot, Sandbox, Snapshot, SnapshotList, SnapshotRemoval,
    UpdateSnapshot, Verification,
};
use remuda_types::{Error, ErrorCode, SandboxId, SnapshotState};
use tokio::sync::watch;

use super::history::page;
use super::{KnownSnapshot, Platform};
use crate::access::Action;
use crate::caller::Caller;
use crate::operation::{Answered, Call, operate};
use crate::operations::capture::Take;
use crate::operations::fork::ForkOnce;
use crate::operations::remove_snapshot::RemoveSnapshot;
use crate::operations::restore::Restore;
use crate::operations::update_snapshot::Update;
use crate::operations::verify::Verify;
use crate::records;

/// Which snapshots are asked for, and which page of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotsWanted {
    /// Failed and deleted ones too, as far as they are on record.
    pub include_ended: bool,
    /// Only in this state; failed and deleted ones are found by it too.
    pub state: Option<SnapshotState>,
    /// Only the one with this name.
    pub name: Option<String>,
    /// Only captured from this generation.
    pub source: Option<SandboxId>,
    /// Only those that have this label with this value.
    pub label: Option<(String, String)>,
    /// Only made at or after this Unix time in milliseconds.
    pub since_ms: Option<i64>,
    /// Only made before this Unix time in milliseconds.
    pub before_ms: Option<i64>,
    /// Where the last page ended.
    pub after: Option<String>,
    /// How many records are looked at for one page at most; 0 stands for as many as a page may have.
    pub limit: usize,
}

impl Platform {
    /// Sets and removes labels of a snapshot.
    ///
    /// # Errors
    /// `snapshot_not_found`, `limit_reached`, `invalid_request`; `wrong_state` for one that is gone; `forbidden` where the
    /// caller would not see it afterwards.
    pub async fn update_snapshot(&self, call: &Call, snapshot: &str, request: UpdateSnapshot) -> Answered<Snapshot> {
        operate(self, call, Update { snapshot: snapshot.to_owned(), request }).await
    }

    /// Captures a sandbox; the snapshot is active when this returns, or is on its way to that where the request says that
    /// the call waits no longer.
    ///
    /// # Errors
    /// `snapshot_in_progress`, `snapshot_name_taken`, `checkpoint_refused`, `disk_full`, `too_large`. The source goes
    /// on in every case.
    pub async fn capture(&self, call: &Call, id: &SandboxId, request: CreateSnapshot) -> Answered<Snapshot> {
        let wait = request.wait_ms.map(|ms| Duration::from_millis(ms.min(WAIT_MS_MAX)));
        let (begun, mut told) = watch::channel(None);
        let mut capturing = std::pin::pin!(operate(self, call, Take { source: id.clone(), request, begun }));
        if let Some(wait) = wait {
            let waited = async {
                tokio::time::sleep(wait).await;
                let begun = told.wait_for(Option::is_some).await.ok().and_then(|cell| cell.clone());
                match begun {
                    Some(cell) => cell,
                    // It was refused, or is over.
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                captured = &mut capturing => return captured,
                cell = waited => return Answered::now(Ok(cell.show())),
            }
        }
        capturing.await
    }

    /// Snapshots that the caller sees, oldest first, a page of them. What is there all the time is listed exactly once,
    /// whatever comes and goes between two pages.
    ///
    /// # Errors
    /// `invalid_request` for a page that is none; `journal_failed` when the records can't be read.
    pub async fn snapshots(&self, caller: &Caller, wanted: SnapshotsWanted) -> Result<SnapshotList, Error> {
        caller.may(Action::ListSnapshots)?;
        let SnapshotsWanted { include_ended, state, name, source, label, since_ms, before_ms, after, limit } = wanted;
        let after = after.map(|after| after.parse::<Cursor>()).transpose();
        let after = after.map_err(|e| Error::new(ErrorCode::InvalidRequest, e.to_string()))?;
        let filter = SnapshotFilter { include_ended, state, name, source, label, since_ms, before_ms };
        let paging = Paging { after, limit: page(limit)? };
        let found = self.journal().snapshots(Whose::Of(&caller.account), filter.clone(), paging).await;
        let found = found.map_err(|e| crate::errors::journal(&e))?;
        let mut snapshots = Vec::new();
        for record in &found.items {
            if !caller.sees_snapshot(record.source.as_ref(), &record.labels) {
                continue;
            }
            let kept = self.registry().tables().snapshot_by_id(&record.id);
            let shown = match kept {
                Some(cell) => cell.show(),
                None if record.ended_at_ms.is_some() => records::snapshot(record)?.0,
                // It is being taken in, or its end is on its way into the journal.
                None => continue,
            };
            let ended = matches!(shown.state, SnapshotState::Deleted | SnapshotState::Failed);
            if state.is_some_and(|state| state != shown.state) || (ended && !include_ended && state.is_none()) {
                continue;
            }
            snapshots.push(shown);
        }
        Ok(SnapshotList { snapshots, next: found.next.map(|cursor| cursor.to_string()) })
    }

    /// A snapshot by id or name; of one that is being captured, after its end or the wait, whichever is first.
    ///
    /// # Errors
    /// `snapshot_not_found`.
    pub async fn snapshot(&self, caller: &Caller, id_or_name: &str, wait: Duration) -> Result<Snapshot, Error> {
        caller.may(Action::ShowSnapshot)?;
        let id = match self.known_snapshot(caller, id_or_name).await? {
            KnownSnapshot::Kept(cell) if wait.is_zero() => return Ok(cell.show()),
            KnownSnapshot::Kept(cell) => {
                self.while_open(async { drop(tokio::time::timeout(wait, cell.settled()).await) }).await;
                cell.id.clone()
            }
            KnownSnapshot::Ended(shown) => return Ok(*shown),
        };
        // The caller may be another one by now, and one that failed is on record alone.
        caller.may(Action::ShowSnapshot)?;
        Ok(match self.known_snapshot(caller, id.as_str()).await? {
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
        operate(self, call, Restore { snapshot: id_or_name.to_owned(), request, trial: false }).await
    }

    /// Reads every byte of a snapshot and holds it against what was captured, and restores it for a trial. What is damaged
    /// is written down, and told by the event `snapshot.damaged`.
    ///
    /// # Errors
    /// `snapshot_not_found`, `snapshot_not_active`; `engine_failed` where it can't be read. Damage is no error.
    pub async fn verify_snapshot(&self, call: &Call, id_or_name: &str) -> Answered<Verification> {
        operate(self, call, Verify { snapshot: id_or_name.to_owned() }).await
    }
}
