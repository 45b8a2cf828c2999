//! Calls about sandboxes: made, looked at, paused, resumed, ended.

use remuda_journal::{SandboxFilter, Whose};
use remuda_types::wire::{CreateSandbox, Removal, Sandbox, SetDeadline, StartSandbox, Stop};
use remuda_types::{Error, SandboxId};

use super::Platform;
use crate::access::Action;
use crate::caller::Caller;
use crate::deadlines::change::ChangeDeadline;
use crate::operation::{Answered, Call, operate};
use crate::operations::create::Create;
use crate::operations::halt::{Pause, Resume};
use crate::operations::remove::Remove;
use crate::operations::start::Start;
use crate::operations::stop::StopSandbox;
use crate::pages;
use crate::records;

impl Platform {
    /// Makes a sandbox from the base image; it runs when this returns.
    ///
    /// # Errors
    /// `invalid_request`, `slot_in_use`, `limit_reached`, `engine_failed`, `disk_full`, `shutting_down`.
    pub async fn create(&self, call: &Call, request: CreateSandbox) -> Answered<Sandbox> {
        operate(self, call, Create { request }).await
    }

    /// Sandboxes that the caller sees, by creation; ended ones too where asked for, as far as they are on record.
    ///
    /// # Errors
    /// `journal_failed` when ended ones can't be read.
    pub async fn list(&self, caller: &Caller, include_ended: bool) -> Result<Vec<Sandbox>, Error> {
        caller.may(Action::ListSandboxes)?;
        let cells = self.registry().tables().sandboxes();
        let own = cells.iter().filter(|c| c.account == caller.account && caller.sees_sandbox(&c.id, &c.labels));
        let mut all: Vec<Sandbox> = own.filter(|c| include_ended || !c.is_over()).map(|c| c.show()).collect();
        if include_ended {
            let filter = SandboxFilter { include_ended: true, ..SandboxFilter::default() };
            let whose = Whose::Of(&caller.account);
            // The living were told above; one that was admitted since then comes with the next call.
            let seen = pages::all(|paging| self.journal().sandboxes(whose, filter.clone(), paging)).await?;
            let seen = seen.iter().filter(|record| caller.sees_sandbox(&record.id, &record.labels));
            for record in seen.filter(|record| record.ended_at_ms.is_some()) {
                if !all.iter().any(|told| told.uid == record.uid) {
                    all.push(records::sandbox(record)?);
                }
            }
            all.sort_by(|a, b| (a.id.generation, &a.id.slot).cmp(&(b.id.generation, &b.id.slot)));
        }
        Ok(all)
    }

    /// A living sandbox.
    ///
    /// # Errors
    /// `sandbox_not_found`, or `generation_gone` with what is known of its end.
    pub async fn show(&self, caller: &Caller, id: &SandboxId) -> Result<Sandbox, Error> {
        caller.may(Action::ShowSandbox)?;
        self.living(caller, id).await.map(|cell| cell.show())
    }

    /// Ends and removes a sandbox. Repeating it is fine and says so.
    ///
    /// # Errors
    /// `sandbox_not_found`, `engine_failed`.
    pub async fn remove(&self, call: &Call, id: &SandboxId) -> Answered<Removal> {
        operate(self, call, Remove { id: id.clone() }).await
    }

    /// Ends a sandbox's processes and keeps its files. Repeating it is fine and says so.
    ///
    /// # Errors
    /// `sandbox_not_found`, `generation_gone`, `engine_failed`.
    pub async fn stop(&self, call: &Call, id: &SandboxId) -> Answered<Stop> {
        operate(self, call, StopSandbox { id: id.clone() }).await
    }

    /// Goes on with the files of a stopped sandbox, as the next generation of its slot, which runs when this returns.
    ///
    /// # Errors
    /// `sandbox_not_found`, `generation_gone`, `wrong_state`, `launch_failed`, `engine_failed`. The files are kept in
    /// every case.
    pub async fn start(&self, call: &Call, id: &SandboxId, request: StartSandbox) -> Answered<Sandbox> {
        operate(self, call, Start { id: id.clone(), request }).await
    }

    /// Gives a sandbox another deadline, counted from now.
    ///
    /// # Errors
    /// `sandbox_not_found`, `generation_gone`; `invalid_request` for more than the server allows; `wrong_state` when its
    /// end has begun.
    pub async fn set_deadline(&self, call: &Call, id: &SandboxId, request: SetDeadline) -> Answered<Sandbox> {
        operate(self, call, ChangeDeadline { sandbox: id.clone(), request }).await
    }

    /// Halts every process of a sandbox; they keep their memory.
    ///
    /// # Errors
    /// `sandbox_not_found`, `generation_gone`, `wrong_state`, `snapshot_in_progress`.
    pub async fn pause(&self, call: &Call, id: &SandboxId) -> Answered<Sandbox> {
        operate(self, call, Pause { id: id.clone() }).await
    }

    /// Lets a paused sandbox go on.
    ///
    /// # Errors
    /// As for [`Platform::pause`].
    pub async fn resume(&self, call: &Call, id: &SandboxId) -> Answered<Sandbox> {
        operate(self, call, Resume { id: id.clone() }).await
    }
}
