//! `/containers/executions`: commands that go on by themselves, each under a key. They are executions like any other, and
//! so a command in the foreground is among them.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use remuda_control::{Call, ExecutionInput, Platform};
use remuda_types::wire::{Execution, StartExecution, TerminalSize};
use remuda_types::{ErrorCode, ExecutionId, ExecutionState, SandboxId, limits};
use serde_json::{Map, Value, json};

use super::answer::{EXECUTION, Refusal, Told, told};
use super::enter::Asked;
use super::exec::{BODY_BYTES_MAX, COMMAND_BYTES_MAX, TIMEOUT_MS_DEFAULT, command, login_shell, output};
use super::ids::Kind;
use super::status::iso;
use super::{body, files, ids};

/// Longest time of a command that goes on by itself, in milliseconds.
pub(super) const MANAGED_MS_MAX: u64 = limits::EXECUTION_TIMEOUT_MS_MAX;
/// Largest piece of input, in bytes.
pub(super) const STDIN_BYTES_MAX: usize = 1 << 20;
/// Most arguments, variables of the environment, and bytes of one and of all of these.
const ARGV_MAX: usize = 64;
const ENV_MAX: usize = 64;
const ENV_NAME_BYTES_MAX: usize = 64;
const ENV_VALUE_BYTES_MAX: usize = 4_096;
const ENV_BYTES_MAX: usize = 16 << 10;
/// Most columns and rows of a terminal.
const TERMINAL_MAX: u64 = 1_000;
const MEMBERS: [&str; 7] = ["command", "argv", "timeoutMs", "stdin", "cwd", "env", "pty"];

fn wrong() -> Refusal {
    Refusal::new(400, EXECUTION.invalid)
}

fn gone() -> Refusal {
    Refusal::new(404, "execution_not_found")
}

/// The execution in the path.
pub(super) fn named(asked: &Asked) -> Result<ExecutionId, Refusal> {
    let id = ids::tagged(Kind::Execution, ExecutionId::PREFIX, asked.in_path.as_deref().unwrap_or_default());
    id.and_then(|id| id.parse().ok()).ok_or_else(gone)
}

pub(super) async fn list(asked: Asked) -> Told {
    let id = asked.sandbox()?;
    let executions = asked.platform.executions(&asked.caller, &id).await.map_err(|e| EXECUTION.of(&e))?;
    Ok(told(200, &json!({ "executions": executions.iter().map(record).collect::<Vec<_>>() })))
}

pub(super) async fn start(asked: Asked, body: Body) -> Told {
    let id = asked.sandbox()?;
    let key = asked.key()?.ok_or_else(|| Refusal::new(400, "invalid_idempotency_key"))?;
    let object = body::object(body, 2 * BODY_BYTES_MAX, &MEMBERS).await?;
    let request = request(&object)?;
    let call = Call { caller: asked.caller.clone(), key: Some(key) };
    let platform = &asked.platform;
    match platform.execute(&call, &id, request).await.result {
        Ok(execution) => Ok(told(202, &record(&execution))),
        // Another call with this key is on its way to the guest: what it is to start is known.
        Err(e) if e.code == ErrorCode::OperationInProgress => {
            let operation = e.details.get("operation").and_then(Value::as_str).and_then(|id| id.parse().ok());
            let Some(operation) = operation else { return Err(EXECUTION.of(&e)) };
            let operation = platform.operation(&asked.caller, &operation).await.map_err(|e| EXECUTION.of(&e))?;
            let Some(execution) = operation.made.execution else { return Err(EXECUTION.of(&e)) };
            show(platform, &call, &id, &execution, 202).await
        }
        Err(e) => Err(EXECUTION.of(&e)),
    }
}

