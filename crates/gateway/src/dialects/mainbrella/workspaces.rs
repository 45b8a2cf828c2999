//! `/workspaces`: what was captured, saved under a key and found again. Each is a snapshot; what the dialect knows of one
//! beside it stands in its labels.

use std::time::Duration;

use axum::body::Body;
use remuda_control::{Call, SnapshotsWanted};
use remuda_types::wire::{CreateSnapshot, Labels, Snapshot, UpdateSnapshot};
use remuda_types::{Error, ErrorCode, Quota, SandboxId, SnapshotId, SnapshotMode, SnapshotState, limits};
use serde_json::{Map, Value, json};

use super::answer::{Refusal, Told, Words, told};
use super::creation::name;
use super::enter::Asked;
use super::ids::{self, Kind};
use super::status::{self, CATALOG, NAME, iso};
use super::{body, sizes::Size};

pub(super) const WORKSPACES: Words = Words {
    invalid: "invalid_request",
    too_large: "request_too_large",
    limit: "workspace_quota_exceeded",
    unavailable: "workspaces_unavailable",
};
const SAVE: Words = Words { unavailable: "workspace_save_unavailable", ..WORKSPACES };
const BODY_BYTES_MAX: usize = 2_048;
/// The label of one that is not to be restored for now.
const ARCHIVED: &str = "mainbrella.archived";
/// The label of one whose container was to be stopped with its save.
const STOP: &str = "mainbrella.stop";
/// A time that does not come, in Unix milliseconds: what is saved is kept until it is deleted.
const NEVER_MS: i64 = 253_402_300_799_999;

/// The snapshot in the path.
fn named(asked: &Asked) -> Result<SnapshotId, Refusal> {
    id_of(asked.in_path.as_deref().unwrap_or_default()).ok_or_else(not_found)
}

/// The snapshot that a UUID means.
pub(super) fn id_of(uuid: &str) -> Option<SnapshotId> {
    ids::tagged(Kind::Snapshot, SnapshotId::PREFIX, uuid)?.parse().ok()
}

pub(super) fn not_found() -> Refusal {
    Refusal::new(404, "workspace_not_found")
}

fn refused(e: &Error) -> Refusal {
    match e.code {
        ErrorCode::SnapshotNotFound => not_found(),
        _ => WORKSPACES.of(e),
    }
}

/// Whether a snapshot has a name in this dialect, and may be restored or is on its way to that.
fn is_listed(snapshot: &Snapshot) -> bool {
    let kept = match snapshot.state {
        SnapshotState::Capturing | SnapshotState::Verifying => true,
        SnapshotState::Active => snapshot.restorable || snapshot.damage.is_some(),
        SnapshotState::Failed | SnapshotState::Deleting | SnapshotState::Deleted => false,
    };
    kept && ids::is_container(&snapshot.source.slot)
}

pub(super) fn is_archived(snapshot: &Snapshot) -> bool {
    snapshot.labels.contains_key(ARCHIVED)
}

/// One workspace. `stopped` says whether its source has ended.
fn record(snapshot: &Snapshot, stopped: bool) -> Value {
    let labels = &snapshot.labels;
    let size = status::size_of(labels, snapshot.memory_mib);
    let status = match snapshot.state {
        SnapshotState::Capturing | SnapshotState::Verifying => "saving",
        SnapshotState::Active if snapshot.restorable => "ready",
        SnapshotState::Active | SnapshotState::Failed => "failed",
        SnapshotState::Deleting | SnapshotState::Deleted => "deleted",
    };
    let stop = labels.contains_key(STOP);
    let mut shown = json!({
        "id": ids::uuid(Kind::Snapshot, SnapshotId::PREFIX, snapshot.id.as_str()),
        "name": shown_name(snapshot),
        "createdAt": iso(snapshot.created_at_ms),
        "expiresAt": NEVER_MS,
        "source": { "id": snapshot.source.slot, "createdAt": snapshot.source.generation },
        "size": size.id,
        "internet": snapshot.internet,
        "imageDigest": snapshot.base,
        "bytes": (status == "ready").then_some(snapshot.bytes),
        "archived": is_archived(snapshot),
        "memory": snapshot.mode == SnapshotMode::Memory,
        "status": status,
        "stopRequested": stop,
        "stopCompleted": stop && stopped,
    });
    if let Some(catalog) = labels.get(CATALOG) {
        shown["catalogId"] = catalog.as_str().into();
    }
    shown
}

/// What it is called: as it was saved, or as our own API calls it.
fn shown_name(snapshot: &Snapshot) -> &str {
    let own = snapshot.name.as_deref().unwrap_or_else(|| snapshot.id.as_str());
    snapshot.labels.get(NAME).map_or(own, String::as_str)
}

