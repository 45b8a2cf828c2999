//! Routes of snapshots, forks and restores. Each is one call of the platform.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use remuda_control::{Platform, SnapshotsWanted};
use remuda_types::error::ErrorBody;
use remuda_types::wire::{
    CreateSnapshot, Fork, ForkSandbox, RestoreSnapshot, Sandbox, Snapshot, SnapshotDiff, SnapshotList, SnapshotRemoval,
    UpdateSnapshot, Verification,
};
use remuda_types::{SandboxId, SnapshotState};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::{By, Calling, WithKey, told};
use crate::errors::{Answer, invalid};
use crate::extract::{JsonBody, OfSandbox, OfSnapshot, QueryOf, wait};

/// Captures a sandbox. The source goes on whatever becomes of the capture. Waits until the snapshot is active, or as long
/// as `wait_ms` says.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/snapshots", operation_id = "create_snapshot", tag = "snapshots", params(OfSandbox, WithKey),
    request_body = CreateSnapshot, responses(
    (status = 201, description = "It is active.", body = Snapshot),
    (status = 202, description = "It is being captured, and the call was to wait no longer.", body = Snapshot),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn capture(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    JsonBody(request): JsonBody<CreateSnapshot>,
) -> Answer<Response> {
    let answered = platform.capture(&call, &of.id, request).await;
    let under_way = |snapshot: &Snapshot| matches!(snapshot.state, SnapshotState::Capturing | SnapshotState::Verifying);
    let status = if answered.result.as_ref().is_ok_and(under_way) { StatusCode::ACCEPTED } else { StatusCode::CREATED };
    Ok(told(status, answered))
}

/// Which snapshots to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SnapshotFilter {
    /// Whether failed and deleted ones are listed too.
    #[serde(default)]
    #[param(required = false)]
    all: bool,
    /// Only those in this state; failed and deleted ones are found by it too.
    state: Option<SnapshotState>,
    /// Only the one with this name.
    name: Option<String>,
    /// Only those captured from this generation, as `slot@generation`.
    source: Option<SandboxId>,
    /// Only those with this label, as `name=value`.
    label: Option<String>,
    /// Only those made at or after this Unix time in milliseconds.
    since_ms: Option<i64>,
    /// Only those made before this Unix time in milliseconds.
    before_ms: Option<i64>,
    /// Where the last page ended: its `next`.
    after: Option<String>,
    /// How many at most; 1,000 when absent. A page may hold fewer, also none, and still have a `next`.
    #[serde(default)]
    #[param(required = false)]
    limit: usize,
}

/// Lists snapshots.
#[utoipa::path(get, path = "/v1/snapshots", operation_id = "list_snapshots", tag = "snapshots", params(SnapshotFilter), responses(
    (status = 200, description = "Oldest first.", body = SnapshotList),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn list(
    State(platform): State<Platform>,
    By(caller): By,
    QueryOf(filter): QueryOf<SnapshotFilter>,
) -> Answer<Json<SnapshotList>> {
    let SnapshotFilter { all, state, name, source, label, since_ms, before_ms, after, limit } = filter;
    let label = label.map(|label| match label.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(invalid(format!("the query's label is {label:?}, not `name=value`"))),
    });
    let label = label.transpose()?;
    let wanted = SnapshotsWanted { include_ended: all, state, name, source, label, since_ms, before_ms, after, limit };
    Ok(Json(platform.snapshots(&caller, wanted).await?))
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// How long to wait for the end of its capture, in milliseconds; at most 3,600,000.
    wait_ms: Option<u64>,
}

/// Shows one snapshot; one that is being captured, after its end or the wait, whichever is first.
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}", operation_id = "show_snapshot", tag = "snapshots", params(OfSnapshot, WaitQuery), responses(
    (status = 200, description = "Where it stands.", body = Snapshot),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn show(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSnapshot,
    QueryOf(query): QueryOf<WaitQuery>,
) -> Answer<Json<Snapshot>> {
    Ok(Json(platform.snapshot(&caller, &of.snapshot, wait(query.wait_ms)?).await?))
}

/// Sets and removes labels of a snapshot. What was captured never changes.
#[utoipa::path(patch, path = "/v1/snapshots/{snapshot}", operation_id = "update_snapshot", tag = "snapshots", params(OfSnapshot, WithKey),
    request_body = UpdateSnapshot, responses(
    (status = 200, description = "It has these labels.", body = Snapshot),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn update(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSnapshot,
    JsonBody(request): JsonBody<UpdateSnapshot>,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.update_snapshot(&call, &of.snapshot, request).await))
}

/// Deletes a snapshot. Sandboxes that stand on it go on.
#[utoipa::path(delete, path = "/v1/snapshots/{snapshot}", operation_id = "remove_snapshot", tag = "snapshots", params(OfSnapshot, WithKey), responses(
    (status = 200, description = "It is deleted.", body = SnapshotRemoval),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn remove(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSnapshot,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.remove_snapshot(&call, &of.snapshot).await))
}

/// Starts one sandbox from a snapshot.
#[utoipa::path(post, path = "/v1/snapshots/{snapshot}/restore", operation_id = "restore_snapshot", tag = "snapshots", params(OfSnapshot, WithKey),
    request_body = RestoreSnapshot, responses(
    (status = 201, description = "It runs.", body = Sandbox),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn restore(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSnapshot,
    JsonBody(request): JsonBody<RestoreSnapshot>,
) -> Answer<Response> {
    Ok(told(StatusCode::CREATED, platform.restore(&call, &of.snapshot, request).await))
}

/// Captures a sandbox once and starts branches from the capture. Each branch has a result of its own.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/forks", operation_id = "fork_sandbox", tag = "snapshots", params(OfSandbox, WithKey),
    request_body = ForkSandbox, responses(
    (status = 201, description = "The capture succeeded; look at each branch.", body = Fork),
    (status = "default", description = "An error; no branch was started.", body = ErrorBody)))]
pub(crate) async fn fork(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    JsonBody(request): JsonBody<ForkSandbox>,
) -> Answer<Response> {
    Ok(told(StatusCode::CREATED, platform.fork(&call, &of.id, request).await))
}

/// Reads every byte of a snapshot and holds it against what was captured, and restores it for a trial, which is removed
/// again. Damage is told in the answer, and is no error.
#[utoipa::path(post, path = "/v1/snapshots/{snapshot}/verify", operation_id = "verify_snapshot", tag = "snapshots", params(OfSnapshot, WithKey), responses(
    (status = 200, description = "What it came to.", body = Verification),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn verify(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSnapshot,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.verify_snapshot(&call, &of.snapshot).await))
}

/// What to compare a snapshot with.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DiffQuery {
    /// Another snapshot, by id or name; what its source was made from when absent.
    from: Option<String>,
    /// Whether changes of text come as unified patches.
    #[serde(default)]
    #[param(required = false)]
    patch: bool,
}

/// Tells which files of a snapshot differ from those of another, or from what its source was made from.
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}/diff", operation_id = "diff_snapshot", tag = "snapshots", params(OfSnapshot, DiffQuery), responses(
    (status = 200, description = "What differs, by path.", body = SnapshotDiff),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn diff(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSnapshot,
    QueryOf(query): QueryOf<DiffQuery>,
) -> Answer<Json<SnapshotDiff>> {
    Ok(Json(platform.diff(&caller, query.from.as_deref(), &of.snapshot, query.patch).await?))
}
