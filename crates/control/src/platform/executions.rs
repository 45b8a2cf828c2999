//! Calls about executions and their output.

use std::sync::Arc;
use std::time::Duration;

use remuda_types::limits;
use remuda_types::wire::{Execution, StartExecution};
use remuda_types::{Error, ErrorCode, ExecutionId, SandboxId};

use super::{Known, Platform};
use crate::access::Action;
use crate::caller::Caller;
use crate::executions::{Executions, Follower, Retention};
use crate::operation::{Answered, Call, operate};
use crate::operations::execute::{CancelExecution, Execute, SendSignalTo};
use crate::records::{self, ExecutionDoc};
use crate::stream::{OutputQuery, OutputSlice};

/// Reads one execution's output piece by piece, for as long as its caller may.
#[derive(Debug)]
pub struct OutputFollower {
    action: Action,
    caller: Caller,
    follower: Follower,
}

impl OutputFollower {
    /// The execution as it stands.
    pub fn show(&self) -> Execution {
        self.follower.cell().show_short()
    }

    /// What comes at an offset, after waiting for it. A program that prints faster than this is asked for waits, up to
    /// `follow_stall_ms_max` for one who asks for nothing.
    ///
    /// # Errors
    /// `unauthorized` where the caller's key is no more; `internal` where its log can't be read.
    pub async fn read(&mut self, query: OutputQuery) -> Result<OutputSlice, Error> {
        self.caller.may(self.action)?;
        self.follower.read(query).await
    }
}

impl Platform {
    /// Runs a command; waits for its end as long as the request says. Waiting is no part of the operation: a repeated
    /// call waits for the execution that the first one started.
    ///
    /// # Errors
    /// `spawn_failed` if nothing ran; `unreachable` with the execution's id if it is not known whether it ran.
    pub async fn execute(&self, call: &Call, id: &SandboxId, request: StartExecution) -> Answered<Execution> {
        let wait = Duration::from_millis(request.wait_ms.unwrap_or(0).min(limits::WAIT_MS_MAX));
        let Answered { result, replayed } = operate(self, call, Execute { sandbox: id.clone(), request }).await;
        let result = match result {
            Ok(started) => self.waited(&call.caller, id, &started.execution, wait).await,
            Err(e) => Err(e),
        };
        Answered { result, replayed }
    }

    /// An execution after its end or the wait, with its output where it has ended. Of a sandbox that has ended, its
    /// record.
    async fn waited(
        &self,
        caller: &Caller,
        id: &SandboxId,
        execution: &ExecutionId,
        wait: Duration,
    ) -> Result<Execution, Error> {
        let living = self.registry().sandbox(&caller.account, id);
        if let Some(execution) = living.and_then(|cell| cell.executions.get(execution, id).ok()) {
            if !wait.is_zero() {
                self.while_open(execution.ended_within(wait)).await;
                if execution.state().is_final() {
                    return execution.show_with_output().await;
                }
            }
            return Ok(execution.show());
        }
        let record = self.journal().execution(&caller.account, execution).await;
        let Some(record) = record.map_err(|e| crate::errors::journal(&e))? else {
            return Err(Error::new(ErrorCode::ExecutionNotFound, format!("{execution} is no longer on record")));
        };
        let doc: ExecutionDoc = records::read(&format_args!("the record of {execution}"), &record.doc)?;
        Ok(doc.shown)
    }

    /// All executions of a sandbox on record with their output; long commands are cut. They stay readable when the
    /// sandbox has ended, until their retention ends.
    ///
    /// # Errors
    /// `sandbox_not_found`; `generation_gone` when the records have gone too.
    pub async fn executions(&self, caller: &Caller, id: &SandboxId) -> Result<Vec<Execution>, Error> {
        caller.may(Action::ListExecutions)?;
        Ok(self.on_record(caller, id, None).await?.list())
    }

