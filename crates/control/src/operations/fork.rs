//! fork: budget memory → one capture → N restores in parallel, each an operation with a derived key → drop the memory
//! image → verify the layer.
//!
//! One failing branch fails only itself. The fork never waits inside its source's driver.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use remuda_journal::{JournalError, Refusal, Reservation};
use remuda_types::limits::FORK_COUNT_MAX;
use remuda_types::wire::{Branch as Branched, Fork, ForkSandbox, ForkTimings};
use remuda_types::{Error, ErrorCode, SandboxId, Slot, SnapshotMode};
use serde_json::Value;

use crate::access::Action;
use crate::caller::Caller;
use crate::clock::milliseconds;
use crate::deadlines::asked::Asked;
use crate::ledger::{self, Entry};
use crate::operation::{Ended, Operation, Work, canonical, operate_part, refused};
use crate::operations::capture::{self, Begun, Wanted};
use crate::operations::parts;
use crate::operations::restore::{Branch, Reading};
use crate::platform::Platform;
use crate::registry::{SandboxCell, SnapshotCell};
use crate::usage::Quotas;

/// Memory that is left to the host when branches are budgeted, in bytes.
const HOST_RESERVE_BYTES: u64 = 512 << 20;

/// Captures a sandbox once and starts branches from that.
pub(crate) struct ForkOnce {
    pub(crate) source: SandboxId,
    pub(crate) request: ForkSandbox,
    /// When the call came.
    pub(crate) start: Instant,
}

/// A fork that may begin.
pub(crate) struct Plan {
    capture: Begun,
    slots: Vec<Option<Slot>>,
}

impl Operation for ForkOnce {
    const KIND: &'static str = "fork";
    const ACTION: Action = Action::ForkSandbox;
    const ALWAYS: bool = true;
    type Plan = Plan;
    type Output = Fork;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.source)
    }

    fn request(&self) -> Value {
        canonical(&self.request)
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Plan, Reservation), Error> {
        let slots = slots(&self.request)?;
        let source = platform.living(caller, &self.source).await?;
        source.not_ending()?;
        asked(&self.request).term(platform.timeout_ms_max())?;
        slots.iter().try_for_each(|slot| caller.may_make_sandbox(slot.as_ref(), &self.request.labels))?;
        are_free(platform, caller, &slots)?;
        let mode = capture::mode_of(&source, self.request.mode);
        // Before the source stands still for a capture that no branch could be raised from.
        parts::check(platform, mode, &source.parts).map_err(|why| why.told(source.id.to_string()))?;
        if mode == SnapshotMode::Memory {
            budget_memory(&source, self.request.count)?;
        }
        let ForkSandbox { labels, launch, .. } = self.request.clone();
        let wanted = Wanted { name: None, replace: false, mode, labels, launch, of_fork: true };
        let capture = Begun::begin(platform, source, wanted).await?;
        let reservation = capture.reservation(platform)?;
        Ok((Plan { capture, slots }, reservation))
    }

    async fn run(self, platform: &Platform, Plan { capture, slots }: Plan, work: &Work) -> Ended<Fork> {
        let (snapshot, taken) = capture.take(platform, work, |_| {}).await;
        if let Err(error) = taken {
            let error = error.detail("snapshot", snapshot.id.to_string());
            let changes = capture::fail(platform, &snapshot, &error).await;
            return Ended::failed(error, changes).publishing(&snapshot);
        }
        let captured_ms = milliseconds(self.start.elapsed());
        branch_out(platform, work, &self, &snapshot, slots, captured_ms).await
    }
}

/// Raises every branch, each an operation with a key of its own: one that was raised before a crash is not again.
pub(crate) async fn branch_out(
    platform: &Platform,
    work: &Work,
    fork: &ForkOnce,
    snapshot: &Arc<SnapshotCell>,
    slots: Vec<Option<Slot>>,
    captured_ms: f64,
) -> Ended<Fork> {
    let since = || milliseconds(fork.start.elapsed());
    let reading = Reading::begin(snapshot);
    let branches = slots.into_iter().enumerate().map(|(number, slot)| {
        let branch = Branch {
            source: fork.source.clone(),
            snapshot: snapshot.clone(),
            number,
            slot,
            labels: fork.request.labels.clone(),
            launch: fork.request.launch.clone(),
            asked: asked(&fork.request),
        };
        async move { (operate_part(platform, work, number, branch).await, since()) }
    });
    let bound = futures_util::future::join_all(branches).await;
    let times = || bound.iter().filter(|(branch, _)| branch.is_ok()).map(|(_, ms)| *ms);
    let timings = ForkTimings {
        captured_ms,
        first_branch_ms: times().fold(f64::INFINITY, f64::min).min(since()),
        last_branch_ms: times().fold(captured_ms, f64::max),
    };
    drop(reading);
    let branches = bound.into_iter().map(|(branch, _)| match branch {
        Ok(sandbox) => Branched::Sandbox(sandbox),
        Err(e) => Branched::Error(e),
    });
    let fork = Fork { branches: branches.collect(), snapshot: snapshot.show(), timings };
    Ended::done(fork, Vec::new()).settling(snapshot)
}

