//! Routes of what goes into an execution that runs: its standard input in pieces, and the size of its terminal. Each is
//! one call of the platform.

use axum::Json;
use axum::extract::{Request, State};
use http::HeaderMap;
use remuda_control::{ExecutionInput, Platform};
use remuda_types::error::ErrorBody;
use remuda_types::limits::INPUT_WAIT_MS_DEFAULT;
use remuda_types::wire::{Execution, InputTaken, TerminalSize};
use remuda_types::{Error, ErrorCode};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::{By, IDEMPOTENCY_KEY};
use crate::errors::Answer;
use crate::extract::{JsonBody, OfExecution, QueryOf, read_body, wait};

/// Which piece it is.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Piece {
    /// Where the first byte stands among all bytes of this writer.
    offset: u64,
    /// Who writes: a name of the caller's choice, at most 64 visible characters. Each writer counts its own bytes, so
    /// that two of them don't take each other's for repeated ones.
    #[serde(default)]
    #[param(required = false)]
    writer: String,
    /// Whether the input is closed behind these bytes. A terminal gets the character that stands for it, Ctrl-D.
    #[serde(default)]
    #[param(required = false)]
    close: bool,
    /// How long to wait for room where the program does not read, in milliseconds; 10,000 when absent.
    wait_ms: Option<u64>,
}

/// Gives an execution a piece of standard input, which is the body as it is. It takes no key: a piece is known by its
/// place, and what the guest has already is not taken again. Send a piece whose answer was lost again as it was.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/executions/{execution}/stdin", operation_id = "write_input", tag = "executions",
    params(OfExecution, Piece), request_body(content = Vec<u8>, content_type = "application/octet-stream"), responses(
    (status = 200, description = "How much of it was taken.", body = InputTaken),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn write_input(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfExecution,
    QueryOf(piece): QueryOf<Piece>,
    request: Request,
) -> Answer<Json<InputTaken>> {
    without_key(request.headers())?;
    let bytes = read_body(request).await?;
    let wait = wait(piece.wait_ms.or(Some(INPUT_WAIT_MS_DEFAULT)))?;
    let Piece { offset, writer, close, .. } = piece;
    let input = ExecutionInput { writer, offset, bytes, close, wait };
    Ok(Json(platform.write_input(&caller, &of.id, &of.execution, input).await?))
}

/// Gives an execution's terminal another size, of which its programs are told. It takes no key: to give the same size
/// twice is to give it once.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/executions/{execution}/resize", operation_id = "resize_terminal", tag = "executions",
    params(OfExecution), request_body = TerminalSize, responses(
    (status = 200, description = "It has that size.", body = Execution),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn resize(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfExecution,
    headers: HeaderMap,
    JsonBody(size): JsonBody<TerminalSize>,
) -> Answer<Json<Execution>> {
    without_key(&headers)?;
    Ok(Json(platform.resize(&caller, &of.id, &of.execution, size).await?))
}

/// A key is never ignored.
fn without_key(headers: &HeaderMap) -> Result<(), Error> {
    if headers.contains_key(IDEMPOTENCY_KEY) {
        return Err(Error::new(ErrorCode::IdempotencyKeyUnsupported, "this call takes no idempotency key")
            .remedy("leave it out: the call can be repeated as it is"));
    }
    Ok(())
}
