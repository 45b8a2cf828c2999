//! Prints an execution's output as it comes, byte for byte and in order, to standard output and standard error.
//! Must never start anything or repeat a call that changes something.

use std::io::{self, Write};
use std::ops::Range;
use std::time::Duration;

use remuda_client::{Client, OutputQuery};
use remuda_types::wire::{OutputPage, OutputStream};
use remuda_types::{ExecutionId, ExecutionState, SandboxId};

/// How long one call waits for more output, in seconds.
const WAIT_SECONDS: u64 = 30;

/// How an execution stood when its output had been printed.
pub struct Stand {
    pub state: ExecutionState,
    pub exit_code: Option<i32>,
    /// Bytes of output that were not printed, since they were no longer kept.
    pub dropped: u64,
}

/// Where to begin.
#[derive(Debug, Clone, Copy)]
pub enum Begin {
    /// At a place.
    Offset(u64),
    /// With what came in at this moment or later, in Unix milliseconds.
    Moment(i64),
}

/// Prints the output from its beginning: to its end where `follow`, else what there is.
pub async fn follow(client: &Client, id: &SandboxId, execution: &ExecutionId, follow: bool) -> anyhow::Result<Stand> {
    follow_from(client, id, execution, Begin::Offset(0), follow).await
}

/// Prints the output from this place on.
pub async fn follow_from(
    client: &Client,
    id: &SandboxId,
    execution: &ExecutionId,
    from: Begin,
    follow: bool,
) -> anyhow::Result<Stand> {
    let wait = if follow { Duration::from_secs(WAIT_SECONDS) } else { Duration::ZERO };
    let mut dropped = 0;
    let (mut offset, mut since_ms) = match from {
        Begin::Offset(offset) => (offset, None),
        Begin::Moment(since_ms) => (0, Some(since_ms)),
    };
    loop {
        let query = OutputQuery { offset, since_ms: since_ms.take(), wait, stream: None };
        let page = client.output(id, execution, &query).await?;
        if page.skipped_bytes > 0 {
            dropped += page.skipped_bytes;
            eprintln!("({} bytes of output were dropped here, at the limit of what is kept)", page.skipped_bytes);
        }
        let raw = if is_lossy(&page) { fetch(client, id, execution, &page).await? } else { None };
        print(&page, raw.as_deref())?;
        offset = page.next_offset;
        if page.complete || (!follow && page.records.is_empty()) {
            return Ok(Stand { state: page.state, exit_code: page.exit_code, dropped });
        }
    }
}

/// Whether the page's text may not be what was written: bytes that are not UTF-8 are replaced in it.
fn is_lossy(page: &OutputPage) -> bool {
    page.records.iter().any(|record| record.text.contains(char::REPLACEMENT_CHARACTER))
}

/// The bytes of a page. `None` where they are no longer all kept; then the text must do.
async fn fetch(
    client: &Client,
    id: &SandboxId,
    execution: &ExecutionId,
    page: &OutputPage,
) -> anyhow::Result<Option<Vec<u8>>> {
    let Some(first) = page.records.first() else { return Ok(None) };
    let wanted = usize::try_from(page.next_offset.saturating_sub(first.offset))?;
    let (mut bytes, mut offset) = (Vec::new(), first.offset);
    while bytes.len() < wanted {
        let query = OutputQuery { offset, ..OutputQuery::default() };
        let more = client.output_bytes(id, execution, &query).await?;
        let whole = more.next_offset.checked_sub(offset) == Some(more.bytes.len() as u64);
        if more.bytes.is_empty() || more.skipped_bytes > 0 || !whole {
            return Ok(None);
        }
        bytes.extend_from_slice(&more.bytes);
        offset = more.next_offset;
    }
    bytes.truncate(wanted);
    Ok(Some(bytes))
}

fn print(page: &OutputPage, raw: Option<&[u8]>) -> io::Result<()> {
    for (index, record) in page.records.iter().enumerate() {
        let exact = raw.and_then(|bytes| bytes.get(range(page, index)?));
        let bytes = exact.unwrap_or(record.text.as_bytes());
        match record.stream {
            OutputStream::Stdout => io::stdout().write_all(bytes)?,
            OutputStream::Stderr => io::stderr().write_all(bytes)?,
        }
    }
    // Standard output holds back what follows the last line break; a prompt must show at once.
    io::stdout().flush()
}

/// Where a record's bytes lie among those of its page.
fn range(page: &OutputPage, index: usize) -> Option<Range<usize>> {
    let first = page.records.first()?.offset;
    let start = page.records.get(index)?.offset.checked_sub(first)?;
    let end = page.records.get(index + 1).map_or(page.next_offset, |next| next.offset).checked_sub(first)?;
    Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use remuda_types::wire::OutputRecord;

    #[test]
    fn records_are_cut_where_they_were_joined() {
        let record = |offset, text: &str| OutputRecord { offset, stream: OutputStream::Stdout, text: text.into() };
        let page = OutputPage {
            records: vec![record(10, "ab"), record(12, "\u{FFFD}"), record(13, "c")],
            next_offset: 14,
            skipped_bytes: 0,
            complete: true,
            state: ExecutionState::Exited,
            exit_code: Some(0),
        };
        assert!(is_lossy(&page));
        assert_eq!((0..3).map(|i| range(&page, i).unwrap()).collect::<Vec<_>>(), [0..2, 2..3, 3..4]);
        assert_eq!(range(&page, 3), None);
    }
}
