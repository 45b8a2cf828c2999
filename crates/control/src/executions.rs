//! Executions on record: their state, their output, and who waits for them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_guest_proto::{FrameError, Kind, OutputChunk, Stream, WINDOW_BYTES};
use remuda_types::limits::{EXECUTIONS_CONCURRENT_MAX, EXECUTIONS_RETAINED_MAX};
use remuda_types::wire::{Execution, OutputStream};
use remuda_types::{Error, ErrorCode, ExecutionId, ExecutionState, SandboxId};
use tokio::sync::watch;

use crate::clock::now_unix_ms;
use crate::output::OutputLog;
use crate::stream::{OutputQuery, OutputSlice};

/// Exit code of an execution that was killed at its time limit, as `timeout` has it.
const EXIT_TIMED_OUT: i32 = 124;
/// Exit code of an execution that was cancelled: killed by signal 9.
const EXIT_CANCELLED: i32 = 137;
/// Output that all executions of one sandbox keep together, in bytes. Beyond it the oldest ended ones lose theirs.
pub(crate) const OUTPUT_SANDBOX_BYTES_MAX: usize = 64 << 20;

/// Why the server killed an execution, so that its end is told as what it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KilledFor {
    TimeOut,
    Cancel,
}

/// One execution.
#[derive(Debug)]
pub(crate) struct ExecutionCell {
    pub(crate) id: ExecutionId,
    /// Its channel to the agent, also the agent's name for it.
    pub(crate) channel: u32,
    inner: Mutex<Inner>,
    /// Moves at every change: more output, another state.
    moved: watch::Sender<u64>,
}

#[derive(Debug)]
struct Inner {
    record: Execution,
    log: OutputLog,
    credited: u64,
    killed_for: Option<KilledFor>,
}

impl ExecutionCell {
    /// A new record; nothing was asked of the agent yet.
    pub(crate) fn new(id: ExecutionId, sandbox: SandboxId, channel: u32, command: Vec<String>) -> Arc<Self> {
        let record = Execution {
            id: id.clone(),
            sandbox,
            command,
            state: ExecutionState::Running,
            exit_code: None,
            pid: None,
            started_at_ms: now_unix_ms(),
            ended_at_ms: None,
            output_bytes: 0,
            output_truncated: false,
            origin: None,
            stdout: None,
            stderr: None,
        };
        Self::with(id, channel, record, OutputLog::default())
    }

    /// The branch's own record of an execution that ran when its source was captured. It has all that was printed
    /// before, and goes on from there.
    pub(crate) fn branched(id: ExecutionId, sandbox: SandboxId, carried: &CarriedExecution) -> Arc<Self> {
        let mut record = carried.record.clone();
        record.origin = Some(std::mem::replace(&mut record.id, id.clone()));
        record.sandbox = sandbox;
        Self::with(id, carried.channel, record, carried.log.clone())
    }

