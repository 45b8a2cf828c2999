//! Gives a reserved sandbox its machine: prepare, raise, bind, drive.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use remuda_engine as engine;
use remuda_engine::{Limits, MachineSpec};
use remuda_guest_proto::{Bound, Request, ResumeAt};
use remuda_types::limits::CPUS_DEFAULT;
use remuda_types::{Error, ErrorCode, ExecutionId, SandboxState, SnapshotId};

use crate::channel::Channel;
use crate::clock::{RunningClock, entropy, id_entropy, now_unix_ms};
use crate::driver::{Driver, Live, Standing};
use crate::executions::ExecutionCell;
use crate::heir::Heir;
use crate::operations::execute;
use crate::platform::Platform;
use crate::registry::{Memory, SandboxCell};

/// What a machine is filled with.
pub(crate) enum Life {
    /// Fresh processes.
    Fresh,
    /// A captured machine.
    Restored {
        /// Which snapshot it is.
        snapshot: SnapshotId,
        /// Its memory.
        memory: Memory,
    },
}

/// Effects asked of agents are numbered once for the whole server, so that no two are ever taken for one. An agent
/// outlives servers: each begins somewhere else.
static NEXT_EFFECT: LazyLock<AtomicU64> = LazyLock::new(|| {
    // Without random bytes the clock must do; half of the range is left to count on.
    let begin = entropy::<8>().map_or_else(|_| now_unix_ms().unsigned_abs() << 20, u64::from_le_bytes);
    AtomicU64::new(begin >> 1)
});

/// A number for an effect.
pub(crate) fn next_effect() -> u64 {
    NEXT_EFFECT.fetch_add(1, Ordering::Relaxed)
}

/// Boots a reserved sandbox. On failure everything of it is removed, its record says why, and it is over.
pub(crate) async fn boot(platform: &Platform, cell: &Arc<SandboxCell>, life: Life) -> Result<(), Error> {
    // Held against a removal that comes while it boots: that one waits and then finds what there is.
    let _booting = cell.removing.lock().await;
    if let Err(e) = try_boot(platform, cell, life).await {
        platform.tear_down_failed(cell, &e).await;
        return Err(e);
    }
    Ok(())
}

async fn try_boot(platform: &Platform, cell: &Arc<SandboxCell>, life: Life) -> Result<(), Error> {
    let failed = |e| crate::errors::engine(&cell.id, e);
    // A server that lets nobody out has none for it, whatever there was when it was made.
    let internet = cell.spec.internet && platform.engine().no_way_out().is_none();
    let spec = MachineSpec {
        uid: cell.uid.clone(),
        layers: cell.layers.iter().map(ToString::to_string).collect(),
        parts: cell.parts.clone(),
        limits: Limits { memory_bytes: u64::from(cell.spec.memory_mib) << 20, cpus: CPUS_DEFAULT },
        internet,
    };
    let start = Instant::now();
    let (carried_in, carried, unbound, filling) = match life {
        Life::Fresh => (None, Vec::new(), false, engine::Life::Fresh),
        Life::Restored { snapshot, memory: Memory { image, carried, unbound } } => {
            let files = tokio::task::spawn_blocking(move || image.open()).await;
            let files = files.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
            let carried_in = platform.execution_places().snapshot(&snapshot);
            (Some(carried_in), carried, unbound, engine::Life::Restored(files.map_err(failed)?))
        }
    };
    let site = platform.engine().prepare(&spec).await.map_err(failed)?;
    let channel = Channel::start(site.open_channel().map_err(failed)?);
    let prepared = start.elapsed();
    // Before the agent may say a word: where the output of what already runs in there goes.
    let mut branched = Vec::new();
    for (carried, carried_in) in carried.iter().zip(carried_in.iter().cycle()) {
        let id = ExecutionId::from_entropy(id_entropy()?);
        let execution = cell.executions.branched(id, cell.id.clone(), carried, carried_in)?;
        channel.attach_execution(carried.channel, execution.clone());
        branched.push(execution);
    }
    let resume = carried.iter().map(|c| ResumeAt { channel: c.channel, have: c.have() }).collect();
    let identity = Heir::of(cell).identity(resume);
    // Written before there is anybody to read it: the first thing the agent does is to take its identity.
    let mut binding = std::pin::pin!(async {
        // The longer way costs a megabyte of zeros; a copy of a machine that was bound needs none.
        if unbound { channel.rebind(identity).await } else { channel.bind(identity).await }
    });
    let mut raising = std::pin::pin!(site.raise(filling));
    let (machine, early) = tokio::select! {
        machine = &mut raising => (machine.map_err(failed)?, None),
        bound = &mut binding => (raising.await.map_err(failed)?, Some(bound)),
    };
    let alive = start.elapsed();
    let live = Arc::new(Live::of(machine, channel.clone(), RunningClock::started()).map_err(failed)?);
    // Written down before anybody hears that it runs, so that a later server takes it over, and beside the bind.
    let host = live.host_record(true);
    let recording = cell.records.raised(&host);
    let bound = match early {
        Some(bound) => {
            recording.await?;
            bound
        }
        None => {
            // The agent dies with the machine: an end is known at once, not after the time-out.
            let bound = async {
                tokio::select! {
                    bound = binding => Ok(bound),
                    _ = live.machine.ended() => {
                        let message = format!("the processes of {} ended at once", cell.id);
                        Err(Error::new(ErrorCode::EngineFailed, message))
                    }
                }
            };
            let (recorded, bound) = tokio::join!(recording, bound);
            recorded?;
            bound?
        }
    };
    let bound = bound.map_err(|e| crate::errors::channel(&cell.id, e))?;
    adopt(&live, cell, &bound, branched).await?;
    // Now that it knows who it is.
    if internet {
        live.machine.open_way_out().await.map_err(failed)?;
    }
    let driver = Driver::start(cell, live.clone(), Standing::Bound);
    if cell.running.set((live, driver)).is_err() {
        return Err(Error::new(ErrorCode::Internal, format!("{} was started twice", cell.id)));
    }
    let bound = start.elapsed();
    tracing::debug!("{}: prepared after {prepared:?}, alive after {alive:?}, bound after {bound:?}", cell.id);
    debug_assert_eq!(cell.state(), SandboxState::Running);
    Ok(())
}

/// Takes over the executions that came with the machine; what the agent knows and nobody carried is forgotten.
async fn adopt(
    live: &Arc<Live>,
    cell: &Arc<SandboxCell>,
    bound: &Bound,
    branched: Vec<Arc<ExecutionCell>>,
) -> Result<(), Error> {
    for execution in branched {
        if bound.executions.iter().any(|report| report.channel == execution.channel) {
            cell.executions.admit(execution.clone())?;
            let doc = execute::document_of(&execution);
            cell.records.soon(cell.records.execution(&doc).into_iter().collect()).await;
            execute::mind(&cell.records, live.clone(), execution);
        } else {
            live.channel.detach(execution.channel);
            execution.sandbox_ended(false);
            cell.executions.admit(execution)?;
        }
    }
    for report in &bound.executions {
        let known = cell.executions.list().iter().any(|e| e.pid == Some(report.pid));
        if !known && !report.running {
            let forgotten = live.channel.call(Request::Forget { channel: report.channel }).await;
            forgotten.map_err(|e| crate::errors::channel(&cell.id, e))?;
        }
    }
    Ok(())
}
