//! restore: check the snapshot → reserve slot and generation with the key → build on its layers → fill or start →
//! launch → running.

use std::sync::Arc;

use remuda_journal::Reservation;
use remuda_types::wire::{Labels, LaunchRecipe, Origin, RestoreSnapshot, Sandbox};
use remuda_types::{Error, ErrorCode, SandboxId, Slot, SnapshotMode, SnapshotState};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::deadlines::asked::Asked;
use crate::operation::{Ended, Operation, Work, canonical};
use crate::operations::create::{Plan, check_labels};
use crate::operations::raise::{self, Source};
use crate::operations::{launch, parts};
use crate::platform::Platform;
use crate::records::{SandboxSpec, SnapshotDoc};
use crate::registry::SnapshotCell;

/// Restores one sandbox from a snapshot that stands by itself.
pub(crate) struct Restore {
    /// Its id or name, as it was given.
    pub(crate) snapshot: String,
    pub(crate) request: RestoreSnapshot,
    /// Whether it is only to be seen that it comes up: without a way out and without its launch recipe.
    pub(crate) trial: bool,
}

impl Operation for Restore {
    const KIND: &'static str = "restore";
    const ACTION: Action = Action::RestoreSnapshot;
    const ALWAYS: bool = true;
    type Plan = (Plan, Reading);
    type Output = Sandbox;

    fn target(&self) -> Option<&SandboxId> {
        None
    }

    fn request(&self) -> Value {
        let mut request = json!({ "snapshot": self.snapshot, "restore": canonical(&self.request) });
        if self.trial {
            request["trial"] = true.into();
        }
        request
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        check_labels(&self.request.labels)?;
        let RestoreSnapshot { timeout_ms, idle_timeout_ms, on_deadline, .. } = self.request;
        let asked = Asked { timeout_ms, idle_timeout_ms, on_deadline };
        caller.may_make_sandbox(self.request.slot.as_ref(), &self.request.labels)?;
        platform.admit_work()?;
        let snapshot = platform.kept_snapshot(caller, &self.snapshot).await?;
        // Counted as a reader before it is looked at, so that a deletion in between waits for nothing and takes nothing.
        let reading = Reading::begin(&snapshot);
        let recipe = {
            let inner = snapshot.inner();
            let shown = &inner.doc.shown;
            if shown.state != SnapshotState::Active {
                let message = format!("snapshot {} is {}, not active", snapshot.id, shown.state);
                return Err(Error::new(ErrorCode::SnapshotNotActive, message));
            }
            if inner.doc.lacks_memory() {
                let message = format!("the memory image of {} was dropped when its fork was complete", snapshot.id);
                return Err(Error::new(ErrorCode::SnapshotNotActive, message)
                    .remedy("capture again with: remuda snapshot create"));
            }
            if let Some(damage) = &shown.damage {
                let message = format!("snapshot {} is damaged, and is not restored", snapshot.id);
                return Err(Error::new(ErrorCode::SnapshotDamaged, message).cause(damage).remedy(format!(
                    "restore another one; or put its files back from a backup, and run: remuda snapshot verify {}",
                    snapshot.id
                )));
            }
            let kept = shown.launch.clone().filter(|_| !self.trial);
            let recipe = self.request.launch.clone().or(kept);
            if recipe.is_some() && shown.mode == SnapshotMode::Memory {
                let message = "a memory snapshot wakes up running and takes no launch recipe";
                return Err(Error::new(ErrorCode::InvalidRequest, message));
            }
            recipe
        };
        if let Some(recipe) = &recipe {
            launch::check(recipe)?;
        }
        check_layers(platform, &snapshot).await?;
        let mut plan = plan(platform, &snapshot, self.request.labels.clone(), recipe, asked)?;
        plan.spec.internet &= !self.trial;
        let reservation = plan.reservation(platform, caller, self.request.slot.clone())?;
        Ok(((plan, reading), reservation))
    }

