//! The one door to the platform: every call of every API ends in one of its methods.
//!
//! What it knows of the living is in memory and answers at once; what must survive it is in the journal.

mod access;
mod capabilities;
mod diff;
mod doctor;
mod executions;
mod files;
mod history;
mod input;
mod operations;
mod previews;
mod sandboxes;
mod sight;
mod snapshots;
mod transfers;
mod webhooks;

pub use executions::OutputFollower;
pub use snapshots::SnapshotsWanted;
pub use transfers::ExportedSnapshot;
pub(crate) use webhooks::may_have_webhooks;

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_engine::{Egress, Engine, EngineError, Parts};
use remuda_journal::{Gate, Journal, Retention, Settings};
use remuda_types::limits::SANDBOXES_MAX;
use remuda_types::wire::Snapshot;
use remuda_types::{Error, ErrorCode, QuotaLimits, SandboxState, SnapshotState};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::{AccessKeys, Accounts};
use crate::deadlines::watch;
use crate::events;
use crate::executions::{ExecutionPlaces, remove_carried};
use crate::hands::Hands;
use crate::operations::{expire, raise, remove, stop};
use crate::previews::Previews;
use crate::reconcile::{self, Reconciler};
use crate::records::snapshot_is;
use crate::recovery;
use crate::registry::{Registry, SandboxCell, SnapshotCell};
use crate::scrubber;
use crate::staging::Staging;
use crate::turns::Turns;
use crate::usage::{self, ended};
use crate::webhooks::{Courier, Webhooks};

/// How long a server that ends waits for operations that are under way.
const UNDER_WAY_WAIT_MAX: Duration = Duration::from_secs(10);

/// What a platform is opened with.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where sandboxes, layers and memory images live; made with mode 0700 when absent.
    pub data_dir: PathBuf,
    /// The engine's parts, by digest.
    pub parts: Parts,
    /// What an account may use that has no limits of its own.
    pub quotas: QuotaLimits,
    /// How long a sandbox may live at most without another call, in milliseconds.
    pub timeout_ms_max: u64,
    /// How often records, memory and machine are compared.
    pub reconcile_every: Duration,
    /// How often all kept bytes of snapshots are read and held against their digests.
    pub scrub_every: Duration,
    /// How long an operation and its key are kept, from its admission.
    pub keys_live: Duration,
    /// Who carries the deliveries of webhooks.
    pub courier: Arc<dyn Courier>,
    /// What sandboxes reach of the world, or why they reach nothing.
    pub egress: Result<Egress, String>,
}

/// What a platform stands on. Trials of the control plane bring their own.
pub struct Ground {
    /// As in [`Config`].
    pub data_dir: PathBuf,
    /// As in [`Config`].
    pub quotas: QuotaLimits,
    /// As in [`Config`].
    pub timeout_ms_max: u64,
    /// As in [`Config`].
    pub reconcile_every: Duration,
    /// As in [`Config`].
    pub scrub_every: Duration,
    /// As in [`Config`].
    pub keys_live: Duration,
    /// As in [`Config`].
    pub courier: Arc<dyn Courier>,
    /// Most sandboxes of all accounts together.
    pub sandboxes_max: usize,
    /// Asked at each commit of the journal.
    pub gate: Option<Arc<dyn Gate>>,
    /// Opens the engine, once the data directory is known to be used by nobody else.
    pub engine: Box<dyn FnOnce() -> Result<Engine, EngineError> + Send>,
}

/// The platform. Clones share one state.
#[derive(Debug, Clone)]
pub struct Platform {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    engine: Engine,
    pub(crate) places: ExecutionPlaces,
    pub(crate) staging: Staging,
    journal: Journal,
    accounts: Accounts,
    access_keys: AccessKeys,
    pub(crate) registry: Registry,
    closing: CancellationToken,
    /// Operations, which run to their end whoever waits for them.
    under_way: TaskTracker,
    turns: Turns,
    hands: Hands,
    reconciler: Reconciler,
    /// Places of snapshots that are gone and could not be removed.
    unreclaimed: Mutex<BTreeSet<PathBuf>>,
    timeout_ms_max: u64,
    webhooks: Webhooks,
    previews: Previews,
}

impl Shared {
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }
}

