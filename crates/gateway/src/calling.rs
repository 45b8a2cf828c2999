//! Who calls, as [`crate::auth`] found out, and under which idempotency key; and how the outcome of a keyed call is told.
//! Must not find out by itself who calls, and never takes a caller from a request's text.

use axum::Json;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use remuda_control::{Answered, Call, Caller};
use remuda_types::{Error, ErrorCode, Key};
use serde::Serialize;
use utoipa::IntoParams;

use crate::errors::{Failure, invalid};

/// The key under which a call has one outcome.
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Set on the outcome of an earlier call with the same key.
pub(crate) const IDEMPOTENT_REPLAY: HeaderName = HeaderName::from_static("idempotent-replay");

/// Whoever was let in.
pub(crate) struct By(pub Caller);

impl<S: Sync> FromRequestParts<S> for By {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        // A route that lets in without asking who, and then wants to know, is a defect of ours: nothing is done.
        let caller = parts.extensions.get::<Caller>().cloned();
        let unknown = || Failure(Error::new(ErrorCode::Internal, "the server does not know who calls"));
        caller.map(By).ok_or_else(unknown)
    }
}

/// The header that carries a key.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it only describes what [`Calling`] reads")]
pub(crate) struct WithKey {
    /// A key of the caller's choice, 1 to 255 of `A-Z a-z 0-9 _ -`: however often the call is sent with it, it has one
    /// outcome. A repeated answer has the header `Idempotent-Replay: true`.
    #[param(rename = "Idempotency-Key")]
    idempotency_key: Option<String>,
}

/// Whoever was let in, with the key of their call if it has one.
pub(crate) struct Calling(pub Call);

impl<S: Sync> FromRequestParts<S> for Calling {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let By(caller) = By::from_request_parts(parts, state).await?;
        let mut values = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
        let key = match (values.next(), values.next()) {
            (None, _) => None,
            (Some(value), None) => Some(key(value)?),
            (Some(_), Some(_)) => return Err(Failure(invalid("there is more than one Idempotency-Key header"))),
        };
        Ok(Calling(Call { caller, key }))
    }
}

fn key(value: &HeaderValue) -> Result<Key, Failure> {
    let wrong = |cause: String| Failure(invalid("the Idempotency-Key header holds no key").cause(cause));
    let text = value.to_str().map_err(|_| wrong("it holds characters outside of ASCII".into()))?;
    text.parse().map_err(|e: remuda_types::NameError| wrong(e.to_string()))
}

/// Tells what came of a call, and whether it came of an earlier one with the same key.
pub(crate) fn told<T: Serialize>(status: StatusCode, answered: Answered<T>) -> Response {
    let Answered { result, replayed } = answered;
    let response = match result {
        Ok(_) if status == StatusCode::NO_CONTENT => status.into_response(),
        Ok(value) => (status, Json(value)).into_response(),
        Err(error) => Failure(error).into_response(),
    };
    replay(response, replayed)
}

fn replay(mut response: Response, replayed: bool) -> Response {
    if replayed {
        response.headers_mut().insert(IDEMPOTENT_REPLAY, HeaderValue::from_static("true"));
    }
    response
}