/// The record, with a look at its source where that was to be stopped.
async fn told_of(asked: &Asked, snapshot: &Snapshot) -> Value {
    let over = |e: Error| matches!(e.code, ErrorCode::GenerationGone | ErrorCode::SandboxNotFound);
    let stopped = snapshot.labels.contains_key(STOP)
        && asked.platform.show(&asked.caller, &snapshot.source).await.is_err_and(over);
    record(snapshot, stopped)
}

/// All that a caller sees, oldest first.
async fn all(asked: &Asked) -> Result<Vec<Snapshot>, Refusal> {
    let (mut snapshots, mut after) = (Vec::new(), None);
    loop {
        let wanted = SnapshotsWanted { after, ..SnapshotsWanted::default() };
        let page = asked.platform.snapshots(&asked.caller, wanted).await.map_err(|e| refused(&e))?;
        snapshots.extend(page.snapshots.into_iter().filter(is_listed));
        after = page.next;
        if after.is_none() {
            return Ok(snapshots);
        }
    }
}

pub(super) async fn list(asked: Asked) -> Told {
    let all = all(&asked).await?;
    let mut workspaces = Vec::with_capacity(all.len());
    for snapshot in &all {
        workspaces.push(told_of(&asked, snapshot).await);
    }
    let month = asked.platform.month_so_far(&asked.caller).await.map_err(|e| refused(&e))?;
    let account = asked.platform.whoami(&asked.caller).limits;
    let limit = |quota: Quota| account.get(quota.as_str()).copied().flatten();
    let bytes =
        |since_ms: i64| -> u64 { all.iter().filter(|it| it.created_at_ms >= since_ms).map(|it| it.bytes).sum() };
    let bytes_max = limit(Quota::SnapshotBytes).unwrap_or(1 << 53);
    Ok(told(
        200,
        &json!({
            "workspaces": workspaces,
            "limits": {
                "maxSaved": limit(Quota::Snapshots).unwrap_or(u64::from(u32::MAX)),
                "maxReservedBytes": bytes_max,
                "retentionMs": NEVER_MS,
                "maxSavesPerMonth": u64::from(u32::MAX),
                "maxCaptureBytesPerMonth": 1_u64 << 53,
                "maxRetainedCaptureBytes": bytes_max,
            },
            "usage": {
                "saved": all.len(),
                "reservedBytes": bytes(0),
                "savesThisMonth": all.iter().filter(|it| it.created_at_ms >= month.began_at_ms).count(),
                "captureBytesThisMonth": bytes(month.began_at_ms),
                "retainedCaptureBytes": bytes(0),
            },
        }),
    ))
}

pub(super) async fn get(asked: Asked) -> Told {
    let snapshot = asked.platform.snapshot(&asked.caller, named(&asked)?.as_str(), Duration::ZERO).await;
    let snapshot = snapshot.map_err(|e| refused(&e))?;
    Ok(told(200, &told_of(&asked, &snapshot).await))
}

pub(super) async fn update(asked: Asked, body: Body) -> Told {
    let (id, call) = (named(&asked)?, asked.call());
    let object = body::object(body, BODY_BYTES_MAX, &["name", "archived"]).await?;
    let mut request = UpdateSnapshot::default();
    if let Some(name) = name(&object)? {
        request.labels.insert(NAME.to_owned(), Some(name));
    }
    if let Some(archived) = body::flag(&object, "archived")? {
        request.labels.insert(ARCHIVED.to_owned(), archived.then(|| "true".to_owned()));
    }
    if request.labels.is_empty() {
        return Err(Refusal::new(400, WORKSPACES.invalid));
    }
    let updated = asked.platform.update_snapshot(&call, id.as_str(), request).await;
    let snapshot = updated.result.map_err(|e| refused(&e))?;
    Ok(told(200, &told_of(&asked, &snapshot).await))
}

pub(super) async fn delete(asked: Asked) -> Told {
    let (id, call) = (named(&asked)?, asked.call());
    asked.platform.remove_snapshot(&call, id.as_str()).await.result.map_err(|e| refused(&e))?;
    Ok(told(200, &json!({ "deleted": true })))
}

/// What is to be saved.
struct Save {
    source: SandboxId,
    name: String,
    stop: bool,
    /// Whether processes with their memory are saved too: this dialect's own clients have no word for it.
    memory: bool,
}

