//! `reconnect` and `clock`: work that goes on while nobody is there. A client that comes back finds the same job and the
//! rest of its output; a sandbox that stood still has lost no running time, and its clock is right.

use std::time::Duration;

use remuda_client::{Client, OutputQuery, wire};
use remuda_types::{ExecutionId, ExecutionState, SandboxId};

use super::lost::small;
use super::server::Server;
use super::{DrillError, Log, stream};

/// How long anything may take until the drill is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Eight seconds of work, and an exit code that nobody would guess.
const JOB: &str = "for n in 1 2 3 4 5 6 7 8; do echo line $n; sleep 1; done; exit 7";
/// What it prints.
const JOB_PRINTS: &str = "line 1\nline 2\nline 3\nline 4\nline 5\nline 6\nline 7\nline 8\n";

/// Output from `offset` on: the first that comes, or all until the end.
async fn output(
    client: &Client,
    sandbox: &SandboxId,
    execution: &ExecutionId,
    from: u64,
    to_the_end: bool,
) -> Result<(String, u64), DrillError> {
    let (mut text, mut offset) = (String::new(), from);
    loop {
        let query = OutputQuery { offset, wait: PATIENCE, ..OutputQuery::default() };
        let page = client.output(sandbox, execution, &query).await?;
        text.extend(page.records.iter().map(|record| record.text.as_str()));
        offset = page.next_offset;
        if !to_the_end || page.records.is_empty() {
            return Ok((text, offset));
        }
    }
}

pub(super) async fn reconnect(server: &Server, log: &mut Log) -> Result<(), DrillError> {
    let first = server.client()?;
    let sandbox = first.create_sandbox(&small()).await?.id;
    let job = wire::StartExecution { command: Some(JOB.into()), ..Default::default() };
    let started = first.execute(&sandbox, &job).await;
    log.count("start", &started)?;
    let job = started?.id;
    let (seen, offset) = output(&first, &sandbox, &job, 0, false).await?;
    log.saw("before", &seen)?;
    drop(first);
    log.did("started a job of eight seconds, read its first output, and left");

    // Somebody else, who knows nothing but the sandbox and how far the first one came.
    let second = server.client()?;
    let found = second.executions(&sandbox).await?;
    log.saw("executions", &found)?;
    log.fact("jobs that are found", 1, found.len());
    log.fact("it is the same job", Some(&job), found.first().map(|found| &found.id));
    log.fact("its state", "running", found.first().map(|found| found.state.to_string()));
    let (rest, _) = output(&second, &sandbox, &job, offset, true).await?;
    log.saw("after", &rest)?;
    log.fact("its output, before and after", JOB_PRINTS, format!("{seen}{rest}"));
    let ended = second.execution(&sandbox, &job, PATIENCE).await?;
    log.saw("end", &ended)?;
    log.fact("its exit code", 7, ended.exit_code);
    log.fact("executions in the end", 1, second.executions(&sandbox).await?.len());
    log.did("found it again, and read on where the first one stopped, to its end");

    broken_stream(server, log, &second, &sandbox).await
}

/// A live stream that breaks off again and again, in the middle of events as well.
async fn broken_stream(server: &Server, log: &mut Log, client: &Client, sandbox: &SandboxId) -> Result<(), DrillError> {
    let counting = "for n in $(seq 1 2000); do echo $n; done";
    let request = wire::StartExecution { command: Some(counting.into()), ..Default::default() };
    let execution = client.execute(sandbox, &request).await?.id;
    let path = format!("/v1/sandboxes/{sandbox}/executions/{execution}/events");
    let (mut text, mut last_id, mut broken) = (String::new(), None::<String>, 0u64);
    // Later and later, so that each connection comes at least one event further.
    for cut in (1..).map(|n: usize| 97 * n * n) {
        let came = stream::read(&server.socket, &path, last_id.as_deref(), Some(cut)).await?;
        text.push_str(&came.output);
        last_id = came.last_id.or(last_id);
        if came.ended {
            break;
        }
        broken += 1;
    }
    log.did(format!("followed 2,000 lines as events on a connection that was broken off {broken} times"));
    let expected: String = (1..=2000).map(|n| format!("{n}\n")).collect();
    log.saw("streamed", &text)?;
    log.fact("connections that broke", true, broken > 0);
    log.fact("the lines that came are all, once each, in their order", true, text == expected);
    Ok(())
}

pub(super) async fn clock(server: &Server, log: &mut Log) -> Result<(), DrillError> {
    /// How long the sandbox stands still, and the running time that its job may have.
    const STILL: Duration = Duration::from_secs(4);
    const TIME_LIMIT_MS: u64 = 3_000;
    let client = server.client()?;
    let sandbox = client.create_sandbox(&small()).await?.id;
    // It needs a second and a half of running time, and would be over its limit by far if the pause counted.
    let job = wire::StartExecution {
        command: Some("echo begun; sleep 1.5; echo done".into()),
        timeout_ms: Some(TIME_LIMIT_MS),
        ..Default::default()
    };
    let job = client.execute(&sandbox, &job).await?.id;
    output(&client, &sandbox, &job, 0, false).await?;
    client.pause(&sandbox).await?;
    // Time itself is what this is about.
    tokio::time::sleep(STILL).await;
    client.resume(&sandbox).await?;
    log.did(format!("paused a sandbox for {} s whose job may run for {TIME_LIMIT_MS} ms", STILL.as_secs()));
    let ended = client.execution(&sandbox, &job, PATIENCE).await?;
    log.saw("job", &ended)?;
    log.fact("the job, whose time stood still with it", ExecutionState::Exited.to_string(), ended.state.to_string());
    log.fact("its exit code", 0, ended.exit_code);
    let late = wire::StartExecution {
        command: Some("echo begun; sleep 60".into()),
        timeout_ms: Some(500),
        wait_ms: Some(20_000),
        ..Default::default()
    };
    let late = client.execute(&sandbox, &late).await?;
    log.saw("late", &late)?;
    log.fact("a job whose running time is over", ExecutionState::TimedOut.to_string(), late.state.to_string());
    log.fact("its exit code and what it had printed", (Some(124), Some("begun\n")), (late.exit_code, late.stdout));

    let snapshot = client.snapshot(&sandbox, &wire::CreateSnapshot::default()).await?;
    tokio::time::sleep(STILL).await;
    let copy = client.restore(snapshot.id.as_str(), &wire::RestoreSnapshot::default()).await?.id;
    log.did(format!("restored a copy of it {} s after its capture", STILL.as_secs()));
    for (who, id) in [("the source", &sandbox), ("the copy", &copy)] {
        let ask = wire::StartExecution {
            argv: Some(["date", "+%s"].map(String::from).to_vec()),
            wait_ms: Some(10_000),
            ..Default::default()
        };
        let told = client.execute(id, &ask).await?.stdout.unwrap_or_default();
        let now = jiff::Timestamp::now().as_second();
        log.saw("clock", &(who, &told, now))?;
        // It was asked a moment ago; a clock that stood still with the machine would be seconds behind.
        let right = told.trim().parse().is_ok_and(|told: i64| (now - told).abs() <= 2);
        log.fact(&format!("the clock of {who} is right"), true, right);
    }
    client.remove_snapshot(snapshot.id.as_str()).await?;
    Ok(())
}
