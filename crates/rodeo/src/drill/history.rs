//! `history-limit`: more executions than are kept. The oldest that have ended lose their output and stay on record; what
//! runs, and what it has printed, is never touched.

use futures_util::{StreamExt as _, TryStreamExt as _};
use remuda_client::{Client, InputPiece, OutputQuery, wire};
use remuda_types::{ExecutionId, SandboxId, limits};

use super::lost::small;
use super::server::Server;
use super::{DrillError, Log};

/// Executions beyond what is kept.
const BEYOND: usize = 5;
/// Of them at once.
const AT_ONCE: usize = 16;

fn says(word: &str, wait_ms: Option<u64>) -> wire::StartExecution {
    wire::StartExecution {
        argv: Some(["echo", word].map(String::from).to_vec()),
        wait_ms,
        ..wire::StartExecution::default()
    }
}

/// What is left of an execution's output.
async fn kept(client: &Client, id: &SandboxId, execution: &ExecutionId) -> Result<String, DrillError> {
    let page = client.output(id, execution, &OutputQuery::default()).await?;
    Ok(page.records.iter().map(|record| record.text.as_str()).collect())
}

pub(super) async fn limit(server: &Server, log: &mut Log) -> Result<(), DrillError> {
    let client = server.client()?;
    let id = client.create_sandbox(&small()).await?.id;
    let runs = wire::StartExecution {
        command: Some("echo early; read -r line; echo \"$line\"".into()),
        stdin_open: true,
        ..Default::default()
    };
    let running = client.execute(&id, &runs).await?.id;
    let first = client.execute(&id, &says("first", Some(30_000))).await?;
    log.saw("first", &first)?;
    log.did(format!("made {id}, started one command that waits for a line, and ran one to its end"));

    let retained = limits::EXECUTIONS_RETAINED_MAX;
    let asked = (0..retained + BEYOND).map(|_| async { client.execute(&id, &says("more", Some(60_000))).await });
    let ended: Vec<wire::Execution> = futures_util::stream::iter(asked).buffered(AT_ONCE).try_collect().await?;
    log.requests.sent += ended.len() as u64;
    log.requests.succeeded += ended.len() as u64;
    log.did(format!("ran {} more, {AT_ONCE} at once, where {retained} are kept", ended.len()));
    let well = ended.iter().filter(|one| one.exit_code == Some(0) && one.stdout.as_deref() == Some("more\n")).count();
    log.fact("of them ended well, each with its own output", ended.len(), well);

    let found = client.execution(&id, &first.id, std::time::Duration::ZERO).await?;
    log.saw("first-afterwards", &found)?;
    let told = |one: &wire::Execution| (one.state, one.exit_code, one.output_bytes);
    log.fact("the oldest one's end, on record", told(&first), told(&found));
    log.fact("its output", "", kept(&client, &id, &first.id).await?);
    if let Some(last) = ended.last() {
        log.fact("the newest one's output", "more\n", kept(&client, &id, &last.id).await?);
    }
    let state = client.execution(&id, &running, std::time::Duration::ZERO).await?.state;
    log.fact("the one that waits, older than all", "running", state.to_string());
    log.did("gave it its line");
    let piece = InputPiece { writer: "drill".into(), offset: 0, bytes: "late\n".into(), close: true };
    client.write_input(&id, &running, &piece).await?;
    let end = client.execution(&id, &running, std::time::Duration::from_secs(30)).await?;
    log.fact("its end", "exited", end.state.to_string());
    log.fact("all that it printed", "early\nlate\n", kept(&client, &id, &running).await?);
    Ok(())
}