/// A sandbox that is on record.
#[derive(Debug)]
pub(crate) enum Known {
    /// It has not ended.
    Living(Arc<SandboxCell>),
    /// It has.
    Ended {
        /// When, in Unix milliseconds.
        ended_at_ms: i64,
    },
}

/// A snapshot that is on record.
#[derive(Debug)]
pub(crate) enum KnownSnapshot {
    /// Its bytes, or some of them, are kept.
    Kept(Arc<SnapshotCell>),
    /// They are not.
    Ended(Box<Snapshot>),
}

impl Platform {
    /// Opens the platform on a data directory, and takes up what an earlier server left there.
    ///
    /// # Errors
    /// When the machine is not ready, or another server uses the directory; message and cause say what to do.
    pub async fn open(config: Config) -> Result<Platform, Error> {
        let Config {
            data_dir,
            parts,
            quotas,
            timeout_ms_max,
            reconcile_every,
            scrub_every,
            keys_live,
            courier,
            egress,
        } = config;
        let directory = data_dir.clone();
        let engine = Box::new(move || Engine::open_with(&directory, parts, egress));
        let (sandboxes_max, gate) = (SANDBOXES_MAX, None);
        let ground = Ground {
            data_dir,
            quotas,
            timeout_ms_max,
            reconcile_every,
            scrub_every,
            keys_live,
            courier,
            sandboxes_max,
            gate,
            engine,
        };
        Platform::open_on(ground).await
    }

    /// The same on another ground.
    ///
    /// # Errors
    /// As for [`Platform::open`].
    pub async fn open_on(ground: Ground) -> Result<Platform, Error> {
        let Ground {
            data_dir,
            quotas,
            timeout_ms_max,
            reconcile_every,
            scrub_every,
            keys_live,
            courier,
            sandboxes_max,
            gate,
            engine,
        } = ground;
        // First of all: two servers on one data directory would each end the other's sandboxes.
        let directory = data_dir.clone();
        let key_ms = i64::try_from(keys_live.as_millis()).unwrap_or(i64::MAX);
        let settings = Settings { retention: Retention { key_ms, ..Retention::default() }, ..Settings::default() };
        let opening = move || Journal::open_behind(&directory, settings, gate);
        let journal = tokio::task::spawn_blocking(opening).await;
        let journal = journal.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
        let journal = journal.map_err(|e| crate::errors::journal_open(&e))?;
        let engine = engine().map_err(|e: EngineError| {
            Error::new(ErrorCode::EngineFailed, format!("failed to open {}", data_dir.display()))
                .cause(crate::errors::chain(&e))
                .remedy("run: remuda setup --check")
        })?;
        let accounts = Accounts::open(journal.clone(), quotas).await?;
        let access_keys = AccessKeys::open(journal.clone(), accounts.clone()).await?;
        let places = ExecutionPlaces::below(&data_dir);
        let staging = Staging::below(&data_dir);
        let closing = CancellationToken::new();
        let webhooks = Webhooks::open(journal.clone(), courier, closing.clone()).await?;
        let previews = Previews::open(journal.clone(), &data_dir).await?;
        let shared = Shared {
            engine,
            places,
            staging,
            journal,
            accounts,
            access_keys,
            registry: Registry::of_at_most(sandboxes_max),
            closing,
            under_way: TaskTracker::new(),
            turns: Turns::default(),
            hands: Hands::default(),
            reconciler: Reconciler::new(),
            unreclaimed: Mutex::default(),
            timeout_ms_max,
            webhooks,
            previews,
        };
        let platform = Platform { shared: Arc::new(shared) };
        recovery::recover(&platform).await?;
        tokio::spawn(expire::run(Arc::downgrade(&platform.shared)));
        tokio::spawn(reconcile::run(Arc::downgrade(&platform.shared), reconcile_every));
        tokio::spawn(scrubber::run(Arc::downgrade(&platform.shared), scrub_every));
        watch::start(&platform);
        tokio::spawn(usage::watch::run(Arc::downgrade(&platform.shared)));
        platform.hooks().start();
        Ok(platform)
    }

