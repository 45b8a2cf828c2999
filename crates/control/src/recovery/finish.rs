//! Brings operations that a dead server had begun to their one outcome: finished where nobody can tell the difference,
//! else undone, and where an effect was handed over and nobody can say whether it took place, told as that.

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;
use std::time::Instant;

use remuda_guest_proto::{AgentErrorKind, Reply, Request};
use remuda_journal::Operation as Record;
use remuda_types::wire::{ChangedFiles, FileStat, ForkSandbox, Origin, Sandbox, UnpackedTree};
use remuda_types::{Error, ErrorCode, ExecutionState, OperationId, SandboxId, SandboxState, SnapshotState};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::channel::ChannelError;
use crate::operation::{Ended, Fault, Work, conclude};
use crate::operations::capture::{self, CAPTURED};
use crate::operations::execute::Started;
use crate::operations::fork::{self, ForkOnce};
use crate::operations::raise::{self, Source};
use crate::operations::restore::{self, Reading};
use crate::operations::webhooks::secret_made;
use crate::operations::{
    change_file, change_files, files, import, previews, remove, remove_snapshot, stop, unpack_tree, write_file,
};
use crate::platform::{KnownSnapshot, Platform};
use crate::records;
use crate::recovery::read;
use crate::registry::{SandboxCell, SnapshotCell};

/// Sees to all of them, and to what finished ones left to be done behind. Called before any call is taken.
pub(super) fn all(platform: &Platform, unfinished: Vec<Record>) {
    let mut parts: HashMap<OperationId, Vec<Record>> = HashMap::new();
    let (of_others, whole): (Vec<_>, Vec<_>) =
        unfinished.into_iter().partition(|record| record.parent.is_some() && record.scope.kind() == "branch");
    for record in of_others {
        if let Some(parent) = record.parent.clone() {
            parts.entry(parent).or_default().push(record);
        }
    }
    let mut finishing = Vec::new();
    let mut about = Vec::new();
    for record in whole {
        about.extend(record.reserved.snapshot.clone());
        let parts = parts.remove(&record.id).unwrap_or_default();
        finishing.push(platform.under_way().spawn(finish(platform.clone(), record, parts)));
    }
    // Of a fork that has its outcome, so that all its branches had theirs: nothing of it can be here but by a defect.
    for record in parts.into_values().flatten() {
        finishing.push(platform.under_way().spawn(finish(platform.clone(), record, Vec::new())));
    }
    // Those of the dead server: whatever is captured from now on is another's business.
    let mut snapshots = platform.registry().tables().snapshots();
    snapshots.retain(|cell| !about.contains(&cell.id));
    let behind = platform.clone();
    platform.under_way().spawn(async move {
        for task in finishing {
            if let Err(e) = task.await {
                tracing::error!("an operation of an earlier server was not brought to an end: {e}");
            }
        }
        for cell in &snapshots {
            left_behind(&behind, cell).await;
        }
        behind.collect().await;
    });
}

/// A snapshot whose operation has its outcome, and that was being seen to behind it.
async fn left_behind(platform: &Platform, cell: &Arc<SnapshotCell>) {
    let (state, of_fork) = {
        let inner = cell.inner();
        (inner.doc.shown.state, inner.doc.of_fork)
    };
    match state {
        SnapshotState::Verifying if of_fork && still_whole(platform, cell).is_ok() => {
            fork::settle(platform, cell).await
        }
        SnapshotState::Capturing | SnapshotState::Verifying => {
            let error = interrupted("capture");
            let changes = capture::fail(platform, cell, &error).await;
            match platform.journal().apply(changes).await {
                Ok(_) => capture::on_record(platform, cell),
                Err(e) => tracing::error!("that {} failed is not written down: {e}", cell.id),
            }
        }
        _ => {}
    }
}

