//! Connections to applications that stand idle for a moment, so that the next request finds one. Each belongs to one preview,
//! and so to one port of one generation.
//!
//! Only requests that change nothing and carry no body go over one of them, since what is sent on a connection that the
//! other side closes at that moment has to be sent again; everything else goes over a connection of its own, once. None is
//! idle any more when the memory of its sandbox is captured.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use http::Method;
use hyper::client::conn::http1::SendRequest;
use remuda_types::PreviewId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Stream;
use super::headers::upgrade_wanted;
use super::send::{Answer, open};
use crate::limits::{PREVIEW_IDLE_CONNECTION_MS_MAX, PREVIEW_IDLE_CONNECTIONS_MAX};

/// How long one that was used may take to be ready again.
const READY_WAIT_MAX: Duration = Duration::from_millis(50);

/// The connections that stand idle. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pool {
    idle: Arc<Mutex<HashMap<PreviewId, Vec<Idle>>>>,
}

#[derive(Debug)]
struct Idle {
    sender: SendRequest<Body>,
    since: Instant,
    may_idle: CancellationToken,
}

/// A connection under a request. Given back when the answer has been read to its end; else it is closed.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Pool,
    of: PreviewId,
    sender: SendRequest<Body>,
    may_idle: CancellationToken,
}

impl Pool {
    /// Whether a request may go over a connection that stood idle: it changes nothing, and can be sent again whole.
    pub(crate) fn takes(request: &hyper::Request<Body>) -> bool {
        let safe = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
        safe && request.body().is_end_stream() && upgrade_wanted(request.headers()).is_none()
    }

    /// One that stands idle, where there is one.
    pub(crate) async fn take(&self, of: &PreviewId) -> Option<Lease> {
        loop {
            let Idle { mut sender, since, may_idle } = self.locked().get_mut(of)?.pop()?;
            let fresh = since.elapsed() < idle_max() && !may_idle.is_cancelled();
            // The last answer was read to its end, but perhaps the connection does not know yet.
            if fresh && matches!(tokio::time::timeout(READY_WAIT_MAX, sender.ready()).await, Ok(Ok(()))) {
                return Some(Lease { pool: self.clone(), of: of.clone(), sender, may_idle });
            }
        }
    }

    /// A new one, which may stand idle afterwards until `may_idle` is cancelled.
    pub(crate) async fn open(
        &self,
        of: &PreviewId,
        stream: impl Stream,
        may_idle: CancellationToken,
    ) -> hyper::Result<Lease> {
        Ok(Lease { pool: self.clone(), of: of.clone(), sender: open(stream).await?, may_idle })
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<PreviewId, Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what has stood idle for too long, until nothing of this preview does.
    async fn watch(self, of: PreviewId, may_idle: CancellationToken) {
        loop {
            tokio::select! {
                () = may_idle.cancelled() => drop(self.locked().remove(&of)),
                () = tokio::time::sleep(idle_max()) => {}
            }
            let mut idle = self.locked();
            let Some(all) = idle.get_mut(&of) else { return };
            all.retain(|one| one.since.elapsed() < idle_max() && !one.sender.is_closed());
            if all.is_empty() {
                idle.remove(&of);
                return;
            }
        }
    }
}

fn idle_max() -> Duration {
    Duration::from_millis(PREVIEW_IDLE_CONNECTION_MS_MAX)
}

impl Lease {
    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn send(&mut self, request: hyper::Request<Body>) -> hyper::Result<Answer> {
        self.sender.send_request(request).await
    }