    /// A sandbox's executions. Of one that has ended they are read back from their files, all or the wanted one.
    async fn on_record(
        &self,
        caller: &Caller,
        id: &SandboxId,
        only: Option<&ExecutionId>,
    ) -> Result<Arc<Executions>, Error> {
        if let Known::Living(cell) = self.known(caller, id).await? {
            return Ok(cell.executions.clone());
        }
        let record = self.journal().sandbox(&caller.account, id).await.map_err(|e| crate::errors::journal(&e))?;
        if let Some(record) = record {
            let (directory, only) = (self.execution_places().sandbox(&record.uid), only.cloned());
            let reading = move || Executions::recover_ended(directory, Retention::default(), only.as_ref());
            let read = tokio::task::spawn_blocking(reading).await;
            let read = read.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
            let found = read.map_err(|e| {
                Error::new(ErrorCode::Internal, format!("what ran in {id} can't be read back")).cause(e)
            })?;
            if let Some(executions) = found {
                return Ok(Arc::new(executions));
            }
        }
        Err(self.gone(caller, id).await?)
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
        caller.may(Action::ShowExecution)?;
        let execution = self.on_record(caller, id, Some(execution)).await?.get(execution, id)?;
        self.while_open(execution.ended_within(wait.min(Duration::from_millis(limits::WAIT_MS_MAX)))).await;
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
        caller.may(Action::ReadOutput)?;
        let execution = self.on_record(caller, id, Some(execution)).await?.get(execution, id)?;
        let query = OutputQuery {
            max_bytes: query.max_bytes.clamp(1, limits::OUTPUT_PAGE_BYTES_MAX),
            wait: query.wait.min(Duration::from_millis(limits::WAIT_MS_MAX)),
            ..query
        };
        tokio::select! {
            biased;
            slice = execution.read_on(query) => slice,
            // What there is now; nobody waits for more of a server that ends.
            () = self.closed() => execution.read(OutputQuery { wait: Duration::ZERO, ..query }).await,
        }
    }

    /// A reader that goes on with an execution's output as it comes.
    ///
    /// # Errors
    /// As for [`Platform::execution`].
    pub async fn follow_output(
        &self,
        caller: &Caller,
        id: &SandboxId,
        execution: &ExecutionId,
    ) -> Result<OutputFollower, Error> {
        self.follow_as(Action::FollowExecution, caller, id, execution).await
    }

    /// The same for whoever joins its terminal.
    ///
    /// # Errors
    /// As for [`Platform::execution`].
    pub async fn join_terminal(
        &self,
        caller: &Caller,
        id: &SandboxId,
        execution: &ExecutionId,
    ) -> Result<OutputFollower, Error> {
        self.follow_as(Action::JoinTerminal, caller, id, execution).await
    }

    async fn follow_as(
        &self,
        action: Action,
        caller: &Caller,
        id: &SandboxId,
        execution: &ExecutionId,
    ) -> Result<OutputFollower, Error> {
        caller.may(action)?;
        let cell = self.on_record(caller, id, Some(execution)).await?.get(execution, id)?;
        Ok(OutputFollower { action, caller: caller.clone(), follower: Follower::of(cell) })
    }

    /// Sends a signal to an execution's process group.
    ///
    /// # Errors
    /// As for [`Platform::execution`], and `execution_not_running`.
    pub async fn signal(
        &self,
        call: &Call,
        id: &SandboxId,
        execution: &ExecutionId,
        signal: i32,
    ) -> Answered<Execution> {
        let operation = SendSignalTo { sandbox: id.clone(), execution: execution.clone(), signal };
        operate(self, call, operation).await
    }

    /// Kills an execution and waits until its end is known.
    ///
    /// # Errors
    /// As for [`Platform::execution`].
    pub async fn cancel(&self, call: &Call, id: &SandboxId, execution: &ExecutionId) -> Answered<Execution> {
        operate(self, call, CancelExecution { sandbox: id.clone(), execution: execution.clone() }).await
    }
}
