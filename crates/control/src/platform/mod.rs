//! The one door to the platform: every call of every API ends in one of its methods.
//!
//! What it knows of the living is in memory and answers at once; what must survive it is in the journal.

mod capabilities;
mod executions;
mod files;
mod sandboxes;
mod snapshots;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remuda_engine::{Engine, EngineError, Parts};
use remuda_journal::{Journal, Settings};
use remuda_types::{Account, Error, ErrorCode, SandboxId, SandboxState, SnapshotState};

use crate::operations::remove;
use crate::registry::{Registry, SandboxCell, SnapshotCell};

/// What a platform is opened with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where sandboxes, layers and memory images live; made with mode 0700 when absent.
    pub data_dir: PathBuf,
    /// The engine's parts, by digest.
    pub parts: Parts,
}

/// The platform. Clones share one state.
#[derive(Debug, Clone)]
pub struct Platform {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: Engine,
    journal: Journal,
    registry: Registry,
    closing: AtomicBool,
}

impl Platform {
    /// Opens the platform on a data directory and clears what an earlier server left there: records are kept in memory
    /// so far, so nothing of it could be addressed any more.
    ///
    /// # Errors
    /// When the machine is not ready; message and cause say what to do.
    pub async fn open(config: Config) -> Result<Platform, Error> {
        let failed = |e: EngineError| {
            Error::new(ErrorCode::EngineFailed, format!("failed to open {}", config.data_dir.display()))
                .cause(crate::errors::chain(&e))
                .remedy("run: remuda setup --check")
        };
        // First of all: two servers on one data directory would each end the other's sandboxes.
        let directory = config.data_dir.clone();
        let journal = tokio::task::spawn_blocking(move || Journal::open(&directory, Settings::default())).await;
        let journal = journal.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
        let journal = journal.map_err(|e| crate::errors::journal_open(&e))?;
        let engine = Engine::open(&config.data_dir, config.parts.clone()).map_err(failed)?;
        let left = engine.sweep().await.map_err(failed)?;
        if left > 0 {
            tracing::info!("cleared {left} sandboxes that an earlier server left behind");
        }
        let shared = Shared { engine, journal, registry: Registry::default(), closing: AtomicBool::new(false) };
        Ok(Platform { shared: Arc::new(shared) })
    }

    /// Ends every sandbox and removes everything. New work is refused from the first moment on.
    ///
    /// # Errors
    /// The first thing that could not be removed; the rest was tried all the same.
    pub async fn shut_down(&self) -> Result<(), Error> {
        self.shared.closing.store(true, Ordering::SeqCst);
        let cells = self.registry().tables().sandboxes();
        let living = cells.iter().filter(|c| !c.is_over()).map(|c| remove::end_and_remove(self, c));
        let results = futures_util::future::join_all(living).await;
        // Bytes of snapshots, and whatever a failed removal left.
        let swept = self.engine().sweep().await.and_then(|_| self.engine().close());
        let closed = self.journal().clone().close().await;
        results.into_iter().try_for_each(|r| r.map(drop))?;
        closed.map_err(|e| crate::errors::journal(&e))?;
        swept.map_err(|e| {
            Error::new(ErrorCode::EngineFailed, "not everything could be removed").cause(crate::errors::chain(&e))
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// The durable records.
    pub fn journal(&self) -> &Journal {
        &self.shared.journal
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    /// The sandbox with that id: living, or ended for good and told as such. Of another account it is unknown.
    pub(crate) async fn living(&self, account: &Account, id: &SandboxId) -> Result<Arc<SandboxCell>, Error> {
        self.registry().living(account, id)
    }

    /// Refuses work that would outlive a server that is ending.
    pub(crate) fn admit_work(&self) -> Result<(), Error> {
        if self.shared.closing.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorCode::ShuttingDown, "the server is ending and takes no new work"));
        }
        Ok(())
    }

    /// Removes everything of a sandbox that did not come up, and writes down why.
    pub(crate) async fn tear_down_failed(&self, cell: &Arc<SandboxCell>, error: &Error) {
        if let Err(e) = self.engine().tear_down(&cell.uid).await {
            tracing::error!("failed to clean up after {}: {}", cell.id, crate::errors::chain(&e));
        }
        let cause = error.cause.as_ref().map(|c| format!(": {c}")).unwrap_or_default();
        cell.status.send_modify(|status| {
            status.state = SandboxState::Failed;
            status.reason = Some(format!("it never came up: {}{cause}", error.message));
        });
        remove::end(cell, "it never came up");
    }

    /// Drops a snapshot's memory image, and returns how many bytes that freed. Restores that are reading it go on:
    /// they have it open.
    pub(crate) async fn drop_memory(&self, cell: &SnapshotCell) -> u64 {
        {
            let mut inner = cell.inner();
            inner.memory = None;
            inner.shown.memory_kept = false;
        }
        self.remove_bytes(self.engine().dirs().memory(&cell.id)).await
    }

    /// Removes layers that nothing stands on, and returns how many bytes that freed.
    pub(crate) async fn collect(&self) -> u64 {
        let mut freed = 0;
        let unused: Vec<_> = {
            let tables = self.registry().tables();
            for snapshot in tables.abandoned_by_forks() {
                snapshot.inner().shown.state = SnapshotState::Deleted;
            }
            let used = tables.layers_in_use();
            tables.snapshots().into_iter().filter(|s| !used.contains(&s.id)).map(|s| s.id.clone()).collect()
        };
        for id in unused {
            freed += self.remove_bytes(self.engine().dirs().layer(&id)).await;
        }
        freed
    }

    async fn remove_bytes(&self, path: PathBuf) -> u64 {
        match self.engine().remove_directory(path).await {
            Ok(bytes) => bytes,
            Err(e) => {
                tracing::error!("failed to reclaim space: {}", crate::errors::chain(&e));
                0
            }
        }
    }
}

/// Runs work to its end also when whoever asked for it goes away: half a creation is worth nothing to anyone.
async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let failed = |e| Error::new(ErrorCode::Internal, "the operation ended unexpectedly").cause(e);
    tokio::spawn(work).await.map_err(failed)?
}
