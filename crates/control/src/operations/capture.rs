//! capture: reserve the sandbox → journal key, snapshot and the duty to resume → quiesce the agent → pause → checkpoint →
//! freeze the upper → resume → journal that it is whole → digests → active.
//!
//! The source goes on whatever becomes of the capture. A failed one leaves a record that says why, and no bytes.

use std::sync::Arc;
use std::time::Duration;

use remuda_engine::{EngineError, LayerSeal, free_bytes};
use remuda_guest_proto::{Reply, Request};
use remuda_journal::{Change, Holder, Reservation};
use remuda_types::limits::{DISK_LOW_WATER_BYTES, LAYERS_MAX, NAME_BYTES_MAX};
use remuda_types::wire::{CreateSnapshot, Labels, LaunchRecipe, Snapshot};
use remuda_types::{Error, ErrorCode, SandboxId, SandboxState, SnapshotId, SnapshotMode, SnapshotState};
use serde_json::Value;
use tokio::sync::watch;

use crate::access::Action;
use crate::caller::Caller;
use crate::channel::Silence;
use crate::clock::{id_entropy, milliseconds, now_unix_ms};
use crate::driver::{CaptureLease, Live};
use crate::events;
use crate::executions::{CarriedExecution, flush_carried};
use crate::ledger;
use crate::operation::{Ended, Operation, Work, canonical};
use crate::operations::at_rest::AtRest;
use crate::operations::create::check_labels;
use crate::operations::launch;
use crate::platform::Platform;
use crate::records::SnapshotDoc;
use crate::registry::{SandboxCell, SnapshotCell};
use crate::usage::Quotas;

/// The step after which a capture is complete on disk but for its digests.
pub(crate) const CAPTURED: &str = "captured";
/// What a memory image does not carry out of the machine, as long as nobody has counted them.
const UNCOUNTED_CONNECTIONS: &str = "TCP connections to the outside, if there were any";
/// What becomes of them.
const CONNECTIONS_RESET: &str = "reset in the source and absent in copies";
/// What a capture of files alone leaves out.
const EXCLUDED_FROM_FILES: [&str; 3] = [
    "processes and everything in their memory",
    "/tmp, /run and /dev/shm, which are kept in memory",
    "named pipes and socket files, which exist only while the machine runs",
];

/// Sentences of a guest about what a capture of its files leaves out.
const LEFT_OUT_SENTENCES_MAX: usize = 100;
/// Longest of them, in characters.
const LEFT_OUT_CHARS_MAX: usize = 400;
/// How long an agent may take to tell what a capture of files leaves out.
const LEFT_OUT_WAIT_MAX: Duration = Duration::from_secs(5);

/// Captures a sandbox and waits until the snapshot is active.
pub(crate) struct Take {
    pub(crate) source: SandboxId,
    pub(crate) request: CreateSnapshot,
    /// Told as soon as there is a snapshot, for a caller that does not wait for its end.
    pub(crate) begun: watch::Sender<Option<Arc<SnapshotCell>>>,
}

impl Operation for Take {
    const KIND: &'static str = "capture";
    const ACTION: Action = Action::CreateSnapshot;
    const ALWAYS: bool = true;
    type Plan = Begun;
    type Output = Snapshot;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.source)
    }

    fn request(&self) -> Value {
        canonical(&CreateSnapshot { wait_ms: None, ..self.request.clone() })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Begun, Reservation), Error> {
        let CreateSnapshot { name, replace, mode, labels, launch, wait_ms: _ } = self.request.clone();
        if replace {
            may_replace(caller, name.as_ref())?;
        }
        let source = platform.living(caller, &self.source).await?;
        source.not_ending()?;
        caller.may_make_snapshot(&self.source, &labels)?;
        let mode = mode_of(&source, mode);
        let capture =
            Begun::begin(platform, source, Wanted { name, replace, mode, labels, launch, of_fork: false }).await?;
        let reservation = capture.reservation(platform)?;
        Ok((capture, reservation))
    }

    async fn run(self, platform: &Platform, capture: Begun, work: &Work) -> Ended<Snapshot> {
        let losses = capture.left_out();
        let taking = capture.take(platform, work, |cell| {
            self.begun.send_replace(Some(cell.clone()));
        });
        let (cell, taken) = taking.await;
        conclude(platform, &cell, taken, losses, work).await
    }
}

/// What is captured of a sandbox when nobody says.
pub(crate) fn mode_of(source: &SandboxCell, asked: Option<SnapshotMode>) -> SnapshotMode {
    let of_state =
        if source.state() == SandboxState::Stopped { SnapshotMode::Filesystem } else { SnapshotMode::Memory };
    asked.unwrap_or(of_state)
}

