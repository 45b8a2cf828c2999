//! The last capture of a sandbox: of its memory while it stands still, or else of its files when its processes have
//! ended. Both are captures like any other, but for the fence, which lets only them through.

use std::sync::Arc;

use remuda_journal::Reservation;
use remuda_types::limits::LABELS_MAX;
use remuda_types::wire::{CreateSnapshot, DueTo, Labels, Snapshot};
use remuda_types::{Error, ErrorCode, Key, SandboxId, SandboxState, SnapshotId, SnapshotMode, SnapshotState};
use serde_json::{Value, json};

use super::ending::why;
use crate::access::Action;
use crate::caller::Caller;
use crate::operation::{Answered, Call, Ended, Operation, Work, canonical, operate};
use crate::operations::capture::{self, Begun, Wanted};
use crate::operations::stop;
use crate::platform::Platform;
use crate::registry::SandboxCell;

/// The label by which snapshots are found that deadlines made; its value says what was due.
pub(crate) const LABEL: &str = "remuda.ended-by";
/// Keys of one capture that are tried: one is used up where a server was killed in the middle of it.
const KEYS_MAX: u32 = 1_000;

/// What was kept of a sandbox.
#[derive(Debug, Default)]
pub(super) struct Last {
    /// Where it is.
    pub(super) snapshot: Option<SnapshotId>,
    /// Why it is not all.
    pub(super) failure: Option<String>,
    /// Why its processes had ended before.
    pub(super) died: Option<String>,
}

/// Captures what can be captured. Its processes don't run any more when this returns, and are ended where memory could
/// not be captured.
///
/// # Errors
/// Where nothing can be said about the sandbox yet, and it must be tried again.
pub(super) async fn take(
    platform: &Platform,
    cell: &Arc<SandboxCell>,
    due_to: DueTo,
    round: u32,
) -> Result<Last, Error> {
    let mut last = Last::default();
    come_to_rest(platform, cell).await?;
    if lives(cell) {
        let captured = match stand_still(cell).await {
            Ok(()) => captured(platform, cell, due_to, round, SnapshotMode::Memory).await,
            Err(e) => Err(e),
        };
        match captured {
            Ok(snapshot) => return Ok(Last { snapshot: Some(snapshot), ..last }),
            Err(e) if passes(&e) => return Err(e),
            Err(e) => {
                last.failure = Some(in_words(&e));
                end_processes(cell, due_to, &e).await;
                come_to_rest(platform, cell).await?;
            }
        }
    } else {
        last.died = cell.status.borrow().reason.clone();
    }
    if cell.is_over() {
        return Ok(last);
    }
    match captured(platform, cell, due_to, round, SnapshotMode::Filesystem).await {
        Ok(snapshot) => last.snapshot = Some(snapshot),
        Err(e) if passes(&e) => return Err(e),
        Err(e) => {
            let files = in_words(&e);
            last.failure = Some(match last.failure {
                Some(memory) if memory != files => format!("{memory}; and of its files: {files}"),
                _ => files,
            });
        }
    }
    Ok(last)
}

/// Why a capture failed. What errors say of a source that goes on is not so here.
fn in_words(e: &Error) -> String {
    if e.code == ErrorCode::CheckpointRefused {
        let cause = e.cause.as_deref().unwrap_or("the engine does not say why");
        return format!("it can't be checkpointed as it stands (checkpoint_refused: {cause})");
    }
    match &e.cause {
        Some(cause) => format!("{} ({}: {cause})", e.message, e.code),
        None => format!("{} ({})", e.message, e.code),
    }
}

/// Whether an error says nothing about the sandbox: it is tried again later.
fn passes(e: &Error) -> bool {
    // One that an earlier server had begun is brought to its end first.
    let of_server = matches!(e.code, ErrorCode::ShuttingDown | ErrorCode::JournalFailed | ErrorCode::Internal);
    of_server || e.code == ErrorCode::OperationInProgress
}

fn lives(cell: &SandboxCell) -> bool {
    matches!(cell.state(), SandboxState::Running | SandboxState::Paused)
}

/// Waits for whoever boots, stops or removes it, and brings a stop that failed half-way to its end.
async fn come_to_rest(platform: &Platform, cell: &Arc<SandboxCell>) -> Result<(), Error> {
    let _turn = cell.removing.lock().await;
    match cell.state() {
        SandboxState::Stopping => stop::end_and_keep(platform, cell).await,
        _ => Ok(()),
    }
}

/// Halts it, with its files flushed, so that nothing happens in it that the capture does not hold. A capture that is
/// under way is waited for; no other can begin.
async fn stand_still(cell: &SandboxCell) -> Result<(), Error> {
    let driver = cell.driver()?;
    while_captured(cell, || driver.pause()).await
}

