//! capture: reserve the snapshot → quiesce the agent → pause → checkpoint → freeze the upper → resume → verify → active.
//!
//! The source goes on whatever becomes of the capture. A failed one leaves a record that says why, and no bytes.

use std::sync::Arc;

use remuda_engine::{EngineError, LayerSeal, free_bytes};
use remuda_guest_proto::{Reply, Request};
use remuda_types::limits::{DISK_LOW_WATER_BYTES, NAME_BYTES_MAX};
use remuda_types::wire::{CreateSnapshot, Labels, LaunchRecipe, Snapshot};
use remuda_types::{Error, ErrorCode, SandboxId, SnapshotId, SnapshotMode, SnapshotState};

use crate::caller::Caller;
use crate::channel::Silence;
use crate::clock::{id_entropy, now_unix_ms};
use crate::driver::{CaptureLease, Live};
use crate::operations::create::check_labels;
use crate::operations::launch;
use crate::platform::Platform;
use crate::registry::{SandboxCell, SnapshotCell};

/// What a memory image does not carry out of the machine.
const EXCLUDED_ALWAYS: &str = "TCP connections to the outside: they are reset in the source and absent in copies";
/// What a capture of files alone leaves out.
const EXCLUDED_FROM_FILES: [&str; 3] = [
    "processes and everything in their memory",
    "/tmp, /run and /dev/shm, which are kept in memory",
    "named pipes and socket files, which exist only while the machine runs",
];

/// What is to be captured, and for whom.
pub(crate) struct Capture {
    pub(crate) name: Option<String>,
    pub(crate) mode: SnapshotMode,
    pub(crate) labels: Labels,
    pub(crate) launch: Option<LaunchRecipe>,
    pub(crate) of_fork: bool,
}

/// Captures a sandbox and waits until the snapshot is active.
pub(crate) async fn snapshot(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    request: CreateSnapshot,
) -> Result<Snapshot, Error> {
    let mode = request.mode.unwrap_or(SnapshotMode::Memory);
    let capture = Capture { name: request.name, mode, labels: request.labels, launch: request.launch, of_fork: false };
    let source = platform.living(&caller.account, id).await?;
    let cell = take(platform, &source, capture).await?;
    verify(platform, &cell).await?;
    Ok(cell.show())
}

/// Captures a sandbox. The snapshot is `verifying` afterwards: branches may start from it, and [`verify`] is due.
///
/// Runs as a task of its own, so that a caller who goes away leaves no half-done capture behind.
pub(crate) async fn take(
    platform: &Platform,
    source: &Arc<SandboxCell>,
    capture: Capture,
) -> Result<Arc<SnapshotCell>, Error> {
    check(&capture)?;
    platform.admit_work()?;
    let (platform, source) = (platform.clone(), source.clone());
    let task = tokio::spawn(async move {
        let lease = source.driver()?.begin_capture().await?;
        let cell = reserve(&platform, &source, capture)?;
        let result = read(&platform, &source, &cell, &lease).await;
        drop(lease);
        match result {
            Ok(()) => Ok(cell),
            Err(e) => {
                let mut inner = cell.inner();
                inner.shown.state = SnapshotState::Failed;
                inner.shown.failure = Some(e.clone());
                Err(e.detail("snapshot", cell.id.to_string()))
            }
        }
    });
    task.await.map_err(|e| Error::new(ErrorCode::Internal, "a capture ended unexpectedly").cause(e))?
}

fn check(capture: &Capture) -> Result<(), Error> {
    check_labels(&capture.labels)?;
    if let Some(name) = &capture.name {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) || name.starts_with("snap-") {
            let message = format!(
                "a snapshot's name is 1 to {NAME_BYTES_MAX} of A-Z, a-z, 0-9, '-', '_' and '.', and does not begin with snap-"
            );
            return Err(Error::new(ErrorCode::InvalidRequest, message));
        }
    }
    match &capture.launch {
        Some(_) if capture.mode == SnapshotMode::Memory => {
            let message = "a launch recipe goes with a filesystem snapshot: a memory snapshot wakes up running";
            Err(Error::new(ErrorCode::InvalidRequest, message).remedy("leave it out, or ask for mode filesystem"))
        }
        Some(recipe) => launch::check(recipe),
        None => Ok(()),
    }
}

fn reserve(platform: &Platform, source: &SandboxCell, capture: Capture) -> Result<Arc<SnapshotCell>, Error> {
    let id = SnapshotId::from_entropy(id_entropy()?);
    let memory = capture.mode == SnapshotMode::Memory;
    let mut excluded: Vec<String> = Vec::new();
    if memory {
        excluded.push(EXCLUDED_ALWAYS.into());
    } else {
        excluded.extend(EXCLUDED_FROM_FILES.map(String::from));
    }
    let shown = Snapshot {
        id: id.clone(),
        name: capture.name,
        mode: capture.mode,
        state: SnapshotState::Capturing,
        failure: None,
        source: source.id.clone(),
        created_at_ms: now_unix_ms(),
        labels: capture.labels,
        launch: capture.launch,
        pause_ms: None,
        connections_dropped: None,
        bytes: 0,
        excluded,
        memory_kept: false,
    };
    let layers = std::iter::once(id).chain(source.layers.iter().cloned()).collect();
    let fingerprint = platform.engine().parts().fingerprint.clone();
    let cell = Arc::new(SnapshotCell::new(
        source.account.clone(),
        shown,
        source.memory_mib,
        layers,
        fingerprint,
        capture.of_fork,
    ));
    platform.registry().tables().add_snapshot(cell.clone())?;
    Ok(cell)
}

