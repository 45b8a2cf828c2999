//! Routes of a guest's files. Contents stream through in both directions and are never held whole.

use std::io;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::TryStreamExt;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use remuda_control::{Platform, WriteOptions};
use remuda_types::error::ErrorBody;
use remuda_types::wire::{FileList, FileStat};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::{By, Calling, WithKey, told};
use crate::errors::{Answer, Failure, invalid};
use crate::extract::{OfSandbox, QueryOf};

const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");
const MODE: HeaderName = HeaderName::from_static("x-remuda-mode");

/// Which path.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AtPath {
    /// Absolute path in the guest.
    path: String,
}

/// Reads a file.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files", operation_id = "read_file", tag = "files", params(OfSandbox, AtPath), responses(
    (status = 200, description = "Its bytes.", body = Vec<u8>, content_type = "application/octet-stream",
        headers(("X-Remuda-Mode" = String, description = "Permission bits in octal, as in 0644."))),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn read(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSandbox,
    QueryOf(at): QueryOf<AtPath>,
) -> Answer<Response> {
    let (stat, bytes) = platform.read_file(&caller, &of.id, &at.path).await?;
    let mut response = Body::from_stream(bytes).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    // Files of /proc say that they are empty and are not: a length of 0 would cut them off.
    if stat.size > 0 {
        headers.insert(CONTENT_LENGTH, stat.size.into());
    }
    if let Ok(mode) = HeaderValue::try_from(format!("{:04o}", stat.mode)) {
        headers.insert(MODE, mode);
    }
    Ok(response)
}

/// How to write a file.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WriteQuery {
    /// Absolute path in the guest.
    path: String,
    /// Permission bits in octal, as in `0644`; those of the file that is replaced when absent.
    mode: Option<String>,
    /// Owner by name; `user` when absent.
    user: Option<String>,
    /// Whether missing directories are made.
    #[serde(default)]
    #[param(required = false)]
    parents: bool,
}

/// Writes a file; it is replaced as a whole or not at all.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files", operation_id = "write_file", tag = "files", params(OfSandbox, WriteQuery, WithKey),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses(
    (status = 201, description = "It was written.", body = FileStat),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn write(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    QueryOf(query): QueryOf<WriteQuery>,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let mode = query.mode.as_deref().map(octal).transpose()?;
    let content_digest =
        headers.get(CONTENT_DIGEST).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let options = WriteOptions { mode, user: query.user, parents: query.parents, content_digest };
    let bytes = Box::pin(body.into_data_stream().map_err(io::Error::other));
    Ok(told(StatusCode::CREATED, platform.write_file(&call, &of.id, &query.path, options, bytes).await))
}

fn octal(text: &str) -> Result<u32, Failure> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o7777);
    mode.ok_or_else(|| Failure(invalid(format!("the query's mode is {text:?}, not permission bits such as 0644"))))
}

/// Lists a directory.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/list", operation_id = "list_files", tag = "files", params(OfSandbox, AtPath), responses(
    (status = 200, description = "Its entries.", body = FileList),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn list(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSandbox,
    QueryOf(at): QueryOf<AtPath>,
) -> Answer<Json<FileList>> {
    Ok(Json(platform.list_files(&caller, &of.id, &at.path).await?))
}

/// Tells what a path is; links are not followed.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/stat", operation_id = "stat_file", tag = "files", params(OfSandbox, AtPath), responses(
    (status = 200, description = "What it is.", body = FileStat),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn stat(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSandbox,
    QueryOf(at): QueryOf<AtPath>,
) -> Answer<Json<FileStat>> {
    Ok(Json(platform.stat_file(&caller, &of.id, &at.path).await?))
}

/// What to remove.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RemoveQuery {
    /// Absolute path in the guest.
    path: String,
    /// Whether a directory is removed with all that is in it.
    #[serde(default)]
    #[param(required = false)]
    recursive: bool,
}

/// Removes a file or directory.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/files", operation_id = "remove_file", tag = "files", params(OfSandbox, RemoveQuery, WithKey), responses(
    (status = 204, description = "It is gone."),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn remove(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    QueryOf(query): QueryOf<RemoveQuery>,
) -> Answer<Response> {
    Ok(told(StatusCode::NO_CONTENT, platform.remove_file(&call, &of.id, &query.path, query.recursive).await))
}

/// Which directory to make.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DirectoryQuery {
    /// Absolute path in the guest.
    path: String,
    /// Whether missing directories above it are made, and one that exists is no error.
    #[serde(default)]
    #[param(required = false)]
    parents: bool,
}

/// Makes a directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/mkdir", tag = "files", params(OfSandbox, DirectoryQuery, WithKey),
    responses(
    (status = 201, description = "It is there.", body = FileStat),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn make_directory(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    QueryOf(query): QueryOf<DirectoryQuery>,
) -> Answer<Response> {
    Ok(told(StatusCode::CREATED, platform.make_directory(&call, &of.id, &query.path, query.parents).await))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!(octal("0644").unwrap(), 0o644);
        assert_eq!(octal("7777").unwrap(), 0o7777);
        for wrong in ["", "+644", "8", "10000", "rw", "0o644"] {
            assert!(octal(wrong).is_err(), "{wrong}");
        }
    }
}
