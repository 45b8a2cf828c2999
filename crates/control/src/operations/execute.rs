//! execute: admit and record → hand to the agent → mind it until its end.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use remuda_guest_proto::{CALLS_WITH_INPUT, Program, PtySize, Reply, Request, Spawn};
use remuda_journal::Reservation;
use remuda_types::limits::{
    COMMAND_BYTES_MAX, ENV_VARS_MAX, EXECUTION_TIMEOUT_MS_MAX, KILL_CONFIRM_MS_MAX, PATH_BYTES_MAX, STDIN_BYTES_MAX,
};
use remuda_types::wire::{Execution, OnOutputLimit, StartExecution, TerminalSize};
use remuda_types::{Error, ErrorCode, ExecutionId, SandboxId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::Action;
use crate::boot::next_effect;
use crate::caller::Caller;
use crate::channel::{ChannelError, Feed};
use crate::clock::{id_entropy, now_unix_ms};
use crate::deadlines::Working;
use crate::driver::Live;
use crate::executions::{ExecutionCell, Head, KilledFor};
use crate::operation::{Ended, Fault, Operation, Work, canonical};
use crate::platform::Platform;
use crate::records::{ExecutionDoc, SandboxRecords};
use crate::registry::SandboxCell;

/// How long inherited pipes are read on after the leader's end, in milliseconds.
const GRACE_MS: u64 = 2_000;
/// Where commands run unless they say otherwise.
pub(crate) const CWD_DEFAULT: &str = "/workspace";
/// Whose commands and files they are unless they say otherwise.
pub(crate) const USER_DEFAULT: &str = "user";
/// What a program on a terminal is told of it unless the call says otherwise.
const TERM_DEFAULT: &str = "xterm-256color";
const SIGKILL: i32 = 9;
/// What a login shell reads first, on the script's own first line so that line numbers in messages are right.
const AS_LOGIN: &str =
    "for profile in /etc/profile \"$HOME/.profile\"; do [ ! -r \"$profile\" ] || . \"$profile\"; done; unset profile; ";

/// Starts a command. That it was admitted is the outcome: whoever wants to waits for the record.
pub(crate) struct Execute {
    pub(crate) sandbox: SandboxId,
    pub(crate) request: StartExecution,
}

/// What is kept of a started execution: its end is not what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Started {
    pub(crate) execution: ExecutionId,
}

impl Operation for Execute {
    const KIND: &'static str = "execute";
    const ACTION: Action = Action::StartExecution;
    const ALWAYS: bool = false;
    type Plan = Spawning;
    type Output = Started;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        canonical(&StartExecution { wait_ms: None, ..self.request.clone() })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Spawning, Reservation), Error> {
        let cell = platform.living(caller, &self.sandbox).await?;
        let spawning = Spawning::of(&cell, self.request.clone())?;
        let execution = Some(cell.records.new_execution(&document_of(&spawning.execution))?);
        Ok((spawning, Reservation { execution, ..Reservation::default() }))
    }

    async fn run(self, _: &Platform, spawning: Spawning, work: &Work) -> Ended<Started> {
        let id = spawning.execution.id.clone();
        let (cell, keyed) = (spawning.cell.clone(), work.id.is_some());
        let (doc, result) = spawning.start().await;
        let changes: Vec<_> = cell.records.execution(&doc).into_iter().collect();
        let ended = Ended::from(result.map(|()| Started { execution: id }));
        // Without a key nobody waits for the disk: the record stands at the head of the execution's own log.
        if keyed {
            Ended { changes, ..ended }
        } else {
            cell.records.soon(changes).await;
            ended
        }
    }
}

/// Starts a command for the platform itself.
pub(crate) async fn start(cell: &Arc<SandboxCell>, request: StartExecution) -> Result<Arc<ExecutionCell>, Error> {
    let spawning = Spawning::of(cell, request)?;
    let execution = spawning.execution.clone();
    let (doc, result) = spawning.start().await;
    cell.records.soon(cell.records.execution(&doc).into_iter().collect()).await;
    match result {
        Ok(()) => Ok(execution),
        Err(Fault::Failed(e) | Fault::Unknown(e)) => Err(e),
    }
}

/// An execution that may begin, on record with its sandbox.
pub(crate) struct Spawning {
    cell: Arc<SandboxCell>,
    live: Arc<Live>,
    execution: Arc<ExecutionCell>,
    spawn: Spawn,
    stdin: Option<Bytes>,
    /// Until it is admitted, and counts by itself.
    working: Working,
}