    async fn run(self, platform: &Platform, (plan, reading): Self::Plan, work: &Work) -> Ended<Sandbox> {
        raise::planned(platform, work, plan, Source::Snapshot(reading)).await
    }
}

/// One branch of a fork: a restore from the fork's own snapshot, which may not be verified yet.
pub(crate) struct Branch {
    pub(crate) source: SandboxId,
    pub(crate) snapshot: Arc<SnapshotCell>,
    /// Which of the fork's branches, from 0.
    pub(crate) number: usize,
    pub(crate) slot: Option<Slot>,
    pub(crate) labels: Labels,
    pub(crate) launch: Option<LaunchRecipe>,
    pub(crate) asked: Asked,
}

impl Operation for Branch {
    const KIND: &'static str = "branch";
    const ACTION: Action = Action::ForkSandbox;
    const ALWAYS: bool = true;
    type Plan = (Plan, Reading);
    type Output = Sandbox;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.source)
    }

    fn request(&self) -> Value {
        json!({ "snapshot": self.snapshot.id, "number": self.number, "slot": self.slot })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        let reading = Reading::begin(&self.snapshot);
        let plan = plan(platform, &self.snapshot, self.labels.clone(), self.launch.clone(), self.asked)?;
        let reservation = plan.reservation(platform, caller, self.slot.clone())?;
        Ok(((plan, reading), reservation))
    }

    async fn run(self, platform: &Platform, (plan, reading): Self::Plan, work: &Work) -> Ended<Sandbox> {
        raise::planned(platform, work, plan, Source::Snapshot(reading)).await
    }
}

fn plan(
    platform: &Platform,
    snapshot: &SnapshotCell,
    labels: Labels,
    launch: Option<LaunchRecipe>,
    asked: Asked,
) -> Result<Plan, Error> {
    let doc = snapshot.doc();
    let origin = Origin::Snapshot { snapshot: snapshot.id.clone(), source: doc.shown.source };
    let term = Some(asked.term(platform.timeout_ms_max())?);
    // What may not get out has no copies that may; what may has none where this server lets nobody out.
    let internet = doc.internet && platform.engine().no_way_out().is_none();
    let parts = parts::of_copy(platform, doc.shown.mode, &doc.fingerprint);
    let SnapshotDoc { memory_mib, disk_bytes, layers, .. } = doc;
    let spec = SandboxSpec { memory_mib, disk_bytes, internet, origin, launch, term };
    Plan::new(platform, labels, spec, layers, parts)
}

/// A restore that reads a snapshot's bytes; they stay while it does.
#[derive(Debug)]
pub(crate) struct Reading(Arc<SnapshotCell>);

impl Reading {
    pub(crate) fn begin(snapshot: &Arc<SnapshotCell>) -> Self {
        snapshot.inner().readers += 1;
        Reading(snapshot.clone())
    }

    /// What is read.
    pub(crate) fn snapshot(&self) -> &SnapshotCell {
        &self.0
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.inner().readers -= 1;
    }
}

/// What a snapshot stands on is here, and every layer below it is what was frozen. Overlayfs would show a changed one without a word.
pub(crate) async fn check_layers(platform: &Platform, snapshot: &SnapshotCell) -> Result<(), Error> {
    let doc = snapshot.doc();
    parts::check(platform, doc.shown.mode, &doc.fingerprint)
        .map_err(|why| why.told(format!("snapshot {}", snapshot.id)))?;
    let mut expected = Vec::new();
    {
        let tables = platform.registry().tables();
        for id in &doc.layers {
            let seal = tables.snapshot_by_id(id).and_then(|s| s.inner().doc.layer_seal.clone());
            // The layer of a fork that is not verified yet has no seal to be held against.
            expected.extend(seal.map(|seal| (platform.engine().dirs().layer(id), seal)));
        }
    }
    let checking = tokio::task::spawn_blocking(move || expected.iter().try_for_each(|(layer, seal)| seal.check(layer)));
    let checked = checking.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
    checked.map_err(|e| crate::errors::engine(&doc.shown.source, e).detail("snapshot", snapshot.id.to_string()))
}