    /// Ends without touching what runs: sandboxes go on, and the next server on this data directory takes them over.
    /// New work is refused from the first moment on; what is under way is waited for, within a limit, and is settled by
    /// the next server where that does not suffice.
    ///
    /// # Errors
    /// The journal could not be closed in order; the next server finds out what it holds.
    pub async fn close(&self) -> Result<(), Error> {
        self.shared.closing.cancel();
        self.under_way().close();
        if tokio::time::timeout(UNDER_WAY_WAIT_MAX, self.under_way().wait()).await.is_err() {
            tracing::warn!("{} operations are left to the next server", self.under_way().len());
        }
        if let Err(e) = self.engine().leave() {
            tracing::warn!("the machine is not as it was: {}", crate::errors::chain(&e));
        }
        let closed = self.journal().clone().close().await;
        closed.map_err(|e| crate::errors::journal(&e))
    }

    /// Ends every sandbox and removes everything, snapshots too. New work is refused from the first moment on.
    ///
    /// # Errors
    /// The first thing that could not be removed; the rest was tried all the same.
    pub async fn shut_down(&self) -> Result<(), Error> {
        self.shared.closing.cancel();
        let cells = self.registry().tables().sandboxes();
        let living = cells.iter().filter(|c| !c.is_over()).map(|cell| self.end_with_server(cell));
        let results = futures_util::future::join_all(living).await;
        self.under_way().close();
        self.under_way().wait().await;
        // Bytes of snapshots, and whatever a failed removal left.
        let swept = self.engine().sweep().await.and_then(|_| self.engine().close());
        if let Err(e) = self.execution_places().remove_others(&HashSet::new()) {
            tracing::error!("failed to remove what executions left: {e}");
        }
        if let Err(e) = self.staging().remove_all() {
            tracing::error!("failed to remove what was on its way in: {e}");
        }
        let snapshots = self.registry().tables().snapshots();
        let gone = snapshots.iter().flat_map(|s| [snapshot_is(&s.id, SnapshotState::Deleted), ended(&s.id)]);
        let told = self.journal().apply(gone.collect()).await;
        let closed = self.journal().clone().close().await;
        results.into_iter().collect::<Result<(), Error>>()?;
        told.and(closed).map_err(|e| crate::errors::journal(&e))?;
        swept.map_err(|e| {
            Error::new(ErrorCode::EngineFailed, "not everything could be removed").cause(crate::errors::chain(&e))
        })
    }

    async fn end_with_server(&self, cell: &Arc<SandboxCell>) -> Result<(), Error> {
        cell.status.send_modify(|status| {
            status.reason.get_or_insert_with(|| "the server ended".to_owned());
        });
        remove::end_and_remove(self, cell).await?;
        let gone = raise::ended(cell, SandboxState::Gone);
        self.journal().apply(gone).await.map_err(|e| crate::errors::journal(&e))
    }