impl Spawning {
    fn of(cell: &Arc<SandboxCell>, request: StartExecution) -> Result<Spawning, Error> {
        let (program, command) = program(&request)?;
        check(&request)?;
        let stdin = input(&request)?;
        let working = cell.life.work().begin();
        let live = cell.live()?.clone();
        if (request.stdin_open || request.pty.is_some()) && live.channel.calls() < CALLS_WITH_INPUT {
            return Err(crate::errors::channel(&cell.id, ChannelError::Outdated));
        }
        let mut env = request.env;
        if request.pty.is_some() {
            env.entry("TERM".into()).or_insert_with(|| TERM_DEFAULT.into());
        }
        let effect = next_effect();
        let execution = cell.executions.prepare(Head {
            id: ExecutionId::from_entropy(id_entropy()?),
            sandbox: cell.id.clone(),
            command,
            started_at_ms: now_unix_ms(),
            channel: live.channel.new_channel(),
            effect: Some(effect),
            timeout_ms: request.timeout_ms,
            output_limit: request.output_limit,
            began_ms: Some(live.clock.elapsed_ms()),
            stdin_open: request.stdin_open || request.pty.is_some(),
            pty: request.pty,
            origin: None,
        });
        let spawn = Spawn {
            execution: execution.id.to_string(),
            effect,
            program,
            cwd: request.cwd.unwrap_or_else(|| CWD_DEFAULT.into()),
            env,
            user: request.user.unwrap_or_else(|| USER_DEFAULT.into()),
            stdin: stdin.is_some() || request.stdin_open,
            grace_ms: GRACE_MS,
            pty: request.pty.map(|TerminalSize { cols, rows }| PtySize { cols, rows }),
        };
        Ok(Spawning { cell: cell.clone(), live, execution, spawn, stdin, working })
    }

    /// Hands it over to the agent. What is written down of it comes with the result.
    async fn start(self) -> (ExecutionDoc, Result<(), Fault>) {
        let Spawning { cell, live, execution, spawn, stdin, working } = self;
        // This writes its record, before the agent hears of it.
        if let Err(e) = cell.executions.admit(execution.clone()) {
            execution.not_started();
            return (document_of(&execution), Err(Fault::Failed(e)));
        }
        live.channel.attach_execution(execution.channel, execution.clone());
        // By itself: a guest that is starved answers when it can, also when nobody waits for it any more.
        let mut handing = tokio::spawn(hand_over(cell.id.clone(), live.clone(), execution.clone(), spawn, stdin));
        let result = tokio::select! {
            biased;
            handed = &mut handing => handed.unwrap_or_else(|e| {
                let error = Error::new(ErrorCode::Internal, "a task ended").cause(e);
                Err(Fault::Unknown(error))
            }),
            () = given_up(&live, &execution) => Ok(()),
        };
        let doc = document_of(&execution);
        if result.is_ok() {
            mind(&cell.records, live, execution);
        }
        drop(working);
        (doc, result)
    }
}

/// Has the agent start it, and takes note of what became of that.
async fn hand_over(
    sandbox: SandboxId,
    live: Arc<Live>,
    execution: Arc<ExecutionCell>,
    spawn: Spawn,
    stdin: Option<Bytes>,
) -> Result<(), Fault> {
    let channel = execution.channel;
    match live.channel.call_on(channel, Request::Spawn(spawn)).await {
        Ok(Reply::Spawned { pid }) => {
            execution.spawned(pid);
            if let Some(bytes) = stdin {
                feed(&live, channel, bytes);
            }
            Ok(())
        }
        Ok(other) => Err(Fault::Unknown(crate::errors::channel(&sandbox, crate::channel::unexpected(&other)))),
        Err(ChannelError::Agent(refusal)) => {
            live.channel.detach(channel);
            execution.not_started();
            let error = Error::new(ErrorCode::SpawnFailed, refusal.message);
            Err(Fault::Failed(error.remedy("nothing ran; correct the call")))
        }
        // Handed over, and the machine ended before it told what became of it.
        Err(e) => {
            execution.unknown();
            let error = crate::errors::channel(&sandbox, e).detail("execution", execution.id.to_string());
            Err(Fault::Unknown(error))
        }
    }
}

/// Ends when an execution has ended by the server's word alone, before the guest has answered to its start.
async fn given_up(live: &Live, execution: &ExecutionCell) {
    end_at_limit(live, execution).await;
    execution.ended_unconfirmed().await;
}

/// Kills an execution at its limits of time and output, where it has some; returns when it has ended, at once where it
/// has none.
async fn end_at_limit(live: &Live, execution: &ExecutionCell) {
    let head = execution.head();
    let left = time_left(&head, live.clock.elapsed_ms());
    if left.is_none() && head.output_limit.is_none() {
        return;
    }
    let late = async {
        match left {
            Some(left) => live.clock.run_for(left).await,
            None => std::future::pending().await,
        }
    };
    let too_much = async {
        match head.output_limit {
            Some(limit) => execution.printed_beyond(limit).await,
            None => std::future::pending().await,
        }
    };
    let why = tokio::select! {
        biased;
        () = execution.ended() => return,
        () = too_much => KilledFor::OutputLimit,
        () = late => KilledFor::TimeOut,
    };
    kill(live, execution, why).await;
}

