//! Refuses a request whose head is too long, with an error of ours. The connection itself takes somewhat longer ones, so
//! that there is somebody to be told here; what goes beyond that too is answered by it ([`crate::malformed`]).

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue};
use remuda_types::{Error, ErrorCode};

use crate::errors::Failure;
use crate::limits::{HTTP_HEAD_BYTES_MAX, HTTP_HEADERS_MAX};

/// What a header field takes beside its name and value: a colon, a space and a line break.
const FIELD_BYTES: usize = 4;

/// Goes before everything else.
pub(crate) async fn within_limits(request: Request, next: Next) -> Response {
    let line = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let (bytes, fields) = (line + bytes_of(request.headers()), request.headers().len());
    let (what, limit, maximum) = match (bytes, fields) {
        (bytes, _) if bytes > HTTP_HEAD_BYTES_MAX => ("bytes", "http_head_bytes_max", HTTP_HEAD_BYTES_MAX),
        (_, fields) if fields > HTTP_HEADERS_MAX => ("header fields", "http_headers_max", HTTP_HEADERS_MAX),
        _ => return next.run(request).await,
    };
    let error = Error::new(ErrorCode::HeadTooLarge, format!("the head of the request has more than {maximum} {what}"))
        .remedy("send fewer or shorter headers; what is long goes into the body")
        .detail("limit", limit)
        .detail("maximum", maximum as u64);
    let mut response = Failure(error).into_response();
    // Whoever sends such heads sends more of them.
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn bytes_of(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES).sum()
}
