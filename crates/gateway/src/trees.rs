//! Routes of whole directory trees, as tar archives that stream through in both directions and are never held.

use std::io;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::TryStreamExt;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use remuda_control::{FileAt, Platform};
use remuda_types::error::ErrorBody;
use remuda_types::wire::UnpackedTree;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::{By, Calling, WithKey, told};
use crate::errors::Answer;
use crate::extract::{OfSandbox, QueryOf};
use crate::files::AtPath;

const TAR: HeaderValue = HeaderValue::from_static("application/x-tar");

/// Reads a directory with all that is in it, or a file, as a tar archive in GNU's form. Names are relative to the path;
/// links are packed and not followed, holes of sparse files are left out, and files with several names are packed once.
/// What can't be read, and what is no file, directory or link, is named in a global header `REMUDA.skipped`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/tar", operation_id = "read_tree", tag = "files", params(OfSandbox, AtPath), responses(
    (status = 200, description = "The archive. It is whole if it has its end mark.", body = Vec<u8>, content_type = "application/x-tar"),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn read(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSandbox,
    QueryOf(at): QueryOf<AtPath>,
) -> Answer<Response> {
    let bytes = platform.read_tree(&caller, &of.id, &at.into()).await?;
    let mut response = Body::from_stream(bytes).into_response();
    response.headers_mut().insert(CONTENT_TYPE, TAR);
    Ok(response)
}

/// Where to unpack.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TreeQuery {
    /// Absolute path of a directory in the guest. It is made if it is missing.
    path: String,
    /// Guest user by name, who unpacks and owns what is made; `user` when absent. `root` keeps the archive's owners.
    user: Option<String>,
    /// Whether missing directories above it are made.
    #[serde(default)]
    #[param(required = false)]
    parents: bool,
}

/// Unpacks a tar archive into a directory, each entry in place as it comes: a file replaces a file or link of its name, a
/// directory is added to. Nothing leads out of the directory: an absolute name, `..`, a way through a link, another name of
/// what is outside, a device or a FIFO is `archive_refused`, and so is an archive that breaks off. What came before in it
/// stays; the error names the entry and says how many there were.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files/tar", operation_id = "write_tree", tag = "files", params(OfSandbox, TreeQuery, WithKey),
    request_body(content = Vec<u8>, content_type = "application/x-tar"), responses(
    (status = 200, description = "All of it was unpacked.", body = UnpackedTree),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn write(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    QueryOf(query): QueryOf<TreeQuery>,
    body: Body,
) -> Answer<Response> {
    let TreeQuery { path, user, parents } = query;
    let bytes = Box::pin(body.into_data_stream().map_err(io::Error::other));
    Ok(told(StatusCode::OK, platform.write_tree(&call, &of.id, FileAt { path, user }, parents, bytes).await))
}