    fn with(id: ExecutionId, channel: u32, record: Execution, log: OutputLog) -> Arc<Self> {
        let credited = log.produced();
        let inner = Mutex::new(Inner { record, log, credited, killed_for: None });
        Arc::new(ExecutionCell { id, channel, inner, moved: watch::Sender::new(0) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let result = change(&mut self.inner());
        self.moved.send_modify(|n| *n += 1);
        result
    }

    /// The record as it stands; outputs are not in it.
    pub(crate) fn show(&self) -> Execution {
        let inner = self.inner();
        let mut record = inner.record.clone();
        record.output_bytes = inner.log.produced();
        record.output_truncated = inner.log.dropped() > 0;
        record
    }

    /// The record with both outputs.
    pub(crate) fn show_with_output(&self) -> Execution {
        let mut record = self.show();
        let inner = self.inner();
        record.stdout = Some(inner.log.text(OutputStream::Stdout));
        record.stderr = Some(inner.log.text(OutputStream::Stderr));
        record
    }

    /// Its state.
    pub(crate) fn state(&self) -> ExecutionState {
        self.inner().record.state
    }

    /// The agent started it.
    pub(crate) fn spawned(&self, pid: u32) {
        self.change(|inner| inner.record.pid = Some(pid));
    }

    /// It never started.
    pub(crate) fn not_started(&self) {
        self.finish(ExecutionState::NotStarted, None);
    }

    /// Nobody can say whether it started.
    pub(crate) fn unknown(&self) {
        self.finish(ExecutionState::Unknown, None);
    }

    /// Notes why it is about to be killed; the first reason counts.
    pub(crate) fn will_be_killed(&self, why: KilledFor) {
        self.inner().killed_for.get_or_insert(why);
    }

    /// Output came in. Returns what to credit, if it is time to.
    pub(crate) fn output(&self, chunk: OutputChunk<'_>) -> Result<Option<u64>, FrameError> {
        let stream = match chunk.stream {
            Stream::Stdout => OutputStream::Stdout,
            Stream::Stderr => OutputStream::Stderr,
        };
        self.change(|inner| {
            inner.log.append(chunk.offset, stream, chunk.bytes).map_err(|missing| FrameError::Payload {
                kind: Kind::GuestData,
                why: format!("{missing} bytes of an execution's output are missing"),
            })?;
            let produced = inner.log.produced();
            // Often enough that the agent's window never closes on a fast reader, and no more often.
            if produced - inner.credited >= WINDOW_BYTES / 4 {
                inner.credited = produced;
                return Ok(Some(produced));
            }
            Ok(None)
        })
    }

    /// The agent told its end.
    pub(crate) fn exited(&self, code: Option<i32>, signal: Option<i32>, produced: u64, _pipes_held: bool) {
        let (have, killed_for) = {
            let inner = self.inner();
            (inner.log.produced(), inner.killed_for)
        };
        if have != produced {
            tracing::warn!("execution {} ended after {produced} bytes of output, {have} arrived", self.id);
        }
        let code = code.or(signal.map(|n| 128 + n)).map(|c| c.clamp(0, 255));
        match killed_for {
            // A program may end by itself in the moment in which it is killed: then that is what happened.
            Some(KilledFor::TimeOut) if signal.is_some() => self.finish(ExecutionState::TimedOut, Some(EXIT_TIMED_OUT)),
            Some(KilledFor::Cancel) if signal.is_some() => self.finish(ExecutionState::Cancelled, Some(EXIT_CANCELLED)),
            _ => self.finish(ExecutionState::Exited, code),
        }
    }

    /// Its sandbox ended under it.
    pub(crate) fn sandbox_ended(&self, out_of_memory: bool) {
        let state = if out_of_memory { ExecutionState::Oom } else { ExecutionState::SandboxGone };
        self.finish(state, None);
    }

    /// The first end counts.
    fn finish(&self, state: ExecutionState, exit_code: Option<i32>) {
        self.change(|inner| {
            if !inner.record.state.is_final() {
                inner.record.state = state;
                inner.record.exit_code = exit_code;
                inner.record.ended_at_ms = Some(now_unix_ms());
            }
        });
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) {
        let mut moved = self.moved.subscribe();
        while !self.state().is_final() {
            if moved.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until it has ended, or `wait` has passed.
    pub(crate) async fn ended_within(&self, wait: Duration) {
        let _ = tokio::time::timeout(wait, self.ended()).await;
    }

    /// Reads output; waits for the first byte or the end if there is nothing yet.
    pub(crate) async fn read(&self, query: OutputQuery) -> OutputSlice {
        let deadline = tokio::time::Instant::now() + query.wait;
        let mut moved = self.moved.subscribe();
        loop {
            moved.mark_unchanged();
            let slice = self.slice(query);
            if !slice.records.is_empty() || slice.skipped_bytes > 0 || slice.complete {
                return slice;
            }
            if !matches!(tokio::time::timeout_at(deadline, moved.changed()).await, Ok(Ok(()))) {
                return slice;
            }
        }
    }

    fn slice(&self, query: OutputQuery) -> OutputSlice {
        let inner = self.inner();
        let found = inner.log.read(query.offset, query.stream, query.max_bytes);
        OutputSlice {
            complete: inner.record.state.is_final() && found.next_offset == inner.log.produced(),
            records: found.records,
            next_offset: found.next_offset,
            skipped_bytes: found.skipped_bytes,
            state: inner.record.state,
            exit_code: inner.record.exit_code,
        }
    }

    /// What a copy of the sandbox goes on from, if it still runs.
    fn carry(&self) -> Option<CarriedExecution> {
        let inner = self.inner();
        let running = !inner.record.state.is_final();
        running.then(|| CarriedExecution {
            channel: self.channel,
            record: inner.record.clone(),
            log: inner.log.clone(),
        })
    }
}

/// A running execution as it stood when its sandbox was captured.
#[derive(Debug, Clone)]
pub(crate) struct CarriedExecution {
    pub(crate) channel: u32,
    record: Execution,
    log: OutputLog,
}

impl CarriedExecution {
    /// Bytes of its output that are in the log.
    pub(crate) fn have(&self) -> u64 {
        self.log.produced()
    }
}

/// All executions of one sandbox, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Executions {
    all: Mutex<VecDeque<Arc<ExecutionCell>>>,
}

impl Executions {
    fn all(&self) -> MutexGuard<'_, VecDeque<Arc<ExecutionCell>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a record in. At the limit the oldest ended one goes; if all run, that is an error.
    pub(crate) fn admit(&self, cell: Arc<ExecutionCell>) -> Result<(), Error> {
        let mut all = self.all();
        let running = all.iter().filter(|e| !e.state().is_final()).count();
        if running >= EXECUTIONS_CONCURRENT_MAX {
            let limit = EXECUTIONS_CONCURRENT_MAX as u64;
            return Err(Error::limit("executions_concurrent_max", limit, running as u64)
                .remedy("wait for one of them to end, or cancel one"));
        }
        if all.len() >= EXECUTIONS_RETAINED_MAX
            && let Some(oldest) = all.iter().position(|e| e.state().is_final())
        {
            all.remove(oldest);
        }
        let mut kept: usize = all.iter().map(|e| e.inner().log.kept()).sum();
        for cell in all.iter().filter(|e| e.state().is_final()) {
            if kept <= OUTPUT_SANDBOX_BYTES_MAX {
                break;
            }
            let log = &mut cell.inner().log;
            kept -= log.kept();
            log.drop_all();
        }
        all.push_back(cell);
        Ok(())
    }

    /// Every record, oldest first.
    pub(crate) fn list(&self) -> Vec<Execution> {
        self.all().iter().map(|e| e.show()).collect()
    }

    /// One of them.
    pub(crate) fn get(&self, id: &ExecutionId, sandbox: &SandboxId) -> Result<Arc<ExecutionCell>, Error> {
        let found = self.all().iter().find(|e| e.id == *id).cloned();
        found.ok_or_else(|| {
            Error::new(ErrorCode::ExecutionNotFound, format!("sandbox {sandbox} has no execution {id}"))
                .remedy("list them with: remuda ps")
        })
    }

    /// What a copy goes on from.
    pub(crate) fn carry(&self) -> Vec<CarriedExecution> {
        self.all().iter().filter_map(|e| e.carry()).collect()
    }

    /// The sandbox ended: so did all that ran in it.
    pub(crate) fn sandbox_ended(&self, out_of_memory: bool) {
        for execution in self.all().iter() {
            execution.sandbox_ended(out_of_memory);
        }
    }
}
