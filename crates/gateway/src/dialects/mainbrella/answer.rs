//! How an outcome is said in this dialect: JSON, and an error as one word with its status. Which word a group of routes has
//! for what may happen to all of them is in its [`Words`].

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::WWW_AUTHENTICATE;
use remuda_types::{Error, ErrorCode};
use serde_json::{Value, json};

/// A refusal in this dialect's words.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    word: &'static str,
    /// What stands beside the word.
    more: Option<(&'static str, Value)>,
}

/// What a call comes to.
pub(super) type Told = Result<Response, Refusal>;

impl Refusal {
    pub(super) fn new(status: u16, word: &'static str) -> Refusal {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Refusal { status, word, more: None }
    }

    pub(super) fn with(self, name: &'static str, value: Value) -> Refusal {
        Refusal { more: Some((name, value)), ..self }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut body = json!({ "error": self.word });
        if let Some((name, value)) = self.more {
            body[name] = value;
        }
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// What a group of routes calls that which can happen to each of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    /// The request is malformed.
    pub(super) invalid: &'static str,
    /// Something is larger than it may be.
    pub(super) too_large: &'static str,
    /// No more of it at once.
    pub(super) limit: &'static str,
    /// The server can't, now.
    pub(super) unavailable: &'static str,
}

/// Commands.
pub(super) const EXECUTION: Words = Words {
    invalid: "invalid_request",
    too_large: "request_too_large",
    limit: "execution_limit",
    unavailable: "execution_unavailable",
};
/// Files and paths.
pub(super) const FILES: Words = Words {
    invalid: "invalid_request",
    too_large: "file_too_large",
    limit: "execution_limit",
    unavailable: "files_unavailable",
};
/// Containers themselves.
pub(super) const CONTAINERS: Words = Words {
    invalid: "invalid_request",
    too_large: "request_too_large",
    limit: "container_limit_exceeded",
    unavailable: "containers_unavailable",
};

impl Words {
    /// An error of the platform in these words. What the platform said goes to the log, where it is the operator's.
    pub(super) fn of(&self, error: &Error) -> Refusal {
        use ErrorCode as Code;
        let (status, word) = match error.code {
            Code::Unauthorized => (401, "unauthorized"),
            Code::Forbidden => (403, "forbidden"),
            Code::SandboxNotFound | Code::GenerationGone | Code::WrongState => (409, "container_not_running"),
            Code::IdempotencyKeyConflict => (409, "idempotency_key_conflict"),
            Code::ExecutionNotFound => (404, "execution_not_found"),
            Code::ExecutionNotRunning => (409, "execution_not_running"),
            Code::ExecutionHistoryLimit => (429, "execution_history_limit"),
            Code::FileNotFound => (404, "file_not_found"),
            Code::PermissionDenied => (403, "file_access_denied"),
            Code::NotARegularFile => (409, "not_regular_file"),
            Code::NotADirectory => (409, "not_directory"),
            Code::FileExists | Code::PreconditionFailed => (409, "file_exists"),
            Code::LimitReached => (429, self.limit),
            Code::TooLarge => (413, self.too_large),
            Code::InvalidRequest | Code::InvalidId | Code::BareSlot | Code::SpawnFailed => (400, self.invalid),
            _ => (503, self.unavailable),
        };
        tracing::debug!(code = %error.code, message = error.message, cause = error.cause, word, "request refused");
        Refusal::new(status, word)
    }
}

/// An answer with a body.
pub(super) fn told(status: u16, body: &Value) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    (status, Json(body)).into_response()
}