async fn finish(platform: Platform, record: Record, parts: Vec<Record>) {
    let _in_hand = platform.hands().take(record.id.clone());
    let (work, platform) = (Work::on(platform.journal(), &record), &platform);
    let kind = record.scope.kind().to_owned();
    match kind.as_str() {
        "create" | "restore" | "branch" | "start" => {
            let ended = raised(platform, &record, &work).await;
            let hands_back = ended.hands_back;
            tell(platform, &work, &kind, ended).await;
            if let Some(before) = record.scope.target().filter(|_| hands_back)
                && let Err(e) = read::handed_back(platform, &record.account, before).await
            {
                tracing::error!("{before} is not found again: {e}");
            }
        }
        "stop" => {
            let ended = match cell_of(platform, &record) {
                Some(cell) => {
                    cell.found().await;
                    stop::stop(platform, &cell, &work).await
                }
                None => Ended::failed(interrupted(&kind), Vec::new()),
            };
            tell(platform, &work, &kind, ended).await;
        }
        "capture" => tell(platform, &work, &kind, captured(platform, &record, &work).await).await,
        "import" => {
            let ended = match reserved_snapshot(platform, &record) {
                Some(cell) => import::undo(platform, &cell, interrupted(&kind)).await,
                None => Ended::failed(interrupted(&kind), Vec::new()),
            };
            tell(platform, &work, &kind, ended).await;
        }
        "fork" => {
            let branches = parts.into_iter().map(|part| Box::pin(finish(platform.clone(), part, Vec::new())));
            futures_util::future::join_all(branches).await;
            tell(platform, &work, &kind, forked(platform, &record, &work).await).await;
        }
        "remove" => {
            let ended = match cell_of(platform, &record) {
                Some(cell) => remove::removed(platform, &cell, &work).await,
                None => Ended::failed(interrupted(&kind), Vec::new()),
            };
            tell(platform, &work, &kind, ended).await;
        }
        "remove_snapshot" => {
            let ended = match snapshot_named(platform, &record).await {
                Some(cell) => remove_snapshot::remove(platform, &cell, &work).await,
                None => Ended::failed(interrupted(&kind), Vec::new()),
            };
            tell(platform, &work, &kind, ended).await;
        }
        "pause" => tell(platform, &work, &kind, halted(platform, &record, SandboxState::Paused).await).await,
        "resume" => tell(platform, &work, &kind, halted(platform, &record, SandboxState::Running).await).await,
        "execute" => tell(platform, &work, &kind, executed(platform, &record).await.into()).await,
        "write_file" => tell(platform, &work, &kind, written(platform, &record).await.into()).await,
        "make_directory" | "move_file" | "set_attributes" => {
            tell(platform, &work, &kind, changed(platform, &record).await.into()).await;
        }
        "change_files" => tell(platform, &work, &kind, batch(platform, &record).await.into()).await,
        "unpack_tree" => tell(platform, &work, &kind, tree(platform, &record).await.into()).await,
        "remove_file" => {
            let reply = became(platform, &record, change_file::HANDED_OVER).await;
            tell(platform, &work, &kind, Ended::<()>::from(reply.map(drop))).await;
        }
        "signal" | "cancel" => {
            tell(platform, &work, &kind, Ended::<()>::from(Err(Fault::Unknown(unknown(&kind))))).await;
        }
        "create_webhook" | "rotate_webhook" => {
            let made = secret_made(platform, &record).ok_or_else(|| Fault::Failed(interrupted(&kind)));
            tell(platform, &work, &kind, Ended::from(made)).await;
        }
        "create_preview" | "rotate_preview" | "renew_preview" | "revoke_preview" => {
            let written = previews::written(&record).unwrap_or_else(|| Err(interrupted(&kind)));
            tell(platform, &work, &kind, Ended::from(written.map_err(Fault::Failed))).await;
        }
        _ => tell(platform, &work, &kind, Ended::<()>::failed(interrupted(&kind), Vec::new())).await,
    }
}