/// Names are the account's: whoever sees only a part of it takes none away from the rest.
fn may_replace(caller: &Caller, name: Option<&String>) -> Result<(), Error> {
    if name.is_none() {
        return Err(Error::new(ErrorCode::InvalidRequest, "replace takes over a name, and the request has none"));
    }
    if caller.narrowing().is_some() {
        let message = "a key that is narrowed can't take a name from another snapshot";
        return Err(Error::new(ErrorCode::Forbidden, message)
            .cause("names are the account's, and the key sees only a part of it")
            .remedy("choose another name, or use a key that is not narrowed"));
    }
    Ok(())
}

/// Holds a capture against the disk, or cleans up after one that failed. `losses` are asked for beside.
pub(crate) async fn conclude(
    platform: &Platform,
    cell: &Arc<SnapshotCell>,
    taken: Result<(), Error>,
    losses: impl Future<Output = Option<Vec<String>>>,
    work: &Work,
) -> Ended<Snapshot> {
    let result = match taken {
        Ok(()) => {
            let (verified, losses) = tokio::join!(verify(platform, cell), losses);
            if let Some(losses) = losses {
                cell.inner().doc.shown.excluded = losses;
            }
            verified
        }
        Err(e) => Err(e),
    };
    let error = match result.and_then(|()| cell.takes_name()) {
        // It was removed meanwhile, and that was told.
        Ok(changes) if cell.is_over() => return Ended::done(cell.show(), changes).publishing(cell),
        Ok(changes) => {
            let entry = ledger::of_snapshot(platform, cell, work.id.as_ref()).await;
            return Ended::done(cell.to_be(), changes).with(entry).publishing(cell);
        }
        Err(error) => error.detail("snapshot", cell.id.to_string()),
    };
    let changes = fail(platform, cell, &error).await;
    Ended::failed(error, changes).publishing(cell)
}

/// A snapshot failed: nothing of it is left but its record, which says why.
pub(crate) async fn fail(platform: &Platform, cell: &Arc<SnapshotCell>, error: &Error) -> Vec<Change> {
    {
        let mut inner = cell.inner();
        if inner.doc.shown.state != SnapshotState::Deleted {
            inner.doc.shown.state = SnapshotState::Failed;
            inner.doc.shown.failure = Some(error.clone());
            inner.unwritten = true;
        }
    }
    platform.drop_memory(cell).await;
    platform.collect().await;
    let mut changes = vec![Change::Release(Holder::from(&cell.id))];
    changes.extend(cell.doc().change());
    changes.extend(events::snapshot(&cell.account, &cell.to_be()));
    changes
}

/// What became of a capture is on record now: it is told, and one that failed is on record alone.
pub(crate) fn on_record(platform: &Platform, cell: &SnapshotCell) {
    cell.written();
    if cell.inner().doc.shown.state == SnapshotState::Failed {
        platform.registry().tables().forget_snapshots(std::slice::from_ref(&cell.id));
    }
}

/// What is to be captured.
pub(crate) struct Wanted {
    pub(crate) name: Option<String>,
    /// Whether it takes the name from whichever snapshot has it when it is active.
    pub(crate) replace: bool,
    pub(crate) mode: SnapshotMode,
    pub(crate) labels: Labels,
    pub(crate) launch: Option<LaunchRecipe>,
    pub(crate) of_fork: bool,
}

/// A capture that may begin: of a machine, or of the files that one left.
pub(crate) enum Begun {
    Live(Box<Capture>),
    AtRest(Box<AtRest>),
}

impl Begun {
    pub(crate) async fn begin(platform: &Platform, source: Arc<SandboxCell>, wanted: Wanted) -> Result<Self, Error> {
        if source.state() == SandboxState::Stopped {
            return Ok(Begun::AtRest(Box::new(AtRest::begin(platform, source, wanted)?)));
        }
        Ok(Begun::Live(Box::new(Capture::begin(platform, source, wanted).await?)))
    }

    /// What is set aside for it.
    pub(crate) fn reservation(&self, platform: &Platform) -> Result<Reservation, Error> {
        match self {
            Begun::Live(capture) => capture.reservation(platform),
            Begun::AtRest(capture) => capture.reservation(platform),
        }
    }

