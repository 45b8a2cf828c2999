//! verify: read every byte of a snapshot and hold it against the digests → write down what is damaged → restore it for a
//! trial, without a way out, and remove that again.
//!
//! The server does the first two by itself, slowly, for all that it keeps: see [`crate::scrubber`].

use std::sync::Arc;
use std::time::Instant;

use remuda_engine::{EngineError, LayerSeal, MemoryImage};
use remuda_journal::Reservation;
use remuda_types::limits::TIMEOUT_MS_DEFAULT;
use remuda_types::wire::{Labels, OnDeadline, RestoreSnapshot, TrialRestore, Verification, VerifiedPart};
use remuda_types::{Error, ErrorCode, SandboxId, SnapshotId, SnapshotState};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::clock::milliseconds;
use crate::events;
use crate::operation::{Call, Ended, Operation, Work, operate};
use crate::operations::remove::Remove;
use crate::operations::restore::{Reading, Restore};
use crate::platform::Platform;
use crate::registry::SnapshotCell;

/// The label of sandboxes that were restored for a trial; one whose server was killed in the middle of it is found by it.
const TRIAL_LABEL: &str = "remuda.trial";
/// How long such a sandbox lives if nobody removes it, in milliseconds.
const TRIAL_MS: u64 = if TIMEOUT_MS_DEFAULT < 120_000 { TIMEOUT_MS_DEFAULT } else { 120_000 };

/// Checks a snapshot.
pub(crate) struct Verify {
    /// Its id or name, as it was given.
    pub(crate) snapshot: String,
}

impl Operation for Verify {
    const KIND: &'static str = "verify";
    const ACTION: Action = Action::VerifySnapshot;
    const ALWAYS: bool = false;
    type Plan = (Arc<SnapshotCell>, Reading);
    type Output = Verification;

    fn target(&self) -> Option<&SandboxId> {
        None
    }

    fn request(&self) -> Value {
        json!({ "snapshot": self.snapshot })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        platform.admit_work()?;
        let cell = platform.kept_snapshot(caller, &self.snapshot).await?;
        // Its bytes stay while they are read.
        let reading = Reading::begin(&cell);
        let state = cell.show().state;
        if state != SnapshotState::Active {
            let message = format!("snapshot {} is {state}, not active", cell.id);
            return Err(Error::new(ErrorCode::SnapshotNotActive, message));
        }
        Ok(((cell, reading), Reservation::default()))
    }

    async fn run(self, platform: &Platform, (cell, reading): Self::Plan, work: &Work) -> Ended<Verification> {
        let parts = match check_all(platform, &cell).await {
            Ok(parts) => parts,
            Err(e) => return Ended::failed(e, Vec::new()),
        };
        let mut sound = parts.iter().all(|part| part.sound);
        let mut trial = None;
        if sound && cell.show().restorable {
            let tried = try_restore(platform, &cell.id, work).await;
            sound = tried.error.is_none();
            trial = Some(tried);
        }
        drop(reading);
        Ended::done(Verification { snapshot: cell.id.clone(), sound, parts, trial }, Vec::new())
    }
}

/// Restores it, sees it come up, and removes it.
async fn try_restore(platform: &Platform, id: &SnapshotId, work: &Work) -> TrialRestore {
    let call = Call::of(Caller::platform(work.account.clone()));
    let begun = Instant::now();
    let labels = Labels::from([(TRIAL_LABEL.to_owned(), id.to_string())]);
    let request = RestoreSnapshot {
        labels,
        timeout_ms: Some(TRIAL_MS),
        on_deadline: Some(OnDeadline::Delete),
        ..RestoreSnapshot::default()
    };
    let restore = Restore { snapshot: id.to_string(), request, trial: true };
    let restored = operate(platform, &call, restore).await.result;
    let took_ms = milliseconds(begun.elapsed());
    let error = match restored {
        Ok(sandbox) => operate(platform, &call, Remove { id: sandbox.id }).await.result.err(),
        Err(e) => Some(e),
    };
    TrialRestore { took_ms, error }
}

/// What one part of a snapshot is held against.
enum Against {
    Layer(SnapshotId, LayerSeal),
    Memory(SnapshotId, MemoryImage),
}

