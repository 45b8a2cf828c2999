//! pause and resume: what is to be is journaled, then done, by the sandbox's driver; the calls wait for it.

use std::sync::Arc;

use remuda_journal::Reservation;
use remuda_types::wire::Sandbox;
use remuda_types::{Error, SandboxId};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::operation::{Ended, Operation, Work};
use crate::platform::Platform;
use crate::registry::SandboxCell;

/// Halts every process of a sandbox; they keep their memory.
pub(crate) struct Pause {
    pub(crate) id: SandboxId,
}

/// Lets a paused sandbox go on.
pub(crate) struct Resume {
    pub(crate) id: SandboxId,
}

impl Operation for Pause {
    const KIND: &'static str = "pause";
    const ACTION: Action = Action::PauseSandbox;
    const ALWAYS: bool = false;
    type Plan = Arc<SandboxCell>;
    type Output = Sandbox;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.id)
    }

    fn request(&self) -> Value {
        json!({})
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        drivable(platform, caller, &self.id).await
    }

    async fn run(self, _: &Platform, cell: Arc<SandboxCell>, _: &Work) -> Ended<Sandbox> {
        told(&cell, async { cell.driver()?.pause().await }).await
    }
}

impl Operation for Resume {
    const KIND: &'static str = "resume";
    const ACTION: Action = Action::ResumeSandbox;
    const ALWAYS: bool = false;
    type Plan = Arc<SandboxCell>;
    type Output = Sandbox;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.id)
    }

    fn request(&self) -> Value {
        json!({})
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        drivable(platform, caller, &self.id).await
    }

    async fn run(self, _: &Platform, cell: Arc<SandboxCell>, _: &Work) -> Ended<Sandbox> {
        told(&cell, async { cell.driver()?.resume().await }).await
    }
}

async fn drivable(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
) -> Result<(Arc<SandboxCell>, Reservation), Error> {
    let cell = platform.living(caller, id).await?;
    cell.not_ending()?;
    cell.driver()?;
    Ok((cell, Reservation::default()))
}

/// Does it, and tells of it where it was not so before.
async fn told(cell: &SandboxCell, done: impl Future<Output = Result<(), Error>>) -> Ended<Sandbox> {
    let before = cell.state();
    match done.await {
        Ok(()) => {
            let event = cell.ledger.halted(cell.state()).filter(|_| cell.state() != before);
            Ended::done(cell.show(), event.into_iter().collect())
        }
        Err(e) => Ended::failed(e, Vec::new()),
    }
}
