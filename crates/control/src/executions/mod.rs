//! Executions on record: their state, their output, and who waits for them, in files that outlive the server.
//!
//! A sandbox has one [`Executions`], on a directory of its own outside of the sandbox's: records and output stay
//! readable after the sandbox is gone. An execution is made ([`Executions::prepare`]) and admitted
//! ([`Executions::admit`]), which writes its record, *before* the agent is asked for anything; what comes of it goes
//! through its [`ExecutionCell`] into its log (see [`crate::output`]). After a restart of the server
//! [`Executions::recover`] reads all of it back: one without an end was running, and the agent goes on from
//! [`ExecutionCell::have`]. A memory snapshot takes the logs of what runs along ([`Executions::carry`]), and a
//! branch's logs begin with them ([`Executions::branched`]).

#![allow(dead_code, reason = "reading by number comes with a route")]

mod carried;
mod cell;
mod keeper;
mod pace;
mod places;
mod reading;
mod record;
mod recover;
mod retention;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_types::wire::Execution;
use remuda_types::{Error, ErrorCode, ExecutionId, SandboxId};

pub(crate) use carried::{CarriedExecution, flush_carried, remove_carried};
pub(crate) use cell::ExecutionCell;
pub(crate) use places::ExecutionPlaces;
pub(crate) use reading::Follower;
pub(crate) use record::{Head, KilledFor};
pub(crate) use retention::Retention;

use crate::deadlines::Work;
use crate::output::{Files, OutputLog};
use keeper::Keeper;
use record::{Known, note};

/// Bytes that may wait for a disk that is full, of all executions of one sandbox together. Beyond it no more are
/// admitted.
pub(crate) const UNWRITTEN_BYTES_MAX: usize = 8 << 20;

/// All executions of one sandbox, oldest first.
#[derive(Debug)]
pub(crate) struct Executions {
    directory: PathBuf,
    retention: Retention,
    keeper: Arc<Keeper>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_id: HashMap<ExecutionId, Arc<ExecutionCell>>,
    /// In the order of their admission.
    retained: VecDeque<Arc<ExecutionCell>>,
    /// Those that lost their output, in the order in which they did.
    buried: VecDeque<Arc<ExecutionCell>>,
}

impl Executions {
    /// Of a new sandbox. The directory is made when it is first needed.
    pub(crate) fn new(directory: PathBuf, retention: Retention) -> Executions {
        Executions { directory, retention, keeper: Arc::default(), inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a record. Nothing is written, and it is not found yet: see [`Executions::admit`].
    pub(crate) fn prepare(&self, head: Head) -> Arc<ExecutionCell> {
        let files = Files { directory: self.directory.clone(), id: head.id.clone() };
        let record = note(head.started_at_ms, &head);
        ExecutionCell::with(self.keeper.clone(), Known::of(head), OutputLog::new(files, record))
    }

    /// Takes a record in and writes it, before anything is asked of the agent. At a limit the oldest ended ones lose
    /// their output. On a full disk the record waits in memory and follows when there is space: a sandbox in which
    /// nothing can be run could not be cleared.
    ///
    /// # Errors
    /// `limit_reached` where too many run at once, `execution_history_limit` where all on record run, `disk_full`
    /// where too much waits for the disk already.
    pub(crate) fn admit(&self, cell: Arc<ExecutionCell>) -> Result<(), Error> {
        let burials = {
            let mut inner = self.inner();
            let burials = self.make_room(&mut inner)?;
            inner.by_id.insert(cell.id.clone(), cell.clone());
            inner.retained.push_back(cell.clone());
            cell.admitted();
            burials
        };
        self.carry_out(burials);
        cell.write_record();
        Ok(())
    }

    /// Every record that still has its output, oldest first; long commands are cut.
    pub(crate) fn list(&self) -> Vec<Execution> {
        self.inner().retained.iter().map(|cell| cell.show_short()).collect()
    }

    /// Every one that has not ended, oldest first.
    pub(crate) fn running(&self) -> Vec<Arc<ExecutionCell>> {
        self.inner().retained.iter().filter(|cell| !cell.state().is_final()).cloned().collect()
    }

    /// Every one of which the guest may still have something to say: what runs, and what was killed and not confirmed.
    pub(crate) fn open(&self) -> Vec<Arc<ExecutionCell>> {
        self.inner().retained.iter().filter(|cell| !cell.state().is_final() || cell.is_unconfirmed()).cloned().collect()
    }

    /// The newest with this command that was started in this sandbox itself, and did not come with a copy.
    pub(crate) fn newest_of(&self, argv: &[String]) -> Option<Arc<ExecutionCell>> {
        let inner = self.inner();
        let mut newest_first = inner.retained.iter().rev();
        newest_first.find(|cell| cell.show().command == argv && cell.head().origin.is_none()).cloned()
    }

    /// One of them, also one that lost its output.
    pub(crate) fn get(&self, id: &ExecutionId, sandbox: &SandboxId) -> Result<Arc<ExecutionCell>, Error> {
        self.inner().by_id.get(id).cloned().ok_or_else(|| {
            Error::new(ErrorCode::ExecutionNotFound, format!("sandbox {sandbox} has no execution {id}"))
                .remedy("list them with: remuda ps")
        })
    }

    /// The sandbox ended: so did all that ran in it.
    pub(crate) fn sandbox_ended(&self, out_of_memory: bool) {
        for execution in self.open() {
            execution.sandbox_ended(out_of_memory);
        }
    }

    /// What is done in the sandbox.
    pub(crate) fn work(&self) -> &Arc<Work> {
        &self.keeper.work
    }

    /// Where the files lie.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}