    /// The answer was read to its end.
    pub(crate) fn give_back(self) {
        let Lease { pool, of, sender, may_idle } = self;
        if sender.is_closed() || may_idle.is_cancelled() {
            return;
        }
        let one = Idle { sender, since: Instant::now(), may_idle: may_idle.clone() };
        let mut idle = pool.locked();
        match idle.get_mut(&of) {
            Some(all) if all.len() >= PREVIEW_IDLE_CONNECTIONS_MAX => {}
            Some(all) => all.push(one),
            None => {
                idle.insert(of.clone(), vec![one]);
                tokio::spawn(pool.clone().watch(of, may_idle));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::{CONNECTION, UPGRADE};
    use http_body_util::BodyExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    fn id() -> PreviewId {
        PreviewId::from_entropy([7; 20])
    }

    fn request(method: Method) -> hyper::Request<Body> {
        let mut request = hyper::Request::new(Body::empty());
        *request.method_mut() = method;
        request
    }

    async fn hears(application: &mut DuplexStream) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(application.read_u8().await.unwrap());
        }
    }

    /// Sends one request and has it answered; gives the connection.
    async fn used(mut lease: Lease, application: &mut DuplexStream) -> Lease {
        let answering = async {
            hears(application).await;
            application.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        };
        let (answer, ()) = tokio::join!(lease.send(request(Method::GET)), answering);
        assert_eq!(answer.unwrap().into_body().collect().await.unwrap().to_bytes(), "ok");
        lease
    }

    async fn opened(pool: &Pool) -> (Lease, DuplexStream, CancellationToken) {
        let (stream, application) = duplex(4 << 10);
        let may_idle = CancellationToken::new();
        (pool.open(&id(), stream, may_idle.clone()).await.unwrap(), application, may_idle)
    }

    #[test]
    fn only_what_changes_nothing_and_can_be_sent_again_goes_over_one() {
        assert!([Method::GET, Method::HEAD, Method::OPTIONS].map(request).iter().all(Pool::takes));
        assert!(![Method::POST, Method::PUT, Method::DELETE, Method::PATCH].map(request).iter().any(Pool::takes));
        assert!(!Pool::takes(&request(Method::GET).map(|_| Body::from("x"))));
        let mut switching = request(Method::GET);
        switching.headers_mut().insert(CONNECTION, "upgrade".parse().unwrap());
        switching.headers_mut().insert(UPGRADE, "websocket".parse().unwrap());
        assert!(!Pool::takes(&switching));
    }

    #[tokio::test]
    async fn a_connection_serves_the_next_request_of_the_same_preview_alone() {
        let pool = Pool::default();
        let (lease, mut application, _) = opened(&pool).await;
        used(lease, &mut application).await.give_back();
        assert!(pool.take(&PreviewId::from_entropy([8; 20])).await.is_none());
        let again = pool.take(&id()).await.unwrap();
        assert!(pool.take(&id()).await.is_none(), "it is under way");
        used(again, &mut application).await.give_back();
        assert!(pool.take(&id()).await.is_some());
    }

    #[tokio::test]
    async fn one_that_the_application_has_closed_or_that_a_capture_is_to_find_closed_is_not_used_again() {
        let pool = Pool::default();
        let (lease, mut application, _) = opened(&pool).await;
        used(lease, &mut application).await.give_back();
        drop(application);
        // Until the connection has heard of it: before that, a request on it fails and is sent again.
        while !pool.locked()[&id()][0].sender.is_closed() {
            tokio::task::yield_now().await;
        }
        assert!(pool.take(&id()).await.is_none());

        let (lease, mut application, may_idle) = opened(&pool).await;
        used(lease, &mut application).await.give_back();
        may_idle.cancel();
        // It is closed by itself, and not when somebody asks for it.
        assert_eq!(application.read(&mut [0]).await.unwrap(), 0);
        assert!(pool.take(&id()).await.is_none());

        let (lease, mut application, may_idle) = opened(&pool).await;
        let lease = used(lease, &mut application).await;
        may_idle.cancel();
        lease.give_back();
        assert_eq!(application.read(&mut [0]).await.unwrap(), 0, "one that comes back too late neither");
    }

    #[tokio::test]
    async fn one_that_stood_idle_for_long_is_closed() {
        let pool = Pool::default();
        let (lease, mut application, _may_idle) = opened(&pool).await;
        used(lease, &mut application).await.give_back();
        assert_eq!(application.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn no_more_stand_idle_than_may() {
        let pool = Pool::default();
        let mut all = Vec::new();
        for _ in 0..=PREVIEW_IDLE_CONNECTIONS_MAX {
            let (lease, mut application, may_idle) = opened(&pool).await;
            all.push((used(lease, &mut application).await, application, may_idle));
        }
        let mut applications = Vec::new();
        for (lease, application, may_idle) in all {
            lease.give_back();
            applications.push((application, may_idle));
        }
        assert_eq!(pool.locked()[&id()].len(), PREVIEW_IDLE_CONNECTIONS_MAX);
    }
}