    /// Reads the source, and says before that there is a snapshot.
    pub(crate) async fn take(
        self,
        platform: &Platform,
        work: &Work,
        begun: impl FnOnce(&Arc<SnapshotCell>) + Send,
    ) -> (Arc<SnapshotCell>, Result<(), Error>) {
        let doc = match &self {
            Begun::Live(capture) => capture.doc.clone(),
            Begun::AtRest(capture) => capture.doc.clone(),
        };
        let cell = SnapshotCell::new(work.account.clone(), doc);
        platform.registry().tables().add_snapshot(cell.clone());
        begun(&cell);
        let taken = match self {
            Begun::Live(capture) => capture.take(platform, &cell, work).await,
            Begun::AtRest(capture) => capture.take(platform, &cell, work).await,
        };
        (cell, taken)
    }

    /// What a capture of files leaves out of a running guest, by the guest's own word; `None` where it can't be asked.
    /// Asked when the guest runs again, so that it need not stand still for that.
    pub(crate) fn left_out(&self) -> impl Future<Output = Option<Vec<String>>> + Send + use<> {
        let live = match self {
            Begun::Live(capture) => capture.may_be_asked(),
            Begun::AtRest(_) => None,
        };
        async move {
            match live?.channel.call_within(Request::LeftOutOfFiles, LEFT_OUT_WAIT_MAX).await {
                Ok(Reply::Sentences { sentences }) => {
                    let told = sentences.into_iter().take(LEFT_OUT_SENTENCES_MAX).map(|told| sentence(&told));
                    Some(std::iter::once(EXCLUDED_FROM_FILES[0].to_owned()).chain(told).collect())
                }
                _ => None,
            }
        }
    }
}

