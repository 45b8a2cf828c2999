//! fork: budget memory → one capture → N restores in parallel → drop the memory image → verify the layer.
//!
//! One failing branch fails only itself. The fork never waits inside its source's driver.

use std::sync::Arc;
use std::time::Instant;

use remuda_types::limits::FORK_COUNT_MAX;
use remuda_types::wire::{Branch, Fork, ForkSandbox, ForkTimings};
use remuda_types::{Error, ErrorCode, SandboxId, SnapshotMode};

use crate::caller::Caller;
use crate::operations::capture::{self, Capture};
use crate::operations::restore::{self, Reading};
use crate::platform::Platform;
use crate::registry::SandboxCell;

/// Memory that is left to the host when branches are budgeted, in bytes.
const HOST_RESERVE_BYTES: u64 = 512 << 20;

pub(crate) async fn fork(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    request: ForkSandbox,
) -> Result<Fork, Error> {
    let count = request.count;
    if !(1..=FORK_COUNT_MAX).contains(&count) {
        let message = format!("count is {count}; it must be 1 to {FORK_COUNT_MAX}");
        return Err(Error::new(ErrorCode::InvalidRequest, message));
    }
    let slots = match request.slots {
        Some(slots) if slots.len() != count as usize => {
            let message = format!("{} slots were given for {count} branches", slots.len());
            return Err(
                Error::new(ErrorCode::InvalidRequest, message).remedy("give as many slots as branches, or none")
            );
        }
        Some(slots) => slots.into_iter().map(Some).collect(),
        None => vec![None; count as usize],
    };
    let source = platform.living(&caller.account, id).await?;
    let mode = request.mode.unwrap_or(SnapshotMode::Memory);
    if mode == SnapshotMode::Memory {
        budget_memory(&source, count)?;
    }
    let start = Instant::now();
    let since = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    let capture =
        Capture { name: None, mode, labels: request.labels.clone(), launch: request.launch.clone(), of_fork: true };
    let snapshot = capture::take(platform, &source, capture).await?;
    let captured_ms = since(start);

    let reading = Reading::begin(&snapshot);
    let branches = slots.into_iter().map(|slot| {
        let (platform, snapshot) = (platform.clone(), snapshot.clone());
        let (labels, recipe) = (request.labels.clone(), request.launch.clone());
        async move {
            let branch = restore::branch(&platform, &snapshot, slot, labels, recipe).await;
            (branch, since(start))
        }
    });
    let bound = futures_util::future::join_all(branches).await;
    let times = || bound.iter().filter(|(branch, _)| branch.is_ok()).map(|(_, ms)| *ms);
    let timings = ForkTimings {
        captured_ms,
        first_branch_ms: times().fold(f64::INFINITY, f64::min).min(since(start)),
        last_branch_ms: times().fold(captured_ms, f64::max),
    };
    drop(reading);
    // Nobody restores from a fork's own snapshot once its branches are bound; their layer is counted on its own.
    let (finishing, cell) = (platform.clone(), snapshot.clone());
    tokio::spawn(async move {
        finishing.drop_memory(&cell).await;
        if let Err(e) = capture::verify(&finishing, &cell).await {
            tracing::error!("the layer of {} was not verified: {e}", cell.id);
        }
        finishing.collect().await;
    });
    let branches = bound.into_iter().map(|(branch, _)| match branch {
        Ok(cell) => Branch::Sandbox(cell.show()),
        Err(e) => Branch::Error(e),
    });
    Ok(Fork { branches: branches.collect(), snapshot: snapshot.show(), timings })
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
