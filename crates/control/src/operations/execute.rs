//! execute: admit and record → hand to the agent → mind it until its end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use remuda_guest_proto::{Program, Reply, Request, Spawn};
use remuda_types::limits::{COMMAND_BYTES_MAX, ENV_VARS_MAX, EXECUTION_TIMEOUT_MS_MAX, PATH_BYTES_MAX, WAIT_MS_MAX};
use remuda_types::wire::{Execution, StartExecution};
use remuda_types::{Error, ErrorCode, ExecutionId, SandboxId};

use crate::boot::next_effect;
use crate::caller::Caller;
use crate::channel::{ChannelError, Feed};
use crate::clock::id_entropy;
use crate::driver::Live;
use crate::executions::{ExecutionCell, KilledFor};
use crate::platform::Platform;
use crate::registry::SandboxCell;

/// How long inherited pipes are read on after the leader's end, in milliseconds.
const GRACE_MS: u64 = 2_000;
/// Where commands run unless they say otherwise.
pub(crate) const CWD_DEFAULT: &str = "/workspace";
/// Whose commands and files they are unless they say otherwise.
pub(crate) const USER_DEFAULT: &str = "user";
const SIGKILL: i32 = 9;

/// Starts a command and waits for its end as long as the request says.
pub(crate) async fn execute(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    request: StartExecution,
) -> Result<Execution, Error> {
    let cell = platform.living(&caller.account, id).await?;
    let wait = Duration::from_millis(request.wait_ms.unwrap_or(0).min(WAIT_MS_MAX));
    let execution = start(&cell, request).await?;
    if !wait.is_zero() {
        execution.ended_within(wait).await;
    }
    let ended = execution.state().is_final() && !wait.is_zero();
    Ok(if ended { execution.show_with_output() } else { execution.show() })
}

/// Starts a command. Admitting it is the outcome; whoever wants to waits for the record.
///
/// Runs as a task of its own: a caller who goes away in the middle leaves a record that tells what happened.
pub(crate) async fn start(cell: &Arc<SandboxCell>, request: StartExecution) -> Result<Arc<ExecutionCell>, Error> {
    let (program, command) = program(&request)?;
    check(&request)?;
    let live = cell.live()?.clone();
    let channel = live.channel.new_channel();
    let id = ExecutionId::from_entropy(id_entropy()?);
    let execution = ExecutionCell::new(id, cell.id.clone(), channel, command);
    cell.executions.admit(execution.clone())?;
    let spawn = Request::Spawn(Spawn {
        execution: execution.id.to_string(),
        effect: next_effect(),
        program,
        cwd: request.cwd.unwrap_or_else(|| CWD_DEFAULT.into()),
        env: request.env,
        user: request.user.unwrap_or_else(|| USER_DEFAULT.into()),
        stdin: request.stdin.is_some(),
        grace_ms: GRACE_MS,
    });
    let time_limit = request.timeout_ms.map(Duration::from_millis);
    let (sandbox, started) = (cell.id.clone(), execution.clone());
    let task = tokio::spawn(async move {
        live.channel.attach_execution(channel, started.clone());
        match live.channel.call_on(channel, spawn).await {
            Ok(Reply::Spawned { pid }) => {
                started.spawned(pid);
                if let Some(text) = request.stdin {
                    feed(&live, channel, text);
                }
                mind(live, started, time_limit);
                Ok(())
            }
            Ok(other) => Err(crate::errors::channel(&sandbox, crate::channel::unexpected(&other))),
            Err(ChannelError::Agent(refusal)) => {
                live.channel.detach(channel);
                started.not_started();
                Err(Error::new(ErrorCode::SpawnFailed, refusal.message).remedy("nothing ran; correct the call"))
            }
            // Handed over, and the machine ended before it told what became of it.
            Err(e) => {
                started.unknown();
                Err(crate::errors::channel(&sandbox, e).detail("execution", started.id.to_string()))
            }
        }
    });
    task.await.map_err(|e| Error::new(ErrorCode::Internal, "a start ended unexpectedly").cause(e))??;
    Ok(execution)
}

/// Sends a program its input and closes it.
fn feed(live: &Arc<Live>, channel: u32, text: String) {
    let live = live.clone();
    tokio::spawn(async move {
        // A program that ends without reading all of it is no error.
        let _ = Feed::run(&live.channel, channel, Bytes::from(text)).await;
    });
}

