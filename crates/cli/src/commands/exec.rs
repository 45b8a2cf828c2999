//! `exec`, `ps`, `logs`: commands in a sandbox. A command is started once and never again: its start has a key.

use std::convert::Infallible;
use std::time::Duration;

use remuda_client::{Client, ClientError, new_key, with_stdin};
use remuda_types::wire::{CancelOperation, CancelResult, Execution, ExecutionList, OnOutputLimit, StartExecution};
use remuda_types::{ExecutionId, Key, SandboxId};

use super::DONE;
use crate::args::{Attach, Exec, Global, Logs};
use crate::connection::connect;
use crate::failure::{Failure, NEGATIVE};
use crate::follow::{Begin, Stand, follow, follow_from};
use crate::interactive::Left;
use crate::signals::Signals;
use crate::{interactive, print, stdin};

/// The kind of operation that starts a command.
const EXECUTE: &str = "execute";
/// How long one call waits for an execution's end, in seconds.
const WAIT_SECONDS: u64 = 60;

pub async fn run(global: &Global, args: Exec) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let id = args.sandbox.id;
    let mut request = StartExecution {
        command: args.script,
        argv: (!args.argv.is_empty()).then_some(args.argv),
        cwd: args.cwd,
        env: args.env.into_iter().collect(),
        user: args.user,
        timeout_ms: args.timeout.map(|time| u64::try_from(time.as_millis())).transpose()?,
        login: args.login,
        output_limit: args.output_limit,
        on_output_limit: args.output_limit.map(|_| OnOutputLimit::Kill),
        ..StartExecution::default()
    };
    if args.tty {
        interactive::needs_terminal()?;
        request.pty = Some(interactive::size());
        if let Ok(name) = std::env::var("TERM") {
            request.env.entry("TERM".to_owned()).or_insert(name);
        }
    } else if args.stdin && args.detach {
        request = with_stdin(request, stdin::read()?);
    } else if args.stdin {
        stdin::needs_input()?;
        request.stdin_open = true;
    }
    // Before the start: a signal that comes while the command starts is for the command too.
    let mut signals = if args.detach { None } else { Some(Signals::take()?) };
    let key = match args.key.key {
        Some(key) => key,
        None => new_key()?,
    };
    let start = Start { client: client.clone(), id: &id, request: &request, key };
    let execution = match &mut signals {
        None => start.send().await?,
        Some(signals) => match start.send_unless_asked_to_end(signals).await? {
            Ok(execution) => execution,
            Err(code) => return Ok(code),
        },
    };
    let Some(signals) = &mut signals else {
        if global.json {
            print::json(&execution)?;
        } else {
            print::line(&execution.id)?;
        }
        return Ok(DONE);
    };
    if args.tty {
        return joined(&client, &execution, 0, args.stdin, signals).await;
    }
    // What is piped in goes there as it comes, while the command runs and is waited for.
    let feeding = async {
        if args.stdin {
            stdin::feed(&client, &id, &execution.id).await?;
        }
        std::future::pending().await
    };
    if global.json {
        let ended = fed(feeding, wait(&client, &execution));
        let ended = passing_signals(&client, &execution, signals, ended).await?;
        print::json(&ended)?;
        return exit_code(&Stand { state: ended.state, exit_code: ended.exit_code, dropped: 0 });
    }
    let output = fed(feeding, follow(&client, &id, &execution.id, true));
    let stand = passing_signals(&client, &execution, signals, output).await.map_err(|e| still_there(&execution, e))?;
    exit_code(&stand)
}

/// Waits for an end, and feeds the command until then.
async fn fed<T>(
    feeding: impl Future<Output = anyhow::Result<Infallible>>,
    end: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        biased;
        ended = end => ended,
        failed = feeding => match failed {
            Ok(never) => match never {},
            Err(error) => Err(error),
        },
    }
}

/// How much of a terminal's past is shown to whoever joins it, in bytes.
const SCROLLBACK_BYTES: u64 = 64 << 10;