    pub(crate) fn of(shared: Arc<Shared>) -> Platform {
        Platform { shared }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Cancelled when the server ends.
    pub(crate) fn closing(&self) -> &CancellationToken {
        &self.shared.closing
    }

    /// How long a sandbox may live at most without another call, in milliseconds.
    pub fn timeout_ms_max(&self) -> u64 {
        self.shared.timeout_ms_max
    }

    pub(crate) fn hooks(&self) -> &Webhooks {
        &self.shared.webhooks
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// The durable records.
    pub fn journal(&self) -> &Journal {
        &self.shared.journal
    }

    pub(crate) fn accounts(&self) -> &Accounts {
        &self.shared.accounts
    }

    pub(crate) fn access_keys(&self) -> &AccessKeys {
        &self.shared.access_keys
    }

    /// Where executions and their output are kept.
    pub(crate) fn execution_places(&self) -> &ExecutionPlaces {
        &self.shared.places
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    /// Operations under way, and whatever else must end before the journal is closed.
    pub(crate) fn under_way(&self) -> &TaskTracker {
        &self.shared.under_way
    }

    /// Keys whose calls are being received.
    pub(crate) fn turns(&self) -> &Turns {
        &self.shared.turns
    }

    /// Operations that somebody sees to.
    pub(crate) fn hands(&self) -> &Hands {
        &self.shared.hands
    }

    /// What was found and put right.
    pub(crate) fn reconciler(&self) -> &Reconciler {
        &self.shared.reconciler
    }

    /// Waits until this server begins to end.
    pub(crate) async fn closed(&self) {
        self.shared.closing.cancelled().await;
    }

    /// Waits for something that may take long, and no longer than this server lasts.
    pub(crate) async fn while_open(&self, waiting: impl Future<Output = ()>) {
        tokio::select! {
            () = waiting => {}
            () = self.shared.closing.cancelled() => {}
        }
    }

    /// Refuses work that would outlive a server that is ending.
    pub(crate) fn admit_work(&self) -> Result<(), Error> {
        if self.shared.closing.is_cancelled() {
            return Err(Error::new(ErrorCode::ShuttingDown, "the server is ending and takes no new work"));
        }
        Ok(())
    }

    /// Removes everything of a sandbox that did not come up, and writes down why.
    pub(crate) async fn tear_down_failed(&self, cell: &Arc<SandboxCell>, error: &Error) {
        let cause = error.cause.as_ref().map(|c| format!(": {c}")).unwrap_or_default();
        cell.status.send_modify(|status| {
            status.state = SandboxState::Failed;
            status.reason = Some(format!("it never came up: {}{cause}", error.message));
        });
        // Files that were there before it are kept.
        let keeps = cell.continues.get().is_some();
        let cleared = match keeps {
            true => stop::end_and_keep(self, cell).await,
            false => self.engine().tear_down(&cell.uid).await.map(drop).map_err(|e| crate::errors::engine(&cell.id, e)),
        };
        if let Err(e) = cleared {
            tracing::error!("failed to clean up after {}: {e}", cell.id);
        }
        if !keeps {
            remove::end(cell, "it never came up");
        }
    }

    /// Drops a snapshot's memory image, and returns how many bytes that freed. Restores that are reading it go on:
    /// they have it open.
    pub(crate) async fn drop_memory(&self, cell: &SnapshotCell) -> u64 {
        {
            let doc = &mut cell.inner().doc;
            doc.memory = None;
            doc.carried.clear();
            doc.shown.memory_kept = false;
        }
        // What it carries of executions' output goes along; branches have their own links to it.
        let carried = self.execution_places().snapshot(&cell.id);
        let removing = tokio::task::spawn_blocking(move || remove_carried(&carried));
        if let Ok(Err(e)) = removing.await {
            tracing::error!("failed to remove what snapshot {} carried: {e}", cell.id);
        }
        self.remove_bytes(self.engine().dirs().memory(&cell.id)).await
    }

    /// Removes layers that nothing stands on, and returns how many bytes that freed.
    pub(crate) async fn collect(&self) -> u64 {
        let mut freed = 0;
        let (abandoned, unused) = {
            let tables = self.registry().tables();
            let abandoned = tables.abandoned_by_forks();
            for snapshot in &abandoned {
                snapshot.inner().doc.shown.state = SnapshotState::Deleted;
            }
            let used = tables.layers_in_use();
            let unused = tables.snapshots().into_iter().filter(|s| !used.contains(&s.id));
            (abandoned, unused.map(|s| s.id.clone()).collect::<Vec<_>>())
        };
        // Nobody waits for it: what a crash takes back is found to be abandoned once more.
        let gone = abandoned.iter().flat_map(|s| {
            let event = events::snapshot(&s.account, &s.show());
            s.doc().change().into_iter().chain([ended(&s.id)]).chain(event)
        });
        let gone = gone.collect();
        if !abandoned.is_empty()
            && let Err(e) = self.journal().apply_soon(gone).await.map(drop)
        {
            tracing::error!("the end of a fork's snapshot is not written down: {e}");
        }
        for id in &unused {
            freed += self.remove_bytes(self.engine().dirs().layer(id)).await;
        }
        let failed = std::mem::take(&mut *self.unreclaimed());
        for path in failed {
            freed += self.remove_bytes(path).await;
        }
        freed
    }

    /// What can't be removed is tried again whenever something is collected, and at the next start.
    async fn remove_bytes(&self, path: PathBuf) -> u64 {
        match self.engine().remove_directory(path.clone()).await {
            Ok(bytes) => bytes,
            Err(e) => {
                tracing::error!("failed to reclaim space: {}", crate::errors::chain(&e));
                self.unreclaimed().insert(path);
                0
            }
        }
    }

    fn unreclaimed(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.shared.unreclaimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