/// Kills an execution and waits for its end: by the guest's word, or, where that does not come, by the server's.
async fn kill(live: &Live, execution: &ExecutionCell, why: KilledFor) {
    execution.will_be_killed(why);
    let confirmed = async {
        // Failing means that the channel is gone, and the machine with it.
        let _ = send_signal(live, execution, SIGKILL).await;
        execution.ended().await;
    };
    tokio::select! {
        biased;
        () = confirmed => {}
        () = async {
            // Where its output waits for a full disk, its end waits behind that, and the guest is not to blame.
            while {
                live.clock.run_for(Duration::from_millis(KILL_CONFIRM_MS_MAX)).await;
                execution.is_failing()
            } {}
        } => execution.unconfirmed_end(),
    }
}

/// What is written down of an execution as it stands.
pub(crate) fn document_of(execution: &ExecutionCell) -> ExecutionDoc {
    let Head { channel, effect, timeout_ms, .. } = execution.head();
    // What a branch goes on with was spawned by nobody there: no effect has the number 0.
    ExecutionDoc { shown: execution.show(), channel, effect: effect.unwrap_or(0), timeout_ms }
}

/// Sends a program its input and closes it.
fn feed(live: &Arc<Live>, channel: u32, bytes: Bytes) {
    let live = live.clone();
    tokio::spawn(async move {
        // A program that ends without reading all of it is no error.
        let _ = Feed::run(&live.channel, channel, bytes).await;
    });
}

/// Watches over a running execution: kills it at its time limit, writes its end down, and lets the agent forget it.
pub(crate) fn mind(records: &SandboxRecords, live: Arc<Live>, execution: Arc<ExecutionCell>) {
    let records = records.clone();
    tokio::spawn(async move {
        end_at_limit(&live, &execution).await;
        // Until all of it is written, the agent's copy is the only one that outlives this server.
        execution.settled().await;
        records.soon(records.execution(&document_of(&execution)).into_iter().collect()).await;
        // Of one that was not confirmed the agent has yet to see the end.
        tokio::select! {
            () = execution.let_go() => {}
            () = live.channel.broken() => return,
        }
        let _ = live.channel.call(Request::Forget { channel: execution.channel }).await;
    });
}

/// What is left of an execution's time, where it has a limit.
fn time_left(head: &Head, clock_ms: u64) -> Option<Duration> {
    // A record of an earlier build does not say when it began: it has all of its time again.
    let ran_ms = head.began_ms.map_or(0, |began| clock_ms.saturating_sub(began));
    head.timeout_ms.map(|limit| Duration::from_millis(limit.saturating_sub(ran_ms)))
}

/// Sends a signal to an execution's process group.
pub(crate) struct SendSignalTo {
    pub(crate) sandbox: SandboxId,
    pub(crate) execution: ExecutionId,
    pub(crate) signal: i32,
}

impl Operation for SendSignalTo {
    const KIND: &'static str = "signal";
    const ACTION: Action = Action::SignalExecution;
    const ALWAYS: bool = false;
    type Plan = (Arc<Live>, Arc<ExecutionCell>);
    type Output = Execution;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        json!({ "execution": self.execution, "signal": self.signal })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        let signal = self.signal;
        if !(1..=64).contains(&signal) {
            return Err(Error::new(ErrorCode::InvalidRequest, format!("{signal} is no signal; they are 1 to 64")));
        }
        let cell = platform.living(caller, &self.sandbox).await?;
        let execution = cell.executions.get(&self.execution, &self.sandbox)?;
        if execution.state().is_final() {
            let message = format!("execution {} has ended ({})", execution.id, execution.state());
            return Err(Error::new(ErrorCode::ExecutionNotRunning, message));
        }
        Ok(((cell.live()?.clone(), execution), Reservation::default()))
    }

    async fn run(self, _: &Platform, (live, execution): Self::Plan, _: &Work) -> Ended<Execution> {
        match send_signal(&live, &execution, self.signal).await {
            Ok(()) => Ended::done(execution.show(), Vec::new()),
            Err(e) => Ended::from(Err(handed_over(&self.sandbox, e))),
        }
    }
}

/// Kills an execution's process group and waits until its end is known. One that has ended is left as it is.
pub(crate) struct CancelExecution {
    pub(crate) sandbox: SandboxId,
    pub(crate) execution: ExecutionId,
}

