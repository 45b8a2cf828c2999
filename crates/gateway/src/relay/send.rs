//! One request over one connection to an application. Connections are not kept for the next request: one that stands idle
//! while its sandbox is captured would be open in every copy, where nobody is at its other end.

use axum::body::Body;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::Stream;
use crate::limits::{HTTP_HEAD_BYTES_MAX, HTTP_HEADERS_MAX};

/// What a request was answered with.
pub(crate) type Answer = hyper::Response<hyper::body::Incoming>;

/// Sends one request over a connection of its own, which ends with the answer, or goes on as what both switch to.
pub(crate) async fn send_alone(stream: impl Stream, request: hyper::Request<Body>) -> hyper::Result<Answer> {
    let (mut sender, connection) = http1::Builder::new()
        .max_headers(HTTP_HEADERS_MAX)
        .max_header_size(HTTP_HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await?;
    // It ends when the answer has been read or dropped, so nothing needs to wait for it.
    tokio::spawn(connection.with_upgrades());
    sender.send_request(request).await
}
