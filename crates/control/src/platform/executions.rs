//! Calls about executions and their output.

use std::time::Duration;

use remuda_types::limits;
use remuda_types::wire::{Execution, StartExecution};
use remuda_types::{Error, ExecutionId, SandboxId};

use super::Platform;
use crate::caller::Caller;
use crate::operations::execute;
use crate::stream::{OutputQuery, OutputSlice};

impl Platform {
    /// Runs a command; waits for its end as long as the request says.
    ///
    /// # Errors
    /// `spawn_failed` if nothing ran; `unreachable` with the execution's id if it is not known whether it ran.
    pub async fn execute(&self, caller: &Caller, id: &SandboxId, request: StartExecution) -> Result<Execution, Error> {
        execute::execute(self, caller, id, request).await
    }

    /// All executions of a sandbox on record.
    ///
    /// # Errors
    /// `sandbox_not_found`, `generation_gone`.
    pub async fn executions(&self, caller: &Caller, id: &SandboxId) -> Result<Vec<Execution>, Error> {
        Ok(self.living(&caller.account, id).await?.executions.list())
    }

    /// One execution, after waiting for its end for at most `wait`.
    ///
    /// # Errors
    /// As for [`Platform::executions`], and `execution_not_found`.
    pub async fn execution(
        &self,
        caller: &Caller,
        id: &SandboxId,
        execution: &ExecutionId,
        wait: Duration,
    ) -> Result<Execution, Error> {
        let execution = self.living(&caller.account, id).await?.executions.get(execution, id)?;
        execution.ended_within(wait.min(Duration::from_millis(limits::WAIT_MS_MAX))).await;
        Ok(execution.show())
    }

    /// A piece of an execution's output.
    ///
    /// # Errors
    /// As for [`Platform::execution`].
    pub async fn output(
        &self,
        caller: &Caller,
        id: &SandboxId,
        execution: &ExecutionId,
        query: OutputQuery,
    ) -> Result<OutputSlice, Error> {
        let execution = self.living(&caller.account, id).await?.executions.get(execution, id)?;
        let query = OutputQuery {
            max_bytes: query.max_bytes.clamp(1, limits::OUTPUT_PAGE_BYTES_MAX),
            wait: query.wait.min(Duration::from_millis(limits::WAIT_MS_MAX)),
            ..query
        };
        Ok(execution.read(query).await)
    }

    /// Sends a signal to an execution's process group.
    ///
    /// # Errors
    /// As for [`Platform::execution`], and `execution_not_running`.
    pub async fn signal(
        &self,
        caller: &Caller,
        id: &SandboxId,
        execution: &ExecutionId,
        signal: i32,
    ) -> Result<Execution, Error> {
        execute::signal(self, caller, id, execution, signal).await
    }

    /// Kills an execution and waits until its end is known.
    ///
    /// # Errors
    /// As for [`Platform::execution`].
    pub async fn cancel(&self, caller: &Caller, id: &SandboxId, execution: &ExecutionId) -> Result<Execution, Error> {
        execute::cancel(self, caller, id, execution).await
    }
}