/// Watches over a running execution: kills it at its time limit, and lets the agent forget it when it has ended.
pub(crate) fn mind(live: Arc<Live>, execution: Arc<ExecutionCell>, time_limit: Option<Duration>) {
    tokio::spawn(async move {
        if let Some(limit) = time_limit {
            tokio::select! {
                () = execution.ended() => {}
                () = live.clock.run_for(limit) => {
                    execution.will_be_killed(KilledFor::TimeOut);
                    // Failing means that the channel is gone, and the machine with it.
                    let _ = send_signal(&live, &execution, SIGKILL).await;
                }
            }
        }
        execution.ended().await;
        let _ = live.channel.call(Request::Forget { channel: execution.channel }).await;
    });
}

/// Sends a signal to an execution's process group.
pub(crate) async fn signal(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    execution: &ExecutionId,
    signal: i32,
) -> Result<Execution, Error> {
    if !(1..=64).contains(&signal) {
        return Err(Error::new(ErrorCode::InvalidRequest, format!("{signal} is no signal; they are 1 to 64")));
    }
    let cell = platform.living(&caller.account, id).await?;
    let execution = cell.executions.get(execution, id)?;
    if execution.state().is_final() {
        let message = format!("execution {} has ended ({})", execution.id, execution.state());
        return Err(Error::new(ErrorCode::ExecutionNotRunning, message));
    }
    let live = cell.live()?;
    send_signal(live, &execution, signal).await.map_err(|e| crate::errors::channel(id, e))?;
    Ok(execution.show())
}

/// Kills an execution's process group and waits until its end is known. One that has ended is left as it is.
pub(crate) async fn cancel(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    execution: &ExecutionId,
) -> Result<Execution, Error> {
    let cell = platform.living(&caller.account, id).await?;
    let execution = cell.executions.get(execution, id)?;
    if !execution.state().is_final() {
        let live = cell.live()?;
        execution.will_be_killed(KilledFor::Cancel);
        send_signal(live, &execution, SIGKILL).await.map_err(|e| crate::errors::channel(id, e))?;
        execution.ended_within(Duration::from_millis(WAIT_MS_MAX)).await;
    }
    Ok(execution.show())
}

async fn send_signal(live: &Live, execution: &ExecutionCell, signal: i32) -> Result<(), ChannelError> {
    match live.channel.call(Request::Signal { channel: execution.channel, signal }).await {
        Ok(_) => Ok(()),
        // It ended in this moment.
        Err(ChannelError::Agent(_)) => Ok(()),
        Err(e) => Err(e),
    }
}

fn program(request: &StartExecution) -> Result<(Program, Vec<String>), Error> {
    match (&request.command, &request.argv) {
        (Some(script), None) => Ok((Program::Script(script.clone()), vec![script.clone()])),
        (None, Some(argv)) if argv.first().is_some_and(|program| !program.is_empty()) => {
            Ok((Program::Argv(argv.clone()), argv.clone()))
        }
        (None, Some(_)) => Err(Error::new(ErrorCode::InvalidRequest, "argv is empty or names no program")),
        _ => Err(Error::new(ErrorCode::InvalidRequest, "give exactly one of command (a script) and argv")),
    }
}

fn check(request: &StartExecution) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::new(ErrorCode::InvalidRequest, message));
    let texts = || {
        let argv = request.argv.iter().flatten();
        let env = request.env.iter().flat_map(|(k, v)| [k, v]);
        request.command.iter().chain(argv).chain(env).chain(&request.cwd).chain(&request.user)
    };
    if texts().any(|t| t.contains('\0')) {
        return invalid("a command, argument, variable, directory or user contains a NUL character".into());
    }
    let size: usize = texts().map(|t| t.len() + 1).sum();
    if size > COMMAND_BYTES_MAX {
        return Err(Error::new(ErrorCode::TooLarge, format!("the command and its environment are {size} bytes"))
            .remedy(format!("at most {COMMAND_BYTES_MAX} are allowed; put large data into a file first"))
            .detail("limit", "command_bytes_max"));
    }
    if request.env.len() > ENV_VARS_MAX {
        return Err(Error::limit("env_vars_max", ENV_VARS_MAX as u64, request.env.len() as u64));
    }
    if let Some(name) = request.env.keys().find(|k| k.is_empty() || k.contains('=')) {
        return invalid(format!("{name:?} is no name of an environment variable"));
    }
    if let Some(cwd) = &request.cwd
        && (!cwd.starts_with('/') || cwd.len() > PATH_BYTES_MAX)
    {
        return invalid("cwd must be an absolute path".into());
    }
    match request.timeout_ms {
        Some(ms) if !(1..=EXECUTION_TIMEOUT_MS_MAX).contains(&ms) => {
            invalid(format!("timeout_ms is {ms}; it must be 1 to {EXECUTION_TIMEOUT_MS_MAX}"))
        }
        _ => Ok(()),
    }
}
