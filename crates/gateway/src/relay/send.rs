//! Requests over connections to an application.

use axum::body::Body;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::Stream;
use crate::limits::{HTTP_HEAD_BYTES_MAX, HTTP_HEADERS_MAX};

/// What a request was answered with.
pub(crate) type Answer = hyper::Response<hyper::body::Incoming>;

/// Speaks HTTP on a connection, which ends when the sender is dropped and the last answer has been read or dropped, or
/// goes on as what both switch to.
pub(crate) async fn open(stream: impl Stream) -> hyper::Result<SendRequest<Body>> {
    let (sender, connection) = http1::Builder::new()
        .max_headers(HTTP_HEADERS_MAX)
        .max_header_size(HTTP_HEAD_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await?;
    // Nothing needs to wait for its end.
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}

/// Sends one request over a connection of its own.
pub(crate) async fn send_alone(stream: impl Stream, request: hyper::Request<Body>) -> hyper::Result<Answer> {
    open(stream).await?.send_request(request).await
}
