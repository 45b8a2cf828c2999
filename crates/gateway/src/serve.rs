//! Serves the router on a listener: bounded connections, bounded heads, and an end that waits for what runs.
//! Must not know what is served.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::serve::{Listener, ListenerExt};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use remuda_control::Platform;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::auth::Access;
use crate::begun::{Begun, Spoken};
use crate::dialects::Dialects;
use crate::front::Front;
use crate::limits::{
    HTTP_CONNECTIONS_MAX, HTTP_DRAIN_MS_MAX, HTTP_HEAD_BYTES_MAX, HTTP_HEAD_READ_MS_MAX, HTTP_HEADERS_MAX,
    HTTP2_STREAMS_MAX,
};
use crate::malformed::Telling;
use crate::tls::{self, ALPN_HTTP2, Tls};

/// Serves the API on TCP to whoever shows an access key, until `shutdown`; then waits for running requests, within limits.
pub async fn serve_tcp(
    listener: TcpListener,
    platform: Platform,
    front: Front,
    dialects: Dialects,
    tls: Option<Tls>,
    shutdown: CancellationToken,
) {
    // Answers are written in one piece or streamed; waiting to fill a packet only delays them.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
    });
    let peer = |address: &SocketAddr| Some(address.ip());
    serve(listener, crate::router(platform, Access::Keys, front, dialects), peer, tls, shutdown).await;
}

/// Serves the API on a socket that only those can open who may use it, until `shutdown`; then as [`serve_tcp`].
pub async fn serve_unix(listener: UnixListener, platform: Platform, front: Front, shutdown: CancellationToken) {
    serve(listener, crate::router(platform, Access::Local, front, Dialects::NONE), |_| None, None, shutdown).await;
}

/// What a request knows of the connection it came by.
#[derive(Clone)]
pub(crate) struct Connection {
    /// Cancelled when the server ends.
    pub shutdown: CancellationToken,
    /// Who is at the other end, of one that came over a network.
    pub peer: Option<IpAddr>,
    /// Whether it is encrypted.
    pub tls: bool,
    /// Held until the last that uses the connection is done, also when it has become a tunnel.
    _permit: Arc<OwnedSemaphorePermit>,
}

async fn serve<L: Listener>(
    mut listener: L,
    router: Router,
    peer: fn(&L::Addr) -> Option<IpAddr>,
    tls: Option<Tls>,
    shutdown: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(HTTP_CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accept = async {
            // The room first: who is not accepted waits in the kernel's queue, which is bounded too.
            let permit = room.clone().acquire_owned().await.ok()?;
            Some((listener.accept().await, permit))
        };
        let Some(Some(((io, address), permit))) = shutdown.run_until_cancelled(accept).await else { break };
        let connection =
            Connection { shutdown: shutdown.clone(), peer: peer(&address), tls: false, _permit: Arc::new(permit) };
        connections.spawn(serve_connection(io, router.clone(), connection, tls.clone()));
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(Duration::from_millis(HTTP_DRAIN_MS_MAX), drained).await.is_err() {
        tracing::warn!(count = connections.len(), "connections that did not end in time are cut");
    }
}

async fn serve_connection<I>(io: I, router: Router, mut connection: Connection, tls: Option<Tls>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shutdown = connection.shutdown.clone();
    let limit = Duration::from_millis(HTTP_HEAD_READ_MS_MAX);
    let begin = async {
        // By the bytes that a client begins with; who is silent is not waited for.
        let (spoken, io) = Begun::look(io).await?;
        match (spoken, tls) {
            (Spoken::Tls, Some(tls)) => {
                let io = tls.accept(io).await?;
                let http2 = io.get_ref().1.alpn_protocol() == Some(ALPN_HTTP2);
                let spoken = if http2 { Spoken::Http2 } else { Spoken::Http1 };
                Ok((spoken, Either::Left(io), Way::Tls))
            }
            (Spoken::Tls, None) => Err(io::Error::other("it speaks TLS, and this server does not")),
            (spoken, Some(_)) => Ok((spoken, Either::Right(io), Way::Elsewhere)),
            (spoken, None) => Ok((spoken, Either::Right(io), Way::Plain)),
        }
    };
    let begun = tokio::select! {
        begun = tokio::time::timeout(limit, begin) => begun,
        () = shutdown.cancelled() => return,
    };
    let (spoken, io, way) = match begun {
        Ok(Ok(begun)) => begun,
        Ok(Err(error)) => return tracing::debug!(%error, "a connection did not begin"),
        Err(_) => return,
    };
    connection.tls = way == Way::Tls;
    let router = if way == Way::Elsewhere { tls::leads_to_tls() } else { router };
    let served = Arc::new(AtomicBool::new(false));
    let (io, serving) = (Telling::new(io, served.clone()), served);
    let service = router.map_request(move |mut request: hyper::Request<Incoming>| {
        serving.store(true, Ordering::Relaxed);
        request.extensions_mut().insert(connection.clone());
        request.map(axum::body::Body::new)
    });
    let service = TowerToHyperService::new(service);
    let result = match spoken {
        Spoken::Http2 => {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(HTTP2_STREAMS_MAX)
                .max_header_list_size(2 * HTTP_HEAD_BYTES_MAX as u32)
                .keep_alive_interval(Some(limit))
                .keep_alive_timeout(limit);
            until_shutdown(builder.serve_connection(TokioIo::new(io), service), &shutdown, |serving| {
                serving.graceful_shutdown();
            })
            .await
        }
        Spoken::Http1 | Spoken::Tls => {
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(limit)
                // Twice of what is taken: whoever sends a little too much is told so by an error.
                .max_headers(2 * HTTP_HEADERS_MAX)
                .max_header_size(2 * HTTP_HEAD_BYTES_MAX);
            let serving = builder.serve_connection(TokioIo::new(io), service).with_upgrades();
            until_shutdown(serving, &shutdown, |serving| serving.graceful_shutdown()).await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

/// How a connection came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    Tls,
    /// Plainly, where TLS is spoken.
    Elsewhere,
}

/// Serves a connection to its end; once the server ends, no further request of it.
async fn until_shutdown<S: Future<Output = hyper::Result<()>>>(
    serving: S,
    shutdown: &CancellationToken,
    end: impl FnOnce(Pin<&mut S>),
) -> hyper::Result<()> {
    let mut serving = pin!(serving);
    tokio::select! {
        result = serving.as_mut() => result,
        () = shutdown.cancelled() => {
            end(serving.as_mut());
            serving.await
        }
    }
}