/// What is to run, in our words.
fn request(object: &Map<String, Value>) -> Result<StartExecution, Refusal> {
    let argv = match (command(object)?, object.get("argv")) {
        (Some(command), None) => login_shell(command),
        (None, Some(argv)) => arguments(argv)?,
        _ => return Err(wrong()),
    };
    let timeout_ms = body::number(object, "timeoutMs", 1, MANAGED_MS_MAX)?.unwrap_or(TIMEOUT_MS_DEFAULT);
    let stdin_open = body::flag(object, "stdin")?.unwrap_or(false);
    let cwd = body::text(object, "cwd")?;
    if let Some(cwd) = &cwd {
        files::checked(cwd, true).map_err(|_| wrong())?;
    }
    let pty = match object.get("pty") {
        None => None,
        Some(Value::Object(pty)) => Some(terminal(pty)?),
        Some(_) => return Err(wrong()),
    };
    if pty.is_some() && !stdin_open {
        return Err(wrong());
    }
    let env = environment(object.get("env"))?;
    Ok(StartExecution {
        argv: Some(argv),
        cwd,
        env,
        timeout_ms: Some(timeout_ms),
        // A terminal has its input open by itself.
        stdin_open: stdin_open && pty.is_none(),
        pty,
        ..StartExecution::default()
    })
}

fn arguments(argv: &Value) -> Result<Vec<String>, Refusal> {
    let argv: Vec<String> = serde_json::from_value(argv.clone()).map_err(|_| wrong())?;
    let bytes: usize = argv.iter().map(|argument| argument.len() + 1).sum();
    let good = (1..=ARGV_MAX).contains(&argv.len())
        && !argv[0].is_empty()
        && bytes <= COMMAND_BYTES_MAX + 1
        && !argv.iter().any(|argument| argument.contains('\0'));
    if good { Ok(argv) } else { Err(wrong()) }
}

