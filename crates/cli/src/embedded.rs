//! A server of this process alone, for `rodeo run` on a machine where none runs: a private data directory that goes
//! with it. Must leave nothing behind, and takes away what killed ones before it left.

use std::fs::{self, File, OpenOptions};
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use remuda_client::Client;
use remuda_engine::{Egress, Parts};
use remuda_types::QuotaLimits;
use remuda_types::limits::{
    KEYS_LIVE_MS_DEFAULT, RECONCILE_EVERY_MS_DEFAULT, SCRUB_EVERY_MS_DEFAULT, TIMEOUT_MS_MAX_DEFAULT,
};
use rustix::fs::FlockOperation;
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::data_dir::DataDir;
use crate::failure::{Failure, NEGATIVE};
use crate::local_server::{AtEnd, LocalServer, Settings};
use crate::parts;

/// What the directories of embedded servers are called.
const PREFIX: &str = "remuda-embedded-";

/// As a server has them that was not told otherwise, but that nothing outlives it.
fn settings() -> Settings {
    Settings {
        quotas: QuotaLimits::default(),
        timeout_max: Duration::from_millis(TIMEOUT_MS_MAX_DEFAULT),
        reconcile_every: Duration::from_millis(RECONCILE_EVERY_MS_DEFAULT),
        scrub_every: Duration::from_millis(SCRUB_EVERY_MS_DEFAULT),
        keys_live: Duration::from_millis(KEYS_LIVE_MS_DEFAULT),
        webhooks_to_private: false,
        webhooks_trust: None,
        preview_domain: remuda_gateway::Domain::default(),
        dialects: remuda_gateway::Dialects::NONE,
        egress: Egress::of_this_machine().map_err(|e| e.to_string()),
        at_end: AtEnd::Remove,
    }
}

/// A running embedded server.
pub struct Embedded {
    server: LocalServer,
    directory: TempDir,
}

impl Embedded {
    /// Starts one.
    pub async fn start(cache_dir: &Path) -> anyhow::Result<Self> {
        Embedded::start_with(cache_dir, None).await
    }

    /// Starts one that is also reached at a URL of this machine, with an access key.
    pub async fn start_with_url(cache_dir: &Path) -> anyhow::Result<(Self, String)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("failed to listen on 127.0.0.1")?;
        let url = format!("http://{}", listener.local_addr().context("failed to listen on 127.0.0.1")?);
        Ok((Embedded::start_with(cache_dir, Some(listener)).await?, url))
    }

    async fn start_with(cache_dir: &Path, tcp: Option<TcpListener>) -> anyhow::Result<Self> {
        let root = directory_root();
        let parts = parts::find(cache_dir, &root).await?;
        let (directory, data_dir) = {
            // Without it, a directory that is just being made would look like one whose owner has died.
            let _turn = turn(cache_dir).await?;
            sweep(&root, &parts).await;
            let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(&root);
            let directory = directory.with_context(|| format!("failed to make a directory in {}", root.display()))?;
            let data_dir = DataDir::claim(directory.path())?;
            (directory, data_dir)
        };
        let server = LocalServer::start(data_dir, parts, settings(), tcp.map(|listener| (listener, None))).await?;
        Ok(Embedded { server, directory })
    }

    /// A client of it.
    pub fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::unix(self.server.socket())?)
    }

    /// Ends it and removes its directory.
    pub async fn end(self) -> anyhow::Result<()> {
        let path = self.directory.path().to_owned();
        if let Err(error) = self.server.end().await {
            // What holds out is looked at there and swept by the next run.
            let _ = self.directory.keep();
            return Err(error.context(format!("the embedded server left something in {}", path.display())));
        }
        self.directory.close().map_err(|e| {
            Failure::new(NEGATIVE, format!("the embedded server's directory {} could not be removed", path.display()))
                .cause(e)
                .remedy("look there for mounts that are left, and report the defect")
                .into()
        })
    }
}

/// On disk, not in memory as /tmp may be: memory images are as large as machines.
pub fn directory_root() -> PathBuf {
    std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty()).map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

/// Waits until no other process makes or sweeps embedded servers' directories.
async fn turn(cache_dir: &Path) -> anyhow::Result<File> {
    let path = cache_dir.join("embedded.lock");
    tokio::task::spawn_blocking(move || {
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("failed to open {}", path.display()))?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e).with_context(|| format!("failed to lock {}", path.display())),
            }
        }
    })
    .await?
}

/// Ends and removes what killed embedded servers left. What can't be removed is told and left.
async fn sweep(root: &Path, parts: &Parts) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Anybody can make a name in such a directory: a link, or somebody else's directory, is not ours to touch.
        if !named || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        let Ok(data_dir) = DataDir::claim(&path) else { continue };
        let swept = async {
            // Opening finds the sandboxes that are left; ending is what every server does with its own.
            let parts = parts.clone();
            LocalServer::start(data_dir, parts, settings(), None).await?.end().await?;
            Ok::<_, anyhow::Error>(fs::remove_dir_all(&path)?)
        };
        if let Err(error) = swept.await {
            tracing::warn!(path = %path.display(), %error, "what a killed embedded server left could not be removed");
        }
    }
}
