//! remove_snapshot: journal the intent and that it is deleted → drop its memory → collect layers nobody stands on.

use std::sync::Arc;

use remuda_journal::{Holder, Reservation};
use remuda_types::wire::{RemovalResult, SnapshotRemoval};
use remuda_types::{Error, ErrorCode, SandboxId, SnapshotId, SnapshotState};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::events;
use crate::operation::{Ended, Operation, Work};
use crate::platform::{KnownSnapshot, Platform};
use crate::records::snapshot_is;
use crate::registry::SnapshotCell;

/// Removes a snapshot.
pub(crate) struct RemoveSnapshot {
    /// Its id or name, as it was given.
    pub(crate) snapshot: String,
}

/// What is to be done.
pub(crate) enum Plan {
    Remove(Arc<SnapshotCell>),
    Absent(SnapshotId),
}

impl Operation for RemoveSnapshot {
    const KIND: &'static str = "remove_snapshot";
    const ACTION: Action = Action::RemoveSnapshot;
    const ALWAYS: bool = true;
    type Plan = Plan;
    type Output = SnapshotRemoval;

    fn target(&self) -> Option<&SandboxId> {
        None
    }

    fn request(&self) -> Value {
        json!({ "snapshot": self.snapshot })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Plan, Reservation), Error> {
        let cell = match platform.known_snapshot(caller, &self.snapshot).await? {
            KnownSnapshot::Ended(shown) => return Ok((Plan::Absent(shown.id), Reservation::default())),
            KnownSnapshot::Kept(cell) => cell,
        };
        match cell.show().state {
            // A fork's own may still be under verification, which then finds it deleted.
            SnapshotState::Active | SnapshotState::Verifying | SnapshotState::Deleting => {
                Ok((Plan::Remove(cell), Reservation::default()))
            }
            SnapshotState::Deleted | SnapshotState::Failed => {
                Ok((Plan::Absent(cell.id.clone()), Reservation::default()))
            }
            state @ SnapshotState::Capturing => {
                let message = format!("snapshot {} is {state}; it can be removed when it is active", cell.id);
                Err(Error::new(ErrorCode::WrongState, message).remedy("try again in a moment"))
            }
        }
    }

    async fn run(self, platform: &Platform, plan: Plan, work: &Work) -> Ended<SnapshotRemoval> {
        match plan {
            Plan::Remove(cell) => remove(platform, &cell, work).await,
            Plan::Absent(id) => Ended::done(absent(id), Vec::new()),
        }
    }
}

fn absent(id: SnapshotId) -> SnapshotRemoval {
    SnapshotRemoval { id, result: RemovalResult::AlreadyAbsent, bytes_reclaimed: 0, bytes_still_referenced: 0 }
}

/// Removes a snapshot's bytes. Restores that are reading them go on. May be repeated.
pub(crate) async fn remove(platform: &Platform, cell: &Arc<SnapshotCell>, work: &Work) -> Ended<SnapshotRemoval> {
    // Before its bytes: a crash in between must not leave one that says it is active.
    let deleting = vec![snapshot_is(&cell.id, SnapshotState::Deleting)];
    if let Err(e) = work.step("deleting", Value::Null, deleting).await {
        return Ended::failed(e, Vec::new());
    }
    {
        let state = &mut cell.inner().doc.shown.state;
        // Another removal of the same moment may have been first.
        if matches!(state, SnapshotState::Deleted | SnapshotState::Failed) {
            return Ended::done(absent(cell.id.clone()), Vec::new());
        }
        *state = SnapshotState::Deleted;
    }
    let of_memory = platform.drop_memory(cell).await;
    let of_layers = platform.collect().await;
    let layer = platform.engine().dirs().layer(&cell.id);
    let left = tokio::task::spawn_blocking(move || remuda_engine::disk_usage(&layer)).await.unwrap_or(0);
    let removal = SnapshotRemoval {
        id: cell.id.clone(),
        result: RemovalResult::Removed,
        bytes_reclaimed: of_memory + of_layers,
        bytes_still_referenced: left,
    };
    let gone = match cell.doc().change() {
        Ok(change) => change,
        Err(e) => return Ended::failed(e, Vec::new()),
    };
    let changes = [gone, remuda_journal::Change::Release(Holder::from(&cell.id))];
    let event = events::snapshot(&cell.account, &cell.show());
    Ended::done(removal, changes.into_iter().chain(event).collect())
}
