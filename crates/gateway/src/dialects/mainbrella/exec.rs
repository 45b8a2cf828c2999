//! `POST /containers/exec`: one command in the foreground, with its output in the answer. It ends with its caller.

use std::sync::Arc;

use axum::body::Body;
use http::StatusCode;
use remuda_control::{Call, Platform};
use remuda_types::wire::{Execution, StartExecution};
use remuda_types::{ExecutionState, SandboxId};
use serde_json::{Map, Value, json};

use super::answer::{EXECUTION, Refusal, Told, told};
use super::body;
use super::enter::Asked;

/// Longest command, in bytes.
pub(super) const COMMAND_BYTES_MAX: usize = 16 << 10;
/// Longest body that starts one, in bytes.
pub(super) const BODY_BYTES_MAX: usize = 32 << 10;
/// Longest time that a command in the foreground may take, in milliseconds.
pub(super) const FOREGROUND_MS_MAX: u64 = 60_000;
/// How long a command may take that says nothing of it, in milliseconds.
pub(super) const TIMEOUT_MS_DEFAULT: u64 = 30_000;
/// How long the end of a command that was killed is waited for beyond its time, in milliseconds.
const END_MS_MAX: u64 = 30_000;

pub(super) async fn exec(asked: Asked, body: Body) -> Told {
    let (id, call) = (asked.sandbox()?, asked.call());
    let object = body::object(body, BODY_BYTES_MAX, &["command", "timeoutMs"]).await?;
    let command = command(&object)?.ok_or_else(|| Refusal::new(400, EXECUTION.invalid))?;
    let timeout_ms = body::number(&object, "timeoutMs", 1, FOREGROUND_MS_MAX)?.unwrap_or(TIMEOUT_MS_DEFAULT);
    let request =
        StartExecution { argv: Some(login_shell(command)), timeout_ms: Some(timeout_ms), ..StartExecution::default() };
    let platform = asked.platform;
    let refused = |e| EXECUTION.of(&e);
    let started = platform.execute(&call, &id, request).await.result.map_err(refused)?;
    let guard = Hangup::of(&platform, call.clone(), &id, &started);
    let wait = std::time::Duration::from_millis(timeout_ms + END_MS_MAX);
    let ended = platform.execution(&call.caller, &id, &started.id, wait).await.map_err(refused)?;
    guard.forget();
    let (stdout, stderr) = output(&platform, &call, &ended).await?;
    let ended_by_limit = ended.state != ExecutionState::Exited;
    let exit_code = if ended_by_limit { None } else { ended.exit_code };
    if matches!(ended.state, ExecutionState::SandboxGone | ExecutionState::Unknown) {
        return Err(Refusal::new(409, "container_not_running"));
    }
    Ok(told(
        StatusCode::OK.as_u16(),
        &json!({
            "stdout": stdout,
            "stderr": stderr,
            "exitCode": exit_code,
            "timedOut": ended.state == ExecutionState::TimedOut,
            "outputTruncated": ended.output_truncated,
        }),
    ))
}

/// Program and arguments of a command as the dialect gives it.
pub(super) fn login_shell(command: String) -> Vec<String> {
    vec!["/bin/sh".to_owned(), "-lc".to_owned(), command]
}

/// The member `command`, where it is there.
pub(super) fn command(object: &Map<String, Value>) -> Result<Option<String>, Refusal> {
    let Some(command) = body::text(object, "command")? else { return Ok(None) };
    if command.trim().is_empty() || command.contains('\0') || command.len() > COMMAND_BYTES_MAX {
        return Err(Refusal::new(400, EXECUTION.invalid));
    }
    Ok(Some(command))
}

/// All output that is kept of an execution, as far as there is some now: standard output and standard error.
pub(super) async fn output(platform: &Platform, call: &Call, of: &Execution) -> Result<(String, String), Refusal> {
    use remuda_control::OutputQuery;
    use remuda_types::limits::OUTPUT_PAGE_BYTES_MAX;
    use remuda_types::wire::OutputStream;

    let (mut stdout, mut stderr, mut offset) = (Vec::new(), Vec::new(), 0);
    loop {
        let query = OutputQuery {
            offset,
            since_ms: None,
            stream: None,
            max_bytes: OUTPUT_PAGE_BYTES_MAX,
            wait: std::time::Duration::ZERO,
        };
        let slice = platform.output(&call.caller, &of.sandbox, &of.id, query).await.map_err(|e| EXECUTION.of(&e))?;
        for (_, stream, bytes) in &slice.records {
            let to = if *stream == OutputStream::Stdout { &mut stdout } else { &mut stderr };
            to.extend_from_slice(bytes);
        }
        if slice.complete || slice.next_offset == offset {
            break;
        }
        offset = slice.next_offset;
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((text(stdout), text(stderr)))
}

/// Has a command cancelled when whoever waits for it goes away.
struct Hangup(Option<Arc<(Platform, Call, Execution)>>);

impl Hangup {
    fn of(platform: &Platform, call: Call, _: &SandboxId, started: &Execution) -> Hangup {
        Hangup(Some(Arc::new((platform.clone(), call, started.clone()))))
    }

    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Hangup {
    fn drop(&mut self) {
        let Some(held) = self.0.take() else { return };
        tokio::spawn(async move {
            let (platform, call, execution) = &*held;
            if let Err(e) = platform.cancel(call, &execution.sandbox, &execution.id).await.result {
                tracing::debug!("a command whose caller went away is not cancelled: {e}");
            }
        });
    }
}
