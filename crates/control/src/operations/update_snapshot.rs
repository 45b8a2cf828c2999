//! update_snapshot: other labels on record → in memory. What was captured never changes.

use std::sync::Arc;

use remuda_journal::{Change, Reservation, SnapshotChange};
use remuda_types::wire::{Labels, Snapshot, UpdateSnapshot};
use remuda_types::{Error, ErrorCode, SandboxId, SnapshotState};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::operation::{Ended, Operation, Work, canonical};
use crate::operations::create::check_labels;
use crate::platform::Platform;
use crate::registry::SnapshotCell;

/// Sets and removes labels of a snapshot.
pub(crate) struct Update {
    /// Its id or name, as it was given.
    pub(crate) snapshot: String,
    pub(crate) request: UpdateSnapshot,
}

impl Operation for Update {
    const KIND: &'static str = "update_snapshot";
    const ACTION: Action = Action::UpdateSnapshot;
    const ALWAYS: bool = false;
    type Plan = (Arc<SnapshotCell>, Caller);
    type Output = Snapshot;

    fn target(&self) -> Option<&SandboxId> {
        None
    }

    fn request(&self) -> Value {
        json!({ "snapshot": self.snapshot, "update": canonical(&self.request) })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        let cell = platform.kept_snapshot(caller, &self.snapshot).await?;
        // Told now, so that nothing is stored under a key.
        self.labels(&cell.show(), caller)?;
        Ok(((cell, caller.clone()), Reservation::default()))
    }

    async fn run(self, _: &Platform, (cell, caller): Self::Plan, work: &Work) -> Ended<Snapshot> {
        // One at a time, so that record and memory agree.
        let _turn = cell.labelling.lock().await;
        let labels = match self.labels(&cell.show(), &caller) {
            Ok(labels) => labels,
            Err(e) => return Ended::failed(e, Vec::new()),
        };
        let change = Change::Snapshot(SnapshotChange::of(&cell.id).labels(labels.clone()));
        if let Err(e) = work.step("labelled", Value::Null, vec![change]).await {
            return Ended::failed(e, Vec::new());
        }
        cell.inner().doc.shown.labels = labels;
        Ended::done(cell.show(), Vec::new())
    }
}

impl Update {
    /// The labels that it is to have.
    fn labels(&self, shown: &Snapshot, caller: &Caller) -> Result<Labels, Error> {
        if matches!(shown.state, SnapshotState::Deleting | SnapshotState::Deleted | SnapshotState::Failed) {
            let message = format!("snapshot {} is {}, and keeps its labels", shown.id, shown.state);
            return Err(Error::new(ErrorCode::WrongState, message));
        }
        let mut labels = shown.labels.clone();
        for (name, value) in &self.request.labels {
            match value {
                Some(value) => labels.insert(name.clone(), value.clone()),
                None => labels.remove(name),
            };
        }
        check_labels(&labels)?;
        // What a narrowed caller changes it must see afterwards.
        caller.may_make_snapshot(&shown.source, &labels)?;
        Ok(labels)
    }
}
