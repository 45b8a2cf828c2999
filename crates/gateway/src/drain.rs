//! Reads on what nobody wanted of a request's body, so that a refusal reaches its client.
//!
//! A server that answers and closes while the client is still sending makes the client's next write fail, and the
//! answer, which says why, is lost with the connection. So the rest is taken and thrown away, within limits.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;

/// Most bytes of a body that are read on after it was refused. A client that sends more may lose the answer.
const DRAIN_BYTES_MAX: usize = 64 << 20;
/// Longest time that is spent on it.
const DRAIN_WAIT_MAX: Duration = Duration::from_secs(10);

/// Wraps every request's body.
pub(crate) async fn drain_what_is_left(request: Request, next: Next) -> Response {
    next.run(request.map(|body| if body.is_end_stream() { body } else { Body::new(Drained(body)) })).await
}

struct Drained(Body);

impl HttpBody for Drained {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.0.size_hint()
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        let body = std::mem::take(&mut self.0);
        if !body.is_end_stream()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(tokio::time::timeout(DRAIN_WAIT_MAX, drain(body)));
        }
    }
}

async fn drain(mut body: Body) {
    let mut left = DRAIN_BYTES_MAX;
    // An error means that the client is gone; then nobody waits for an answer either.
    while let Some(Ok(frame)) = body.frame().await {
        let taken = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(taken) else { return };
        left = rest;
    }
}
