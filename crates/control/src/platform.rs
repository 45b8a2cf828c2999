//! The one door to the platform: every call of every API ends in one of these methods.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use remuda_engine::{Engine, EngineError, Parts};
use remuda_types::limits;
use remuda_types::wire::*;
use remuda_types::{Error, ErrorCode, ExecutionId, SandboxId, SandboxState, SnapshotState};

use crate::operations::{capture, create, execute, files, fork, remove, restore};
use crate::registry::{Registry, SandboxCell, SnapshotCell};
use crate::stream::{ByteStream, OutputQuery, OutputSlice, WriteOptions};

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
        let engine = Engine::open(&config.data_dir, config.parts.clone()).map_err(failed)?;
        let left = engine.sweep().await.map_err(failed)?;
        if left > 0 {
            tracing::info!("cleared {left} sandboxes that an earlier server left behind");
        }
        let shared = Shared { engine, registry: Registry::default(), closing: AtomicBool::new(false) };
        Ok(Platform { shared: Arc::new(shared) })
    }

    /// Ends every sandbox and removes everything. New work is refused from the first moment on.
    ///
    /// # Errors
    /// The first thing that could not be removed; the rest was tried all the same.
    pub async fn shut_down(&self) -> Result<(), Error> {
        self.shared.closing.store(true, Ordering::SeqCst);
        let cells = self.registry().tables().sandboxes();
        let living = cells.iter().filter(|c| !c.is_over()).map(|c| self.remove(&c.id));
        let results = futures_util::future::join_all(living).await;
        // Bytes of snapshots, and whatever a failed removal left.
        let swept = self.engine().sweep().await.and_then(|_| self.engine().close());
        results.into_iter().try_for_each(|r| r.map(drop))?;
        swept.map_err(|e| {
            Error::new(ErrorCode::EngineFailed, "not everything could be removed").cause(crate::errors::chain(&e))
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.shared.registry
    }

    /// Refuses work that would outlive a server that is ending.
    pub(crate) fn admit_work(&self) -> Result<(), Error> {
        if self.shared.closing.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorCode::ShuttingDown, "the server is ending and takes no new work"));
        }
        Ok(())
    }

    /// What can be done here, and every limit.
    pub fn capabilities(&self) -> Capabilities {
        let parts = self.engine().parts();
        let features = [
            ("memory_snapshots", true),
            ("filesystem_snapshots", true),
            ("forks", true),
            ("launch_recipes", true),
            ("port_route", true),
            ("idempotency_keys", false),
            ("previews", false),
            ("internet", false),
        ];
        let limits = [
            ("command_bytes_max", limits::COMMAND_BYTES_MAX as u64),
            ("directory_entries_max", limits::DIRECTORY_ENTRIES_MAX as u64),
            ("env_vars_max", limits::ENV_VARS_MAX as u64),
            ("execution_timeout_ms_max", limits::EXECUTION_TIMEOUT_MS_MAX),
            ("executions_concurrent_max", limits::EXECUTIONS_CONCURRENT_MAX as u64),
            ("executions_retained_max", limits::EXECUTIONS_RETAINED_MAX as u64),
            ("fork_count_max", u64::from(limits::FORK_COUNT_MAX)),
            ("freeze_copy_bytes_max", limits::FREEZE_COPY_BYTES_MAX),
            ("freeze_file_bytes_max", limits::FREEZE_FILE_BYTES_MAX),
            ("disk_low_water_bytes", limits::DISK_LOW_WATER_BYTES),
            ("labels_max", limits::LABELS_MAX as u64),
            ("memory_mib_default", u64::from(limits::MEMORY_MIB_DEFAULT)),
            ("memory_mib_max", u64::from(limits::MEMORY_MIB_MAX)),
            ("output_head_bytes", limits::OUTPUT_HEAD_BYTES as u64),
            ("output_sandbox_bytes_max", crate::executions::OUTPUT_SANDBOX_BYTES_MAX as u64),
            ("output_tail_bytes", limits::OUTPUT_TAIL_BYTES as u64),
            ("output_page_bytes_max", limits::OUTPUT_PAGE_BYTES_MAX as u64),
            ("processes_default", u64::from(limits::PROCESSES_DEFAULT)),
            ("request_body_bytes_max", limits::REQUEST_BODY_BYTES_MAX as u64),
            ("sandboxes_max", limits::SANDBOXES_MAX as u64),
            ("wait_ms_max", limits::WAIT_MS_MAX),
        ];
        Capabilities {
            version: env!("CARGO_PKG_VERSION").into(),
            engine: EngineInfo {
                name: "gvisor".into(),
                version: parts.runsc_version.clone(),
                digest: parts.fingerprint.runsc.clone(),
                platform: "systrap".into(),
            },
            features: features.map(|(name, on)| (name.to_owned(), on)).into(),
            limits: limits.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<BTreeMap<_, _>>(),
        }
    }

    /// Makes a sandbox from the base image; it runs when this returns.
    ///
    /// # Errors
    /// `invalid_request`, `slot_in_use`, `limit_reached`, `engine_failed`, `disk_full`, `shutting_down`.
    pub async fn create(&self, request: CreateSandbox) -> Result<Sandbox, Error> {
        let this = self.clone();
        detached(async move { create::create(&this, request).await }).await
    }

    /// Sandboxes, by creation; ended ones too where asked for.
    pub fn list(&self, include_ended: bool) -> Vec<Sandbox> {
        let cells = self.registry().tables().sandboxes();
        cells.iter().filter(|c| include_ended || !c.is_over()).map(|c| c.show()).collect()
    }

    /// A living sandbox.
    ///
    /// # Errors
    /// `sandbox_not_found`, or `generation_gone` with what is known of its end.
    pub fn show(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        self.registry().living(id).map(|cell| cell.show())
    }

    /// Ends and removes a sandbox. Repeating it is fine and says so.
    ///
    /// # Errors
    /// `sandbox_not_found`, `engine_failed`.
    pub async fn remove(&self, id: &SandboxId) -> Result<Removal, Error> {
        let (this, id) = (self.clone(), id.clone());
        detached(async move { remove::remove(&this, &id).await }).await
    }

    /// Halts every process of a sandbox; they keep their memory.
    ///
    /// # Errors
    /// `sandbox_not_found`, `generation_gone`, `wrong_state`, `snapshot_in_progress`.
    pub async fn pause(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        let cell = self.registry().living(id)?;
        cell.driver()?.pause().await?;
        Ok(cell.show())
    }

    /// Lets a paused sandbox go on.
    ///
    /// # Errors
    /// As for [`Platform::pause`].
    pub async fn resume(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        let cell = self.registry().living(id)?;
        cell.driver()?.resume().await?;
        Ok(cell.show())
    }

    /// Runs a command; waits for its end as long as the request says.
    ///
    /// # Errors
    /// `spawn_failed` if nothing ran; `unreachable` with the execution's id if it is not known whether it ran.
    pub async fn execute(&self, id: &SandboxId, request: StartExecution) -> Result<Execution, Error> {
        execute::execute(self, id, request).await
    }

    /// All executions of a sandbox on record.
    ///
    /// # Errors
    /// `sandbox_not_found`, `generation_gone`.
    pub fn executions(&self, id: &SandboxId) -> Result<Vec<Execution>, Error> {
        Ok(self.registry().living(id)?.executions.list())
    }

    /// One execution, after waiting for its end for at most `wait`.
    ///
    /// # Errors
    /// As for [`Platform::executions`], and `execution_not_found`.
    pub async fn execution(&self, id: &SandboxId, execution: &ExecutionId, wait: Duration) -> Result<Execution, Error> {
        let execution = self.registry().living(id)?.executions.get(execution, id)?;
        execution.ended_within(wait.min(Duration::from_millis(limits::WAIT_MS_MAX))).await;
        Ok(execution.show())
    }

    /// A piece of an execution's output.
    ///
    /// # Errors
    /// As for [`Platform::execution`].
    pub async fn output(
        &self,
        id: &SandboxId,
        execution: &ExecutionId,
        query: OutputQuery,
    ) -> Result<OutputSlice, Error> {
        let execution = self.registry().living(id)?.executions.get(execution, id)?;
        let query = OutputQuery {
            max_bytes: query.max_bytes.clamp(1, limits::OUTPUT_PAGE_BYTES_MAX),
            wait: query.wait.min(Duration::from_millis(limits::WAIT_MS_MAX)),
            ..query
        };
        Ok(execution.read(query).await)
    }

    /// Sends a signal to an execution's process group.
    ///
    /// # Errors
    /// As for [`Platform::execution`], and `execution_not_running`.
    pub async fn signal(&self, id: &SandboxId, execution: &ExecutionId, signal: i32) -> Result<Execution, Error> {
        execute::signal(self, id, execution, signal).await
    }

    /// Kills an execution and waits until its end is known.
    ///
    /// # Errors
    /// As for [`Platform::execution`].
    pub async fn cancel(&self, id: &SandboxId, execution: &ExecutionId) -> Result<Execution, Error> {
        execute::cancel(self, id, execution).await
    }

    /// Reads a file of a guest as a stream.
    ///
    /// # Errors
    /// `file_not_found`, `permission_denied`, `not_a_regular_file`.
    pub async fn read_file(&self, id: &SandboxId, path: &str) -> Result<(FileStat, ByteStream), Error> {
        files::read(self, id, path).await
    }

    /// Writes a file of a guest from a stream; it is replaced whole or not at all.
    ///
    /// # Errors
    /// As for [`Platform::read_file`], and `disk_full`.
    pub async fn write_file(
        &self,
        id: &SandboxId,
        path: &str,
        options: WriteOptions,
        body: ByteStream,
    ) -> Result<FileStat, Error> {
        files::write(self, id, path, options, body).await
    }

    /// Lists a directory of a guest.
    ///
    /// # Errors
    /// `file_not_found`, `permission_denied`, `not_a_directory`.
    pub async fn list_files(&self, id: &SandboxId, path: &str) -> Result<FileList, Error> {
        files::list(self, id, path).await
    }

    /// What a path of a guest is.
    ///
    /// # Errors
    /// `file_not_found`, `permission_denied`.
    pub async fn stat_file(&self, id: &SandboxId, path: &str) -> Result<FileStat, Error> {
        files::stat(self, id, path).await
    }

    /// Removes a path of a guest.
    ///
    /// # Errors
    /// `file_not_found`, `permission_denied`, `invalid_request` for a directory without `recursive`.
    pub async fn remove_file(&self, id: &SandboxId, path: &str, recursive: bool) -> Result<(), Error> {
        files::remove(self, id, path, recursive).await
    }

    /// Makes a directory in a guest.
    ///
    /// # Errors
    /// `file_not_found` without its parents, `permission_denied`.
    pub async fn make_directory(&self, id: &SandboxId, path: &str, parents: bool) -> Result<FileStat, Error> {
        files::make_directory(self, id, path, parents).await
    }

    /// Connects to a TCP port of a guest.
    ///
    /// # Errors
    /// `port_unreachable` when nothing listens there on the guest's own address.
    pub async fn dial(&self, id: &SandboxId, port: u16) -> Result<tokio::net::TcpStream, Error> {
        let cell = self.registry().living(id)?;
        let live = cell.live()?;
        live.machine.dial(port).await.map_err(|e| {
            Error::new(ErrorCode::PortUnreachable, format!("nothing answers on port {port} of {id}"))
                .cause(crate::errors::chain(&e))
                .remedy("make the program listen on 0.0.0.0; one that listens on 127.0.0.1 is not reached yet")
        })
    }

    /// Captures a sandbox; the snapshot is active when this returns.
    ///
    /// # Errors
    /// `snapshot_in_progress`, `snapshot_name_taken`, `checkpoint_refused`, `disk_full`, `too_large`. The source goes
    /// on in every case.
    pub async fn capture(&self, id: &SandboxId, request: CreateSnapshot) -> Result<Snapshot, Error> {
        capture::snapshot(self, id, request).await
    }

    /// Snapshots, oldest first; deleted and failed ones too where asked for.
    pub fn snapshots(&self, include_deleted: bool) -> Vec<Snapshot> {
        let all = self.registry().tables().snapshots();
        let ended = |s: &Snapshot| matches!(s.state, SnapshotState::Deleted | SnapshotState::Failed);
        all.iter().map(|s| s.show()).filter(|s| include_deleted || !ended(s)).collect()
    }

    /// A snapshot by id or name.
    ///
    /// # Errors
    /// `snapshot_not_found`.
    pub fn snapshot(&self, id_or_name: &str) -> Result<Snapshot, Error> {
        self.registry().tables().snapshot(id_or_name).map(|s| s.show())
    }

    /// Removes a snapshot. Repeating it is fine and says so. Sandboxes restored from it go on, and its layer stays as long as something stands on it.
    ///
    /// # Errors
    /// `snapshot_not_found`; `wrong_state` while it is captured.
    pub async fn remove_snapshot(&self, id_or_name: &str) -> Result<SnapshotRemoval, Error> {
        let cell = self.registry().tables().snapshot(id_or_name)?;
        {
            let mut inner = cell.inner();
            match inner.shown.state {
                // A fork's own may still be under verification, which then finds it deleted.
                SnapshotState::Active | SnapshotState::Verifying => inner.shown.state = SnapshotState::Deleted,
                SnapshotState::Deleted | SnapshotState::Failed => {
                    return Ok(SnapshotRemoval {
                        id: cell.id.clone(),
                        result: RemovalResult::AlreadyAbsent,
                        bytes_reclaimed: 0,
                        bytes_still_referenced: 0,
                    });
                }
                state => {
                    let message = format!("snapshot {} is {state}; it can be removed when it is active", cell.id);
                    return Err(Error::new(ErrorCode::WrongState, message).remedy("try again in a moment"));
                }
            }
        }
        let of_memory = self.drop_memory(&cell).await;
        let of_layers = self.collect().await;
        let layer = self.engine().dirs().layer(&cell.id);
        let left = tokio::task::spawn_blocking(move || remuda_engine::disk_usage(&layer)).await.unwrap_or(0);
        Ok(SnapshotRemoval {
            id: cell.id.clone(),
            result: RemovalResult::Removed,
            bytes_reclaimed: of_memory + of_layers,
            bytes_still_referenced: left,
        })
    }

    /// Captures once and starts branches from it in parallel.
    ///
    /// # Errors
    /// As for [`Platform::capture`], and `limit_reached` with figures when memory does not suffice. A branch that
    /// fails is told in its place and is no error of the fork.
    pub async fn fork(&self, id: &SandboxId, request: ForkSandbox) -> Result<Fork, Error> {
        let (this, id) = (self.clone(), id.clone());
        detached(async move { fork::fork(&this, &id, request).await }).await
    }

    /// One sandbox from a snapshot.
    ///
    /// # Errors
    /// `snapshot_not_found`, `snapshot_not_active`, `snapshot_damaged`, `engine_mismatch`, `launch_failed`.
    pub async fn restore(&self, id_or_name: &str, request: RestoreSnapshot) -> Result<Sandbox, Error> {
        let (this, name) = (self.clone(), id_or_name.to_owned());
        detached(async move { restore::restore(&this, &name, request).await }).await
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
