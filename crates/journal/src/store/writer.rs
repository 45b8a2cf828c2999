//! The one thread that writes. It takes what waits, commits it all at once, and only then answers: whoever got an
//! answer has it on the disk. It must never answer for something that a crash could take back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use remuda_types::Account;
use rusqlite::{Connection, ErrorCode};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::announcer::Announcer;
use crate::error::JournalError;
use crate::gate::{Gate, Passage};
use crate::limits::{COMMIT_CALLS_MAX, DATABASE_BYTES_MAX, RESERVE_BYTES, UNSYNCED_MS_MAX};
use crate::store::Tx;
use crate::store::db::{failed, is_full};
use crate::store::open::{set_bytes_max, with_suffix};
use crate::store::reserve::Reserve;

/// Rows changed after which the log is carried over into the database.
const CHECKPOINT_CHANGES: u64 = 4_000;
/// Length of the log, in bytes, from which on readers are waited for, so that it can begin anew.
const LOG_BYTES_MAX: u64 = 32 << 20;

/// What a call writes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Something begins; it can be told to come back later.
    Begin,
    /// Something has happened and must be written down; the reserve is for this.
    Record,
}

/// A call that waits for the writer.
pub(crate) trait Ask: Send {
    fn purpose(&self) -> Purpose;
    /// Whether somebody waits for it to be on the disk.
    fn is_awaited(&self) -> bool;
    /// Does it; may be repeated when the transaction failed.
    fn run(&mut self, tx: &Tx<'_>) -> Result<(), JournalError>;
    fn answer(self: Box<Self>, committed: Result<(), JournalError>);
}

/// A call with its result.
pub(crate) struct Call<T, F> {
    pub(crate) purpose: Purpose,
    pub(crate) awaited: bool,
    pub(crate) run: F,
    pub(crate) result: Option<T>,
    pub(crate) reply: oneshot::Sender<Result<T, JournalError>>,
    /// Its place among those that wait; given back with the answer.
    pub(crate) _place: OwnedSemaphorePermit,
}

impl<T, F> Ask for Call<T, F>
where
    T: Send,
    F: FnMut(&Tx<'_>) -> Result<T, JournalError> + Send,
{
    fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn is_awaited(&self) -> bool {
        self.awaited
    }

    fn run(&mut self, tx: &Tx<'_>) -> Result<(), JournalError> {
        self.result = None;
        self.result = Some((self.run)(tx)?);
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), JournalError>) {
        let Call { result, reply, awaited, .. } = *self;
        let answer = committed.and_then(|()| result.ok_or_else(|| JournalError::internal("a call without result")));
        // Whoever asked may be gone; where nobody was ever meant to wait, a failure must not pass in silence.
        if let Err(Err(e)) = reply.send(answer)
            && !awaited
        {
            tracing::error!("a record that nobody waited for was not written: {e}");
        }
    }
}

pub(crate) struct Writer {
    conn: Connection,
    path: PathBuf,
    reserve: Reserve,
    announcer: Arc<Announcer>,
    /// Set once writing has failed with an open outcome; from then on nothing is written.
    stopped: Arc<OnceLock<String>>,
    changes_at_checkpoint: u64,
    /// Asked at each commit, in trials.
    gate: Option<Arc<dyn Gate>>,
    /// Calls that a gate has let nobody be answered of.
    unanswered: Vec<Box<dyn Ask>>,
}

impl Writer {
    pub(crate) fn new(
        conn: Connection,
        path: PathBuf,
        reserve: Reserve,
        announcer: Arc<Announcer>,
        stopped: Arc<OnceLock<String>>,
    ) -> Self {
        let (gate, unanswered) = (None, Vec::new());
        Writer { conn, path, reserve, announcer, stopped, changes_at_checkpoint: 0, gate, unanswered }
    }

    /// The same behind a gate.
    pub(crate) fn behind(self, gate: Option<Arc<dyn Gate>>) -> Self {
        Writer { gate, ..self }
    }

