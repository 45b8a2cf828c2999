//! What handlers take from a request: ids, queries, JSON bodies. Every refusal is one of our errors and names the
//! member that is wrong. Must not judge whether the request can be carried out.

use std::error::Error as _;
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Query, RawPathParams, Request};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use remuda_types::limits::{REQUEST_BODY_BYTES_MAX, WAIT_MS_MAX};
use remuda_types::{Error, ErrorCode, ExecutionId, SandboxId};
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use crate::errors::{Failure, invalid};
use crate::limits::JSON_BODY_READ_MS_MAX;

/// A sandbox in the path.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct OfSandbox {
    /// `slot@generation`, percent-encoded or not; a bare slot is refused.
    #[param(example = "c1@2026-10-08T12:00:00.000Z")]
    pub id: SandboxId,
}

/// An execution in the path.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct OfExecution {
    /// `slot@generation`, percent-encoded or not; a bare slot is refused.
    #[param(example = "c1@2026-10-08T12:00:00.000Z")]
    pub id: SandboxId,
    /// The execution's id.
    pub execution: ExecutionId,
}

/// A snapshot in the path.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct OfSnapshot {
    /// The snapshot's id, or the name of an active one.
    pub snapshot: String,
}

impl<S: Sync> FromRequestParts<S> for OfSandbox {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(OfSandbox { id: path_parameter(parts, "id").await?.parse()? })
    }
}

impl<S: Sync> FromRequestParts<S> for OfExecution {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(OfExecution {
            id: path_parameter(parts, "id").await?.parse()?,
            execution: path_parameter(parts, "execution").await?.parse()?,
        })
    }
}

impl<S: Sync> FromRequestParts<S> for OfSnapshot {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(OfSnapshot { snapshot: path_parameter(parts, "snapshot").await? })
    }
}

/// One parameter of the path, decoded.
pub(crate) async fn path_parameter(parts: &mut Parts, name: &str) -> Result<String, Failure> {
    let parameters = RawPathParams::from_request_parts(parts, &()).await.map_err(|e| {
        Failure(Error::new(ErrorCode::InvalidId, "the path holds a name that is not UTF-8").cause(e.body_text()))
    })?;
    let value = parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
    // A route without the parameter is a defect of ours, not of the caller.
    value.ok_or_else(|| Failure(Error::new(ErrorCode::Internal, format!("this route has no parameter {name}"))))
}

/// The query string as `T`, which refuses members it does not know.
pub(crate) struct QueryOf<T>(pub T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for QueryOf<T> {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(value)) => Ok(QueryOf(value)),
            Err(rejection) => {
                let cause = rejection.source().map_or_else(|| rejection.body_text(), ToString::to_string);
                Err(Failure(invalid("the query string is not understood").cause(cause)))
            }
        }
    }
}

/// The body as JSON of type `T`. No body at all counts as `{}`, so that a call without options needs none.
pub(crate) struct JsonBody<T>(pub T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Failure;
    async fn from_request(request: Request, _: &S) -> Result<Self, Failure> {
        let content_type = request.headers().get(CONTENT_TYPE).cloned();
        let body = read_body(request).await?;
        if body.is_empty() {
            return Ok(JsonBody(parse(b"{}")?));
        }
        if let Some(content_type) = content_type {
            let text = content_type.to_str().unwrap_or_default();
            let essence = text.split(';').next().unwrap_or_default().trim();
            if !essence.eq_ignore_ascii_case("application/json") {
                let error = invalid(format!("the body is declared as {essence:?}, which is not understood"));
                return Err(error.remedy("send `Content-Type: application/json`").into());
            }
        }
        Ok(JsonBody(parse(&body)?))
    }
}

/// The whole body, within the limit.
pub(crate) async fn read_body(request: Request) -> Result<Bytes, Error> {
    let read = Limited::new(request.into_body(), REQUEST_BODY_BYTES_MAX).collect();
    match tokio::time::timeout(Duration::from_millis(JSON_BODY_READ_MS_MAX), read).await {
        Err(_) => Err(invalid(format!("the body did not arrive within {JSON_BODY_READ_MS_MAX} ms"))
            .detail("limit", "json_body_read_ms_max")),
        Ok(Err(e)) if e.is::<LengthLimitError>() => {
            Err(Error::new(ErrorCode::TooLarge, format!("the body is larger than {REQUEST_BODY_BYTES_MAX} bytes"))
                .remedy("files are written with PUT …/files, which has no such limit")
                .detail("limit", "request_body_bytes_max")
                .detail("maximum", REQUEST_BODY_BYTES_MAX as u64))
        }
        Ok(Err(e)) => Err(invalid("the body could not be read to its end").cause(e)),
        Ok(Ok(body)) => Ok(body.to_bytes()),
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    // serde would take an array for a struct too, member by member: a second, undocumented spelling.
    if body.trim_ascii_start().first().is_some_and(|first| *first != b'{') {
        return Err(invalid("the body is not a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|e| {
        let member = e.path().to_string();
        let error = match member.as_str() {
            "." => invalid("the body is not understood"),
            member => invalid(format!("the body's member {member} is not understood")),
        };
        let error = error.cause(e.inner());
        if member == "." { error } else { error.detail("member", member) }
    })?;
    json.end().map_err(|e| invalid("the body goes on after its JSON value").cause(e))?;
    Ok(value)
}

/// A wait from the query, within the limit.
pub(crate) fn wait(milliseconds: Option<u64>) -> Result<Duration, Failure> {
    match milliseconds.unwrap_or(0) {
        ms if ms <= WAIT_MS_MAX => Ok(Duration::from_millis(ms)),
        ms => Err(Failure(
            invalid(format!("wait_ms is {ms}, the limit is {WAIT_MS_MAX}"))
                .remedy("wait for less and ask again; the execution goes on meanwhile")
                .detail("limit", "wait_ms_max")
                .detail("maximum", WAIT_MS_MAX),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use remuda_types::wire::{ForkSandbox, StartExecution};

    #[test]
    fn a_wrong_member_is_named() {
        let error = parse::<StartExecution>(br#"{"argv":["a"],"env":{"A":1}}"#).unwrap_err();
        assert_eq!(error.details["member"], "env.A");
        assert!(error.message.contains("env.A"), "{error}");
        let error = parse::<StartExecution>(br#"{"comand":"true"}"#).unwrap_err();
        assert!(error.cause.unwrap().contains("unknown field `comand`"));
        let error = parse::<ForkSandbox>(b"{}").unwrap_err();
        assert!(error.cause.unwrap().contains("missing field `count`"));
        assert!(parse::<StartExecution>(b"{} {}").unwrap_err().message.contains("goes on"));
        for wrong in ["{", "[]", " [\"true\"]", "null", ""] {
            assert!(parse::<StartExecution>(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
