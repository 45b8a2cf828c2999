//! One execution: its state, its log, and who waits for it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use remuda_guest_proto::{FrameError, Kind, OutputChunk, Stream, WINDOW_BYTES};
use remuda_types::wire::{Execution, OutputStream, TerminalSize};
use remuda_types::{ExecutionId, ExecutionState};
use tokio::sync::watch;

use super::keeper::{self, Keeper};
use super::pace::{Number, Pace};
use super::record::{Fact, Head, KilledFor, Known, note, read};
use crate::clock::now_unix_ms;
use crate::output::{self, Burial, Files, OutputLog, Refused, Write};

/// Exit code of an execution that was killed at its time limit, as `timeout` has it.
const EXIT_TIMED_OUT: i32 = 124;
/// Exit code of an execution that was cancelled: killed by signal 9.
const EXIT_CANCELLED: i32 = 137;
/// Up to so many bytes a log is written and read where one stands; more of it by a thread that may block.
pub(super) const INLINE_BYTES_MAX: u64 = 64 << 10;
/// Between two attempts to write what could not be written. A disk tells nobody when it has space again.
const WRITE_AGAIN_EVERY: Duration = Duration::from_millis(500);

/// Tells the agent how much of an execution's output it may forget.
pub(crate) type Credit = Box<dyn Fn(u64) + Send + Sync>;

/// One execution.
#[derive(Debug)]
pub(crate) struct ExecutionCell {
    pub(crate) id: ExecutionId,
    /// Its channel to the agent, also the agent's name for it.
    pub(crate) channel: u32,
    pub(super) me: Weak<ExecutionCell>,
    keeper: Arc<Keeper>,
    inner: Mutex<Inner>,
    /// Moves at every change: more output, another state.
    pub(super) moved: watch::Sender<u64>,
    /// Moves when its program has taken in input.
    input_moved: watch::Sender<u64>,
}

pub(super) struct Inner {
    pub(super) known: Known,
    pub(super) log: OutputLog,
    credited: u64,
    credit: Option<Credit>,
    pace: Pace,
    /// A thread writes, or waits to try again; nobody else does meanwhile.
    writing: bool,
    /// The last write failed.
    failing: bool,
    /// Whether it counts as running.
    counted: bool,
    /// Whether it is on record; before, nothing is written.
    admitted: bool,
    /// Whether the guest has said its last word of it, or never will.
    agent_done: bool,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("known", &self.known).field("log", &self.log).finish_non_exhaustive()
    }
}

impl ExecutionCell {
    pub(super) fn with(keeper: Arc<Keeper>, known: Known, log: OutputLog) -> Arc<Self> {
        let credited = log.written();
        keeper.kept(0, log.kept());
        Arc::new_cyclic(|me| ExecutionCell {
            id: known.head.id.clone(),
            channel: known.head.channel,
            me: me.clone(),
            keeper,
            inner: Mutex::new(Inner {
                known,
                log,
                credited,
                credit: None,
                pace: Pace::default(),
                writing: false,
                failing: false,
                counted: false,
                admitted: false,
                agent_done: false,
            }),
            moved: watch::Sender::new(0),
            input_moved: watch::Sender::new(0),
        })
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.moved.send_modify(|n| *n += 1);
    }

    /// Who is told how much output is written, again and again and ever more. It is told from under a lock: it must
    /// take a note and return.
    pub(crate) fn credit_by(&self, credit: Credit) {
        self.inner().credit = Some(credit);
    }

    /// Somebody follows its output as it comes, from here on.
    pub(super) fn joined(&self, at: u64) -> Number {
        self.inner().pace.join(at)
    }

    /// A reader by calls is here, at this place.
    pub(super) fn paged(&self, at: u64) -> Number {
        self.inner().pace.pager(at)
    }