impl Operation for CancelExecution {
    const KIND: &'static str = "cancel";
    const ACTION: Action = Action::CancelExecution;
    const ALWAYS: bool = false;
    type Plan = (Option<Arc<Live>>, Arc<ExecutionCell>);
    type Output = Execution;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        json!({ "execution": self.execution })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        let cell = platform.living(caller, &self.sandbox).await?;
        let execution = cell.executions.get(&self.execution, &self.sandbox)?;
        let live = if execution.state().is_final() { None } else { Some(cell.live()?.clone()) };
        Ok(((live, execution), Reservation::default()))
    }

    async fn run(self, _: &Platform, (live, execution): Self::Plan, _: &Work) -> Ended<Execution> {
        if let Some(live) = live {
            kill(&live, &execution, KilledFor::Cancel).await;
        }
        Ended::done(execution.show(), Vec::new())
    }
}

/// What an effect came to whose answer is missing: a refusal did nothing, of all else nobody can say.
pub(crate) fn handed_over(id: &SandboxId, e: ChannelError) -> Fault {
    match e {
        ChannelError::Agent(_) | ChannelError::Outdated => Fault::Failed(crate::errors::channel(id, e)),
        e => Fault::Unknown(crate::errors::channel(id, e)),
    }
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
        (Some(script), None) => {
            let run = if request.login { format!("{AS_LOGIN}{script}") } else { script.clone() };
            Ok((Program::Script(run), vec![script.clone()]))
        }
        (None, Some(_)) if request.login => {
            let message = "login is for a command, which a shell runs, and argv is started without one";
            Err(Error::new(ErrorCode::InvalidRequest, message).remedy("give the script as command"))
        }
        (None, Some(argv)) if argv.first().is_some_and(|program| !program.is_empty()) => {
            Ok((Program::Argv(argv.clone()), argv.clone()))
        }
        (None, Some(_)) => Err(Error::new(ErrorCode::InvalidRequest, "argv is empty or names no program")),
        _ => Err(Error::new(ErrorCode::InvalidRequest, "give exactly one of command (a script) and argv")),
    }
}

/// What its standard input is given; none where that is empty from the start.
fn input(request: &StartExecution) -> Result<Option<Bytes>, Error> {
    let bytes = match (&request.stdin, &request.stdin_base64) {
        (None, None) => return Ok(None),
        (Some(text), None) => Bytes::from(text.clone()),
        (None, Some(encoded)) => {
            let wrong = |e| Error::new(ErrorCode::InvalidRequest, "stdin_base64 is no base64").cause(e);
            Bytes::from(BASE64.decode(encoded).map_err(wrong)?)
        }
        (Some(_), Some(_)) => {
            return Err(Error::new(ErrorCode::InvalidRequest, "give at most one of stdin (a text) and stdin_base64"));
        }
    };
    if bytes.len() > STDIN_BYTES_MAX {
        return Err(Error::new(ErrorCode::TooLarge, format!("the input for the command is {} bytes", bytes.len()))
            .remedy(format!("at most {STDIN_BYTES_MAX} are allowed; put it into a file first, and read that"))
            .detail("limit", "stdin_bytes_max"));
    }
    Ok(Some(bytes))
}

/// A terminal of no size is none.
pub(crate) fn check_size(size: TerminalSize) -> Result<(), Error> {
    if size.cols == 0 || size.rows == 0 {
        let message =
            format!("a terminal of {} columns and {} rows has no place for a character", size.cols, size.rows);
        return Err(Error::new(ErrorCode::InvalidRequest, message).remedy("give at least one of each"));
    }
    Ok(())
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
    match (request.output_limit, request.on_output_limit) {
        (Some(1..), Some(OnOutputLimit::Kill)) | (None, None) => {}
        (Some(0), _) => return invalid("an output_limit of 0 bytes allows nothing".into()),
        _ => return invalid("output_limit and on_output_limit are given together or not at all".into()),
    }
    if let Some(name) = request.env.keys().find(|k| k.is_empty() || k.contains('=')) {
        return invalid(format!("{name:?} is no name of an environment variable"));
    }
    if let Some(cwd) = &request.cwd
        && (!cwd.starts_with('/') || cwd.len() > PATH_BYTES_MAX)
    {
        let message = format!("cwd must be an absolute path of at most {PATH_BYTES_MAX} bytes, as in /workspace/src");
        return invalid(message);
    }
    if let Some(size) = request.pty {
        check_size(size)?;
    }
    if (request.pty.is_some() || request.stdin_open) && (request.stdin.is_some() || request.stdin_base64.is_some()) {
        return invalid(
            "input that comes in pieces is not given with the call: leave out stdin and stdin_base64".into(),
        );
    }
    match request.timeout_ms {
        Some(ms) if !(1..=EXECUTION_TIMEOUT_MS_MAX).contains(&ms) => {
            invalid(format!("timeout_ms is {ms}; it must be 1 to {EXECUTION_TIMEOUT_MS_MAX}"))
        }
        _ => Ok(()),
    }
}
