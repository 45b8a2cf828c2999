//! Calls about operations themselves: what became of a call, for whoever has nothing but its key.

use remuda_journal::{Forbidden, Scope};
use remuda_types::wire::{CancelOperation, CancelResult, Cancellation, Operation};
use remuda_types::{Error, ErrorCode, Key, OperationId};

use super::Platform;
use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::operation::shown;

impl Platform {
    /// One operation, with the names of its steps.
    ///
    /// # Errors
    /// `operation_not_found`.
    pub async fn operation(&self, caller: &Caller, id: &OperationId) -> Result<Operation, Error> {
        let found = self.journal().operation(&caller.account, id).await.map_err(|e| crate::errors::journal(&e))?;
        found.map(shown).ok_or_else(|| {
            Error::new(ErrorCode::OperationNotFound, format!("there is no operation {id} on record"))
                .remedy("list what the call was about to find what became of it")
        })
    }

    /// Every operation that a key was used for: keys are unique for a kind of call and a sandbox only.
    ///
    /// # Errors
    /// `journal_failed`.
    pub async fn operations(&self, caller: &Caller, key: &Key) -> Result<Vec<Operation>, Error> {
        let found = self.journal().operations_by_key(&caller.account, key).await;
        Ok(found.map_err(|e| crate::errors::journal(&e))?.into_iter().map(shown).collect())
    }

    /// Cancels a call by its key where it has not been admitted: whichever comes with it later is refused.
    ///
    /// # Errors
    /// `invalid_request` for a kind that is none; `limit_reached`.
    pub async fn cancel_operation(&self, caller: &Caller, request: CancelOperation) -> Result<Cancellation, Error> {
        let scope = match request.sandbox {
            Some(sandbox) => Scope::on(&request.kind, sandbox),
            None => Scope::new(&request.kind),
        };
        let scope = scope.map_err(|e| Error::new(ErrorCode::InvalidRequest, e.to_string()))?;
        let forbidden = self.journal().forbid(&caller.account, &scope, &request.key, now_unix_ms()).await;
        Ok(match forbidden.map_err(|e| crate::operation::refused(&e))? {
            Forbidden::Forbidden => Cancellation { result: CancelResult::Cancelled, operation: None },
            Forbidden::Admitted(record) => {
                Cancellation { result: CancelResult::Admitted, operation: Some(shown(*record)) }
            }
        })
    }
}
