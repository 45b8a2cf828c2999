//! remove: journal the intent → fence → kill and wait → unmount, remove → journal the end → collect layers nobody stands on
//! any more.

use std::sync::Arc;

use remuda_journal::Reservation;
use remuda_types::wire::{Removal, RemovalResult, StopResult};
use remuda_types::{Error, ErrorCode, SandboxId, SandboxState};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::ledger::Stop;
use crate::operation::{Ended, Operation, Work};
use crate::operations::raise;
use crate::platform::{Known, Platform};
use crate::registry::SandboxCell;

/// Ends and removes a sandbox.
pub(crate) struct Remove {
    pub(crate) id: SandboxId,
}

impl Operation for Remove {
    const KIND: &'static str = "remove";
    const ACTION: Action = Action::RemoveSandbox;
    const ALWAYS: bool = true;
    type Plan = Known;
    type Output = Removal;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.id)
    }

    fn request(&self) -> Value {
        json!({})
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Known, Reservation), Error> {
        Ok((platform.known(caller, &self.id).await?, Reservation::default()))
    }

    async fn run(self, platform: &Platform, known: Known, work: &Work) -> Ended<Removal> {
        match known {
            Known::Living(cell) => removed(platform, &cell, work).await,
            Known::Ended { ended_at_ms } => {
                let mut removal = already_absent(&self.id, ended_at_ms);
                match platform.last_receipt(&work.account, &self.id).await {
                    Ok(receipt) => removal.receipt = receipt,
                    Err(e) => return Ended::failed(e, Vec::new()),
                }
                Ended::done(removal, Vec::new())
            }
        }
    }
}

/// Ends and removes a sandbox, with what is written down of that.
pub(crate) async fn removed(platform: &Platform, cell: &Arc<SandboxCell>, work: &Work) -> Ended<Removal> {
    let (operation, found) = (work.id.as_ref(), cell.state());
    match end_and_remove(platform, cell).await {
        Ok(mut removal) => {
            if removal.result == RemovalResult::AlreadyAbsent {
                removal.receipt = Some(crate::ledger::deletion_receipt(&cell.uid));
                return Ended::done(removal, Vec::new());
            }
            let result = match found {
                SandboxState::Stopped => StopResult::AlreadyAbsent,
                _ => StopResult::Stopped,
            };
            let stop = Stop { result, reason: "it was removed".to_owned() };
            let entry = cell.ledger.removed(platform, cell, operation, stop, &mut removal).await;
            Ended::done(removal, raise::ended(cell, SandboxState::Gone)).with(entry).over(cell)
        }
        Err(e) => {
            let stop = Stop { result: StopResult::Refused, reason: e.message.clone() };
            let entry = cell.ledger.stopped(operation, stop).await;
            Ended::failed(e, Vec::new()).with(entry)
        }
    }
}

fn already_absent(id: &SandboxId, ended_at_ms: i64) -> Removal {
    Removal {
        id: id.clone(),
        result: RemovalResult::AlreadyAbsent,
        ended_at_ms,
        processes_gone: true,
        files_gone: true,
        bytes_reclaimed: 0,
        receipt: None,
    }
}

/// Ends a sandbox and removes everything of it. Whoever calls writes that down, and then forgets it.
pub(crate) async fn end_and_remove(platform: &Platform, cell: &Arc<SandboxCell>) -> Result<Removal, Error> {
    let id = &cell.id;
    // Fenced before anything else, also before a boot that is under way lets go of the lock.
    if let Some((_, driver)) = cell.running.get() {
        driver.stop().await;
    }
    let _removing = cell.removing.lock().await;
    if cell.is_over() {
        let ended_at_ms = cell.status.borrow().ended_at_ms.unwrap_or_default();
        return Ok(already_absent(id, ended_at_ms));
    }
    // It may have come up while the lock was waited for.
    if let Some((live, driver)) = cell.running.get() {
        driver.stop().await;
        // The driver's own attempt may have failed, and then nobody would ever see an end.
        live.machine.kill().map_err(|e| crate::errors::engine(id, e))?;
        live.machine.both_ended().await;
    }
    let torn = platform.engine().tear_down(&cell.uid).await.map_err(|e| {
        crate::errors::engine(id, e)
            .remedy("try again; what is left is cleared at the server's next start at the latest")
    })?;
    if !torn.processes_gone || !torn.files_gone {
        return Err(Error::new(ErrorCode::EngineFailed, format!("not everything of {id} could be removed"))
            .detail("processes_gone", torn.processes_gone)
            .detail("files_gone", torn.files_gone)
            .remedy("try again"));
    }
    cell.executions.sandbox_ended(false);
    let ended_at_ms = end(cell, "it was removed");
    platform.collect().await;
    Ok(Removal {
        id: id.clone(),
        result: RemovalResult::Removed,
        ended_at_ms,
        processes_gone: torn.processes_gone,
        files_gone: torn.files_gone,
        bytes_reclaimed: torn.bytes_reclaimed,
        receipt: None,
    })
}

/// Notes that a sandbox is over. The first reason stays: one that died and was removed later died.
pub(crate) fn end(cell: &Arc<SandboxCell>, reason: &str) -> i64 {
    let now = now_unix_ms();
    cell.status.send_modify(|status| {
        status.state = SandboxState::Gone;
        status.reason.get_or_insert_with(|| reason.to_owned());
        status.ended_at_ms = Some(now);
    });
    now
}
