//! set_deadline: another deadline on record → in memory. The one way in which a deadline moves.

use std::sync::Arc;

use remuda_journal::Reservation;
use remuda_types::wire::{Sandbox, SetDeadline};
use remuda_types::{Error, ErrorCode, SandboxId, SandboxState};
use serde_json::Value;

use super::Term;
use super::asked::within;
use crate::access::Action;
use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::operation::{Ended, Operation, Work, canonical};
use crate::platform::Platform;
use crate::registry::SandboxCell;

/// Gives a sandbox another deadline, counted from now.
pub(crate) struct ChangeDeadline {
    pub(crate) sandbox: SandboxId,
    pub(crate) request: SetDeadline,
}

impl Operation for ChangeDeadline {
    const KIND: &'static str = "set_deadline";
    const ACTION: Action = Action::SetDeadline;
    const ALWAYS: bool = false;
    type Plan = Arc<SandboxCell>;
    type Output = Sandbox;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        canonical(&self.request)
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        let cell = platform.living(caller, &self.sandbox).await?;
        within("timeout_ms", self.request.timeout_ms, platform.timeout_ms_max())?;
        cell.not_ending()?;
        Ok((cell, Reservation::default()))
    }

    async fn run(self, _: &Platform, cell: Arc<SandboxCell>, work: &Work) -> Ended<Sandbox> {
        match change(&cell, &self.request, work).await {
            Ok(()) => Ended::done(cell.show(), Vec::new()),
            Err(e) => Ended::failed(e, Vec::new()),
        }
    }
}

async fn change(cell: &SandboxCell, request: &SetDeadline, work: &Work) -> Result<(), Error> {
    let _turn = cell.life.turn().await;
    // Its end may have begun while the turn was waited for.
    cell.not_ending()?;
    if matches!(cell.state(), SandboxState::Stopping | SandboxState::Gone | SandboxState::Failed) {
        let message = format!("{} is {} and has no deadline any more", cell.id, cell.state());
        return Err(Error::new(ErrorCode::WrongState, message).detail("state", cell.state().to_string()));
    }
    let (now_ms, before) = (now_unix_ms(), cell.life.term());
    let after = Term {
        set_at_ms: now_ms,
        deadline_at_ms: now_ms.saturating_add_unsigned(request.timeout_ms),
        on_deadline: request.on_deadline.or(before.as_ref().map(|term| term.on_deadline)).unwrap_or_default(),
        idle_timeout_ms: before.as_ref().and_then(|term| term.idle_timeout_ms),
        round: before.map_or(0, |term| term.round.saturating_add(1)),
        told_soon: false,
        ending: None,
        settled: None,
        kept: false,
    };
    work.step("set", Value::Null, vec![cell.with_term(&after)?]).await?;
    // What was kept at its last deadline is idle from now on, and not since then.
    cell.life.work().touch();
    cell.life.set(after);
    Ok(())
}
