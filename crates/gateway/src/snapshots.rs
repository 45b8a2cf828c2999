//! Routes of snapshots, forks and restores. Each is one call of the platform.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use remuda_control::Platform;
use remuda_types::error::ErrorBody;
use remuda_types::wire::{
    CreateSnapshot, Fork, ForkSandbox, RestoreSnapshot, Sandbox, Snapshot, SnapshotList, SnapshotRemoval,
};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::{By, Calling, WithKey, told};
use crate::errors::Answer;
use crate::extract::{JsonBody, OfSandbox, OfSnapshot, QueryOf};

/// Captures a sandbox. The source goes on whatever becomes of the capture.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/snapshots", operation_id = "create_snapshot", tag = "snapshots", params(OfSandbox, WithKey),
    request_body = CreateSnapshot, responses(
    (status = 201, description = "It is active.", body = Snapshot),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn capture(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    JsonBody(request): JsonBody<CreateSnapshot>,
) -> Answer<Response> {
    Ok(told(StatusCode::CREATED, platform.capture(&call, &of.id, request).await))
}

/// Which snapshots to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct SnapshotFilter {
    /// Whether deleted ones are listed too.
    #[serde(default)]
    #[param(required = false)]
    all: bool,
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
    Ok(Json(SnapshotList { snapshots: platform.snapshots(&caller, filter.all).await? }))
}

/// Shows one snapshot.
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}", operation_id = "show_snapshot", tag = "snapshots", params(OfSnapshot), responses(
    (status = 200, description = "Where it stands.", body = Snapshot),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn show(State(platform): State<Platform>, By(caller): By, of: OfSnapshot) -> Answer<Json<Snapshot>> {
    Ok(Json(platform.snapshot(&caller, &of.snapshot).await?))
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