async fn tell<T: Serialize>(platform: &Platform, work: &Work, kind: &str, ended: Ended<T>) {
    let word = match &ended.result {
        Ok(_) => "is finished".to_owned(),
        Err(Fault::Failed(e)) => format!("failed: {e}"),
        Err(Fault::Unknown(e)) => format!("has an unknown outcome: {e}"),
    };
    tracing::info!("the {kind} that an earlier server had begun {word}");
    // Why it failed is its outcome, and is told to whoever asks; that it could not be written was logged.
    let _ = conclude(platform, work, ended).await;
}

/// The sandbox that it made or is about, once it is known what became of its machine. None if it has ended.
fn cell_of(platform: &Platform, record: &Record) -> Option<Arc<SandboxCell>> {
    let id = record.reserved.sandbox.as_ref().or(record.scope.target())?;
    platform.registry().sandbox(&record.account, id)
}

async fn raised(platform: &Platform, record: &Record, work: &Work) -> Ended<Sandbox> {
    let kind = record.scope.kind();
    let made = record.reserved.sandbox.as_ref();
    let Some(cell) = made.and_then(|id| platform.registry().sandbox(&record.account, id)) else {
        return Ended::failed(interrupted(kind), Vec::new());
    };
    cell.found().await;
    if cell.running.get().is_some() {
        return raise::go_on(platform, work, &cell).await;
    }
    if cell.state() != SandboxState::Starting {
        let error = interrupted(kind).cause(cell.status.borrow().reason.clone().unwrap_or_default());
        return raise::give_up(platform, work, &cell, error).await;
    }
    // Nobody has heard of its machine: it is made once more from the beginning.
    let cleared = match cell.continues.get() {
        Some(_) => stop::lay_down(platform, &cell).await,
        None => platform.engine().tear_down(&cell.uid).await.map(drop).map_err(|e| crate::errors::engine(&cell.id, e)),
    };
    if let Err(e) = cleared {
        return raise::give_up(platform, work, &cell, e).await;
    }
    let source = match source(platform, &cell).await {
        Ok(source) => source,
        Err(e) => return raise::give_up(platform, work, &cell, e).await,
    };
    raise::raise(platform, work, &cell, source).await
}

async fn source(platform: &Platform, cell: &SandboxCell) -> Result<Source, Error> {
    if let Some(before) = cell.continues.get() {
        return Ok(Source::Predecessor(before.clone()));
    }
    let Origin::Snapshot { snapshot, .. } = &cell.spec.origin else { return Ok(Source::Image) };
    let found = platform.registry().tables().snapshot_by_id(snapshot);
    let lost = || {
        Error::new(ErrorCode::Interrupted, format!("the snapshot {snapshot} was removed before it was restored"))
            .remedy("send the call again with another key, and another snapshot")
    };
    let found = found.ok_or_else(lost)?;
    let reading = Reading::begin(&found);
    let usable = {
        let doc = &found.inner().doc;
        matches!(doc.shown.state, SnapshotState::Verifying | SnapshotState::Active) && !doc.lacks_memory()
    };
    if !usable {
        return Err(lost());
    }
    restore::check_layers(platform, &found).await?;
    Ok(Source::Snapshot(reading))
}

async fn captured(platform: &Platform, record: &Record, work: &Work) -> Ended<remuda_types::wire::Snapshot> {
    let Some(cell) = reserved_snapshot(platform, record) else {
        return Ended::failed(interrupted("capture"), Vec::new());
    };
    if has_step(record, CAPTURED) {
        let whole = still_whole(platform, &cell);
        return capture::conclude(platform, &cell, whole, ready(None), work).await;
    }
    undone_capture(platform, record, &cell).await;
    capture::conclude(platform, &cell, Err(interrupted("capture")), ready(None), work).await
}

/// What was captured and not verified yet may be lost in parts where the host was started anew: its digests would be made
/// of what is left.
fn still_whole(platform: &Platform, cell: &SnapshotCell) -> Result<(), Error> {
    let boot = platform.engine().boot_id().map_err(|e| crate::errors::engine(&cell.show().source, e))?;
    if cell.inner().doc.boot.as_ref() == Some(&boot) {
        return Ok(());
    }
    Err(interrupted("capture").cause("the host was started anew before it was verified"))
}