/// Reads all parts of one snapshot whole, and writes down what is damaged.
async fn check_all(platform: &Platform, cell: &SnapshotCell) -> Result<Vec<VerifiedPart>, Error> {
    let doc = cell.doc();
    let mut parts = Vec::new();
    for id in &doc.layers {
        let found = platform.registry().tables().snapshot_by_id(id);
        let part = format!("layer {id}");
        match found.and_then(|s| s.inner().doc.layer_seal.clone()) {
            Some(seal) => parts.push(told(part, read_whole(platform, Against::Layer(id.clone(), seal)).await?)),
            None => {
                let detail = Some("it has no digest on record".to_owned());
                parts.push(VerifiedPart { part, sound: false, detail });
            }
        }
    }
    if let Some(image) = doc.memory {
        let checked = read_whole(platform, Against::Memory(cell.id.clone(), image)).await?;
        parts.push(told("memory image".to_owned(), checked));
    }
    Ok(parts)
}

fn told(part: String, damage: Option<String>) -> VerifiedPart {
    VerifiedPart { part, sound: damage.is_none(), detail: damage }
}

/// Reads a layer whole and marks every snapshot that stands on it by what is found. Returns what is wrong with it.
pub(crate) async fn check_layer(
    platform: &Platform,
    id: &SnapshotId,
    seal: LayerSeal,
) -> Result<Option<String>, Error> {
    read_whole(platform, Against::Layer(id.clone(), seal)).await
}

/// The same of a memory image.
pub(crate) async fn check_memory(
    platform: &Platform,
    id: &SnapshotId,
    image: MemoryImage,
) -> Result<Option<String>, Error> {
    read_whole(platform, Against::Memory(id.clone(), image)).await
}

async fn read_whole(platform: &Platform, part: Against) -> Result<Option<String>, Error> {
    let dirs = platform.engine().dirs().clone();
    // A thread of its own, since its priority is the least there is: whoever works goes first.
    let (tell, checked) = tokio::sync::oneshot::channel();
    let reading = std::thread::Builder::new().name("verify".into()).spawn(move || {
        if let Err(e) = rustix::process::setpriority_process(None, LEAST_PRIORITY) {
            tracing::debug!("a check goes on with the priority of others: {e}");
        }
        let checked = match &part {
            Against::Layer(id, seal) => seal.check_whole(&dirs.layer(id)),
            Against::Memory(_, image) => image.check_whole(),
        };
        // Nobody waits any more where the server is ending.
        let _ = tell.send((part, checked));
    });
    let ended = |e: &dyn std::fmt::Display| Error::new(ErrorCode::Internal, "a check was not made").cause(e);
    reading.map_err(|e| ended(&e))?;
    let (part, checked) = checked.await.map_err(|e| ended(&e))?;
    let damage = match checked {
        Ok(()) => None,
        Err(EngineError::Damaged { what, why }) => Some(format!("{what} is damaged: {why}")),
        Err(e) => {
            let id = match &part {
                Against::Layer(id, _) | Against::Memory(id, _) => id,
            };
            // A part that was removed while it was read is none that is kept.
            let kept = platform.registry().tables().layers_in_use().contains(id);
            if !kept {
                return Ok(None);
            }
            return Err(Error::new(ErrorCode::EngineFailed, format!("{id} can't be read"))
                .cause(crate::errors::chain(&e))
                .remedy("look at the data directory's disk"));
        }
    };
    mark(platform, &part, damage.as_deref()).await;
    Ok(damage)
}

/// Lowest of all priorities.
const LEAST_PRIORITY: i32 = 19;

/// Writes down what was found of a part, in every snapshot that needs it.
async fn mark(platform: &Platform, part: &Against, damage: Option<&str>) {
    let needs = |cell: &SnapshotCell| match part {
        Against::Layer(id, _) => cell.inner().doc.layers.contains(id),
        Against::Memory(id, _) => cell.id == *id,
    };
    let word = match part {
        Against::Layer(id, _) => format!("layer {id}"),
        Against::Memory(..) => "memory image".to_owned(),
    };
    let cells = platform.registry().tables().snapshots();
    for cell in cells.iter().filter(|cell| !cell.is_over() && needs(cell)) {
        let changed = {
            let known = &mut cell.inner().doc.damaged_parts;
            match damage {
                Some(damage) => known.insert(word.clone(), damage.to_owned()).is_none(),
                None => known.remove(&word).is_some(),
            }
        };
        if !changed {
            continue;
        }
        let changes = {
            let mut inner = cell.inner();
            let doc = &mut inner.doc;
            let all: Vec<&str> = doc.damaged_parts.values().map(String::as_str).collect();
            doc.shown.damage = (!all.is_empty()).then(|| all.join("; "));
            doc.change().into_iter().chain(events::damaged(&cell.account, &doc.shown))
        };
        let changes: Vec<_> = changes.collect();
        if let Err(e) = platform.journal().apply(changes).await {
            tracing::error!("that {} is damaged is not written down: {e}", cell.id);
        }
    }
    if let Some(damage) = damage {
        tracing::error!("{damage}");
    }
}
