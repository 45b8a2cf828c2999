//! stop: have the guest's kernel write back what it holds of files → journal that it is being ended → fence, kill, wait →
//! unmount, remove everything but its files → stopped.

use std::sync::Arc;
use std::time::Duration;

use remuda_journal::{Change, Reservation, SandboxChange};
use remuda_types::wire::{Stop, StopResult};
use remuda_types::{Error, ErrorCode, SandboxId, SandboxState};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::ledger;
use crate::operation::{Ended, Operation, Work};
use crate::platform::Platform;
use crate::registry::SandboxCell;
use crate::usage::Quotas;

/// The step after which its processes may be gone at any moment.
pub(crate) const ENDING: &str = "ending";
/// How long the guest's kernel may take to write back what it holds of files. Who stops a sandbox wants it to end.
const FLUSH_WAIT_MAX: Duration = Duration::from_secs(10);
/// Why it is stopped.
pub(crate) const REASON: &str = "it was stopped";

/// Ends a sandbox's processes and keeps its files.
pub(crate) struct StopSandbox {
    pub(crate) id: SandboxId,
}

impl Operation for StopSandbox {
    const KIND: &'static str = "stop";
    const ACTION: Action = Action::StopSandbox;
    const ALWAYS: bool = true;
    type Plan = Arc<SandboxCell>;
    type Output = Stop;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.id)
    }

    fn request(&self) -> Value {
        json!({})
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        let cell = platform.living(caller, &self.id).await?;
        cell.not_ending()?;
        Ok((cell, Reservation::default()))
    }

    async fn run(self, platform: &Platform, cell: Arc<SandboxCell>, work: &Work) -> Ended<Stop> {
        stop(platform, &cell, work).await
    }
}

/// Stops a sandbox. May be repeated.
pub(crate) async fn stop(platform: &Platform, cell: &Arc<SandboxCell>, work: &Work) -> Ended<Stop> {
    // One that is being booted is waited for.
    let turn = cell.removing.clone().lock_owned().await;
    match cell.state() {
        SandboxState::Stopped => {
            let stop = ledger::Stop { result: StopResult::AlreadyAbsent, reason: "it had no processes".to_owned() };
            let entry = cell.ledger.stopped(work.id.as_ref(), stop).await;
            return Ended::done(told(cell, StopResult::AlreadyAbsent, false), Vec::new()).with(entry);
        }
        SandboxState::Running | SandboxState::Paused | SandboxState::Stopping => {}
        _ => {
            let error = Error::new(ErrorCode::GenerationGone, format!("{} has ended meanwhile", cell.id));
            return Ended::failed(error, Vec::new());
        }
    }
    let ended = flush_and_end(platform, cell, work).await;
    drop(turn);
    match ended {
        Ok(flushed) => {
            let change = SandboxChange::of(&cell.uid).state(SandboxState::Stopped).reason(Some(REASON.to_owned()));
            let mut changes = vec![Change::Sandbox(change), cell.ledger.at_rest(REASON)];
            changes.extend(Quotas::at_rest(&cell.account, &cell.uid));
            let stop = ledger::Stop { result: StopResult::Stopped, reason: REASON.to_owned() };
            let entry = cell.ledger.stopped(work.id.as_ref(), stop).await;
            Ended::done(told(cell, StopResult::Stopped, flushed), changes).with(entry)
        }
        Err(e) => {
            let stop = ledger::Stop { result: StopResult::Refused, reason: e.message.clone() };
            let entry = cell.ledger.stopped(work.id.as_ref(), stop).await;
            Ended::failed(e, Vec::new()).with(entry)
        }
    }
}

fn told(cell: &SandboxCell, result: StopResult, flushed: bool) -> Stop {
    Stop { sandbox: cell.show(), result, flushed, receipt: ledger::machine_receipt(&cell.uid) }
}

/// Has the guest's kernel write back what it holds, then journals that the sandbox is being ended, and ends it. Returns
/// whether its files were flushed.
async fn flush_and_end(platform: &Platform, cell: &Arc<SandboxCell>, work: &Work) -> Result<bool, Error> {
    let mut flushed = false;
    // Held until it is ended, so that the guest says nothing more.
    let mut _silence = None;
    if let Some((live, _)) = cell.running.get() {
        match cell.state() {
            SandboxState::Running => match tokio::time::timeout(FLUSH_WAIT_MAX, live.channel.quiesce(true)).await {
                Ok(Ok(silence)) => {
                    flushed = true;
                    _silence = Some(silence);
                }
                Ok(Err(e)) => tracing::warn!("the files of {} were not flushed before its end: {e}", cell.id),
                Err(_) => tracing::warn!("the files of {} were not flushed in time before its end", cell.id),
            },
            // A pause does that, and nothing has run since.
            SandboxState::Paused => flushed = true,
            _ => {}
        }
    }
    work.step(ENDING, json!({ "flushed": flushed }), Vec::new()).await?;
    cell.status.send_modify(|status| status.reason = Some(REASON.to_owned()));
    end_and_keep(platform, cell).await?;
    Ok(flushed)
}

/// Ends a sandbox's processes and keeps its files. The reason that it has stays. Whoever calls writes that down.
pub(crate) async fn end_and_keep(platform: &Platform, cell: &Arc<SandboxCell>) -> Result<(), Error> {
    if let Some((live, driver)) = cell.running.get() {
        driver.stop().await;
        // The driver's own attempt may have failed, and then nobody would ever see an end.
        live.machine.kill().map_err(|e| crate::errors::engine(&cell.id, e))?;
        live.machine.both_ended().await;
    }
    lay_down(platform, cell).await?;
    cell.executions.sandbox_ended(false);
    cell.status.send_modify(|status| {
        status.state = SandboxState::Stopped;
        status.ended_at_ms = Some(now_unix_ms());
    });
    Ok(())
}

/// Ends whatever runs of a sandbox and removes everything of it but its files.
pub(crate) async fn lay_down(platform: &Platform, cell: &SandboxCell) -> Result<(), Error> {
    let gone = platform.engine().lay_down(&cell.uid).await.map_err(|e| crate::errors::engine(&cell.id, e))?;
    if gone {
        return Ok(());
    }
    let message = format!("the processes of {} could not all be ended", cell.id);
    Err(Error::new(ErrorCode::EngineFailed, message).remedy("try again"))
}