    /// Something about who follows it: more of its output may come.
    pub(super) fn paced(&self, change: impl FnOnce(&mut Pace)) {
        let mut inner = self.inner();
        change(&mut inner.pace);
        inner.credit();
        self.watch_pace(&mut inner);
    }

    /// Looks again when a reader that its program waits for may have stalled.
    fn watch_pace(&self, inner: &mut Inner) {
        let Some(stalls_at) = inner.next_stall().filter(|_| !inner.pace.watched) else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let me = self.me.clone();
        inner.pace.watched = true;
        runtime.spawn(async move {
            tokio::time::sleep_until(stalls_at.into()).await;
            let Some(me) = me.upgrade() else { return };
            me.inner().pace.watched = false;
            me.paced(|_| {});
        });
    }

    /// Where the agent is to go on with its output: what would survive the server.
    pub(crate) fn have(&self) -> u64 {
        self.inner().log.written()
    }

    /// The record as it stands, with the whole command; outputs are not in it.
    pub(crate) fn show(&self) -> Execution {
        let inner = self.inner();
        let mut shown = inner.show();
        if let Some(command) = inner.whole_command() {
            shown.command = command;
        }
        shown
    }

    /// The record as lists show it: a long command is cut.
    pub(crate) fn show_short(&self) -> Execution {
        self.inner().show()
    }

    /// Its state.
    pub(crate) fn state(&self) -> ExecutionState {
        self.inner().known.state
    }

    /// Whether its output waits for a disk.
    pub(crate) fn is_failing(&self) -> bool {
        self.inner().failing
    }

