//! Reading an execution's output, by offset or by number. Long reads are done by a thread that may block, without the
//! log's lock. Must change nothing.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use remuda_types::wire::{Execution, OutputStream};
use remuda_types::{Error, ErrorCode};

use super::cell::{ExecutionCell, INLINE_BYTES_MAX};
use super::pace::Number;
use crate::output::{self, Page, Records};
use crate::stream::{OutputQuery, OutputSlice};

/// Somebody who follows an execution's output as it comes. Its program waits for them, within limits.
#[derive(Debug)]
pub(crate) struct Follower {
    cell: Arc<ExecutionCell>,
    number: Option<Number>,
}

impl Follower {
    /// One who has not begun to read.
    pub(crate) fn of(cell: Arc<ExecutionCell>) -> Follower {
        Follower { cell, number: None }
    }

    /// The execution.
    pub(crate) fn cell(&self) -> &ExecutionCell {
        &self.cell
    }

    /// As [`ExecutionCell::read`]; who comes for more has done with all before it.
    ///
    /// # Errors
    /// `internal` where its log can't be read.
    pub(crate) async fn read(&mut self, query: OutputQuery) -> Result<OutputSlice, Error> {
        let number = *self.number.get_or_insert_with(|| self.cell.joined(query.offset));
        let asking = Asking { cell: &self.cell, number };
        self.cell.paced(|pace| pace.asks(number, query.offset));
        let read = self.cell.read(query).await;
        drop(asking);
        read
    }
}

/// A follower that waits for output, until this is dropped: it may give the wait up.
struct Asking<'a> {
    cell: &'a ExecutionCell,
    number: Number,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.cell.paced(|pace| pace.given(self.number, Instant::now()));
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.cell.paced(|pace| pace.leave(number));
        }
    }
}

impl ExecutionCell {
    /// The record with both outputs, as much as is kept of them.
    ///
    /// # Errors
    /// `internal` where its log can't be read.
    pub(crate) async fn show_with_output(&self) -> Result<Execution, Error> {
        let mut shown = self.show();
        let all = self.read_log(0, |step| output::page(step, 0, None, usize::MAX)).await?;
        let text = |wanted: OutputStream| {
            let mut text = Vec::new();
            let pieces = all.pieces.iter().filter(|piece| piece.stream == wanted);
            pieces.for_each(|piece| text.extend_from_slice(&piece.bytes));
            String::from_utf8(text).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
        };
        shown.stdout = Some(text(OutputStream::Stdout));
        shown.stderr = Some(text(OutputStream::Stderr));
        Ok(shown)
    }

    /// As [`ExecutionCell::read`], for a call that waits for what comes: its program waits for the next one.
    ///
    /// # Errors
    /// `internal` where its log can't be read.
    pub(crate) async fn read_on(&self, query: OutputQuery) -> Result<OutputSlice, Error> {
        if query.wait.is_zero() || query.since_ms.is_some() {
            return self.read(query).await;
        }
        let number = self.paged(query.offset);
        let _asking = Asking { cell: self, number };
        self.paced(|pace| pace.asks(number, query.offset));
        self.read(query).await
    }

    /// Reads output by offset; waits for the first byte or the end if there is nothing yet.
    ///
    /// # Errors
    /// `internal` where its log can't be read.
    pub(crate) async fn read(&self, query: OutputQuery) -> Result<OutputSlice, Error> {
        let deadline = tokio::time::Instant::now() + query.wait;
        let mut moved = self.moved.subscribe();
        loop {
            moved.mark_unchanged();
            let slice = self.slice(query).await?;
            if !slice.records.is_empty() || slice.skipped_bytes > 0 || slice.complete {
                return Ok(slice);
            }
            if !matches!(tokio::time::timeout_at(deadline, moved.changed()).await, Ok(Ok(()))) {
                return Ok(slice);
            }
        }
    }

    async fn slice(&self, query: OutputQuery) -> Result<OutputSlice, Error> {
        let asked = match query.since_ms {
            None => query.offset,
            Some(since_ms) => self.offset_since(since_ms).await?,
        };
        let offset = asked.min(self.inner().log.produced());
        let page: Page =
            self.read_log(offset, move |step| output::page(step, offset, query.stream, query.max_bytes)).await?;
        let inner = self.inner();
        Ok(OutputSlice {
            // Nothing comes after an end: what was read up to here is all.
            complete: inner.known.state.is_final() && page.next_offset == inner.log.produced(),
            records: page.pieces.into_iter().map(|piece| (piece.offset, piece.stream, piece.bytes)).collect(),
            next_offset: page.next_offset,
            skipped_bytes: page.skipped_bytes,
            state: inner.known.state,
            exit_code: inner.known.exit_code,
        })
    }

    /// Where the first record stands that came in at a moment or later. What waits to be written is new.
    async fn offset_since(&self, since_ms: i64) -> Result<u64, Error> {
        self.read_log(0, move |step| output::since(step, since_ms)).await
    }

    /// Reads records by number, as they were written, each with its time; at most `bytes_max` bytes and a record
    /// more. What waits to be written has no number yet and is not there.
    ///
    /// # Errors
    /// `internal` where its log can't be read.
    pub(crate) async fn records(&self, sequence: u64, bytes_max: usize) -> Result<Records, Error> {
        let me = self.me.upgrade();
        let read = move |cell: &ExecutionCell| {
            output::records(|sequence| cell.inner().log.step_to_record(sequence), sequence, bytes_max)
        };
        let found = match me.filter(|_| self.inner().log.written() > INLINE_BYTES_MAX) {
            Some(me) => blocking(move || read(&me)).await,
            None => read(self),
        };
        found.map_err(|e| self.unreadable(&e))
    }

    /// Asks the log, by a thread that may block where that may take long.
    async fn read_log<T: Send + 'static>(
        &self,
        offset: u64,
        read: impl FnOnce(&mut dyn FnMut(u64) -> io::Result<output::Step>) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let long = {
            let inner = self.inner();
            inner.log.written() > INLINE_BYTES_MAX && offset < inner.log.written()
        };
        let found = match self.me.upgrade().filter(|_| long) {
            Some(me) => blocking(move || read(&mut |offset| me.inner().log.step(offset))).await,
            None => read(&mut |offset| self.inner().log.step(offset)),
        };
        found.map_err(|e| self.unreadable(&e))
    }

    fn unreadable(&self, e: &io::Error) -> Error {
        tracing::error!("failed to read the log of execution {}: {e}", self.id);
        Error::new(ErrorCode::Internal, format!("the output of execution {} can't be read", self.id))
            .cause(e)
            .remedy("look into the server's log, and check the data directory's disk")
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
