//! Serves the router on a listener: bounded connections, bounded heads, and an end that waits for what runs.
//! Must not know what is served.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::{Listener, ListenerExt};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use remuda_control::Platform;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::auth::Access;
use crate::limits::{
    HTTP_CONNECTIONS_MAX, HTTP_DRAIN_MS_MAX, HTTP_HEAD_BYTES_MAX, HTTP_HEAD_READ_MS_MAX, HTTP_HEADERS_MAX,
};

/// Serves the API on TCP to whoever shows an access key, until `shutdown`; then waits for running requests, within limits.
pub async fn serve_tcp(listener: TcpListener, platform: Platform, shutdown: CancellationToken) {
    // Answers are written in one piece or streamed; waiting to fill a packet only delays them.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
    });
    serve(listener, crate::router(platform, Access::Keys), shutdown).await;
}

/// Serves the API on a socket that only those can open who may use it, until `shutdown`; then as [`serve_tcp`].
pub async fn serve_unix(listener: UnixListener, platform: Platform, shutdown: CancellationToken) {
    serve(listener, crate::router(platform, Access::Local), shutdown).await;
}

/// What a request knows of the connection it came by.
#[derive(Clone)]
pub(crate) struct Connection {
    /// Cancelled when the server ends.
    pub shutdown: CancellationToken,
    /// Held until the last that uses the connection is done, also when it has become a tunnel.
    _permit: Arc<OwnedSemaphorePermit>,
}

async fn serve<L: Listener>(mut listener: L, router: Router, shutdown: CancellationToken) {
    let room = Arc::new(Semaphore::new(HTTP_CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accept = async {
            // The room first: who is not accepted waits in the kernel's queue, which is bounded too.
            let permit = room.clone().acquire_owned().await.ok()?;
            Some((listener.accept().await.0, permit))
        };
        let Some(Some((io, permit))) = shutdown.run_until_cancelled(accept).await else { break };
        let connection = Connection { shutdown: shutdown.clone(), _permit: Arc::new(permit) };
        connections.spawn(serve_connection(io, router.clone(), connection));
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(Duration::from_millis(HTTP_DRAIN_MS_MAX), drained).await.is_err() {
        tracing::warn!(count = connections.len(), "connections that did not end in time are cut");
    }
}

async fn serve_connection<I>(io: I, router: Router, connection: Connection)
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let shutdown = connection.shutdown.clone();
    let service = router.map_request(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(connection.clone());
        request.map(axum::body::Body::new)
    });
    let mut serving = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(Duration::from_millis(HTTP_HEAD_READ_MS_MAX))
            // Twice of what is taken: whoever sends a little too much is told so by an error.
            .max_headers(2 * HTTP_HEADERS_MAX)
            .max_header_size(2 * HTTP_HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(io), TowerToHyperService::new(service))
            .with_upgrades()
    );
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = shutdown.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended with an error");
    }
}
