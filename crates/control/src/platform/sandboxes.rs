//! Calls about sandboxes: made, looked at, paused, resumed, ended.

use remuda_types::wire::{CreateSandbox, Removal, Sandbox};
use remuda_types::{Error, SandboxId};

use super::{Platform, detached};
use crate::caller::Caller;
use crate::operations::{create, remove};

impl Platform {
    /// Makes a sandbox from the base image; it runs when this returns.
    ///
    /// # Errors
    /// `invalid_request`, `slot_in_use`, `limit_reached`, `engine_failed`, `disk_full`, `shutting_down`.
    pub async fn create(&self, caller: &Caller, request: CreateSandbox) -> Result<Sandbox, Error> {
        let (this, caller) = (self.clone(), caller.clone());
        detached(async move { create::create(&this, &caller, request).await }).await
    }

    /// Sandboxes, by creation; ended ones too where asked for.
    pub async fn list(&self, caller: &Caller, include_ended: bool) -> Vec<Sandbox> {
        let cells = self.registry().tables().sandboxes();
        let own = cells.iter().filter(|c| c.account == caller.account);
        own.filter(|c| include_ended || !c.is_over()).map(|c| c.show()).collect()
    }

    /// A living sandbox.
    ///
    /// # Errors
    /// `sandbox_not_found`, or `generation_gone` with what is known of its end.
    pub async fn show(&self, caller: &Caller, id: &SandboxId) -> Result<Sandbox, Error> {
        self.living(&caller.account, id).await.map(|cell| cell.show())
    }

    /// Ends and removes a sandbox. Repeating it is fine and says so.
    ///
    /// # Errors
    /// `sandbox_not_found`, `engine_failed`.
    pub async fn remove(&self, caller: &Caller, id: &SandboxId) -> Result<Removal, Error> {
        let (this, caller, id) = (self.clone(), caller.clone(), id.clone());
        detached(async move { remove::remove(&this, &caller, &id).await }).await
    }

    /// Halts every process of a sandbox; they keep their memory.
    ///
    /// # Errors
    /// `sandbox_not_found`, `generation_gone`, `wrong_state`, `snapshot_in_progress`.
    pub async fn pause(&self, caller: &Caller, id: &SandboxId) -> Result<Sandbox, Error> {
        let cell = self.living(&caller.account, id).await?;
        cell.driver()?.pause().await?;
        Ok(cell.show())
    }

    /// Lets a paused sandbox go on.
    ///
    /// # Errors
    /// As for [`Platform::pause`].
    pub async fn resume(&self, caller: &Caller, id: &SandboxId) -> Result<Sandbox, Error> {
        let cell = self.living(&caller.account, id).await?;
        cell.driver()?.resume().await?;
        Ok(cell.show())
    }
}