fn save_of(object: &Map<String, Value>) -> Result<Save, Refusal> {
    let wrong = || Refusal::new(400, WORKSPACES.invalid);
    let slot = body::text(object, "id")?.and_then(|id| ids::slot(&id)).ok_or_else(wrong)?;
    let generation = body::text(object, "createdAt")?.ok_or_else(wrong)?;
    let generation = generation.parse().map_err(|_| Refusal::new(400, "invalid_generation"))?;
    let name = name(object)?.ok_or_else(wrong)?;
    let stop = body::flag(object, "stop")?.unwrap_or(false);
    let memory = body::flag(object, "memory")?.unwrap_or(false);
    Ok(Save { source: SandboxId { slot, generation }, name, stop, memory })
}

/// Captures a container's files under a key, and ends it afterwards where that is asked for: never before what it holds is
/// safe, and never another generation.
pub(super) async fn save(asked: Asked, body: Body) -> Told {
    let key = asked.key()?.ok_or_else(|| Refusal::new(400, "invalid_idempotency_key"))?;
    let object = body::object(body, BODY_BYTES_MAX, &["id", "createdAt", "name", "stop", "memory"]).await?;
    let Save { source, name, stop, memory } = save_of(&object)?;
    let (platform, caller) = (&asked.platform, &asked.caller);
    let call = Call { caller: caller.clone(), key: Some(key.clone()) };
    // A key is for one save, of whichever container. Ours is for one of each.
    let known = platform.operations(caller, &key).await.map_err(|e| SAVE.of(&e))?;
    if known.iter().any(|it| it.kind == "capture" && it.sandbox.as_ref() != Some(&source)) {
        return Err(Refusal::new(409, "idempotency_key_conflict"));
    }
    let request = CreateSnapshot {
        mode: Some(if memory { SnapshotMode::Memory } else { SnapshotMode::Filesystem }),
        labels: labels(name, stop),
        ..CreateSnapshot::default()
    };
    let answered = platform.capture(&call, &source, request).await;
    let snapshot = match answered.result {
        Ok(snapshot) => snapshot,
        // The same save is under way: its snapshot is waited for.
        Err(e) if e.code == ErrorCode::OperationInProgress => {
            let operations = platform.operations(caller, &key).await.map_err(|e| SAVE.of(&e))?;
            let made = operations.into_iter().find_map(|it| it.made.snapshot).ok_or_else(|| SAVE.of(&e))?;
            let wait = Duration::from_millis(limits::WAIT_MS_MAX.min(60_000));
            platform.snapshot(caller, made.as_str(), wait).await.map_err(|e| SAVE.of(&e))?
        }
        Err(e) => return Err(save_refused(&e)),
    };
    // As it stands now: an earlier call with this key may be long ago.
    let snapshot = platform.snapshot(caller, snapshot.id.as_str(), Duration::ZERO).await.map_err(|e| SAVE.of(&e))?;
    if stop && snapshot.state == SnapshotState::Active {
        match platform.remove(&Call::of(caller.clone()), &source).await.result {
            Ok(_) => {}
            Err(e) if matches!(e.code, ErrorCode::GenerationGone | ErrorCode::SandboxNotFound) => {}
            Err(e) => return Err(SAVE.of(&e)),
        }
    }
    let shown = told_of(&asked, &snapshot).await;
    Ok(told(if answered.replayed { 200 } else { 201 }, &shown))
}

/// What the dialect knows of a save and we don't.
fn labels(name: String, stop: bool) -> Labels {
    let mut labels = Labels::from([(NAME.to_owned(), name)]);
    if stop {
        labels.insert(STOP.to_owned(), "true".to_owned());
    }
    labels
}

fn save_refused(e: &Error) -> Refusal {
    match e.code {
        ErrorCode::LimitReached => match e.details.get("limit").and_then(Value::as_str) {
            Some("snapshot_bytes") => Refusal::new(429, "workspace_capture_budget_exceeded"),
            _ => Refusal::new(429, "workspace_quota_exceeded"),
        },
        ErrorCode::TooLarge => Refusal::new(429, "workspace_capture_budget_exceeded"),
        _ => SAVE.of(e),
    }
}

/// Why a workspace can't become a container of what is asked for.
pub(super) fn preflight(
    snapshot: &Snapshot,
    size: Option<&'static Size>,
    internet: Option<bool>,
) -> Result<(), Refusal> {
    match snapshot.state {
        SnapshotState::Deleting | SnapshotState::Deleted => return Err(not_found()),
        _ if !snapshot.restorable || is_archived(snapshot) => {
            return Err(Refusal::new(409, "workspace_not_ready"));
        }
        _ => {}
    }
    let own = status::size_of(&snapshot.labels, snapshot.memory_mib);
    let differs = size.is_some_and(|size| size.id != own.id) || internet.is_some_and(|it| it != snapshot.internet);
    if differs { Err(Refusal::new(409, "workspace_policy_conflict")) } else { Ok(()) }
}
