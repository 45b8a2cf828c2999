//! Watches what sandboxes hold on the disk: at its limit one is paused, with a reason and an event.
//!
//! The upper is looked at from outside, so that nothing in a guest can keep it from being seen. What the guest's kernel
//! holds and has not written back yet is not on the disk and is not seen before it is.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use remuda_journal::{Change, SandboxChange};
use remuda_types::{SandboxState, Uid};

use super::disk::disk_use;
use super::limit::{Excess, LOOK_EVERY, judge, rest};
use crate::platform::{Platform, Shared};
use crate::registry::SandboxCell;

/// What is known of one sandbox.
#[derive(Debug, Default)]
struct Watched {
    due: Option<Instant>,
    excess: Option<Excess>,
}

/// Watches as long as there is a platform.
pub(crate) async fn run(shared: Weak<Shared>) {
    let (begun, mut watched) = (Instant::now(), HashMap::<Uid, Watched>::new());
    loop {
        // A guest's writes announce themselves to nobody.
        tokio::time::sleep(LOOK_EVERY / 4).await;
        let Some(shared) = shared.upgrade() else { return };
        let platform = Platform::of(shared);
        let cells = platform.registry().tables().sandboxes();
        watched.retain(|uid, _| cells.iter().any(|cell| cell.uid == *uid));
        for cell in cells.iter().filter(|cell| cell.state() == SandboxState::Running) {
            let known = watched.entry(cell.uid.clone()).or_default();
            if known.due.is_none_or(|due| due <= Instant::now()) {
                let took = look(&platform, cell, known, begun).await;
                known.due = Some(Instant::now() + rest(took));
            }
        }
    }
}

/// Returns how long the look took.
async fn look(platform: &Platform, cell: &Arc<SandboxCell>, known: &mut Watched, begun: Instant) -> Duration {
    let (upper, start) = (platform.engine().dirs().sandbox(&cell.uid).upper, Instant::now());
    let looking = tokio::task::spawn_blocking(move || disk_use(&upper)).await;
    let took = start.elapsed();
    // One that is being removed has none.
    let Ok(Ok(held)) = looking else { return took };
    let used = if held.too_deep { u64::MAX } else { held.bytes };
    let now_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let (pause, excess) = judge(known.excess, used, cell.spec.disk_bytes(), now_ms);
    // One that could not be paused now is judged by what it is next time.
    if !pause || halt(cell, held.bytes, held.too_deep).await {
        known.excess = excess;
    }
    took
}

/// Whether it is paused now. One that is captured at this moment is not, and is looked at again.
async fn halt(cell: &Arc<SandboxCell>, bytes: u64, too_deep: bool) -> bool {
    let Ok(driver) = cell.driver() else { return false };
    if driver.pause().await.is_err() {
        return false;
    }
    let limit = cell.spec.disk_bytes();
    let what = match too_deep {
        true => "its directories are nested deeper than can be counted".to_owned(),
        false => format!("its files take {bytes} bytes, and it may hold {limit}"),
    };
    let reason = format!("{what}; make room within a minute of a resume, or remove it");
    tracing::warn!("{} is paused: {reason}", cell.id);
    let change = SandboxChange::of(&cell.uid).reason(Some(reason.clone()));
    let told = vec![Change::Sandbox(change), cell.ledger.at_disk_limit(&reason)];
    if let Err(e) = cell.records.journal.apply(told).await {
        tracing::error!("why {} is paused is not written down: {e}", cell.id);
    }
    // On record before it is told.
    cell.status.send_modify(|status| {
        if status.state == SandboxState::Paused {
            status.reason = Some(reason.clone());
        }
    });
    true
}