    /// Whether its end is the server's word alone.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.inner().known.unconfirmed
    }

    /// What its record says of how it was asked for: with its time limit and effect, and the command perhaps cut.
    pub(crate) fn head(&self) -> Head {
        self.inner().known.head.clone()
    }

    /// It is on record from now on, and counts as running up to its end.
    pub(super) fn admitted(&self) {
        let mut inner = self.inner();
        inner.admitted = true;
        if !inner.known.state.is_final() && !inner.counted {
            inner.counted = true;
            self.keeper.started();
        }
    }

    /// The agent started it.
    pub(crate) fn spawned(&self, pid: u32) {
        let mut inner = self.inner();
        inner.known.pid = Some(pid);
        // Not worth a write of its own: a live agent tells it again, and the end has it too.
        inner.log.note(note(now_unix_ms(), &Fact::Spawned { pid }), false);
        drop(inner);
        self.tell();
    }

    /// The agent told that its program has taken in input.
    pub(crate) fn input_consumed(&self) {
        self.input_moved.send_modify(|n| *n += 1);
    }

    /// What moves when its program has taken in input.
    pub(crate) fn input_moves(&self) -> watch::Receiver<u64> {
        self.input_moved.subscribe()
    }

    /// Its terminal has another size.
    pub(crate) fn resized(&self, size: TerminalSize) {
        let mut inner = self.inner();
        if !inner.known.state.is_final() {
            inner.known.head.pty = Some(size);
            inner.log.note(note(now_unix_ms(), &Fact::Resized { size }), true);
            self.write(inner);
        }
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
        let mut inner = self.inner();
        if inner.known.killed_for.is_none() && !inner.known.state.is_final() {
            inner.known.killed_for = Some(why);
            inner.log.note(note(now_unix_ms(), &Fact::KilledFor { why }), true);
            self.write(inner);
        }
    }

    /// Output came in.
    ///
    /// # Errors
    /// When the agent breaks the protocol: bytes are missing, or it sent more than it may.
    pub(crate) fn output(&self, chunk: OutputChunk<'_>) -> Result<(), FrameError> {
        let stream = match chunk.stream {
            Stream::Stdout => OutputStream::Stdout,
            Stream::Stderr => OutputStream::Stderr,
        };
        let mut inner = self.inner();
        if inner.known.unconfirmed {
            // Its log has its end. What comes now is let go, so that the guest gets to its own end.
            if let Some(credit) = &inner.credit {
                credit(chunk.offset + chunk.bytes.len() as u64);
            }
            return Ok(());
        }
        inner.log.append(chunk.offset, stream, now_unix_ms(), chunk.bytes).map_err(|refused| {
            let why = match refused {
                Refused::Gap(missing) => format!("{missing} bytes of an execution's output are missing"),
                Refused::Flood => "more of an execution's output than was asked for".into(),
            };
            FrameError::Payload { kind: Kind::GuestData, why }
        })?;
        self.write(inner);
        self.tell();
        Ok(())
    }

    /// The agent told its end.
    pub(crate) fn exited(&self, code: Option<i32>, signal: Option<i32>, produced: u64, pipes_held: bool) {
        let (have, killed_for) = {
            let inner = self.inner();
            (inner.log.produced(), inner.known.killed_for)
        };
        if have != produced {
            tracing::warn!("execution {} ended after {produced} bytes of output, {have} arrived", self.id);
        }
        let code = code.or(signal.map(|n| 128 + n)).map(|c| c.clamp(0, 255));
        {
            let mut inner = self.inner();
            inner.agent_done = true;
            if !inner.known.state.is_final() {
                inner.known.pipes_held = pipes_held;
            }
        }
        match killed_for {
            // A program may end by itself in the moment in which it is killed: then that is what happened.
            Some(KilledFor::TimeOut) if signal.is_some() => self.finish(ExecutionState::TimedOut, Some(EXIT_TIMED_OUT)),
            Some(KilledFor::Cancel | KilledFor::OutputLimit) if signal.is_some() => {
                self.finish(ExecutionState::Cancelled, Some(EXIT_CANCELLED))
            }
            _ => self.finish(ExecutionState::Exited, code),
        }
        // Of one whose end was told before that is all that is new.
        self.tell();
    }

    /// The guest has not confirmed in time that it was killed: that it was is told all the same.
    pub(crate) fn unconfirmed_end(&self) {
        let (state, code) = match self.inner().known.killed_for {
            Some(KilledFor::TimeOut) => (ExecutionState::TimedOut, EXIT_TIMED_OUT),
            Some(KilledFor::Cancel | KilledFor::OutputLimit) => (ExecutionState::Cancelled, EXIT_CANCELLED),
            None => return,
        };
        self.finish_as(state, Some(code), true);
    }

    /// Its sandbox ended under it.
    pub(crate) fn sandbox_ended(&self, out_of_memory: bool) {
        let state = if out_of_memory { ExecutionState::Oom } else { ExecutionState::SandboxGone };
        self.finish(state, None);
    }

    fn finish(&self, state: ExecutionState, exit_code: Option<i32>) {
        self.finish_as(state, exit_code, false);
    }

    /// The first end counts.
    fn finish_as(&self, state: ExecutionState, exit_code: Option<i32>, unconfirmed: bool) {
        let mut inner = self.inner();
        inner.agent_done |= !unconfirmed;
        if inner.known.state.is_final() {
            drop(inner);
            self.tell();
            return;
        }
        inner.known.unconfirmed = unconfirmed;
        let now = now_unix_ms();
        inner.known.state = state;
        inner.known.exit_code = exit_code;
        inner.known.ended_at_ms = Some(now);
        if let Some(end) = inner.known.end() {
            inner.log.end(note(now, &Fact::Ended(end)));
        }
        if !unconfirmed {
            inner.credit = None;
        }
        if std::mem::take(&mut inner.counted) {
            self.keeper.ended();
        }
        self.write(inner);
        self.tell();
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) {
        self.until(|inner| inner.known.state.is_final()).await;
    }

    /// Waits until it has printed more than so many bytes.
    pub(crate) async fn printed_beyond(&self, limit: u64) {
        self.until(|inner| inner.log.produced() > limit).await;
    }

    /// Waits until it has ended and its files say so, with all of its output: only then may the agent forget it.
    pub(crate) async fn settled(&self) {
        self.until(|inner| inner.known.state.is_final() && inner.log.is_settled()).await;
    }

    /// Waits until its end was told without the guest's word.
    pub(crate) async fn ended_unconfirmed(&self) {
        self.until(|inner| inner.known.unconfirmed).await;
    }

    /// Waits until the guest has said its last word of it, or never will.
    pub(crate) async fn let_go(&self) {
        self.until(|inner| inner.agent_done).await;
    }

    async fn until(&self, is: impl Fn(&Inner) -> bool) {
        let mut moved = self.moved.subscribe();
        while !is(&self.inner()) {
            if moved.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until it has ended, or `wait` has passed.
    pub(crate) async fn ended_within(&self, wait: Duration) {
        let _ = tokio::time::timeout(wait, self.ended()).await;
    }

    /// Writes what waits: at once if it is short, else by a thread that may block.
    fn write(&self, mut inner: MutexGuard<'_, Inner>) {
        if inner.writing || !inner.admitted || inner.log.is_settled() {
            return;
        }
        if inner.log.unwritten() as u64 <= INLINE_BYTES_MAX {
            match inner.write_now(&self.keeper) {
                Ok(unneeded) => {
                    drop(inner);
                    self.keeper.remove_files(unneeded);
                    return;
                }
                Err(e) => self.report(&mut inner, &e),
            }
        }
        let (Some(me), Ok(runtime)) = (self.me.upgrade(), tokio::runtime::Handle::try_current()) else { return };
        inner.writing = true;
        drop(inner);
        me.write_behind(&runtime);
    }

    /// Writes all that waits before anything else is done, whatever its size: a record goes before its execution.
    pub(super) fn write_record(&self) {
        let mut inner = self.inner();
        inner.admitted = true;
        // A branch's record is there before it is admitted, and output may be on its way behind it.
        if inner.writing {
            return;
        }
        if let Err(e) = inner.write_now(&self.keeper) {
            self.report(&mut inner, &e);
            self.write(inner);
        }
    }

    fn write_behind(self: Arc<Self>, runtime: &tokio::runtime::Handle) {
        let behind = runtime.clone();
        runtime.spawn_blocking(move || {
            let Err(e) = self.write_all() else { return };
            self.report(&mut self.inner(), &e);
            let again = behind.clone();
            behind.spawn(async move {
                tokio::time::sleep(WRITE_AGAIN_EVERY).await;
                self.write_behind(&again);
            });
        });
    }

    /// Writes until nothing waits. The log is free between taking a write and committing it.
    fn write_all(&self) -> io::Result<()> {
        loop {
            let mut inner = self.inner();
            let Some(mut write) = inner.log.next_write(now_unix_ms()) else {
                inner.writing = false;
                if std::mem::take(&mut inner.failing) {
                    self.keeper.failing(false);
                    tracing::info!("the log of execution {} is written again", self.id);
                }
                drop(inner);
                self.tell();
                return Ok(());
            };
            drop(inner);
            write.run()?;
            let mut inner = self.inner();
            let unneeded = inner.commit(write, &self.keeper);
            drop(inner);
            self.tell();
            keeper::remove(&unneeded);
        }
    }

    /// Says once that writing fails.
    fn report(&self, inner: &mut Inner, e: &io::Error) {
        if !std::mem::replace(&mut inner.failing, true) {
            self.keeper.failing(true);
            let waiting = inner.log.unwritten();
            tracing::warn!(
                "failed to write the log of execution {}: {e}; it goes on, {waiting} bytes wait in memory, and writing \
                 is tried again until there is space",
                self.id
            );
        }
    }

    /// Puts the log of a running execution where a snapshot keeps it.
    pub(super) fn carry(&self, directory: &Path) -> io::Result<Option<(Head, Option<u32>, output::Prefix)>> {
        let mut inner = self.inner();
        if inner.known.state.is_final() {
            return Ok(None);
        }
        let mut head = inner.known.head.clone();
        if let Some(command) = inner.whole_command() {
            head.command = command;
        }
        let pid = inner.known.pid;
        let into = Files { directory: directory.to_owned(), id: self.id.clone() };
        let writing = inner.writing;
        let prefix = inner.log.carry(&into, writing)?;
        Ok(Some((head, pid, prefix)))
    }

    /// Bytes of its output that are kept and would go with [`ExecutionCell::bury`], if it has ended.
    pub(super) fn buriable(&self) -> Option<u64> {
        let inner = self.inner();
        let ended = inner.known.state.is_final() && inner.log.is_settled() && !inner.known.buried;
        ended.then(|| inner.log.kept())
    }

    /// When it ended, in Unix milliseconds.
    pub(super) fn ended_at_ms(&self) -> Option<i64> {
        self.inner().known.ended_at_ms
    }

    /// Whether it lost its output to make room.
    pub(super) fn is_buried(&self) -> bool {
        self.inner().known.buried
    }

    /// Takes its output away, and most of a long command. The files follow with what is returned.
    pub(super) fn bury(&self) -> Option<Burial> {
        let mut inner = self.inner();
        let before = inner.log.kept();
        inner.known.buried = true;
        inner.known.command_cut = false;
        let end = note(inner.known.ended_at_ms?, &Fact::Ended(inner.known.end()?));
        let head = note(inner.known.head.started_at_ms, &inner.known.head);
        let burial = inner.log.bury(&head, &end);
        self.keeper.kept(before, 0);
        drop(inner);
        self.tell();
        Some(burial)
    }

    /// All of its files.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.inner().log.paths()
    }

    /// Bytes that wait for a disk.
    pub(super) fn unwritten(&self) -> usize {
        self.inner().log.unwritten()
    }
}