/// Reads the source. It stands still from the pause to the resume, which are both inside the engine's one call.
async fn read(
    platform: &Platform,
    source: &SandboxCell,
    cell: &SnapshotCell,
    lease: &CaptureLease,
) -> Result<(), Error> {
    let (live, _) = source.running.get().ok_or_else(|| Error::new(ErrorCode::WrongState, "it never ran"))?;
    let with_memory = cell.show().mode == SnapshotMode::Memory;
    let needed = if with_memory { live.machine.memory_bytes() } else { 0 } + DISK_LOW_WATER_BYTES;
    let free = free_bytes(platform.engine().dirs().data()).map_err(|e| crate::errors::engine(&source.id, e))?;
    if free < needed {
        return Err(Error::new(ErrorCode::DiskFull, format!("the disk is too full to capture {}", source.id))
            .cause(format!("{free} bytes are free and {needed} are needed, low-water mark included"))
            .remedy("free space on the data directory's disk, and try again"));
    }
    let silence = silence(live, source, lease, with_memory).await?;
    // At the boundary: the agent has said everything it had read, and the log holds it.
    let carried = if with_memory { source.executions.carry() } else { Vec::new() };
    let connections = if with_memory { live.machine.outside_connections().await.ok() } else { None };
    let places = platform.engine().capture_places(&cell.id, with_memory);
    let captured = live.machine.capture(places, lease.was_paused).await;
    drop(silence);
    let captured = match captured {
        Ok(captured) => captured,
        Err(e) => return Err(explain(live, source, e).await),
    };
    let mut inner = cell.inner();
    inner.shown.state = SnapshotState::Verifying;
    inner.shown.pause_ms = Some(captured.paused.as_secs_f64() * 1e3);
    inner.shown.connections_dropped = connections;
    inner.shown.bytes = captured.layer.bytes + captured.memory.as_ref().map_or(0, |m| m.bytes());
    inner.shown.memory_kept = captured.memory.is_some();
    inner.memory = captured.memory.map(Arc::new);
    inner.carried = carried;
    Ok(())
}

/// A paused sandbox is silent already.
async fn silence(
    live: &Live,
    source: &SandboxCell,
    lease: &CaptureLease,
    with_memory: bool,
) -> Result<Option<Silence>, Error> {
    if lease.was_paused {
        return Ok(None);
    }
    // A checkpoint makes the sentry write back what it holds of files; for files alone the agent is asked to.
    let silence = live.channel.quiesce(!with_memory).await;
    silence.map(Some).map_err(|e| crate::errors::channel(&source.id, e))
}

/// A refused checkpoint is nearly always a file that was deleted while open: the agent can name it.
async fn explain(live: &Live, source: &SandboxCell, e: EngineError) -> Error {
    let error = crate::errors::engine(&source.id, e);
    if error.code != ErrorCode::CheckpointRefused {
        return error;
    }
    let named = live.channel.call_within(Request::DeletedOpenFiles, std::time::Duration::from_secs(5)).await;
    match named {
        Ok(Reply::Sentences { sentences }) if !sentences.is_empty() => error
            .detail("open_deleted", sentences.clone())
            .cause(sentences.join("; "))
            .remedy("close that file, or end that process, and try again; or capture files only: --mode filesystem"),
        _ => error.remedy("try again, or capture files only: --mode filesystem"),
    }
}

/// Holds the manifest against the disk and makes the snapshot active; or fails it and removes its bytes.
pub(crate) async fn verify(platform: &Platform, cell: &Arc<SnapshotCell>) -> Result<(), Error> {
    let layer = platform.engine().dirs().layer(&cell.id);
    let image = cell.inner().memory.clone();
    let checking = tokio::task::spawn_blocking(move || {
        let image = match image {
            Some(image) => {
                let mut sealed = (*image).clone();
                sealed.seal()?;
                Some(Arc::new(sealed))
            }
            None => None,
        };
        Ok::<_, EngineError>((image, LayerSeal::of(&layer)?))
    });
    let checked = checking.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
    match checked {
        Ok((image, seal)) => {
            let mut inner = cell.inner();
            if inner.shown.memory_kept {
                inner.memory = image;
            }
            inner.layer_seal = Some(seal);
            // It may have been deleted meanwhile.
            if inner.shown.state == SnapshotState::Verifying {
                inner.shown.state = SnapshotState::Active;
            }
            Ok(())
        }
        Err(e) => {
            let error = crate::errors::engine(&cell.source, e).detail("snapshot", cell.id.to_string());
            {
                let mut inner = cell.inner();
                if inner.shown.state == SnapshotState::Deleted {
                    return Ok(());
                }
                inner.shown.state = SnapshotState::Failed;
                inner.shown.failure = Some(error.clone());
            }
            platform.drop_memory(cell).await;
            platform.collect().await;
            Err(error)
        }
    }
}
