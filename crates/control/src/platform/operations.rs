//! Calls about operations themselves: what became of a call, for whoever has nothing but its key.

use remuda_journal::{Forbidden, Holder, Operation as Record, Scope};
use remuda_types::wire::{CancelOperation, CancelResult, Cancellation, Operation};
use remuda_types::{Error, ErrorCode, Key, OperationId, OperationState};

use super::Platform;
use crate::access::Action;
use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::operation::shown;

impl Platform {
    /// One operation, with the names of its steps.
    ///
    /// # Errors
    /// `operation_not_found`.
    pub async fn operation(&self, caller: &Caller, id: &OperationId) -> Result<Operation, Error> {
        caller.may(Action::ShowOperation)?;
        let found = self.journal().operation(&caller.account, id).await.map_err(|e| crate::errors::journal(&e))?;
        if let Some(record) = found
            && self.sees_operation(caller, &record).await?
        {
            Self::may_look_at(caller, record.scope.kind())?;
            return self.told(record).await;
        }
        Err(Error::new(ErrorCode::OperationNotFound, format!("there is no operation {id} on record"))
            .remedy("list what the call was about to find what became of it"))
    }

    /// An operation as the API shows it, with what it still holds where it is not done.
    async fn told(&self, record: Record) -> Result<Operation, Error> {
        let failed = |e| crate::errors::journal(&e);
        let mut holders: Vec<Holder> = record.reserved.snapshot.iter().map(Holder::from).collect();
        if let Some(sandbox) = record.reserved.sandbox.as_ref().filter(|_| record.state != OperationState::Done) {
            let made = self.journal().sandbox(&record.account, sandbox).await.map_err(failed)?;
            holders.extend(made.map(|made| Holder::from(&made.uid)));
        }
        let (account, state) = (record.account.clone(), record.state);
        let mut shown = shown(record);
        if state != OperationState::Done {
            for holder in &holders {
                let held = self.journal().held(&account, holder).await.map_err(failed)?;
                shown
                    .holds
                    .extend(held.into_iter().filter(|held| held.amount > 0).map(|held| (held.name, held.amount)));
            }
        }
        Ok(shown)
    }

    /// Every operation that a key was used for, as far as the caller could have made the calls: keys are unique for a kind of call and a sandbox only.
    ///
    /// # Errors
    /// `journal_failed`.
    pub async fn operations(&self, caller: &Caller, key: &Key) -> Result<Vec<Operation>, Error> {
        caller.may(Action::ListOperations)?;
        let found = self.journal().operations_by_key(&caller.account, key).await;
        let mut seen = Vec::new();
        for record in found.map_err(|e| crate::errors::journal(&e))? {
            if Self::may_look_at(caller, record.scope.kind()).is_ok() && self.sees_operation(caller, &record).await? {
                seen.push(self.told(record).await?);
            }
        }
        Ok(seen)
    }

    /// Cancels a call by its key where it has not been admitted: whichever comes with it later is refused.
    ///
    /// # Errors
    /// `invalid_request` for a kind that is none; `limit_reached`.
    pub async fn cancel_operation(&self, caller: &Caller, request: CancelOperation) -> Result<Cancellation, Error> {
        caller.may(Action::CancelOperation)?;
        let scope = match request.sandbox {
            Some(sandbox) => Scope::on(&request.kind, sandbox),
            None => Scope::new(&request.kind),
        };
        let scope = scope.map_err(|e| Error::new(ErrorCode::InvalidRequest, e.to_string()))?;
        Self::may_look_at(caller, scope.kind())?;
        if let Some(sandbox) = scope.target() {
            self.known(caller, sandbox).await?;
        }
        let forbidden = self.journal().forbid(&caller.account, &scope, &request.key, now_unix_ms()).await;
        Ok(match forbidden.map_err(|e| crate::operation::refused(&e, caller))? {
            Forbidden::Forbidden => Cancellation { result: CancelResult::Cancelled, operation: None },
            Forbidden::Admitted(record) if !self.sees_operation(caller, &record).await? => {
                return Err(crate::operation::taken());
            }
            Forbidden::Admitted(record) => {
                Cancellation { result: CancelResult::Admitted, operation: Some(self.told(*record).await?) }
            }
        })
    }
}