/// Does something that is refused while a capture is under way, when none is.
async fn while_captured<T, F: Future<Output = Result<T, Error>>>(
    cell: &SandboxCell,
    mut act: impl FnMut() -> F,
) -> Result<T, Error> {
    let mut changes = cell.status.subscribe();
    loop {
        changes.mark_unchanged();
        match act().await {
            Err(e) if e.code == ErrorCode::SnapshotInProgress && lives(cell) => {
                // The driver tells when a capture is over, whatever became of it.
                if changes.changed().await.is_err() {
                    return Err(e);
                }
            }
            other => return other,
        }
    }
}

/// Ends its processes and keeps its files.
async fn end_processes(cell: &SandboxCell, due_to: DueTo, e: &Error) {
    let reason = format!("{}, and its memory could not be captured: {}", why(due_to), in_words(e));
    cell.status.send_modify(|status| status.reason = Some(reason));
    let Some((live, _)) = cell.running.get() else { return };
    if let Err(e) = live.machine.kill() {
        tracing::error!("failed to end the processes of {}: {e}", cell.id);
        return;
    }
    let _ = cell
        .status
        .subscribe()
        .wait_for(|status| !matches!(status.state, SandboxState::Running | SandboxState::Paused))
        .await;
}

/// One capture under a key that derives from the sandbox's uid.
async fn captured(
    platform: &Platform,
    cell: &Arc<SandboxCell>,
    due_to: DueTo,
    round: u32,
    mode: SnapshotMode,
) -> Result<SnapshotId, Error> {
    let caller = Caller::platform(cell.account.clone());
    for number in 1..=KEYS_MAX {
        let key: Key = format!("end-{}-{round}-{mode}-{number}", cell.uid)
            .parse()
            .map_err(|e| Error::new(ErrorCode::Internal, "a key is none").cause(e))?;
        let call = Call { caller: caller.clone(), key: Some(key) };
        let capture = || async {
            let take = TakeLast { source: cell.id.clone(), mode, due_to };
            let Answered { result, replayed } = operate(platform, &call, take).await;
            result.map(|snapshot| (snapshot, replayed))
        };
        match while_captured(cell, capture).await {
            // One that was taken before, and that somebody deleted since then, holds nothing any more.
            Ok((snapshot, true)) if !is_kept(platform, &snapshot) => {}
            Ok((snapshot, _)) => return Ok(snapshot.id),
            Err(e) if used_up(&e) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Error::new(ErrorCode::Internal, format!("all keys for the last capture of {} are used up", cell.id)))
}

fn is_kept(platform: &Platform, snapshot: &Snapshot) -> bool {
    let kept = platform.registry().tables().snapshot_by_id(&snapshot.id);
    kept.is_some_and(|cell| cell.show().state == SnapshotState::Active)
}

/// Whether an operation under this key can never come to anything any more, and another key is to be taken.
pub(super) fn used_up(e: &Error) -> bool {
    matches!(
        e.code,
        ErrorCode::Interrupted
            | ErrorCode::OperationCancelled
            | ErrorCode::IdempotencyKeyConflict
            | ErrorCode::OutcomeEvicted
    )
}

/// A capture, of a sandbox that takes no other any more.
struct TakeLast {
    source: SandboxId,
    mode: SnapshotMode,
    due_to: DueTo,
}

impl Operation for TakeLast {
    /// It is taken up after a crash as every capture is.
    const KIND: &'static str = capture::Take::KIND;
    const ACTION: Action = Action::CreateSnapshot;
    const ALWAYS: bool = true;
    type Plan = Begun;
    type Output = Snapshot;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.source)
    }

    fn request(&self) -> Value {
        let request = CreateSnapshot { mode: Some(self.mode), ..CreateSnapshot::default() };
        let mut request = canonical(&request);
        // No request of a caller has this member: none is ever taken for this one.
        request["due_to"] = json!(self.due_to);
        request
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Begun, Reservation), Error> {
        let cell = platform.living(caller, &self.source).await?;
        let labels = labels(&cell.labels, self.due_to);
        let wanted = Wanted { name: None, replace: false, mode: self.mode, labels, launch: None, of_fork: false };
        let capture = Begun::begin(platform, cell, wanted).await?;
        let reservation = capture.reservation(platform)?;
        Ok((capture, reservation))
    }

    async fn run(self, platform: &Platform, capture: Begun, work: &Work) -> Ended<Snapshot> {
        let (cell, taken) = capture.take(platform, work, |_| {}).await;
        capture::conclude(platform, &cell, taken, std::future::ready(None), work).await
    }
}

/// The labels of the sandbox, so that whoever sees it sees its snapshot, and one by which it is found.
fn labels(of: &Labels, due_to: DueTo) -> Labels {
    let mut labels = of.clone();
    if labels.len() < LABELS_MAX {
        let value = match due_to {
            DueTo::Deadline => "deadline",
            DueTo::Idle => "idle",
        };
        labels.entry(LABEL.to_owned()).or_insert_with(|| value.to_owned());
    }
    labels
}
