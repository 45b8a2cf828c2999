//! Gives a reserved sandbox its machine: prepare, raise, bind, drive.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use remuda_engine as engine;
use remuda_engine::{Limits, MachineSpec, MemoryImage};
use remuda_guest_proto::{Bind, Bound, Request, ResumeAt};
use remuda_types::limits::{CPUS_DEFAULT, PROCESSES_DEFAULT};
use remuda_types::{Error, ErrorCode, ExecutionId, SandboxState, SnapshotId};

use crate::channel::Channel;
use crate::clock::{RunningClock, entropy, id_entropy, now_unix_ms};
use crate::driver::{Driver, Live};
use crate::executions::{CarriedExecution, ExecutionCell};
use crate::operations::execute;
use crate::platform::Platform;
use crate::records::ExecutionDoc;
use crate::registry::SandboxCell;

/// What a machine is filled with.
pub(crate) enum Life {
    /// Fresh processes.
    Fresh {
        /// The snapshot whose files it stands on, if any.
        snapshot: Option<SnapshotId>,
    },
    /// A captured machine.
    Restored {
        /// Which snapshot it is.
        snapshot: SnapshotId,
        /// Its memory.
        image: Arc<MemoryImage>,
        /// Executions that ran in it.
        carried: Vec<CarriedExecution>,
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
    let spec = MachineSpec {
        uid: cell.uid.clone(),
        layers: cell.layers.iter().map(ToString::to_string).collect(),
        limits: Limits { memory_bytes: u64::from(cell.spec.memory_mib) << 20, cpus: CPUS_DEFAULT },
    };
    let start = Instant::now();
    let (snapshot, carried, filling) = match life {
        Life::Fresh { snapshot } => (snapshot, Vec::new(), engine::Life::Fresh),
        Life::Restored { snapshot, image, carried } => {
            let files = tokio::task::spawn_blocking(move || image.open()).await;
            let files = files.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
            (Some(snapshot), carried, engine::Life::Restored(files.map_err(failed)?))
        }
    };
    let site = platform.engine().prepare(&spec).await.map_err(failed)?;
    let channel = Channel::start(site.open_channel().map_err(failed)?);
    let prepared = start.elapsed();
    // Before the agent may say a word: where the output of what already runs in there goes.
    let mut branched = Vec::new();
    let carried_in = snapshot.as_ref().map(|snapshot| platform.execution_places().snapshot(snapshot));
    for (carried, carried_in) in carried.iter().zip(carried_in.iter().cycle()) {
        let id = ExecutionId::from_entropy(id_entropy()?);
        let execution = cell.executions.branched(id, cell.id.clone(), carried, carried_in)?;
        channel.attach_execution(carried.channel, execution.clone());
        branched.push(execution);
    }
    let bind = Bind {
        sandbox: cell.id.to_string(),
        uid: cell.uid.to_string(),
        hostname: cell.id.slot.to_string(),
        machine_id: hex(&entropy::<16>()?),
        snapshot: snapshot.map(|s| s.to_string()),
        now_unix_ms: now_unix_ms(),
        executions: carried.iter().map(|c| ResumeAt { channel: c.channel, have: c.have() }).collect(),
        processes_max: PROCESSES_DEFAULT,
    };
    // Written before there is anybody to read it: the first thing the agent does is to take its identity.
    let mut binding = std::pin::pin!(channel.bind(bind));
    let mut raising = std::pin::pin!(site.raise(filling));
    let (machine, early) = tokio::select! {
        machine = &mut raising => (machine.map_err(failed)?, None),
        bound = &mut binding => (raising.await.map_err(failed)?, Some(bound)),
    };
    let alive = start.elapsed();
    // The agent dies with the machine: an end is known at once, not after the time-out.
    let bound = match early {
        Some(bound) => bound,
        None => tokio::select! {
            bound = binding => bound,
            _ = machine.ended() => {
                return Err(Error::new(ErrorCode::EngineFailed, format!("the processes of {} ended at once", cell.id)));
            }
        },
    };
    let bound = bound.map_err(|e| crate::errors::channel(&cell.id, e))?;
    let live = Arc::new(Live { machine, channel: channel.clone(), clock: RunningClock::started() });
    adopt(&live, cell, &bound, branched).await?;
    let driver = Driver::start(cell, live.clone());
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
            let (shown, channel) = (execution.show(), execution.channel);
            // It was spawned by nobody here: no effect has the number 0.
            let doc = ExecutionDoc { shown, channel, effect: 0, timeout_ms: None };
            cell.records.soon(cell.records.execution(&doc).into_iter().collect()).await;
            execute::mind(cell, live.clone(), execution, doc, None);
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

/// Lower-case hex.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, b| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{b:02x}");
        text
    })
}
