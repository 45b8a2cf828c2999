//! `server-killed` and `interrupted-capture`: the drill's own server is killed, as a crash does it, in the middle of
//! calls, and the next one on its data directory is asked what became of everything. When it is killed is decided by
//! what listings say, never by a clock.

use std::time::Duration;

use remuda_client::{Client, ClientError, OutputQuery, new_key, wire};
use remuda_types::{ErrorCode, ExecutionId, ExecutionState, Key, Quota, SandboxId, SandboxState, SnapshotState};
use serde::Serialize;

use super::access::amount;
use super::lost::{everything, small};
use super::server::Server;
use super::{DrillError, Log};

/// How long anything may take until the drill is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at a listing: what is waited for is over in less than a hundred of them.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Between two attempts to learn an outcome.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Memory of the sandbox whose capture takes long, in MiB.
const LARGE_MIB: u32 = 1024;

/// Counts aloud, and tells who it is to whoever asks: all that it knows is in its memory.
const PROGRAM: &str = r#"
import os, sys, threading, time
os.mkfifo("/tmp/ask")
os.mkfifo("/tmp/answer")
nonce, heap = os.urandom(8).hex(), os.urandom(int(sys.argv[1]) << 20)
def count():
    n = 0
    while True:
        print(n, flush=True)
        n += 1
        time.sleep(0.02)
threading.Thread(target=count, daemon=True).start()
while True:
    open("/tmp/ask").read()
    with open("/tmp/answer", "w") as out:
        out.write(f"pid {os.getpid()} nonce {nonce}")
"#;

/// A program in a sandbox's memory.
struct Program {
    sandbox: SandboxId,
    execution: ExecutionId,
}

impl Program {
    async fn start(client: &Client, sandbox: &SandboxId, heap_mib: u32) -> Result<Program, DrillError> {
        let argv = ["python3", "-u", "-c", PROGRAM, &heap_mib.to_string()].map(String::from).to_vec();
        let request = wire::StartExecution { argv: Some(argv), ..Default::default() };
        let execution = client.execute(sandbox, &request).await?.id;
        let program = Program { sandbox: sandbox.clone(), execution };
        let first = OutputQuery { wait: PATIENCE, ..OutputQuery::default() };
        client.output(sandbox, &program.execution, &first).await?;
        Ok(program)
    }

    /// Who answers.
    async fn who(&self, client: &Client) -> Result<Option<String>, DrillError> {
        run(client, &self.sandbox, "echo > /tmp/ask; cat /tmp/answer").await
    }

    /// What it has counted aloud so far, one number a line.
    async fn counted(&self, client: &Client) -> Result<Vec<String>, DrillError> {
        let (mut text, mut offset) = (String::new(), 0);
        loop {
            let query = OutputQuery { offset, ..OutputQuery::default() };
            let page = client.output(&self.sandbox, &self.execution, &query).await?;
            text.extend(page.records.iter().map(|record| record.text.as_str()));
            offset = page.next_offset;
            if page.records.is_empty() {
                // What follows the last line break is not a line yet.
                let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
                return Ok(whole.lines().map(str::to_owned).collect());
            }
        }
    }

