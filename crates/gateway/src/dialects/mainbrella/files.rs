//! `/containers/files`: a file's bytes, out and in.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use remuda_control::{FileAt, FileRead, ReadOptions, WriteOptions};
use remuda_types::wire::FileKind;
use remuda_types::{ErrorCode, limits};
use serde_json::json;

use super::answer::{FILES, Refusal, Told, told};
use super::body;
use super::enter::Asked;

/// Largest file that is read or written, in bytes.
pub(super) const FILE_BYTES_MAX: usize = 64 << 20;
/// Longest path, in bytes.
pub(super) const PATH_BYTES_MAX: usize = limits::PATH_BYTES_MAX;
/// Mode of a file that was not there, as this dialect has it.
const MODE_NEW: u32 = 0o600;

/// A path that may be used: absolute, without empty parts and without `.` and `..`. The root where that is wanted.
pub(super) fn checked(path: &str, root: bool) -> Result<FileAt, Refusal> {
    let named = path
        .strip_prefix('/')
        .is_some_and(|rest| (root && rest.is_empty()) || rest.split('/').all(|part| !matches!(part, "" | "." | "..")));
    if !named || path.len() > PATH_BYTES_MAX || path.contains('\0') {
        return Err(Refusal::new(400, "invalid_file_path"));
    }
    Ok(FileAt { path: path.to_owned(), user: None })
}

fn path_of(asked: &Asked) -> Result<FileAt, Refusal> {
    checked(asked.query.get("path").unwrap_or_default(), false)
}

pub(super) async fn read(asked: Asked) -> Told {
    let (id, at) = (asked.sandbox()?, path_of(&asked)?);
    let read = asked.platform.read_file(&asked.caller, &id, &at, ReadOptions::default()).await;
    let FileRead::Contents(contents) = read.map_err(|e| FILES.of(&e))? else {
        return Err(Refusal::new(503, FILES.unavailable));
    };
    let too_large = || Refusal::new(413, FILES.too_large);
    if contents.stat.size > FILE_BYTES_MAX as u64 {
        return Err(too_large());
    }
    // Whole before the answer begins: a client of this dialect can't tell one that breaks off.
    let (mut bytes, mut stream) = (Vec::new(), contents.bytes);
    while let Some(piece) = stream.next().await {
        bytes.extend_from_slice(&piece.map_err(|_| Refusal::new(503, FILES.unavailable))?);
        if bytes.len() > FILE_BYTES_MAX {
            return Err(too_large());
        }
    }
    Ok(raw(bytes.into(), HeaderValue::from_static("application/octet-stream")))
}

/// An answer of bytes.
pub(super) fn raw(body: Body, content_type: HeaderValue) -> Response {
    let mut response = body.into_response();
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

pub(super) async fn write(asked: Asked, body: Body) -> Told {
    let (id, at, call) = (asked.sandbox()?, path_of(&asked)?, asked.call());
    let bytes = body::bytes(body, FILE_BYTES_MAX, FILES.too_large).await?;
    let size = bytes.len();
    // A new file is its owner's alone; one that is replaced keeps its mode; nothing else is replaced.
    let mode = match asked.platform.stat_file(&asked.caller, &id, &at, false).await {
        Ok(stat) if stat.kind == FileKind::File => None,
        Ok(_) => return Err(Refusal::new(409, "not_regular_file")),
        Err(e) if e.code == ErrorCode::FileNotFound => Some(MODE_NEW),
        Err(e) => return Err(FILES.of(&e)),
    };
    let options = WriteOptions { mode, user: None, parents: false, content_digest: None, ..WriteOptions::default() };
    let stream = Box::pin(futures_util::stream::once(async move { Ok(bytes) }));
    let written = asked.platform.write_file(&call, &id, &at.path, options, stream).await;
    written.result.map_err(|e| FILES.of(&e))?;
    Ok(told(200, &json!({ "path": at.path, "size": size })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_absolute_and_plain() {
        for good in ["/a", "/tmp/a b/☃&", "/.hidden", "/a..b"] {
            assert!(checked(good, false).is_ok(), "{good}");
        }
        let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
        for wrong in ["", "/", "a", "/a/", "//a", "/a/./b", "/a/../b", "/..", "/a\0", &long] {
            assert!(checked(wrong, false).is_err(), "{wrong}");
        }
        assert!(checked("/", true).is_ok() && checked("", true).is_err());
    }
}
