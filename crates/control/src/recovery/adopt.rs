//! Takes one machine over from an earlier server, or finds out what became of it.

use std::sync::Arc;
use std::time::Duration;

use remuda_engine::{Adopted, Death, Survivor};
use remuda_types::SandboxState;

use crate::channel::{Channel, ChannelError};
use crate::clock::{RunningClock, now_unix_ms};
use crate::driver::{self, Driver, Live, Standing};
use crate::heir::Heir;
use crate::keeping;
use crate::platform::Platform;
use crate::records::HostRecord;
use crate::registry::SandboxCell;

/// Between two attempts to find out what became of a machine. The engine says nothing when that becomes possible.
const TRY_AGAIN_EVERY: Duration = Duration::from_secs(5);

/// Takes the machine over, if it lives; it is to be in the state `wanted`. If it does not, its sandbox is stopped from
/// now on, its files are kept, and the reason is written down. Ends when either is so, or the sandbox is removed.
pub(super) async fn adopt(platform: Platform, cell: Arc<SandboxCell>, host: HostRecord, wanted: SandboxState) {
    loop {
        // A removal that comes meanwhile waits, and then finds what there is.
        let adopting = cell.removing.lock().await;
        if cell.is_over() {
            return;
        }
        match platform.engine().adopt(&cell.uid, &host.processes).await {
            Ok(Adopted::Alive(survivor)) => {
                if let Err(Silent) = take_over(&cell, *survivor, &host, wanted).await {
                    // It is there and does not answer: that is no reason to end it. What was said to it waits for it.
                    tracing::warn!("{} does not answer, and is asked again", cell.id);
                    drop(adopting);
                    tokio::time::sleep(TRY_AGAIN_EVERY).await;
                    continue;
                }
                keeping::keep(&platform, &cell);
            }
            Ok(Adopted::Ended(death)) => ended(&cell, death == Death::OutOfMemory, &driver::why(death, None)).await,
            Ok(Adopted::Gone) => {
                ended(&cell, false, "the host was started anew, and its processes ended with it").await
            }
            Err(e) => {
                tracing::error!("what became of {} can't be told yet: {}", cell.id, crate::errors::chain(&e));
                drop(adopting);
                tokio::time::sleep(TRY_AGAIN_EVERY).await;
                continue;
            }
        }
        cell.found.send_replace(true);
        return;
    }
}

/// The machine is there, and its agent says nothing: it is starved or halted by somebody else.
struct Silent;

async fn take_over(
    cell: &Arc<SandboxCell>,
    survivor: Survivor,
    host: &HostRecord,
    wanted: SandboxState,
) -> Result<(), Silent> {
    let Survivor { machine, channel, paused } = survivor;
    let clock = RunningClock::from_reading(host.clock, now_unix_ms());
    let channel = Channel::start(channel);
    let live = match Live::of(machine, channel, clock) {
        Ok(live) => Arc::new(live),
        Err(e) => {
            lost(cell, &crate::errors::chain(&e)).await;
            return Ok(());
        }
    };
    let standing = if paused && wanted == SandboxState::Paused {
        Standing::HaltedAndUnbound
    } else {
        // The duty to resume: it stood still for a capture, or for a pause that was not carried out to its end.
        if paused && let Err(e) = live.machine.resume().await {
            unbindable(cell, &live, &crate::errors::chain(&e)).await;
            return Ok(());
        }
        let heir = Heir::of(cell);
        let taken = tokio::select! {
            taken = heir.take_over(&live) => taken,
            // The agent dies with the machine: an end is known at once, not after the time-out.
            _ = live.machine.ended() => Err(ChannelError::Closed),
        };
        match taken {
            // Its server may have been killed before it opened what was made.
            Ok(()) if cell.spec.internet => {
                if let Err(e) = live.machine.open_way_out().await {
                    tracing::warn!("{} has no way out: {}", cell.id, crate::errors::chain(&e));
                }
            }
            Ok(()) => {}
            Err(ChannelError::Silent(_)) => return Err(Silent),
            Err(e) => {
                unbindable(cell, &live, &crate::errors::chain(&e)).await;
                return Ok(());
            }
        }
        Standing::Bound
    };
    let driver = Driver::start(cell, live.clone(), standing);
    let halting = driver.clone();
    if cell.running.set((live, driver)).is_err() {
        tracing::error!("{} was taken over twice", cell.id);
        return Ok(());
    }
    if wanted == SandboxState::Paused && !paused {
        // That it is to stand still was written down, and the server was killed before it was so.
        if let Err(e) = halting.pause().await {
            tracing::error!("{} was to be paused, and runs: {e}", cell.id);
        }
    }
    tracing::info!("took over {}, which is {}", cell.id, cell.state());
    Ok(())
}

/// Nobody can say what goes on in there: it is ended, and its files are kept.
async fn unbindable(cell: &SandboxCell, live: &Live, why: &str) {
    if let Err(e) = live.machine.kill() {
        tracing::error!("failed to end {}: {}", cell.id, crate::errors::chain(&e));
    }
    let death = live.machine.ended().await;
    ended(cell, death == Death::OutOfMemory, &driver::why(death, Some(why))).await;
}

async fn lost(cell: &SandboxCell, why: &str) {
    ended(cell, false, &format!("it was lost at the server's restart: {why}")).await;
}

/// It has no machine any more.
async fn ended(cell: &SandboxCell, out_of_memory: bool, reason: &str) {
    tracing::warn!("{} ended while no server ran, or could not be taken over: {reason}", cell.id);
    cell.executions.sandbox_ended(out_of_memory);
    let at_ms = now_unix_ms();
    cell.ledger.died(at_ms, reason).await;
    cell.status.send_modify(|status| {
        status.state = SandboxState::Stopped;
        status.reason = Some(reason.to_owned());
        status.ended_at_ms = Some(at_ms);
    });
}
