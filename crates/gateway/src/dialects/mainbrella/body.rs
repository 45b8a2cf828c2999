//! Bodies, read within a limit, and JSON objects of which every member is known. Must not know what a member means.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};

use super::answer::Refusal;
use crate::limits::JSON_BODY_READ_MS_MAX;

/// The whole body; `too_large` is the word for one that is longer.
pub(super) async fn bytes(body: Body, limit: usize, too_large: &'static str) -> Result<Bytes, Refusal> {
    let read = Limited::new(body, limit).collect();
    match tokio::time::timeout(Duration::from_millis(JSON_BODY_READ_MS_MAX), read).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => Err(Refusal::new(413, too_large)),
        Ok(Err(_)) | Err(_) => Err(Refusal::new(400, "invalid_request")),
    }
}

/// A JSON object with no members but these; no body at all is an empty one.
pub(super) async fn object(body: Body, limit: usize, members: &[&str]) -> Result<Map<String, Value>, Refusal> {
    let bytes = bytes(body, limit, "request_too_large").await?;
    if bytes.is_empty() {
        return Ok(Map::new());
    }
    let wrong = || Refusal::new(400, "invalid_request");
    let object: Map<String, Value> = serde_json::from_slice(&bytes).map_err(|_| wrong())?;
    if object.keys().all(|name| members.contains(&name.as_str())) { Ok(object) } else { Err(wrong()) }
}

/// A member that is a text, where it is there.
pub(super) fn text(object: &Map<String, Value>, name: &str) -> Result<Option<String>, Refusal> {
    match object.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(Refusal::new(400, "invalid_request")),
    }
}

/// A member that is a whole number between these, where it is there.
pub(super) fn number(object: &Map<String, Value>, name: &str, from: u64, to: u64) -> Result<Option<u64>, Refusal> {
    match object.get(name) {
        None => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) if (from..=to).contains(&number) => Ok(Some(number)),
            _ => Err(Refusal::new(400, "invalid_request")),
        },
    }
}

/// A member that is true or false, where it is there.
pub(super) fn flag(object: &Map<String, Value>, name: &str) -> Result<Option<bool>, Refusal> {
    match object.get(name) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(Refusal::new(400, "invalid_request")),
    }
}