/// Nobody restores from a fork's own snapshot once its branches are bound: its memory goes, and its layer, which is
/// counted on its own, is verified and goes with the last branch on it. Not before the fork has its outcome: until then
/// a crash may have branches raised once more.
pub(crate) async fn settle(platform: &Platform, cell: &Arc<SnapshotCell>) {
    // As long as its state is on the way into the journal it is not abandoned: that would be overwritten.
    let reading = Reading::begin(cell);
    {
        let doc = &mut cell.inner().doc;
        let of_memory = doc.memory.as_ref().map_or(0, |image| image.bytes());
        doc.shown.bytes = doc.shown.bytes.saturating_sub(of_memory);
    }
    platform.drop_memory(cell).await;
    let mut entry = Entry::default();
    let changes = match capture::verify(platform, cell).await {
        // It was removed meanwhile, and that was told.
        Ok(()) if cell.is_over() => Vec::new(),
        Ok(()) => {
            entry = ledger::of_snapshot(platform, cell, None).await;
            let holds = Quotas::captured(&cell.account, &cell.id, cell.doc().shown.bytes);
            entry.changes.drain(..).chain(cell.doc().change()).chain([holds]).collect()
        }
        Err(e) => {
            tracing::error!("the layer of {} was not verified: {e}", cell.id);
            capture::fail(platform, cell, &e).await
        }
    };
    match platform.journal().apply(changes).await {
        Ok(_) => capture::on_record(platform, cell),
        Err(e) => tracing::error!("the state of {} is not written down: {e}", cell.id),
    }
    drop((entry, reading));
    platform.collect().await;
}

/// What is asked for of the branches' deadlines.
fn asked(request: &ForkSandbox) -> Asked {
    let ForkSandbox { timeout_ms, idle_timeout_ms, on_deadline, .. } = *request;
    Asked { timeout_ms, idle_timeout_ms, on_deadline }
}

/// The slots of the branches, as many as there are to be.
pub(crate) fn slots(request: &ForkSandbox) -> Result<Vec<Option<Slot>>, Error> {
    let count = request.count;
    if !(1..=FORK_COUNT_MAX).contains(&count) {
        let message = format!("count is {count}; it must be 1 to {FORK_COUNT_MAX}");
        return Err(Error::new(ErrorCode::InvalidRequest, message));
    }
    match &request.slots {
        Some(slots) if slots.len() != count as usize => {
            let message = format!("{count} branches take {count} slots, not {}", slots.len());
            Err(Error::new(ErrorCode::InvalidRequest, message).remedy("give as many slots as branches, or none"))
        }
        Some(slots) => {
            let twice = slots.iter().enumerate().find(|(n, slot)| slots[..*n].contains(slot));
            if let Some((_, slot)) = twice {
                let message = format!("the slot {slot} is given to two branches");
                return Err(Error::new(ErrorCode::InvalidRequest, message).remedy("give each branch a slot of its own"));
            }
            Ok(slots.iter().cloned().map(Some).collect())
        }
        None => Ok(vec![None; count as usize]),
    }
}

/// A slot that is taken now is taken when its branch comes to it: refused before the source stands still for nothing. One
/// that is taken in between fails its branch alone.
fn are_free(platform: &Platform, caller: &Caller, slots: &[Option<Slot>]) -> Result<(), Error> {
    let wanted: HashSet<&Slot> = slots.iter().flatten().collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let living = platform.registry().tables().sandboxes();
    let stands_in_the_way =
        |cell: &&Arc<SandboxCell>| cell.account == caller.account && !cell.is_over() && wanted.contains(&cell.id.slot);
    match living.iter().find(stands_in_the_way) {
        Some(cell) => {
            let (slot, occupant) = (cell.id.slot.clone(), cell.id.clone());
            Err(refused(&JournalError::Refused(Refusal::SlotInUse { slot, occupant }), caller))
        }
        None => Ok(()),
    }
}

/// Copies share no memory: what the source uses now is needed once more for each. Refused with figures before
/// anything starts, rather than killing neighbours.
fn budget_memory(source: &Arc<SandboxCell>, count: u32) -> Result<(), Error> {
    let (live, _) = source.running.get().ok_or_else(|| Error::new(ErrorCode::WrongState, "it never ran"))?;
    let each = live.machine.memory_bytes();
    let needed = each * u64::from(count);
    let available = available_bytes()?.saturating_sub(HOST_RESERVE_BYTES);
    if needed > available {
        let message = format!("{count} copies of {} need more memory than this machine has free", source.id);
        return Err(Error::new(ErrorCode::LimitReached, message)
            .cause(format!("each needs about {each} bytes, {needed} in all, and {available} are available"))
            .remedy("make fewer branches, or remove sandboxes that are no longer needed")
            .detail("limit", "host_memory_bytes")
            .detail("needed_bytes", needed)
            .detail("available_bytes", available));
    }
    Ok(())
}

/// What the kernel says can be had without swapping.
fn available_bytes() -> Result<u64, Error> {
    let failed = |e: &dyn std::fmt::Display| {
        Error::new(ErrorCode::Internal, "the server cannot tell how much memory is free").cause(e)
    };
    let text = std::fs::read_to_string("/proc/meminfo").map_err(|e| failed(&e))?;
    text.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .map(|kib| kib << 10)
        .ok_or_else(|| failed(&"no MemAvailable in /proc/meminfo"))
}
