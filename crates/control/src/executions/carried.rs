//! Executions that run when their sandbox is captured: the snapshot owns what their logs held at that moment, and each
//! branch begins with it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use remuda_types::{Error, ErrorCode, ExecutionId, SandboxId};
use serde::{Deserialize, Serialize};

use super::cell::ExecutionCell;
use super::record::{Fact, Head, Known, note};
use super::{Executions, places};
use crate::clock::now_unix_ms;
use crate::output::{self, Files, OutputLog, Prefix};

/// A running execution as it stood when its sandbox was captured. It can be kept as JSON; its files lie where
/// [`Executions::carry`] put them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CarriedExecution {
    /// Its channel to the agent, in every copy.
    pub(crate) channel: u32,
    head: Head,
    pid: Option<u32>,
    prefix: Prefix,
    /// How long it had run, in milliseconds of running time.
    #[serde(default)]
    ran_ms: u64,
}

impl CarriedExecution {
    /// Bytes of its output that are in the log: the copy's agent goes on from there.
    pub(crate) fn have(&self) -> u64 {
        self.prefix.produced()
    }
}

impl Executions {
    /// Puts the logs of all that runs into a snapshot's directory: hard links, and copies of what is short. Nothing is
    /// flushed; [`flush_carried`] does that when there is time. `clock_ms` is how long the sandbox has run. Blocks for
    /// some 0.1 ms an execution.
    ///
    /// # Errors
    /// What the file system says. Nothing is left there then, and nothing is lost here.
    pub(crate) fn carry(&self, into: &Path, clock_ms: u64) -> io::Result<Vec<CarriedExecution>> {
        let carried = self.running().into_iter().filter_map(|cell| {
            let carried = cell.carry(into).transpose()?;
            Some(carried.map(|(head, pid, prefix)| {
                let ran_ms = clock_ms.saturating_sub(head.began_ms.unwrap_or(clock_ms));
                CarriedExecution { channel: cell.channel, head, pid, prefix, ran_ms }
            }))
        });
        let carried: io::Result<Vec<_>> = carried.collect();
        if carried.is_err() {
            places::remove(into)?;
        }
        carried
    }

    /// The branch's own record of an execution that ran when its source was captured. It has all that was written
    /// before, and goes on from there. It is not found yet: see [`Executions::admit`].
    ///
    /// # Errors
    /// `disk_full` or `internal`: what the file system says.
    pub(crate) fn branched(
        &self,
        id: ExecutionId,
        sandbox: SandboxId,
        carried: &CarriedExecution,
        carried_in: &Path,
    ) -> Result<Arc<ExecutionCell>, Error> {
        let from = Files { directory: carried_in.to_owned(), id: carried.head.id.clone() };
        let files = Files { directory: self.directory().to_owned(), id: id.clone() };
        let head = Head {
            origin: Some(carried.head.id.clone()),
            id,
            sandbox,
            effect: None,
            // The branch's clock begins when it wakes up; what is left of its time goes on being counted.
            timeout_ms: carried.head.timeout_ms.map(|limit| limit.saturating_sub(carried.ran_ms)),
            began_ms: Some(0),
            ..carried.head.clone()
        };
        let record = note(head.started_at_ms, &head);
        let mut log = OutputLog::branched(files, record, &from, &carried.prefix).map_err(|e| {
            let code = if e.kind() == io::ErrorKind::StorageFull { ErrorCode::DiskFull } else { ErrorCode::Internal };
            Error::new(code, format!("failed to take over the output of execution {}", carried.head.id)).cause(e)
        })?;
        let mut known = Known::of(head);
        known.pid = carried.pid;
        if let Some(pid) = carried.pid {
            log.note(note(now_unix_ms(), &Fact::Spawned { pid }), false);
        }
        let cell = ExecutionCell::with(self.keeper.clone(), known, log);
        cell.write_record();
        Ok(cell)
    }
}

/// Flushes what a snapshot carries to the disk; that it carries nothing is fine. Blocks as long as the disk takes.
///
/// # Errors
/// What the file system says.
pub(crate) fn flush_carried(directory: &Path) -> io::Result<()> {
    if directory.exists() { output::flush(directory) } else { Ok(()) }
}

/// Removes what a snapshot carries; that it carries nothing is fine. Blocks.
///
/// # Errors
/// What the file system says.
pub(crate) fn remove_carried(directory: &Path) -> io::Result<()> {
    places::remove(directory)
}
