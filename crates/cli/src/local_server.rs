//! A server in this process: the platform on a data directory, and the gateway in front of it.
//! Must end whole: when `end` returns, no socket or request of it is left, and of an ephemeral one no sandbox either.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use remuda_control::access::AccessSecret;
use remuda_control::{Config, Platform};
use remuda_engine::{Egress, Parts};
use remuda_gateway::{Dialects, Domain, Front, HttpCourier, Tls, serve_tcp, serve_unix};
use remuda_types::QuotaLimits;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::args::milliseconds;
use crate::data_dir::{DataDir, socket_of};
use crate::failure::{Failure, NEGATIVE, NOT_READY};

/// What becomes of sandboxes and snapshots when their server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtEnd {
    /// They go on and stay; the next server on the data directory takes them over.
    Keep,
    /// They are ended and removed.
    Remove,
}

/// What a server is set to.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What an account may use that has no limits of its own.
    pub quotas: QuotaLimits,
    /// How long a sandbox may live at most.
    pub timeout_max: Duration,
    /// How often records, memory and machine are compared.
    pub reconcile_every: Duration,
    /// How often all kept bytes of snapshots are read.
    pub scrub_every: Duration,
    /// How long an operation and its key are kept.
    pub keys_live: Duration,
    /// Whether webhooks deliver to addresses that are not public.
    pub webhooks_to_private: bool,
    /// Further certificate authorities that webhooks trust, as a PEM file.
    pub webhooks_trust: Option<PathBuf>,
    /// Domain that previews are below.
    pub preview_domain: Domain,
    /// Which foreign dialects are spoken on TCP.
    pub dialects: Dialects,
    /// What sandboxes reach of the world, or why they reach nothing.
    pub egress: Result<Egress, String>,
    /// What becomes of sandboxes and snapshots.
    pub at_end: AtEnd,
}

/// A running server.
pub struct LocalServer {
    platform: Platform,
    at_end: AtEnd,
    data_dir: DataDir,
    listeners: JoinSet<()>,
    shutdown: CancellationToken,
}

impl LocalServer {
    /// Starts one on a data directory; on TCP too where a listener is given, with TLS or without. It answers when this returns.
    pub async fn start(
        data_dir: DataDir,
        parts: Parts,
        settings: Settings,
        tcp: Option<(TcpListener, Option<Tls>)>,
    ) -> anyhow::Result<Self> {
        crate::open_files::allow_all();
        let path = data_dir.path().to_owned();
        let Settings {
            quotas,
            timeout_max,
            reconcile_every,
            scrub_every,
            keys_live,
            webhooks_to_private,
            webhooks_trust,
            preview_domain,
            dialects,
            egress,
            at_end,
        } = settings;
        let courier = match &webhooks_trust {
            None => HttpCourier::new(webhooks_to_private),
            Some(file) => HttpCourier::trusting(webhooks_to_private, file).map_err(|cause| {
                let message = format!("the certificate authorities in {} can't be used", file.display());
                Failure::new(NOT_READY, message).cause(cause).remedy("give a PEM file with --webhooks-trust")
            })?,
        };
        let courier = Arc::new(courier);
        let timeout_ms_max = milliseconds(timeout_max);
        let config = Config {
            data_dir: path,
            parts,
            quotas,
            timeout_ms_max,
            reconcile_every,
            scrub_every,
            keys_live,
            courier,
            egress,
        };
        let platform = Platform::open(config).await;
        // Whatever it is that a server can't be opened on: the machine is not ready for it.
        let platform = platform.map_err(|e| Failure::from(&e).exit(NOT_READY))?;
        let socket = socket_of(data_dir.path());
        let unix = match bind(&socket) {
            Ok(listener) => listener,
            Err(e) => {
                // There is nothing that its end could tell beside the error that led here.
                let _ = platform.close().await;
                return Err(e).with_context(|| format!("failed to listen on {}", socket.display()));
            }
        };
        let (mut listeners, shutdown) = (JoinSet::new(), CancellationToken::new());
        let front = Front::below(preview_domain);
        let front = match &tcp {
            Some((listener, tls)) => front.at(listener.local_addr()?, tls.is_some()),
            None => front,
        };
        listeners.spawn(serve_unix(unix, platform.clone(), front.clone(), shutdown.clone()));
        if let Some((listener, tls)) = tcp {
            listeners.spawn(serve_tcp(listener, platform.clone(), front, dialects, tls, shutdown.clone()));
        }
        Ok(LocalServer { platform, at_end, data_dir, listeners, shutdown })
    }

    /// The secret of the first access key, on a server's first start and never again.
    pub async fn first_key(&self) -> anyhow::Result<Option<AccessSecret>> {
        let old = self.data_dir.old_access_key()?;
        let first = self.platform.first_key(old.as_deref()).await.map_err(|error| match old {
            None => anyhow::Error::from(error),
            Some(_) => Failure::new(NEGATIVE, "the access key of an earlier server could not be taken over")
                .cause(error)
                .remedy("remove the file access-key in the data directory, and make a key with: remuda key create")
                .into(),
        })?;
        if old.is_some() {
            self.data_dir.forget_old_access_key()?;
        }
        Ok(first)
    }

    /// Where it listens for local clients.
    pub fn socket(&self) -> PathBuf {
        socket_of(self.data_dir.path())
    }

    /// Ends it, and its sandboxes where they are to end with it. Waiting requests are answered with what there is. It
    /// ends also where something could not be removed; that is the error then.
    pub async fn end(mut self) -> anyhow::Result<()> {
        self.shutdown.cancel();
        let ended = match self.at_end {
            AtEnd::Keep => self.platform.close().await,
            AtEnd::Remove => self.platform.shut_down().await,
        };
        while self.listeners.join_next().await.is_some() {}
        if let Err(error) = fs::remove_file(self.socket()) {
            tracing::warn!(%error, socket = %self.socket().display(), "the socket could not be removed");
        }
        Ok(ended?)
    }
}

/// Listens on the socket. What an earlier server left there is taken away: the directory's lock says that it is dead.
fn bind(socket: &PathBuf) -> io::Result<UnixListener> {
    match fs::remove_file(socket) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    fs::set_permissions(socket, Permissions::from_mode(0o600))?;
    Ok(listener)
}