/// A sentence of a guest, which may hold anything, on one line of bounded length.
pub(crate) fn sentence(told: &str) -> String {
    told.chars().take(LEFT_OUT_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A capture that may begin: the sandbox is reserved for it.
pub(crate) struct Capture {
    source: Arc<SandboxCell>,
    live: Arc<Live>,
    lease: CaptureLease,
    /// What is written down when it is admitted, the duty to resume with it.
    pub(crate) doc: SnapshotDoc,
}

impl Capture {
    pub(crate) async fn begin(platform: &Platform, source: Arc<SandboxCell>, wanted: Wanted) -> Result<Self, Error> {
        check(&wanted)?;
        platform.admit_work()?;
        let lease = source.driver()?.begin_capture().await?;
        // A driver has a machine.
        let (live, _) = source.running.get().ok_or_else(|| Error::new(ErrorCode::WrongState, "it never ran"))?;
        let live = live.clone();
        enough_disk(platform, &source, &live, wanted.mode)?;
        let mut doc = describe(platform, &source, wanted, !lease.was_paused)?;
        doc.unbound = lease.unbound;
        Ok(Capture { source, live, lease, doc })
    }

    /// What is set aside for it.
    pub(crate) fn reservation(&self, platform: &Platform) -> Result<Reservation, Error> {
        let quotas = Quotas(platform.accounts());
        // What it uses now: what it will have turned out to hold is written down when that is known.
        let memory = if self.doc.shown.mode == SnapshotMode::Memory { self.live.machine.memory_bytes() } else { 0 };
        let share = quotas.of_capture(&self.source.account, &self.doc.shown.id, memory, self.doc.of_fork);
        let snapshot = Some(self.doc.reservation()?);
        Ok(Reservation { snapshot, holds: share.holds, counts: share.counts, ..Reservation::default() })
    }

    /// Reads the source. The snapshot is `verifying` afterwards: branches may start from it, and [`verify`] is due.
    async fn take(self, platform: &Platform, cell: &SnapshotCell, work: &Work) -> Result<(), Error> {
        let read = self.read(platform, cell).await;
        drop(self.lease);
        read?;
        let doc = cell.doc();
        // From here on a crash does not undo it any more.
        let holds = Quotas::captured(&work.account, &cell.id, doc.shown.bytes);
        work.step(CAPTURED, Value::Null, vec![doc.change()?, holds]).await
    }

    /// The guest, if it can tell what a capture of its files leaves out: one that stands still can't, and an older agent
    /// does not know the question.
    fn may_be_asked(&self) -> Option<Arc<Live>> {
        let of_files = self.doc.shown.mode == SnapshotMode::Filesystem && !self.lease.was_paused;
        let knows = of_files && self.live.channel.calls() >= Request::LeftOutOfFiles.needs();
        knows.then(|| self.live.clone())
    }

    /// The source stands still from the pause to the resume, which are both inside the engine's one call.
    async fn read(&self, platform: &Platform, cell: &SnapshotCell) -> Result<(), Error> {
        let Capture { source, live, lease, doc } = self;
        let with_memory = doc.shown.mode == SnapshotMode::Memory;
        if with_memory {
            source.may_idle.end();
        }
        let silence = silence(live, source, lease, with_memory).await?;
        // At the boundary: the agent has said everything it had read, and the log holds it.
        let carried = if with_memory { carry(platform, source, live, &cell.id).await? } else { Vec::new() };
        let connections = if with_memory { live.machine.outside_connections().await.ok() } else { None };
        let places = platform.engine().capture_places(&cell.id, with_memory);
        let captured = live.machine.capture(places, lease.was_paused).await;
        drop(silence);
        let captured = match captured {
            Ok(captured) => captured,
            // One that stands still can't be asked which file it was.
            Err(e) if lease.was_paused => return Err(crate::errors::engine(&source.id, e)),
            Err(e) => return Err(explain(live, source, e).await),
        };
        let mut inner = cell.inner();
        let doc = &mut inner.doc;
        doc.carried = carried;
        doc.shown.state = SnapshotState::Verifying;
        doc.shown.pause_ms = Some(milliseconds(captured.paused));
        doc.shown.connections_dropped = connections;
        if with_memory {
            doc.shown.excluded = without_connections(connections);
        }
        doc.shown.bytes = captured.layer.bytes + captured.memory.as_ref().map_or(0, |m| m.bytes());
        doc.shown.memory_kept = captured.memory.is_some();
        doc.memory = captured.memory;
        Ok(())
    }
}

/// Whether what is wanted makes sense.
pub(crate) fn check(wanted: &Wanted) -> Result<(), Error> {
    check_labels(&wanted.labels)?;
    if let Some(name) = &wanted.name {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) || name.starts_with("snap-") {
            let message = format!(
                "a snapshot's name is 1 to {NAME_BYTES_MAX} of A-Z, a-z, 0-9, '-', '_' and '.', and does not begin with snap-"
            );
            return Err(Error::new(ErrorCode::InvalidRequest, message));
        }
    }
    match &wanted.launch {
        Some(_) if wanted.mode == SnapshotMode::Memory => {
            let message = "a launch recipe goes with a filesystem snapshot: a memory snapshot wakes up running";
            Err(Error::new(ErrorCode::InvalidRequest, message).remedy("leave it out, or ask for mode filesystem"))
        }
        Some(recipe) => launch::check(recipe),
        None => Ok(()),
    }
}

fn enough_disk(platform: &Platform, source: &SandboxCell, live: &Live, mode: SnapshotMode) -> Result<(), Error> {
    let memory = if mode == SnapshotMode::Memory { live.machine.memory_bytes() } else { 0 };
    let needed = memory + DISK_LOW_WATER_BYTES;
    let free = free_bytes(platform.engine().dirs().data()).map_err(|e| crate::errors::engine(&source.id, e))?;
    if free < needed {
        return Err(Error::new(ErrorCode::DiskFull, format!("the disk is too full to capture {}", source.id))
            .cause(format!("{free} bytes are free and {needed} are needed, low-water mark included"))
            .remedy("free space on the data directory's disk, and try again"));
    }
    Ok(())
}

pub(crate) fn describe(
    platform: &Platform,
    source: &SandboxCell,
    wanted: Wanted,
    source_ran: bool,
) -> Result<SnapshotDoc, Error> {
    // What overlayfs takes in one mount has a limit; it is met here, and not by who goes on from it.
    if source.layers.len() >= LAYERS_MAX {
        let message = format!("{} stands on {} frozen layers, and on more nothing can stand", source.id, LAYERS_MAX);
        return Err(Error::new(ErrorCode::LimitReached, message)
            .cause("each capture that is gone on from adds a layer: it is a copy of a copy, so many times over")
            .remedy("copy its files into a new sandbox (remuda cp), and go on from there")
            .detail("limit", "layers_max")
            .detail("maximum", LAYERS_MAX as u64));
    }
    let id = SnapshotId::from_entropy(id_entropy()?);
    let excluded = match wanted.mode {
        SnapshotMode::Memory => without_connections(None),
        SnapshotMode::Filesystem => EXCLUDED_FROM_FILES.map(String::from).into(),
    };
    // One that takes its name over has none until then.
    let (name, takes_name) = if wanted.replace { (None, wanted.name) } else { (wanted.name, None) };
    let shown = Snapshot {
        id: id.clone(),
        name,
        mode: wanted.mode,
        state: SnapshotState::Capturing,
        failure: None,
        source: source.id.clone(),
        created_at_ms: now_unix_ms(),
        memory_mib: source.spec.memory_mib,
        internet: source.spec.internet,
        base: Some(source.parts.base.clone()),
        labels: wanted.labels,
        launch: wanted.launch,
        pause_ms: None,
        connections_dropped: None,
        bytes: 0,
        excluded,
        memory_kept: false,
        restorable: false,
        damage: None,
    };
    Ok(SnapshotDoc {
        shown,
        memory_mib: source.spec.memory_mib,
        disk_bytes: source.spec.disk_bytes,
        internet: source.spec.internet,
        layers: std::iter::once(id).chain(source.layers.iter().cloned()).collect(),
        fingerprint: source.parts.clone(),
        of_fork: wanted.of_fork,
        source_ran,
        memory: None,
        layer_seal: None,
        boot: platform.engine().boot_id().ok(),
        carried: Vec::new(),
        unbound: false,
        takes_name,
        damaged_parts: Default::default(),
    })
}

/// What a memory capture left out with so many connections to the outside; none where they could not be counted.
fn without_connections(count: Option<u32>) -> Vec<String> {
    match count {
        Some(0) => Vec::new(),
        Some(1) => vec![format!("1 TCP connection to the outside: {CONNECTIONS_RESET}")],
        Some(count) => vec![format!("{count} TCP connections to the outside: {CONNECTIONS_RESET}")],
        None => vec![format!("{UNCOUNTED_CONNECTIONS}: {CONNECTIONS_RESET}")],
    }
}

/// What runs is on record in every copy, with all that it said before.
async fn carry(
    platform: &Platform,
    source: &SandboxCell,
    live: &Live,
    into: &SnapshotId,
) -> Result<Vec<CarriedExecution>, Error> {
    let (executions, into) = (source.executions.clone(), platform.execution_places().snapshot(into));
    let clock_ms = live.clock.elapsed_ms();
    let carrying = tokio::task::spawn_blocking(move || executions.carry(&into, clock_ms)).await;
    let carried = carrying.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
    carried.map_err(|e| {
        let code =
            if e.kind() == std::io::ErrorKind::StorageFull { ErrorCode::DiskFull } else { ErrorCode::EngineFailed };
        Error::new(code, format!("the output of what runs in {} could not be kept for a copy", source.id)).cause(e)
    })
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
    let named = live.channel.call_within(Request::DeletedOpenFiles, Duration::from_secs(5)).await;
    match named {
        Ok(Reply::Sentences { sentences }) if !sentences.is_empty() => error
            .detail("open_deleted", sentences.clone())
            .cause(sentences.join("; "))
            .remedy("close that file, or end that process, and try again; or capture files only: --mode filesystem"),
        _ => error.remedy("try again, or capture files only: --mode filesystem"),
    }
}

/// Holds the manifest against the disk and makes the snapshot active in memory; whoever calls writes that down, and then
/// says so ([`SnapshotCell::written`]).
pub(crate) async fn verify(platform: &Platform, cell: &Arc<SnapshotCell>) -> Result<(), Error> {
    let layer = platform.engine().dirs().layer(&cell.id);
    let SnapshotDoc { memory, shown, .. } = cell.doc();
    let carried = platform.execution_places().snapshot(&cell.id);
    let checking = tokio::task::spawn_blocking(move || {
        let image = match memory {
            Some(mut image) => {
                image.seal()?;
                let what = || format!("flush {}", carried.display());
                flush_carried(&carried).map_err(|source| EngineError::Io { what: what(), source })?;
                Some(image)
            }
            None => None,
        };
        Ok::<_, EngineError>((image, LayerSeal::of(&layer)?))
    });
    let checked = checking.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
    let mut inner = cell.inner();
    let doc = &mut inner.doc;
    match checked {
        Ok((image, seal)) => {
            if doc.shown.memory_kept {
                doc.memory = image;
            }
            doc.layer_seal = Some(seal);
            // It may have been deleted meanwhile.
            let verified = doc.shown.state == SnapshotState::Verifying;
            drop(inner);
            if verified {
                cell.verified();
            }
            Ok(())
        }
        // What was deleted meanwhile is not there to be verified.
        Err(_) if doc.shown.state == SnapshotState::Deleted => Ok(()),
        Err(e) => Err(crate::errors::engine(&shown.source, e).detail("snapshot", cell.id.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connections_that_were_there_are_told() {
        assert_eq!(without_connections(Some(0)), Vec::<String>::new());
        assert!(without_connections(Some(1))[0].starts_with("1 TCP connection to the outside: reset"));
        assert!(without_connections(Some(12))[0].starts_with("12 TCP connections to the outside: reset"));
        assert!(without_connections(None)[0].contains("if there were any: reset"));
    }
}