    /// Waits until it has counted further.
    async fn goes_on(&self, client: &Client, from: usize) -> Result<Vec<String>, DrillError> {
        loop {
            let counted = self.counted(client).await?;
            if counted.len() > from {
                return Ok(counted);
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// States that the same one answers, and has gone on counting without a gap.
    async fn is_the_same(&self, client: &Client, log: &mut Log, before: &Option<String>) -> Result<(), DrillError> {
        log.fact("the program", before, self.who(client).await?);
        let so_far = self.counted(client).await?.len();
        let counted = self.goes_on(client, so_far).await?;
        let wrong = counted.iter().enumerate().filter(|(n, line)| **line != n.to_string()).count();
        log.fact("lines of its output that are missing, or there twice", 0, wrong);
        Ok(())
    }
}

/// What a script prints.
async fn run(client: &Client, sandbox: &SandboxId, script: &str) -> Result<Option<String>, DrillError> {
    let wait_ms = u64::try_from(PATIENCE.as_millis()).unwrap_or(u64::MAX);
    let request = wire::StartExecution { command: Some(script.into()), wait_ms: Some(wait_ms), ..Default::default() };
    Ok(client.execute(sandbox, &request).await?.stdout)
}

/// Looks again and again until something is seen.
async fn until(what: &str, seen: impl AsyncFn() -> Result<bool, ClientError>) -> Result<(), DrillError> {
    let looking = async {
        while !seen().await? {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    };
    let in_time = tokio::time::timeout(PATIENCE, looking).await;
    in_time.unwrap_or_else(|_| Err(DrillError::Server(format!("{what} was not seen in {} s", PATIENCE.as_secs()))))
}

/// Sends a call with its key until it has an outcome, and counts that one.
async fn outcome<T: Serialize>(
    server: &Server,
    log: &mut Log,
    name: &str,
    key: &Key,
    call: impl AsyncFn(&Client) -> Result<T, ClientError>,
) -> Result<(String, Option<T>), DrillError> {
    let client = server.client()?.with_key(key.clone());
    let asking = async {
        loop {
            let outcome = call(&client).await;
            let open = [ErrorCode::OperationInProgress, ErrorCode::Unreachable];
            if !outcome.as_ref().err().and_then(ClientError::code).is_some_and(|code| open.contains(&code)) {
                return outcome;
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    };
    let outcome = tokio::time::timeout(PATIENCE, asking).await;
    let outcome = outcome.map_err(|_| DrillError::Server(format!("{name} has no outcome")))?;
    let word = log.count(name, &outcome)?;
    Ok((word, outcome.ok()))
}

pub(super) async fn server_killed(server: &mut Server, log: &mut Log) -> Result<(), DrillError> {
    let client = server.client()?;
    let source = client.create_sandbox(&small()).await?.id;
    let program = Program::start(&client, &source, 1).await?;
    let before = program.who(&client).await?;
    log.did(format!("made {source}, and in it a program that counts aloud and that only its memory knows"));

    let [for_command, for_creation, for_capture] = [new_key()?, new_key()?, new_key()?];
    let command = wire::StartExecution {
        command: Some("echo ran >> /workspace/ran; echo begun; sleep 1; echo ended".into()),
        wait_ms: Some(30_000),
        ..Default::default()
    };
    let keyed = |key: &Key| client.clone().with_key(key.clone());
    let (commanding, creating, capturing) = (keyed(&for_command), keyed(&for_creation), keyed(&for_capture));
    let (request, capture) = (small(), wire::CreateSnapshot::default());
    let calls = async {
        tokio::join!(
            commanding.execute(&source, &command),
            async {
                // The longest goes first, so that all three are under way at once.
                seen_running(&client, &source).await?;
                creating.create_sandbox(&request).await
            },
            async {
                seen_starting(&client).await?;
                capturing.snapshot(&source, &capture).await
            },
        )
    };
    let killing = async {
        until("the capture", async || Ok(client.snapshots(true).await?.iter().any(|s| s.source == source))).await?;
        server.kill().await
    };
    let ((command_1, creation_1, capture_1), killed) = tokio::join!(calls, killing);
    killed?;
    log.count("command", &command_1)?;
    log.count("creation", &creation_1)?;
    log.count("capture", &capture_1)?;
    log.did(
        "began a command, a creation and a capture, each with a key, and killed the server in the middle of all three",
    );
    server.start_next().await?;
    log.did("started the next server on the same data directory");

    let client = server.client()?;
    program.is_the_same(&client, log, &before).await?;

    let asked_for = async |client: &Client| client.execute(&source, &command).await;
    let (word, first) = outcome(server, log, "command-again", &for_command, asked_for).await?;
    let (_, again) = outcome(server, log, "command-once-more", &for_command, asked_for).await?;
    let ran = run(&client, &source, "cat /workspace/ran 2>/dev/null; true").await?.unwrap_or_default();
    log.fact("the command's outcome, which is one", true, ["ok", "interrupted"].contains(&word.as_str()));
    log.fact("times that it ran", usize::from(word == "ok"), ran.lines().count());
    log.fact("what it is said to be later", first.map(|e| (e.id, e.stdout)), again.map(|e| (e.id, e.stdout)));

    let asked_for = async |client: &Client| client.create_sandbox(&request).await;
    let (word, first) = outcome(server, log, "creation-again", &for_creation, asked_for).await?;
    let (_, again) = outcome(server, log, "creation-once-more", &for_creation, asked_for).await?;
    log.fact("the creation's outcome", "ok", word);
    log.fact("what it is said to be later", first.as_ref().map(|s| &s.id), again.as_ref().map(|s| &s.id));
    let ever = client.list_sandboxes(&everything()).await?;
    log.saw("sandboxes", &ever)?;
    log.fact("sandboxes ever made", 2, ever.len());
    log.fact("the answer names the new one", ever.last().map(|s| &s.id), first.as_ref().map(|s| &s.id));
    let states: Vec<_> = ever.iter().map(|sandbox| sandbox.state.to_string()).collect();
    log.fact("their states", ["running", "running"], states);

    captured(server, log, &source, &for_capture).await?;
    for key in [&for_command, &for_creation, &for_capture] {
        let operations = client.operations(key).await?;
        log.saw("operations", &operations)?;
        log.fact("operations with the key", 1, operations.len());
    }
    let usage = client.usage(None).await?;
    log.saw("usage", &usage)?;
    log.fact("sandboxes reserved", Some(2), amount(&usage, Quota::Sandboxes));
    Ok(())
}

async fn seen_running(client: &Client, sandbox: &SandboxId) -> Result<(), ClientError> {
    let command = |e: &wire::Execution| e.state == ExecutionState::Running && e.command.len() == 1;
    while !client.executions(sandbox).await?.iter().any(command) {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

async fn seen_starting(client: &Client) -> Result<(), ClientError> {
    loop {
        let sandboxes = client.list_sandboxes(&Default::default()).await?;
        // It may also have come up in between.
        if sandboxes.iter().any(|s| s.state == SandboxState::Starting) || sandboxes.len() > 1 {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What came of a capture that was cut off: a snapshot that is whole, or none, and the same whoever asks when.
async fn captured(server: &Server, log: &mut Log, source: &SandboxId, key: &Key) -> Result<(), DrillError> {
    let capture = wire::CreateSnapshot::default();
    let asked_for = async |client: &Client| client.snapshot(source, &capture).await;
    let (word, first) = outcome(server, log, "capture-again", key, asked_for).await?;
    let (word_2, again) = outcome(server, log, "capture-once-more", key, asked_for).await?;
    log.fact("the capture's outcome, which is one", true, ["ok", "interrupted"].contains(&word.as_str()));
    log.fact("what it is said to be later", (&word, first.map(|s| s.id)), (&word_2, again.map(|s| s.id)));
    let client = server.client()?;
    let kept = client.snapshots(false).await?;
    log.saw("snapshots", &kept)?;
    let whole = usize::from(word == "ok");
    log.fact("snapshots that are kept", whole, kept.len());
    let active = kept.iter().filter(|snapshot| snapshot.state == SnapshotState::Active).count();
    log.fact("of them active", whole, active);
    let usage = client.usage(None).await?;
    log.fact("snapshots reserved", Some(whole as u64), amount(&usage, Quota::Snapshots));
    // Its own private directory, which nobody else writes to.
    log.fact("layers and memory images on the disk", 2 * whole, server.captured()?.len());
    log.fact("the source", "running", client.sandbox(source).await?.state.to_string());
    Ok(())
}

pub(super) async fn interrupted_capture(server: &mut Server, log: &mut Log) -> Result<(), DrillError> {
    let client = server.client()?;
    let large = wire::CreateSandbox { memory_mib: Some(LARGE_MIB), ..Default::default() };
    let source = client.create_sandbox(&large).await?.id;
    let program = Program::start(&client, &source, 300).await?;
    let before = program.who(&client).await?;
    log.did(format!("made {source}, and in it a program with 300 MiB of memory that no two pages of are alike"));

    let key = new_key()?;
    let capturing = client.clone().with_key(key.clone());
    let capture = wire::CreateSnapshot::default();
    let killing = async {
        let is_read = |s: &wire::Snapshot| s.source == source && s.state == SnapshotState::Capturing;
        until("the capture", async || Ok(client.snapshots(true).await?.iter().any(is_read))).await?;
        server.kill().await
    };
    let (first, killed) = tokio::join!(capturing.snapshot(&source, &capture), killing);
    killed?;
    let word = log.count("capture", &first)?;
    log.did("captured it, and killed the server while it was read");
    log.fact("the capture's answer", "lost", word);
    server.start_next().await?;
    log.did("started the next server on the same data directory");

    let client = server.client()?;
    program.is_the_same(&client, log, &before).await?;
    captured(server, log, &source, &key).await?;
    let once_more = client.snapshot(&source, &capture).await;
    let word = log.count("capture-with-another-key", &once_more)?;
    log.fact("another capture", "ok", word);
    Ok(())
}
