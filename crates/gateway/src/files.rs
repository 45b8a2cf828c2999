//! Routes of a guest's files: their contents, which stream through in both directions and are never held whole.

use std::io;

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::TryStreamExt;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use remuda_control::{FileAt, FileContents, FileRead, Platform, ReadOptions, WriteOptions};
use remuda_types::Error;
use remuda_types::error::ErrorBody;
use remuda_types::wire::FileStat;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::{By, Calling, WithKey, told};
use crate::errors::{Answer, Failure, invalid};
use crate::extract::{OfSandbox, QueryOf};
use crate::file_headers::{WithConditions, WithRange, conditions, etag, range};

const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");
const MODE: HeaderName = HeaderName::from_static("x-remuda-mode");

/// Which path, and who touches it.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AtPath {
    /// Absolute path in the guest.
    path: String,
    /// Guest user by name, whose permissions count; `user` when absent.
    user: Option<String>,
}

impl From<AtPath> for FileAt {
    fn from(AtPath { path, user }: AtPath) -> FileAt {
        FileAt { path, user }
    }
}

/// Reads a file, or a part of one. The `ETag` is the digest of its contents: it is told of a file that is not large
/// (`file_digest_bytes_max`), and of any under a condition.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files", operation_id = "read_file", tag = "files",
    params(OfSandbox, AtPath, WithRange, WithConditions), responses(
    (status = 200, description = "Its bytes.", body = Vec<u8>, content_type = "application/octet-stream",
        headers(("X-Remuda-Mode" = String, description = "Permission bits in octal, as in 0644."),
            ("ETag" = String, description = "`\"sha256:…\"`, the digest of its contents."))),
    (status = 206, description = "The bytes that were asked for.", body = Vec<u8>, content_type = "application/octet-stream",
        headers(("Content-Range" = String, description = "Which bytes of how many."))),
    (status = 416, description = "The file has none of these bytes.", body = ErrorBody,
        headers(("Content-Range" = String, description = "`bytes */` and the size that it has."))),
    (status = 304, description = "The caller has these contents, as `If-None-Match` says."),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn read(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSandbox,
    QueryOf(at): QueryOf<AtPath>,
    headers: HeaderMap,
) -> Answer<Response> {
    let options = ReadOptions { range: range(&headers), conditions: conditions(&headers)? };
    let part = options.range.is_some();
    let FileContents { stat, first, length, bytes } =
        match platform.read_file(&caller, &of.id, &at.into(), options).await {
            Ok(FileRead::Contents(contents)) => contents,
            Ok(FileRead::Unchanged { digest }) => {
                let mut response = StatusCode::NOT_MODIFIED.into_response();
                tag(&mut response, Some(&digest));
                return Ok(response);
            }
            Err(error) => return Ok(refused(error)),
        };
    let mut response = Body::from_stream(bytes).into_response();
    tag(&mut response, stat.digest.as_deref());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // Files of /proc say that they are empty and are not: a length of 0 would cut them off.
    if length > 0 {
        headers.insert(CONTENT_LENGTH, length.into());
    }
    if let Ok(mode) = HeaderValue::try_from(format!("{:04o}", stat.mode)) {
        headers.insert(MODE, mode);
    }
    if part {
        // What a guest says may be anything.
        let last = first.saturating_add(length).saturating_sub(1);
        if let Ok(range) = HeaderValue::try_from(format!("bytes {first}-{last}/{}", stat.size)) {
            headers.insert(CONTENT_RANGE, range);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// An error; of a part that the file has not, with the size that it has, where HTTP looks for it.
fn refused(error: Error) -> Response {
    let size = error.details.get("size").and_then(serde_json::Value::as_u64);
    let mut response = Failure(error).into_response();
    if let Some(Ok(range)) = size.map(|size| HeaderValue::try_from(format!("bytes */{size}"))) {
        response.headers_mut().insert(CONTENT_RANGE, range);
    }
    response
}

fn tag(response: &mut Response, digest: Option<&str>) {
    if let Some(value) = digest.and_then(etag) {
        response.headers_mut().insert(ETAG, value);
    }
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

/// Writes a file; it is replaced as a whole or not at all. `If-Match: "sha256:…"` replaces what has that digest alone, and
/// `If-None-Match: *` makes a new file alone: else it is `precondition_failed`, and nothing is written.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/files", operation_id = "write_file", tag = "files",
    params(OfSandbox, WriteQuery, WithConditions, WithKey),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses(
    (status = 201, description = "It was written.", body = FileStat,
        headers(("ETag" = String, description = "`\"sha256:…\"`, the digest of what was written."))),
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
    let conditions = conditions(&headers)?;
    let options = WriteOptions { mode, user: query.user, parents: query.parents, content_digest, conditions };
    let bytes = Box::pin(body.into_data_stream().map_err(io::Error::other));
    let answered = platform.write_file(&call, &of.id, &query.path, options, bytes).await;
    let digest = answered.result.as_ref().ok().and_then(|stat| stat.digest.clone());
    let mut response = told(StatusCode::CREATED, answered);
    tag(&mut response, digest.as_deref());
    Ok(response)
}

pub(crate) fn octal(text: &str) -> Result<u32, Failure> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o7777);
    mode.ok_or_else(|| Failure(invalid(format!("the query's mode is {text:?}, not permission bits such as 0644"))))
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