fn environment(env: Option<&Value>) -> Result<BTreeMap<String, String>, Refusal> {
    let Some(env) = env else { return Ok(BTreeMap::new()) };
    let env: BTreeMap<String, String> = serde_json::from_value(env.clone()).map_err(|_| wrong())?;
    let name = |name: &str| {
        let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
        (1..=ENV_NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().next().is_some_and(letter)
            && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
    };
    let value = |value: &str| value.len() <= ENV_VALUE_BYTES_MAX && !value.contains('\0');
    let bytes = serde_json::to_vec(&env).map_or(usize::MAX, |json| json.len());
    let good = env.len() <= ENV_MAX && bytes <= ENV_BYTES_MAX && env.iter().all(|(k, v)| name(k) && value(v));
    if good { Ok(env) } else { Err(wrong()) }
}

/// A terminal's size: exactly two members.
fn terminal(object: &Map<String, Value>) -> Result<TerminalSize, Refusal> {
    let side = |name| {
        let number = body::number(object, name, 1, TERMINAL_MAX)?;
        number.and_then(|number| u16::try_from(number).ok()).ok_or_else(wrong)
    };
    if object.len() != 2 {
        return Err(wrong());
    }
    Ok(TerminalSize { cols: side("cols")?, rows: side("rows")? })
}

pub(super) async fn get(asked: Asked) -> Told {
    let (id, execution, call) = (asked.sandbox()?, named(&asked)?, asked.call());
    let platform = &asked.platform;
    let found = platform.execution(&asked.caller, &id, &execution, Duration::ZERO).await.map_err(unknown)?;
    let (stdout, stderr) = output(platform, &call, &found).await?;
    let mut shown = record(&found);
    shown["stdout"] = stdout.into();
    shown["stderr"] = stderr.into();
    Ok(told(200, &shown))
}

/// An execution of a container that was never here was never here either.
pub(super) fn unknown(e: remuda_types::Error) -> Refusal {
    match e.code {
        ErrorCode::SandboxNotFound => gone(),
        _ => EXECUTION.of(&e),
    }
}

pub(super) async fn cancel(asked: Asked) -> Told {
    let (id, execution, call) = (asked.sandbox()?, named(&asked)?, asked.call());
    match asked.platform.cancel(&call, &id, &execution).await.result {
        Ok(execution) => Ok(told(202, &record(&execution))),
        // All that ran in it has ended with it.
        Err(e) if e.code == ErrorCode::GenerationGone => show(&asked.platform, &call, &id, &execution, 202).await,
        Err(e) => Err(unknown(e)),
    }
}

async fn show(platform: &Platform, call: &Call, id: &SandboxId, execution: &ExecutionId, status: u16) -> Told {
    let found = platform.execution(&call.caller, id, execution, Duration::ZERO).await.map_err(unknown)?;
    Ok(told(status, &record(&found)))
}

pub(super) async fn signal(asked: Asked, body: Body) -> Told {
    let (id, execution, call) = (asked.sandbox()?, named(&asked)?, asked.call());
    let object = body::object(body, BODY_BYTES_MAX, &["signal"]).await?;
    let signal = match body::text(&object, "signal")?.as_deref() {
        Some("SIGINT") => 2,
        Some("SIGTERM") => 15,
        // It is asked to be killed, and that it was is told of it.
        Some("SIGKILL") => return cancel(asked).await,
        _ => return Err(wrong()),
    };
    let sent = asked.platform.signal(&call, &id, &execution, signal).await;
    Ok(told(202, &record(&sent.result.map_err(unknown)?)))
}

pub(super) async fn resize(asked: Asked, body: Body) -> Told {
    let (id, execution) = (asked.sandbox()?, named(&asked)?);
    let object = body::object(body, BODY_BYTES_MAX, &["cols", "rows"]).await?;
    let size = terminal(&object)?;
    match asked.platform.resize(&asked.caller, &id, &execution, size).await {
        Ok(execution) => Ok(told(200, &record(&execution))),
        // It has no terminal, or none any more.
        Err(e) if matches!(e.code, ErrorCode::InvalidRequest | ErrorCode::ExecutionNotRunning) => {
            Err(Refusal::new(409, "pty_unavailable"))
        }
        Err(e) => Err(unknown(e)),
    }
}

pub(super) async fn write_input(asked: Asked, body: Body) -> Told {
    let bytes = body::bytes(body, STDIN_BYTES_MAX, "stdin_too_large").await?;
    let wanted = bytes.len() as u64;
    let input = ExecutionInput { bytes, ..ExecutionInput::default() };
    give(asked, input, wanted).await
}

pub(super) async fn close_input(asked: Asked) -> Told {
    give(asked, ExecutionInput { close: true, ..ExecutionInput::default() }, 0).await
}

/// Gives input on behalf of a writer of its own: two calls are two pieces, in the order in which they come.
async fn give(asked: Asked, input: ExecutionInput, wanted: u64) -> Told {
    let (id, execution) = (asked.sandbox()?, named(&asked)?);
    let closing = input.close;
    let mut name = [0_u8; 16];
    getrandom::fill(&mut name).map_err(|_| Refusal::new(503, "stdin_unavailable"))?;
    let writer = format!("mainbrella-{:032x}", u128::from_be_bytes(name));
    let wait = Duration::from_millis(limits::INPUT_WAIT_MS_DEFAULT);
    let input = ExecutionInput { writer, wait, ..input };
    match asked.platform.write_input(&asked.caller, &id, &execution, input).await {
        Ok(taken) if taken.closed && taken.taken < wanted => Err(Refusal::new(409, "stdin_closed")),
        Ok(taken) => Ok(told(200, &json!({ "bytes": taken.taken, "stdinClosed": closing || taken.closed }))),
        // It takes no input at all.
        Err(e) if e.code == ErrorCode::InvalidRequest => Err(Refusal::new(409, "stdin_closed")),
        Err(e) if e.code == ErrorCode::Unreachable => Err(Refusal::new(503, "stdin_unavailable")),
        Err(e) => Err(unknown(e)),
    }
}

/// One record. What runs, its environment and its key are never told.
pub(super) fn record(execution: &Execution) -> Value {
    let state = execution.state;
    let own_end = state == ExecutionState::Exited;
    let kept_from = execution.ended_at_ms.unwrap_or(execution.started_at_ms);
    let mut shown = json!({
        "id": ids::uuid(Kind::Execution, ExecutionId::PREFIX, execution.id.as_str()),
        "createdAt": execution.sandbox.generation,
        "startedAt": iso(execution.started_at_ms),
        "status": word(execution),
        "retainUntil": kept_from + limits::EXECUTION_RETENTION_MS,
        "cursor": execution.output_bytes,
        "outputBytes": execution.output_bytes,
        "exitCode": if own_end { execution.exit_code } else { None },
        "timedOut": state == ExecutionState::TimedOut,
        "outputTruncated": execution.output_truncated,
        "stdinEnabled": execution.stdin_open,
        "stdinClosed": !execution.stdin_open || state.is_final(),
    });
    if let Some(at) = execution.ended_at_ms {
        shown["finishedAt"] = iso(at).into();
    }
    if let Some(TerminalSize { cols, rows }) = execution.pty {
        shown["pty"] = json!({ "cols": cols, "rows": rows });
    }
    shown
}

fn word(execution: &Execution) -> &'static str {
    match execution.state {
        ExecutionState::Running if execution.pid.is_none() => "starting",
        ExecutionState::Running => "running",
        ExecutionState::Exited if execution.exit_code == Some(0) => "succeeded",
        ExecutionState::Exited | ExecutionState::NotStarted => "failed",
        ExecutionState::Cancelled => "canceled",
        ExecutionState::TimedOut => "timed_out",
        ExecutionState::Oom | ExecutionState::SandboxGone | ExecutionState::Unknown => "interrupted",
    }
}

