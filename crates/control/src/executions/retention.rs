//! How long what has ended is kept: by count, by bytes, by age. What goes first is the output of the oldest, and the
//! record stays behind as a tombstone for another while. What runs is never touched.

use std::sync::Arc;

use remuda_types::limits::{
    EXECUTION_OUTPUT_SANDBOX_BYTES_MAX, EXECUTION_RETENTION_MS, EXECUTION_TOMBSTONES_MAX, EXECUTIONS_CONCURRENT_MAX,
    EXECUTIONS_RETAINED_MAX,
};
use remuda_types::{Error, ErrorCode};

use super::cell::ExecutionCell;
use super::{Executions, Inner, UNWRITTEN_BYTES_MAX, keeper};
use crate::output::Burial;

/// The limits of one sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Retention {
    /// Executions that may run at once.
    pub(crate) concurrent_max: usize,
    /// Executions on record with their output.
    pub(crate) retained_max: usize,
    /// Output of all of them, in bytes.
    pub(crate) output_bytes_max: u64,
    /// How long after its end one keeps its output, in milliseconds; its record stays as long again.
    pub(crate) age_ms: i64,
    /// Records without output.
    pub(crate) tombstones_max: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Retention {
            concurrent_max: EXECUTIONS_CONCURRENT_MAX,
            retained_max: EXECUTIONS_RETAINED_MAX,
            output_bytes_max: EXECUTION_OUTPUT_SANDBOX_BYTES_MAX,
            age_ms: EXECUTION_RETENTION_MS,
            tombstones_max: EXECUTION_TOMBSTONES_MAX,
        }
    }
}

/// Work on files that is left to do when the tables are right already.
#[derive(Debug, Default)]
pub(super) struct Leavings {
    burials: Vec<Burial>,
    forgotten: Vec<Arc<ExecutionCell>>,
}

impl Executions {
    /// Makes room for one more.
    pub(super) fn make_room(&self, inner: &mut Inner) -> Result<Leavings, Error> {
        let Retention { concurrent_max, retained_max, output_bytes_max, .. } = self.retention;
        let running = self.keeper.running();
        if running >= concurrent_max {
            return Err(Error::limit("executions_concurrent_max", concurrent_max as u64, running as u64)
                .remedy("wait for one of them to end, or cancel one"));
        }
        let unwritten: usize =
            if self.keeper.is_failing() { inner.retained.iter().map(|c| c.unwritten()).sum() } else { 0 };
        if unwritten > UNWRITTEN_BYTES_MAX {
            return Err(Error::new(ErrorCode::DiskFull, "too much output of this sandbox waits for the server's disk")
                .cause(format!("{unwritten} bytes could not be written yet"))
                .remedy("free space on the data directory's disk; nothing was run"));
        }
        let mut leavings = Leavings::default();
        if inner.retained.len() >= retained_max && !inner.bury_oldest(|_| true, &mut leavings) {
            let on_record = inner.retained.len();
            return Err(Error::new(
                ErrorCode::ExecutionHistoryLimit,
                format!(
                    "the limit executions_retained_max is reached: {on_record} of {retained_max}, and all of them run"
                ),
            )
            .detail("limit", "executions_retained_max")
            .detail("maximum", retained_max as u64)
            .detail("current", on_record as u64)
            .remedy("wait for one of them to end, or cancel one"));
        }
        while self.keeper.kept_bytes() > output_bytes_max && inner.bury_oldest(|kept| kept > 0, &mut leavings) {}
        self.limit_tombstones(inner, &mut leavings);
        Ok(leavings)
    }

    /// Lets go of what is too old at this Unix time in milliseconds.
    pub(crate) fn expire(&self, now_ms: i64) {
        let mut leavings = Leavings::default();
        {
            let mut inner = self.inner();
            let before = now_ms - self.retention.age_ms;
            let old = |cell: &ExecutionCell, before: i64| cell.ended_at_ms().is_some_and(|at| at < before);
            while inner.bury_first(|cell| old(cell, before) && cell.buriable().is_some(), &mut leavings) {}
            while inner.buried.front().is_some_and(|cell| old(cell, before - self.retention.age_ms)) {
                inner.forget_oldest(&mut leavings);
            }
            self.limit_tombstones(&mut inner, &mut leavings);
        }
        self.carry_out(leavings);
    }

    fn limit_tombstones(&self, inner: &mut Inner, leavings: &mut Leavings) {
        while inner.buried.len() > self.retention.tombstones_max {
            inner.forget_oldest(leavings);
        }
    }

    /// Removes files, off everybody's way.
    pub(super) fn carry_out(&self, leavings: Leavings) {
        if leavings.burials.is_empty() && leavings.forgotten.is_empty() {
            return;
        }
        keeper::behind(move || {
            for burial in leavings.burials {
                if let Err(e) = burial.run() {
                    tracing::warn!("failed to remove output that is no longer kept: {e}");
                }
            }
            for cell in leavings.forgotten {
                keeper::remove(&cell.paths());
            }
        });
    }
}

impl Inner {
    /// Buries the oldest ended one of which `which` holds, by the bytes it keeps. False if there is none.
    fn bury_oldest(&mut self, which: impl Fn(u64) -> bool, leavings: &mut Leavings) -> bool {
        self.bury_first(|cell| cell.buriable().is_some_and(&which), leavings)
    }

    fn bury_first(&mut self, which: impl Fn(&ExecutionCell) -> bool, leavings: &mut Leavings) -> bool {
        let Some(cell) =
            self.retained.iter().position(|cell| which(cell)).and_then(|oldest| self.retained.remove(oldest))
        else {
            return false;
        };
        leavings.burials.extend(cell.bury());
        self.buried.push_back(cell);
        true
    }

    fn forget_oldest(&mut self, leavings: &mut Leavings) {
        if let Some(cell) = self.buried.pop_front() {
            self.by_id.remove(&cell.id);
            leavings.forgotten.push(cell);
        }
    }
}
