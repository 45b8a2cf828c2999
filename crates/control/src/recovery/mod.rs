//! What a server does about an earlier one on the same data directory before it takes its first call.

use std::collections::HashSet;

use remuda_journal::{
    Change, Holder, Operation as Record, Outcome, Paging, SandboxChange, SandboxFilter, SnapshotFilter, Whose,
};
use remuda_types::{Error, ErrorCode, SandboxState, SnapshotState};

use crate::clock::now_unix_ms;
use crate::operation::{Fault, outcome};
use crate::platform::Platform;
use crate::records::snapshot_is;

/// Ends everything that an earlier server left, and writes that down.
pub(crate) async fn recover(platform: &Platform) -> Result<(), Error> {
    let journal = platform.journal();
    let failed = |e| crate::errors::journal(&e);
    let swept = platform.engine().sweep().await;
    let left = swept.map_err(|e| {
        Error::new(ErrorCode::EngineFailed, "what an earlier server left can't be removed")
            .cause(crate::errors::chain(&e))
            .remedy("run: remuda setup --check")
    })?;
    // Nothing of it is read back yet.
    platform.execution_places().remove_others(&HashSet::new()).map_err(|e| {
        Error::new(ErrorCode::EngineFailed, "what an earlier server's executions left can't be removed").cause(e)
    })?;
    if left > 0 {
        tracing::info!("cleared {left} sandboxes that an earlier server left behind");
    }
    let now = now_unix_ms();
    loop {
        let page = journal.sandboxes(Whose::Everyones, SandboxFilter::default(), Paging::first()).await;
        let page = page.map_err(failed)?;
        let ended = page.items.iter().flat_map(|record| {
            let change = SandboxChange::of(&record.uid).state(SandboxState::Gone).ended(now);
            let change = change.reason(Some("the server ended".to_owned()));
            [Change::Sandbox(change), Change::Release(Holder::from(&record.uid))]
        });
        journal.apply(ended.collect()).await.map_err(failed)?;
        if page.next.is_none() {
            break;
        }
    }
    loop {
        let page = journal.snapshots(Whose::Everyones, SnapshotFilter::default(), Paging::first()).await;
        let page = page.map_err(failed)?;
        let ended = page.items.iter().flat_map(|record| {
            [snapshot_is(&record.id, SnapshotState::Deleted), Change::Release(Holder::from(&record.id))]
        });
        journal.apply(ended.collect()).await.map_err(failed)?;
        if page.next.is_none() {
            break;
        }
    }
    loop {
        let page = journal.unfinished(Paging::first()).await.map_err(failed)?;
        for record in &page.items {
            let outcome: Outcome = outcome::<()>(&Err(interrupted(record)))?;
            journal.finish(&record.id, outcome, Vec::new(), now).await.map_err(failed)?;
        }
        if page.next.is_none() {
            return Ok(());
        }
    }
}

/// Why an operation has no other outcome than that.
fn interrupted(record: &Record) -> Fault {
    let kind = record.scope.kind();
    let told = |code, message: String, remedy: &str| {
        Error::new(code, message).cause("the server ended in the middle of it").remedy(remedy)
    };
    if matches!(kind, "execute" | "signal" | "cancel" | "write_file" | "make_directory" | "remove_file") {
        let message = format!("whether this {kind} took place is not known");
        return Fault::Unknown(told(ErrorCode::Indeterminate, message, "look before you send it with another key"));
    }
    let message = format!("this {kind} was interrupted and is undone");
    Fault::Failed(told(ErrorCode::Interrupted, message, "send it again with another key"))
}
