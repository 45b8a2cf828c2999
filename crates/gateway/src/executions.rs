//! Routes of executions: start, list, wait, read output, signal, cancel. Each is one call of the platform.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use remuda_control::{OutputQuery, OutputSlice, Platform};
use remuda_types::error::ErrorBody;
use remuda_types::limits::OUTPUT_PAGE_BYTES_MAX;
use remuda_types::wire::{
    Execution, ExecutionList, OutputPage, OutputRecord, OutputStream, SendSignal, StartExecution,
};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::{By, Calling, WithKey, told};
use crate::errors::{Answer, invalid};
use crate::extract::{JsonBody, OfExecution, OfSandbox, QueryOf, wait};

const OCTET_STREAM: &str = "application/octet-stream";
const NEXT_OFFSET: HeaderName = HeaderName::from_static("x-remuda-next-offset");
const SKIPPED_BYTES: HeaderName = HeaderName::from_static("x-remuda-skipped-bytes");
const COMPLETE: HeaderName = HeaderName::from_static("x-remuda-complete");

/// Runs one command. Answers at once, or when it has ended where `wait_ms` is given.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/executions", operation_id = "start_execution", tag = "executions", params(OfSandbox, WithKey),
    request_body = StartExecution, responses(
    (status = 201, description = "It was started.", body = Execution),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn start(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    JsonBody(request): JsonBody<StartExecution>,
) -> Answer<Response> {
    Ok(told(StatusCode::CREATED, platform.execute(&call, &of.id, request).await))
}

/// Lists a sandbox's executions.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/executions", operation_id = "list_executions", tag = "executions", params(OfSandbox), responses(
    (status = 200, description = "Oldest first.", body = ExecutionList),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn list(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSandbox,
) -> Answer<Json<ExecutionList>> {
    Ok(Json(ExecutionList { executions: platform.executions(&caller, &of.id).await? }))
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wait {
    /// How long to wait for its end, in milliseconds; at most 3,600,000.
    wait_ms: Option<u64>,
}

/// Shows one execution, after its end or the wait, whichever is first.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/executions/{execution}", operation_id = "show_execution", tag = "executions",
    params(OfExecution, Wait), responses(
    (status = 200, description = "Where it stands.", body = Execution),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn show(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfExecution,
    QueryOf(query): QueryOf<Wait>,
) -> Answer<Json<Execution>> {
    Ok(Json(platform.execution(&caller, &of.id, &of.execution, wait(query.wait_ms)?).await?))
}

/// What to read of the output.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OutputOptions {
    /// Where to begin, in bytes of the one log of both streams.
    #[serde(default)]
    #[param(required = false)]
    offset: u64,
    /// Begin with what came in at this moment or later, in Unix milliseconds, instead of at an offset.
    since_ms: Option<i64>,
    /// How long to wait for something new, in milliseconds; at most 3,600,000.
    wait_ms: Option<u64>,
    /// Only this stream.
    #[param(inline)]
    stream: Option<OutputStream>,
}

/// Reads output from an offset on: records as JSON, or the bytes alone where `application/octet-stream` is accepted.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/executions/{execution}/output", operation_id = "read_output", tag = "executions",
    params(OfExecution, OutputOptions), responses(
    (status = 200, description = "A page of output.",
        content((OutputPage = "application/json"), (Vec<u8> = "application/octet-stream")),
        headers(
            ("X-Remuda-Next-Offset" = u64, description = "Where to go on; with bytes only."),
            ("X-Remuda-Skipped-Bytes" = u64, description = "Bytes dropped before the first one; with bytes only."),
            ("X-Remuda-Complete" = bool, description = "Whether nothing more will come; with bytes only."))),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn output(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfExecution,
    QueryOf(options): QueryOf<OutputOptions>,
    headers: HeaderMap,
) -> Answer<Response> {
    if options.since_ms.is_some() && options.offset > 0 {
        let error = invalid("offset and since_ms each say where to begin");
        return Err(error
            .remedy("give since_ms for the first page, and the offset where that ends for the next")
            .into());
    }
    let query = OutputQuery {
        offset: options.offset,
        since_ms: options.since_ms,
        stream: options.stream,
        max_bytes: OUTPUT_PAGE_BYTES_MAX,
        wait: wait(options.wait_ms)?,
    };
    let slice = platform.output(&caller, &of.id, &of.execution, query).await?;
    let wants_bytes = headers.get(ACCEPT).and_then(|v| v.to_str().ok()).is_some_and(|v| v.contains(OCTET_STREAM));
    Ok(if wants_bytes { bytes_of(slice) } else { Json(page_of(slice)).into_response() })
}

fn page_of(slice: OutputSlice) -> OutputPage {
    let records = slice.records.into_iter();
    OutputPage {
        records: records
            .map(|(offset, stream, bytes)| OutputRecord {
                offset,
                stream,
                text: String::from_utf8_lossy(&bytes).into_owned(),
            })
            .collect(),
        next_offset: slice.next_offset,
        skipped_bytes: slice.skipped_bytes,
        complete: slice.complete,
        state: slice.state,
        exit_code: slice.exit_code,
    }
}

fn bytes_of(slice: OutputSlice) -> Response {
    let chunks = slice.records.into_iter().map(|(_, _, bytes)| Ok::<Bytes, std::convert::Infallible>(bytes));
    let mut response = Body::from_stream(futures_util::stream::iter(chunks)).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(OCTET_STREAM));
    headers.insert(NEXT_OFFSET, slice.next_offset.into());
    headers.insert(SKIPPED_BYTES, slice.skipped_bytes.into());
    headers.insert(COMPLETE, HeaderValue::from_static(if slice.complete { "true" } else { "false" }));
    response
}

/// Sends a signal to an execution's process group.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/executions/{execution}/signal", operation_id = "signal_execution", tag = "executions",
    params(OfExecution, WithKey), request_body = SendSignal, responses(
    (status = 200, description = "It was sent.", body = Execution),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn signal(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfExecution,
    JsonBody(request): JsonBody<SendSignal>,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.signal(&call, &of.id, &of.execution, request.signal).await))
}

/// Kills an execution's process group; its exit code is 137.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/executions/{execution}", operation_id = "cancel_execution", tag = "executions",
    params(OfExecution, WithKey), responses(
    (status = 200, description = "It has ended.", body = Execution),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn cancel(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfExecution,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.cancel(&call, &of.id, &of.execution).await))
}
