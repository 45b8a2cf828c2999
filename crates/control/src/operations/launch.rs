//! launch: start what a recipe names, and wait until it listens and answers. The sandbox counts as up only then.

use std::sync::Arc;
use std::time::Duration;

use remuda_types::wire::{LaunchRecipe, StartExecution};
use remuda_types::{Error, ErrorCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::driver::Live;
use crate::executions::ExecutionCell;
use crate::operations::execute;
use crate::registry::SandboxCell;

/// How long a launch may take unless its recipe says otherwise.
const TIMEOUT_MS_DEFAULT: u64 = 30_000;
/// Longest time a recipe may give, in milliseconds.
const TIMEOUT_MS_MAX: u64 = 600_000;
/// Between two looks at a port. A listener in a guest announces itself to nobody outside.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long one answer may take.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);
/// How much of a failed program's output goes into the error, in characters.
const OUTPUT_CHARS_MAX: usize = 2_000;

/// What to do about a launch that failed.
const REMEDY: &str = "try the recipe by hand in a sandbox restored without it";

/// Whether a recipe makes sense.
pub(crate) fn check(recipe: &LaunchRecipe) -> Result<(), Error> {
    let invalid = |message: &str| Err(Error::new(ErrorCode::InvalidRequest, message));
    if recipe.argv.first().is_none_or(String::is_empty) {
        return invalid("a launch recipe's argv names no program");
    }
    if recipe.port == 0 {
        return invalid("a launch recipe's port is 1 to 65535");
    }
    if recipe.timeout_ms.is_some_and(|ms| !(1..=TIMEOUT_MS_MAX).contains(&ms)) {
        return Err(Error::new(
            ErrorCode::InvalidRequest,
            format!("a launch recipe's timeout_ms is 1 to {TIMEOUT_MS_MAX}"),
        ));
    }
    if recipe.ready_status.is_some_and(|status| !(100..=599).contains(&status)) {
        return invalid("a launch recipe's ready_status is 100 to 599");
    }
    if recipe.ready_status.is_some() && recipe.ready_path.is_none() {
        return invalid("a launch recipe with a ready_status needs a ready_path that answers with it");
    }
    let plain = |path: &String| path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic());
    if recipe.ready_path.as_ref().is_some_and(|path| !plain(path)) {
        return invalid("a launch recipe's ready_path begins with '/' and has no spaces");
    }
    Ok(())
}

/// Starts the recipe's program, unless that was done before a restart of the server, and waits until it serves. Whether it
/// is started again when it ends is seen to by [`crate::keeping`].
pub(crate) async fn launch(cell: &Arc<SandboxCell>, recipe: &LaunchRecipe) -> Result<(), Error> {
    // Nobody else starts anything in a sandbox that has not come up yet, unless somebody saw it in a list.
    let begun = cell.executions.running().into_iter().find(|execution| execution.show().command == recipe.argv);
    let execution = match begun {
        Some(execution) => execution,
        None => start(cell, recipe).await?,
    };
    let live = cell.live()?.clone();
    wait(&execution, &live, recipe).await
}

/// Starts the recipe's program.
pub(crate) async fn start(cell: &Arc<SandboxCell>, recipe: &LaunchRecipe) -> Result<Arc<ExecutionCell>, Error> {
    let request = StartExecution {
        argv: Some(recipe.argv.clone()),
        cwd: recipe.cwd.clone(),
        env: recipe.env.clone(),
        user: recipe.user.clone(),
        ..StartExecution::default()
    };
    execute::start(cell, request).await.map_err(|e| not_started(recipe, e))
}

async fn wait(execution: &ExecutionCell, live: &Live, recipe: &LaunchRecipe) -> Result<(), Error> {
    let limit = Duration::from_millis(recipe.timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT));
    let deadline = Instant::now() + limit;
    loop {
        let Err(last) = look(live, recipe).await else { return Ok(()) };
        tokio::select! {
            () = execution.ended() => return Err(failed(execution, recipe, "it ended before it served".into(), last).await),
            () = tokio::time::sleep_until(deadline) => {
                let message = format!("it did not serve within {} ms", limit.as_millis());
                return Err(failed(execution, recipe, message, last).await);
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// One look at the port: a connection, or the right answer on the path that is to be ready.
async fn look(live: &Live, recipe: &LaunchRecipe) -> Result<(), String> {
    let looking = async {
        let dialled = live.machine.dial(recipe.port).await;
        let mut stream = dialled.map_err(|_| "nothing listens on it".to_owned())?;
        let Some(path) = &recipe.ready_path else { return Ok(()) };
        let ask = format!("GET {path} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n\r\n", recipe.port);
        stream.write_all(ask.as_bytes()).await.map_err(|e| e.to_string())?;
        // The status line is all that counts: "HTTP/1.1 200".
        let mut line = [0; 12];
        stream.read_exact(&mut line).await.map_err(|e| format!("it hung up: {e}"))?;
        let status = std::str::from_utf8(&line[9..]).ok().and_then(|s| s.parse::<u16>().ok());
        match status {
            Some(status) if recipe.ready_status.map_or((200..=399).contains(&status), |wanted| wanted == status) => {
                Ok(())
            }
            Some(status) => Err(format!("{path} answered {status}")),
            None => Err(format!("{path} answered something that is not HTTP")),
        }
    };
    let answered = tokio::time::timeout(ANSWER_WAIT_MAX, looking).await;
    answered.unwrap_or_else(|_| Err(format!("no answer within {} s", ANSWER_WAIT_MAX.as_secs())))
}

/// What could not even be started is a launch that failed, and nothing of its own.
fn not_started(recipe: &LaunchRecipe, e: Error) -> Error {
    if e.code != ErrorCode::SpawnFailed {
        return e;
    }
    let message =
        format!("the launch recipe did not bring up port {}: {:?} did not start", recipe.port, recipe.argv[0]);
    Error::new(ErrorCode::LaunchFailed, message).cause(e.message).remedy(REMEDY)
}

async fn failed(execution: &ExecutionCell, recipe: &LaunchRecipe, what: String, last: String) -> Error {
    let record = execution.show_with_output().await.unwrap_or_else(|_| execution.show());
    let tail = |text: Option<String>| {
        let text = text.unwrap_or_default();
        let skip = text.chars().count().saturating_sub(OUTPUT_CHARS_MAX);
        text.chars().skip(skip).collect::<String>()
    };
    let said = format!("{}{}", tail(record.stdout), tail(record.stderr));
    let message = format!("the launch recipe did not bring up port {}: {what}", recipe.port);
    let cause = match record.exit_code {
        Some(code) => format!("{:?} exited with {code}", recipe.argv[0]),
        None => last,
    };
    Error::new(ErrorCode::LaunchFailed, message)
        .cause(cause)
        .remedy(REMEDY)
        .detail("exit_code", record.exit_code)
        .detail("output", said)
}