async fn forked(platform: &Platform, record: &Record, work: &Work) -> Ended<remuda_types::wire::Fork> {
    let Some(cell) = reserved_snapshot(platform, record) else {
        return Ended::failed(interrupted("fork"), Vec::new());
    };
    if !has_step(record, CAPTURED) {
        undone_capture(platform, record, &cell).await;
        let error = interrupted("fork").detail("snapshot", cell.id.to_string());
        let changes = capture::fail(platform, &cell, &error).await;
        return Ended::failed(error, changes).publishing(&cell);
    }
    let begun = request_of::<ForkSandbox>(record).and_then(|request| {
        let slots = fork::slots(&request)?;
        let source = record.scope.target().cloned();
        let source = source.ok_or_else(|| Error::new(ErrorCode::Internal, "a fork has no source"))?;
        Ok((ForkOnce { source, request, start: Instant::now() }, slots))
    });
    match still_whole(platform, &cell).and(begun) {
        Ok((fork, slots)) => fork::branch_out(platform, work, &fork, &cell, slots, 0.0).await,
        Err(error) => {
            let changes = capture::fail(platform, &cell, &error).await;
            Ended::failed(error, changes).publishing(&cell)
        }
    }
}

/// Nobody can write into the places of the capture any more when this returns, and its source is not left standing.
async fn undone_capture(platform: &Platform, record: &Record, snapshot: &SnapshotCell) {
    // Whether the source stands still was seen to when its machine was taken over.
    let source = cell_of_source(platform, record).await;
    let Some(uid) = source else { return };
    if let Err(e) = platform.engine().settle_capture(&snapshot.id, &uid).await {
        tracing::error!("what was captured for {} is not removed: {}", snapshot.id, crate::errors::chain(&e));
        return;
    }
    if let Err(e) = platform.engine().remove_capture(&snapshot.id).await {
        tracing::error!("what was captured for {} is not removed: {}", snapshot.id, crate::errors::chain(&e));
    }
}

async fn cell_of_source(platform: &Platform, record: &Record) -> Option<remuda_types::Uid> {
    let target = record.scope.target()?;
    if let Some(cell) = platform.registry().sandbox(&record.account, target) {
        cell.found().await;
        return Some(cell.uid.clone());
    }
    platform.journal().sandbox(&record.account, target).await.ok()?.map(|record| record.uid)
}

async fn halted(platform: &Platform, record: &Record, wanted: SandboxState) -> Ended<Sandbox> {
    let kind = record.scope.kind();
    let Some(cell) = cell_of(platform, record) else { return Ended::failed(interrupted(kind), Vec::new()) };
    cell.found().await;
    // What it is to be was written down before it was done, and the machine was brought there.
    if cell.state() == wanted {
        return Ended::done(cell.show(), cell.ledger.halted(wanted).into_iter().collect());
    }
    Ended::failed(interrupted(kind), Vec::new())
}

async fn executed(platform: &Platform, record: &Record) -> Result<Started, Fault> {
    let Some(id) = record.reserved.execution.clone() else { return Err(interrupted("execute").into()) };
    let started = || Ok(Started { execution: id.clone() });
    let lost = || Err(Fault::Unknown(unknown("execute").detail("execution", id.to_string())));
    let Some(cell) = cell_of(platform, record) else { return lost() };
    cell.found().await;
    // Its record is in its log before the agent hears of it: without one, it has not.
    let Ok(execution) = cell.executions.get(&id, &cell.id) else { return Err(interrupted("execute").into()) };
    let shown = execution.show();
    match shown.state {
        ExecutionState::NotStarted => Err(interrupted("execute").detail("execution", id.to_string()).into()),
        ExecutionState::Unknown => lost(),
        // The machine ended before anybody was told whether it had begun.
        ExecutionState::SandboxGone | ExecutionState::Oom if shown.pid.is_none() => lost(),
        _ => started(),
    }
}