    /// Serves calls until nobody can make any more; what waits then is still written.
    pub(crate) fn serve(mut self, calls: &Receiver<Box<dyn Ask>>) {
        let mut waiting: Vec<Box<dyn Ask>> = Vec::new();
        let mut due: Option<Instant> = None;
        loop {
            if !self.unanswered.is_empty() {
                // Whoever asks waits as long as there is anybody.
                self.unanswered.extend(calls.iter());
                return;
            }
            let next = match due {
                None => calls.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => calls.recv_timeout(due.saturating_duration_since(Instant::now())),
            };
            match next {
                Ok(call) => waiting.push(call),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.commit(waiting);
                    self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)");
                    return;
                }
            }
            while waiting.len() < COMMIT_CALLS_MAX
                && let Ok(call) = calls.try_recv()
            {
                waiting.push(call);
            }
            let now = Instant::now();
            let full = waiting.len() >= COMMIT_CALLS_MAX;
            if full || due.is_some_and(|due| due <= now) || waiting.iter().any(|call| call.is_awaited()) {
                self.commit(std::mem::take(&mut waiting));
                due = None;
            } else if due.is_none() {
                due = Some(now + Duration::from_millis(UNSYNCED_MS_MAX));
            }
        }
    }

    /// Commits calls together; where that fails, each by itself, so that none suffers for another.
    fn commit(&mut self, mut calls: Vec<Box<dyn Ask>>) {
        if calls.is_empty() {
            return;
        }
        match self.gate.as_ref().map_or(Passage::Open, |gate| gate.before(calls.len())) {
            Passage::Open => {}
            Passage::Full => {
                let full = calls.iter().map(|_| Err(JournalError::Full { path: self.path.clone() })).collect();
                return answer(calls, full);
            }
            Passage::Dead => return self.unanswered = calls,
        }
        match self.attempt(&mut calls) {
            Ok(_) if self.gate.as_ref().is_some_and(|gate| gate.after() == Passage::Dead) => {
                return self.unanswered = calls;
            }
            Ok(results) => answer(calls, results),
            Err(_) => {
                for call in calls {
                    let mut alone = [call];
                    let result = self.commit_alone(&mut alone);
                    let [call] = alone;
                    call.answer(result);
                }
            }
        }
        self.checkpoint_if_due();
    }

    fn commit_alone(&mut self, call: &mut [Box<dyn Ask>; 1]) -> Result<(), JournalError> {
        let is_full = |attempted: &Result<_, _>| matches!(attempted, Err(JournalError::Full { .. }));
        let mut attempted = self.attempt(call);
        if is_full(&attempted) {
            attempted = self.attempt_with_empty_log(call);
        }
        // Whatever has begun gets its outcome written: this is what the reserve is for.
        if is_full(&attempted) && call[0].purpose() == Purpose::Record && self.reserve.release() {
            tracing::warn!("the disk of {} is full: its reserve is in use", self.path.display());
            self.raise_limit();
            attempted = self.attempt_with_empty_log(call);
        }
        attempted?.pop().unwrap_or(Ok(()))
    }

    /// Once the log is carried over, the space that it has is written to again.
    fn attempt_with_empty_log(
        &mut self,
        calls: &mut [Box<dyn Ask>],
    ) -> Result<Vec<Result<(), JournalError>>, JournalError> {
        self.checkpoint("PRAGMA wal_checkpoint(RESTART)");
        self.attempt(calls)
    }

    /// One transaction. An error means that nothing of it is kept, unless it is [`JournalError::Stopped`].
    fn attempt(&mut self, calls: &mut [Box<dyn Ask>]) -> Result<Vec<Result<(), JournalError>>, JournalError> {
        if let Some(cause) = self.stopped.get() {
            return Err(JournalError::Stopped { path: self.path.clone(), cause: cause.clone() });
        }
        // Taken up again, if it can be, before anything else may begin.
        let may_begin =
            self.reserve.is_held() || !calls.iter().any(|call| call.purpose() == Purpose::Begin) || self.reserve.take();
        self.conn.execute_batch("BEGIN IMMEDIATE").map_err(|e| failed(&self.path, e))?;
        let tx = Tx::new(&self.conn, &self.path);
        let mut results = Vec::with_capacity(calls.len());
        for call in calls {
            if call.purpose() == Purpose::Begin && !may_begin {
                results.push(Err(JournalError::Full { path: self.path.clone() }));
                continue;
            }
            match run(&self.conn, &tx, call.as_mut()) {
                Ok(result) => results.push(result),
                Err(e) => {
                    drop(tx);
                    self.roll_back();
                    return Err(failed(&self.path, e));
                }
            }
            if matches!(results.last(), Some(Err(JournalError::Full { .. }))) {
                drop(tx);
                self.roll_back();
                return Err(JournalError::Full { path: self.path.clone() });
            }
        }
        let announced = tx.into_announced();
        match self.conn.execute_batch("COMMIT") {
            Ok(()) => {
                self.announcer.announce(latest(announced));
                Ok(results)
            }
            Err(e) => {
                self.roll_back();
                // What doesn't fit was not written to its end, and such a log is read without it. After any other
                // failure the log's end may be on the disk or not, and whatever is appended could bring it to life.
                let harmless = is_full(&e) || e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
                Err(if harmless { failed(&self.path, e) } else { self.stop(&e) })
            }
        }
    }

    /// The reserve comes on top of the database's own limit.
    fn raise_limit(&self) {
        if let Err(e) = set_bytes_max(&self.conn, DATABASE_BYTES_MAX + RESERVE_BYTES) {
            tracing::warn!("the limit of {} can't be raised: {e}", self.path.display());
        }
    }

    fn roll_back(&self) {
        if !self.conn.is_autocommit()
            && let Err(e) = self.conn.execute_batch("ROLLBACK")
        {
            tracing::error!("a transaction of {} can't be rolled back: {e}", self.path.display());
            let _ = self.stopped.set(e.to_string());
        }
    }

    fn stop(&self, e: &rusqlite::Error) -> JournalError {
        tracing::error!("writing to {} failed; nothing more is written: {e}", self.path.display());
        let cause = self.stopped.get_or_init(|| e.to_string()).clone();
        JournalError::Stopped { path: self.path.clone(), cause }
    }

    /// Carries the log over into the database, between commits and after the answers.
    fn checkpoint_if_due(&mut self) {
        let changes = self.conn.total_changes();
        if changes - self.changes_at_checkpoint < CHECKPOINT_CHANGES || self.stopped.get().is_some() {
            return;
        }
        self.changes_at_checkpoint = changes;
        let log = std::fs::metadata(with_suffix(&self.path, "-wal")).map_or(0, |m| m.len());
        self.checkpoint(if log > LOG_BYTES_MAX {
            "PRAGMA wal_checkpoint(RESTART)"
        } else {
            "PRAGMA wal_checkpoint(PASSIVE)"
        });
    }

    fn checkpoint(&self, how: &str) {
        match self.conn.query_row(how, [], |_| Ok(())) {
            Ok(()) => {}
            // Nothing is lost: it stays in the log and is tried again.
            Err(e) if is_full(&e) || e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                tracing::debug!("no checkpoint of {}: {e}", self.path.display());
            }
            // The kernel may have dropped what it couldn't write, and would not say so again.
            Err(e) => {
                self.stop(&e);
            }
        }
    }
}

/// Runs one call in a savepoint. The outer error means that the whole transaction is lost.
fn run(conn: &Connection, tx: &Tx<'_>, call: &mut dyn Ask) -> rusqlite::Result<Result<(), JournalError>> {
    conn.prepare_cached("SAVEPOINT one")?.execute([])?;
    let announced = tx.announced_so_far();
    // A fault in one call's code must not take the writer away from all others.
    let result = catch_unwind(AssertUnwindSafe(|| call.run(tx)))
        .unwrap_or_else(|_| Err(JournalError::internal("a call panicked; see the server's log")));
    if result.is_err() {
        conn.prepare_cached("ROLLBACK TO one")?.execute([])?;
        tx.forget_announced(announced);
    }
    conn.prepare_cached("RELEASE one")?.execute([])?;
    Ok(result)
}

fn answer(calls: Vec<Box<dyn Ask>>, results: Vec<Result<(), JournalError>>) {
    for (call, result) in calls.into_iter().zip(results) {
        call.answer(result);
    }
}

/// The newest number of each account.
fn latest(announced: Vec<(Account, u64)>) -> impl Iterator<Item = (Account, u64)> {
    let newest: std::collections::BTreeMap<_, _> = announced.into_iter().collect();
    newest.into_iter()
}