/// Joins the terminal here to an execution's until that has ended or was left.
async fn joined(
    client: &Client,
    execution: &Execution,
    offset: u64,
    types: bool,
    signals: &mut Signals,
) -> anyhow::Result<u8> {
    let Execution { id, sandbox, .. } = execution;
    let session = interactive::join(client, sandbox, id, offset, types);
    match passing_signals(client, execution, signals, session).await.map_err(|e| still_there(execution, e))? {
        Left::Ended(stand) => exit_code(&stand),
        Left::Detached => {
            eprintln!("left; it goes on: `remuda attach {sandbox} {id}`");
            Ok(DONE)
        }
    }
}

/// Joins an execution's terminal; of one without, prints what comes from now on.
pub async fn attach(global: &Global, args: &Attach) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let (id, execution) = (&args.sandbox.id, &args.execution);
    let now = client.execution(id, execution, Duration::ZERO).await?;
    let mut signals = Signals::take()?;
    if now.pty.is_none() || now.state.is_final() {
        let from = if now.state.is_final() { 0 } else { now.output_bytes };
        let output = follow_from(&client, id, execution, Begin::Offset(from), true);
        if args.view {
            return exit_code(&output.await?);
        }
        let stand = passing_signals(&client, &now, &mut signals, output).await.map_err(|e| still_there(&now, e))?;
        return exit_code(&stand);
    }
    interactive::needs_terminal()?;
    joined(&client, &now, now.output_bytes.saturating_sub(SCROLLBACK_BYTES), !args.view, &mut signals).await
}

/// The start of a command: one call with one key.
struct Start<'a> {
    client: Client,
    id: &'a SandboxId,
    request: &'a StartExecution,
    key: Key,
}

impl Start<'_> {
    async fn send(&self) -> Result<Execution, ClientError> {
        self.client.with_key(self.key.clone()).execute(self.id, self.request).await
    }

    /// Starts it; a signal that comes first makes sure that it never runs, and gives the exit code for that. Where it
    /// was too late for that, the started command gets the signal.
    async fn send_unless_asked_to_end(&self, signals: &mut Signals) -> anyhow::Result<Result<Execution, u8>> {
        let signal = tokio::select! {
            started = self.send() => return Ok(Ok(started?)),
            signal = signals.next() => signal,
        };
        let request = CancelOperation { kind: EXECUTE.into(), sandbox: Some(self.id.clone()), key: self.key.clone() };
        let cancelled = self.client.cancel_operation(&request).await.map_err(|e| self.unknown(&e))?;
        if cancelled.result == CancelResult::Cancelled {
            self.forget();
            eprintln!("the command was not started");
            return Ok(Err(u8::try_from(128 + signal).unwrap_or(NEGATIVE)));
        }
        let execution = tokio::select! {
            started = self.send() => started?,
            _ = signals.next() => return Err(self.unknown(&"asked to end a second time").into()),
        };
        self.forget();
        if let Err(error) = self.client.signal(self.id, &execution.id, signal).await {
            tracing::warn!(%error, "the signal could not be passed on");
        }
        Ok(Ok(execution))
    }

    /// Its outcome is known, also by another sending than the one that was written down.
    fn forget(&self) {
        let found = self.client.pending().and_then(|pending| pending.of_key(&self.key).ok());
        for call in found.into_iter().flatten() {
            // One that stays is asked about once more than needed.
            let _ = call.forget();
        }
    }

    fn unknown(&self, cause: &dyn std::fmt::Display) -> Failure {
        let key = &self.key;
        Failure::new(NEGATIVE, format!("whether the command was started is not known; its key is {key}"))
            .cause(cause)
            .remedy(format!("ask with `remuda operation {key}`"))
    }
}

/// Waits for `end`, and passes Ctrl-C and SIGTERM on to the command: the first as it is, the next one kills, and with the
/// third nobody waits any more, as where the sandbox stands still and can't take a signal.
async fn passing_signals<T>(
    client: &Client,
    execution: &Execution,
    signals: &mut Signals,
    end: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    let mut end = std::pin::pin!(end);
    let mut next = None;
    for asked in 0.. {
        let signal = match next.take() {
            Some(signal) => signal,
            None => tokio::select! {
                result = &mut end => return result,
                signal = signals.next() => signal,
            },
        };
        if asked >= 2 {
            break;
        }
        let passing = async {
            match asked {
                0 => client.signal(&execution.sandbox, &execution.id, signal).await,
                _ => client.cancel(&execution.sandbox, &execution.id).await,
            }
        };
        let passed = tokio::select! {
            result = &mut end => return result,
            passed = passing => passed,
            signal = signals.next() => {
                next = Some(signal);
                continue;
            }
        };
        if let Err(error) = passed {
            // It may have ended just now; then its end is what counts, and comes next.
            eprintln!("the signal could not be passed on: {error}");
        }
    }
    let failure = Failure::new(NEGATIVE, "the command was not waited for any longer").cause("asked to end three times");
    Err(failure.into())
}