async fn written(platform: &Platform, record: &Record) -> Result<FileStat, Fault> {
    let (id, reply) = became(platform, record, write_file::STREAMED).await?;
    Ok(files::entry(&id, reply)?)
}

async fn changed(platform: &Platform, record: &Record) -> Result<FileStat, Fault> {
    let (id, reply) = became(platform, record, change_file::HANDED_OVER).await?;
    Ok(files::entry(&id, reply)?)
}

async fn batch(platform: &Platform, record: &Record) -> Result<ChangedFiles, Fault> {
    let (id, reply) = became(platform, record, change_file::HANDED_OVER).await?;
    Ok(change_files::results(&id, change_files::paths_of(record.request.as_ref()), reply)?)
}

async fn tree(platform: &Platform, record: &Record) -> Result<UnpackedTree, Fault> {
    let (id, reply) = became(platform, record, change_file::HANDED_OVER).await?;
    let path = record.request.as_ref().and_then(|request| request["path"].as_str()).unwrap_or_default();
    Ok(unpack_tree::unpacked(&id, path, reply)?)
}

/// What the agent answered, or would have answered, to the effect whose number a step holds.
async fn became(platform: &Platform, record: &Record, step: &str) -> Result<(SandboxId, Reply), Fault> {
    let kind = record.scope.kind();
    let lost = || Fault::Unknown(unknown(kind));
    let Some(step) = record.steps.iter().find(|found| found.name == step) else {
        // An earlier build handed these over without a step.
        return Err(match kind {
            "make_directory" | "remove_file" => lost(),
            // Its agent was never told of it, or not that it had the whole of it.
            _ => interrupted(kind).into(),
        });
    };
    let effect = step.data["effect"].as_u64().ok_or_else(lost)?;
    let cell = cell_of(platform, record).ok_or_else(lost)?;
    cell.found().await;
    let live = cell.live().map_err(|_| lost())?.clone();
    match live.channel.call(Request::Outcome { effect }).await {
        Ok(reply) => Ok((cell.id.clone(), reply)),
        Err(ChannelError::Agent(refusal)) if refusal.kind == AgentErrorKind::Forgotten => Err(lost()),
        Err(ChannelError::Agent(refusal)) if refusal.kind == AgentErrorKind::Undone => Err(interrupted(kind).into()),
        Err(e @ ChannelError::Agent(_)) => Err(Fault::Failed(crate::errors::channel(&cell.id, e))),
        Err(_) => Err(lost()),
    }
}

pub(super) fn has_step(record: &Record, name: &str) -> bool {
    record.steps.iter().any(|step| step.name == name)
}

fn reserved_snapshot(platform: &Platform, record: &Record) -> Option<Arc<SnapshotCell>> {
    platform.registry().tables().snapshot_by_id(record.reserved.snapshot.as_ref()?)
}

async fn snapshot_named(platform: &Platform, record: &Record) -> Option<Arc<SnapshotCell>> {
    let named = record.request.as_ref()?["snapshot"].as_str()?;
    let caller = crate::caller::Caller::platform(record.account.clone());
    match platform.known_snapshot(&caller, named).await {
        Ok(KnownSnapshot::Kept(cell)) => Some(cell),
        _ => None,
    }
}

fn request_of<T: DeserializeOwned>(record: &Record) -> Result<T, Error> {
    let request = record.request.clone().unwrap_or_default();
    records::read(&format_args!("the request of {}", record.id), &request)
}

/// It did not come about, and what had been begun of it is undone.
fn interrupted(kind: &str) -> Error {
    Error::new(ErrorCode::Interrupted, format!("this {kind} was interrupted and is undone"))
        .cause("the server ended in the middle of it")
        .remedy("send it again with another key")
}

/// Nobody can say whether it took place.
fn unknown(kind: &str) -> Error {
    Error::new(ErrorCode::Indeterminate, format!("whether this {kind} took place is not known"))
        .cause("the server ended in the middle of it")
        .remedy("look before you send it with another key")
}