/// Follows an execution.
pub(super) async fn follow(asked: Asked) -> Result<Response, Refusal> {
    let cursor = asked.query.number("cursor").map_err(|_| Refusal::new(400, "invalid_cursor"))?.unwrap_or(0);
    let (id, execution) = (asked.sandbox()?, named(&asked)?);
    let source = asked.platform.follow_output(&asked.caller, &id, &execution).await.map_err(unknown)?;
    if cursor > source.show().output_bytes {
        return Err(Refusal::new(400, "invalid_cursor"));
    }
    Ok(super::stream::follow(source, cursor, asked.shutdown))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<StartExecution> {
        request(&serde_json::from_str(text).unwrap()).ok()
    }

    #[test]
    fn what_is_to_run_is_read_strictly() {
        let started = read(r#"{"command":"echo a","timeoutMs":5,"env":{"A":"b"},"cwd":"/tmp"}"#).unwrap();
        assert_eq!(started.argv.unwrap(), ["/bin/sh", "-lc", "echo a"]);
        let shell = read(r#"{"argv":["sh"],"stdin":true,"pty":{"cols":80,"rows":24}}"#).unwrap();
        assert_eq!((shell.stdin_open, shell.pty), (false, Some(TerminalSize { cols: 80, rows: 24 })));
        for wrong in [
            r#"{}"#,
            r#"{"command":" "}"#,
            r#"{"command":"a","argv":["a"]}"#,
            r#"{"argv":[]}"#,
            r#"{"argv":[""]}"#,
            r#"{"argv":["a\u0000"]}"#,
            r#"{"argv":[1]}"#,
            r#"{"command":"a","timeoutMs":0}"#,
            r#"{"command":"a","timeoutMs":1.5}"#,
            r#"{"command":"a","cwd":"tmp"}"#,
            r#"{"command":"a","cwd":"/tmp/../etc"}"#,
            r#"{"command":"a","env":{"1A":"b"}}"#,
            r#"{"command":"a","env":{"A":1}}"#,
            r#"{"command":"a","pty":{"cols":80,"rows":24}}"#,
            r#"{"command":"a","stdin":true,"pty":{"cols":80}}"#,
            r#"{"command":"a","stdin":true,"pty":{"cols":80,"rows":1001}}"#,
            r#"{"command":"a","stdin":"yes"}"#,
        ] {
            assert!(read(wrong).is_none(), "{wrong}");
        }
    }
}