/// The execution after its end, with its output.
async fn wait(client: &Client, execution: &Execution) -> anyhow::Result<Execution> {
    let (id, sandbox) = (&execution.id, &execution.sandbox);
    loop {
        let mut now = client.execution(sandbox, id, Duration::from_secs(WAIT_SECONDS)).await?;
        if now.state.is_final() {
            let (stdout, stderr) = output_text(client, sandbox, id).await?;
            (now.stdout, now.stderr) = (Some(stdout), Some(stderr));
            return Ok(now);
        }
    }
}

async fn output_text(client: &Client, id: &SandboxId, execution: &ExecutionId) -> anyhow::Result<(String, String)> {
    use remuda_types::wire::OutputStream::{Stderr, Stdout};
    let mut texts = Vec::new();
    for stream in [Stdout, Stderr] {
        let mut query = remuda_client::OutputQuery { stream: Some(stream), ..Default::default() };
        let mut bytes = Vec::new();
        loop {
            let page = client.output_bytes(id, execution, &query).await?;
            bytes.extend_from_slice(&page.bytes);
            let stuck = page.next_offset == query.offset;
            query.offset = page.next_offset;
            if page.complete || stuck {
                break;
            }
        }
        texts.push(String::from_utf8_lossy(&bytes).into_owned());
    }
    let stderr = texts.pop().unwrap_or_default();
    Ok((texts.pop().unwrap_or_default(), stderr))
}

/// The command's own exit code, where it has one.
fn exit_code(stand: &Stand) -> anyhow::Result<u8> {
    match stand.exit_code.map(u8::try_from) {
        Some(Ok(0)) if stand.dropped > 0 => {
            let message = format!("the command succeeded, but {} bytes of its output are missing above", stand.dropped);
            let failure = Failure::new(NEGATIVE, message).cause("more came than is kept, faster than it was read");
            Err(failure.remedy("have it write to a file, and fetch that with: remuda cp ID:/path .").into())
        }
        Some(Ok(code)) => Ok(code),
        _ => {
            let failure = Failure::new(NEGATIVE, format!("the command has no exit code: it is {}", stand.state));
            Err(failure.cause("its sandbox ended, or could not start it").into())
        }
    }
}

fn still_there(execution: &Execution, error: anyhow::Error) -> anyhow::Error {
    let Execution { id, sandbox, .. } = execution;
    eprintln!("the command may go on without this terminal: `remuda logs {sandbox} {id} -f`");
    error
}

pub async fn list(global: &Global, id: &SandboxId) -> anyhow::Result<u8> {
    let executions = connect(global)?.executions(id).await?;
    if global.json {
        print::json(&ExecutionList { executions })?;
    } else {
        print::executions(&executions)?;
    }
    Ok(DONE)
}

pub async fn logs(global: &Global, args: &Logs) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let (id, execution) = (&args.sandbox.id, &args.execution);
    if global.json {
        let mut now = if args.follow {
            wait(&client, &client.execution(id, execution, Duration::ZERO).await?).await?
        } else {
            client.execution(id, execution, Duration::ZERO).await?
        };
        if !args.follow {
            let (stdout, stderr) = output_text(&client, id, execution).await?;
            (now.stdout, now.stderr) = (Some(stdout), Some(stderr));
        }
        print::json(&now)?;
    } else {
        let from = match args.since {
            None => Begin::Offset(0),
            Some(since_ms) => Begin::Moment(since_ms),
        };
        follow_from(&client, id, execution, from, args.follow).await?;
    }
    Ok(DONE)
}
