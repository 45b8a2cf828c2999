//! `stale-stop`: calls for a generation that has ended, while its slot holds another one. None of them may reach it.

use remuda_client::wire;
use remuda_types::ErrorCode;

use super::lost::small;
use super::server::Server;
use super::{DrillError, Log};

pub(super) async fn stop(server: &Server, log: &mut Log) -> Result<(), DrillError> {
    let client = server.client()?;
    let slot: remuda_types::Slot = "stale".parse().map_err(|e| DrillError::Server(format!("a slot is none: {e}")))?;
    let request = wire::CreateSandbox { slot: Some(slot), ..small() };
    let old = client.create_sandbox(&request).await?.id;
    client.remove_sandbox(&old).await?;
    let new = client.create_sandbox(&request).await?.id;
    log.did(format!("made {old}, removed it, and made {new} in its slot"));
    let mark = wire::StartExecution {
        command: Some("cat /proc/sys/kernel/random/uuid | tee /tmp/mark".into()),
        wait_ms: Some(10_000),
        ..Default::default()
    };
    let marked = client.execute(&new, &mark).await?.stdout;

    let removed = client.remove_sandbox(&old).await;
    log.count("late-removal", &removed)?;
    let removed = removed.ok().map(|removal| removal.result);
    log.fact("a late removal of the old one", wire::RemovalResult::AlreadyAbsent, removed);
    let gone = ErrorCode::GenerationGone.as_str();
    let paused = client.pause(&old).await;
    let word = log.count("late-pause", &paused)?;
    log.fact("a late pause of the old one", gone, word);
    let command = wire::StartExecution { command: Some("rm /tmp/mark".into()), ..Default::default() };
    let executed = client.execute(&old, &command).await;
    let word = log.count("late-command", &executed)?;
    log.fact("a late command for the old one", gone, word);
    let captured = client.snapshot(&old, &wire::CreateSnapshot::default()).await;
    let word = log.count("late-capture", &captured)?;
    log.fact("a late capture of the old one", gone, word);
    log.did("removed, paused, commanded and captured the old one once more");

    let now = client.sandbox(&new).await?;
    log.saw("the-new-one", &now)?;
    log.fact("the new one", "running", now.state.to_string());
    let read =
        wire::StartExecution { command: Some("cat /tmp/mark".into()), wait_ms: Some(10_000), ..Default::default() };
    let found = client.execute(&new, &read).await?.stdout;
    log.fact("the mark in the new one's memory", marked, found);
    log.fact("its executions", 2, client.executions(&new).await?.len());
    Ok(())
}