impl Inner {
    /// A command that is not whole in memory, from where its record is.
    fn whole_command(&self) -> Option<Vec<String>> {
        if !self.known.command_cut {
            return None;
        }
        let record = self.log.record().ok()??;
        read::<Head>(&record).map(|head| head.command)
    }

    fn show(&self) -> Execution {
        self.known.show(self.log.produced(), self.log.dropped() > 0 || self.known.buried)
    }

    /// Often enough that the agent's window never closes on a fast reader, and no more often. Always from under the
    /// log's lock: a smaller figure that overtook a greater one would close the window for good.
    fn credit(&mut self) {
        // Of one whose end was told before the guest's the agent has heard of more than is written.
        if self.known.unconfirmed {
            return;
        }
        let written = self.log.written();
        let may = self.pace.limit(Instant::now()).map_or(written, |(limit, _)| written.min(limit));
        if may.saturating_sub(self.credited) >= WINDOW_BYTES / 4
            && let Some(credit) = &self.credit
        {
            self.credited = may;
            credit(may);
        }
    }

    /// When the reader that is the furthest behind stalls, if it does not come back: output that comes until then may be
    /// held back for it, and somebody must look again.
    fn next_stall(&self) -> Option<Instant> {
        let (_, stalls_at) = self.pace.limit(Instant::now())?;
        stalls_at.filter(|_| self.credit.is_some())
    }

    /// Writes until nothing waits. Returns files that are no longer needed.
    fn write_now(&mut self, keeper: &Keeper) -> io::Result<Vec<PathBuf>> {
        let mut unneeded = Vec::new();
        while let Some(mut write) = self.log.next_write(now_unix_ms()) {
            write.run()?;
            unneeded.extend(self.commit(write, keeper));
        }
        if std::mem::take(&mut self.failing) {
            keeper.failing(false);
        }
        Ok(unneeded)
    }

    fn commit(&mut self, write: Write, keeper: &Keeper) -> Vec<PathBuf> {
        let before = self.log.kept();
        let unneeded = self.log.commit(write);
        keeper.kept(before, self.log.kept());
        self.credit();
        unneeded
    }
}
