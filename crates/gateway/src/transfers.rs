//! Routes of snapshots as files: one streams out, from any place on, and another is sent in pieces and then made a snapshot
//! of. Each is one call of the platform.

use std::io;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use futures_util::TryStreamExt;
use http::header::{CONTENT_TYPE, ETAG, IF_MATCH};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode};
use remuda_control::{ExportedSnapshot, Platform};
use remuda_types::error::ErrorBody;
use remuda_types::wire::{ImportSnapshot, ImportState, Snapshot};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::{By, Calling, WithKey, told};
use crate::errors::{Answer, Failure, invalid};
use crate::extract::{JsonBody, OfSnapshot, QueryOf, path_parameter};

const ZSTD: HeaderValue = HeaderValue::from_static("application/zstd");

/// A file in the path.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct OfImport {
    /// BLAKE3 digest of the whole file, as 64 lower-case hexadecimal digits.
    digest: String,
}

impl<S: Sync> FromRequestParts<S> for OfImport {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(OfImport { digest: path_parameter(parts, "digest").await? })
    }
}

/// Where to begin.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OffsetQuery {
    /// Bytes from the beginning that the caller or the server has already.
    #[serde(default)]
    #[param(required = false)]
    offset: u64,
}

/// Reads a snapshot as one file: a tar in zstd, with a manifest first and a digest last. The same snapshot gives the same
/// bytes, so that whoever was cut off goes on by `offset`, with the `ETag` of the first answer in `If-Match`.
#[utoipa::path(get, path = "/v1/snapshots/{snapshot}/export", operation_id = "export_snapshot", tag = "snapshots",
    params(OfSnapshot, OffsetQuery, ("If-Match" = Option<String>, Header, description = "The `ETag` of what is gone on with.")), responses(
    (status = 200, description = "The file. One that is not whole breaks off.", body = Vec<u8>, content_type = "application/zstd",
        headers(("ETag" = String, description = "The same as long as the same bytes would come."))),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn export(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSnapshot,
    QueryOf(query): QueryOf<OffsetQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let tag = match headers.get(IF_MATCH) {
        None => None,
        Some(tag) => Some(tag.to_str().map_err(|_| invalid("the If-Match header is not text"))?.trim_matches('"')),
    };
    let ExportedSnapshot { tag, bytes } = platform.export_snapshot(&caller, &of.snapshot, query.offset, tag).await?;
    let mut response = Body::from_stream(bytes).into_response();
    response.headers_mut().insert(CONTENT_TYPE, ZSTD);
    if let Ok(tag) = HeaderValue::try_from(format!("\"{tag}\"")) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

/// Tells how much of a file the server has.
#[utoipa::path(get, path = "/v1/imports/{digest}", operation_id = "show_import", tag = "snapshots", params(OfImport), responses(
    (status = 200, description = "Where the next piece goes.", body = ImportState),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn show(State(platform): State<Platform>, By(caller): By, of: OfImport) -> Answer<Json<ImportState>> {
    Ok(Json(platform.import_state(&caller, &of.digest).await?))
}

/// Adds a piece to a file at its end. What arrives is kept, also of a piece that breaks off: ask how much that is, and go on
/// there. A piece that belongs elsewhere is `input_gap`.
#[utoipa::path(put, path = "/v1/imports/{digest}", operation_id = "write_import", tag = "snapshots", params(OfImport, OffsetQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses(
    (status = 200, description = "It is added.", body = ImportState),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn write(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfImport,
    QueryOf(query): QueryOf<OffsetQuery>,
    body: Body,
) -> Answer<Json<ImportState>> {
    let bytes = Box::pin(body.into_data_stream().map_err(io::Error::other));
    Ok(Json(platform.import_piece(&caller, &of.digest, query.offset, bytes).await?))
}

/// Forgets a file that is on its way in; one that is not here is fine.
#[utoipa::path(delete, path = "/v1/imports/{digest}", operation_id = "remove_import", tag = "snapshots", params(OfImport), responses(
    (status = 204, description = "It is not here."),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn remove(State(platform): State<Platform>, By(caller): By, of: OfImport) -> Answer<StatusCode> {
    platform.forget_import(&caller, &of.digest).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a snapshot of a file that the server has whole. All of it is checked first, and nothing is left of one that is
/// refused. A memory image needs the scope `admin`, and the engine that it was captured with.
#[utoipa::path(post, path = "/v1/imports/{digest}/snapshot", operation_id = "import_snapshot", tag = "snapshots", params(OfImport, WithKey),
    request_body = ImportSnapshot, responses(
    (status = 201, description = "It is active.", body = Snapshot),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn import(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfImport,
    JsonBody(request): JsonBody<ImportSnapshot>,
) -> Answer<Response> {
    Ok(told(StatusCode::CREATED, platform.import_snapshot(&call, &of.digest, request).await))
}
