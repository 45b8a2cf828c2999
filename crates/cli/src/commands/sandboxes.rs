//! `create`, `ls`, `show`, `pause`, `resume`, `timeout`, `stop`, `start`, `rm`. Each is one call of the client for each
//! sandbox.

use remuda_client::SandboxFilter;
use remuda_types::SandboxId;
use remuda_types::wire::{CreateSandbox, RemovalResult, Sandbox, SandboxList, StartSandbox, StopResult};

use super::DONE;
use crate::args::{Create, Global, Ls, OneChange, Rm, Start, Timeout};
use crate::connection::{connect, connect_for};
use crate::{failure, print};

pub async fn create(global: &Global, args: Create) -> anyhow::Result<u8> {
    let request = CreateSandbox {
        slot: args.slot,
        labels: args.labels.labels.into_iter().collect(),
        memory_mib: Some(args.memory),
        timeout_ms: args.deadline.timeout_ms(),
        idle_timeout_ms: args.deadline.idle_timeout_ms(),
        on_deadline: args.deadline.on_deadline(),
        disk_mib: args.disk,
        internet: args.no_internet.then_some(false),
        launch: super::snapshots::recipe(&args.launch)?,
    };
    let sandbox = connect_for(global, args.key.key)?.create_sandbox(&request).await?;
    made(global, &sandbox)
}

/// A new sandbox: its id alone, so that scripts can take it.
pub fn made(global: &Global, sandbox: &Sandbox) -> anyhow::Result<u8> {
    if global.json {
        print::json(sandbox)?;
    } else {
        print::line(&sandbox.id)?;
    }
    Ok(DONE)
}

pub async fn list(global: &Global, args: Ls) -> anyhow::Result<u8> {
    let filter = SandboxFilter { include_ended: args.all, slot: args.slot, labels: args.labels.labels };
    let sandboxes = connect(global)?.list_sandboxes(&filter).await?;
    if global.json {
        print::json(&SandboxList { sandboxes })?;
    } else {
        print::sandboxes(&sandboxes)?;
    }
    Ok(DONE)
}

pub async fn show(global: &Global, id: &SandboxId) -> anyhow::Result<u8> {
    shown(global, &connect(global)?.sandbox(id).await?)
}

pub async fn pause(global: &Global, args: OneChange) -> anyhow::Result<u8> {
    shown(global, &connect_for(global, args.key.key)?.pause(&args.sandbox.id).await?)
}

pub async fn resume(global: &Global, args: OneChange) -> anyhow::Result<u8> {
    shown(global, &connect_for(global, args.key.key)?.resume(&args.sandbox.id).await?)
}

/// Stops each; one that can't be stopped does not keep the others.
pub async fn stop(global: &Global, args: Rm) -> anyhow::Result<u8> {
    // One key does for all: it is a key of each sandbox by itself.
    let client = connect_for(global, args.key.key)?;
    let (mut stops, mut code) = (Vec::new(), DONE);
    for id in &args.ids {
        match client.stop(id).await {
            Ok(stop) => {
                if !global.json {
                    print::line(match (stop.result, stop.flushed) {
                        (StopResult::Stopped, true) => format!("{id} stopped, its files are kept"),
                        (StopResult::Stopped, false) => {
                            format!("{id} stopped; its files are kept, but for what its kernel had not written yet")
                        }
                        (StopResult::AlreadyAbsent, _) => format!("{id} had no processes; its files are kept"),
                        (StopResult::Refused, _) => format!("{id} was not stopped"),
                    })?;
                }
                stops.push(stop);
            }
            Err(error) => code = failure::report(&error.into()),
        }
    }
    if global.json {
        print::json(&stops)?;
    }
    Ok(code)
}

pub async fn start(global: &Global, args: Start) -> anyhow::Result<u8> {
    let client = connect_for(global, args.key.key)?;
    let request = StartSandbox { launch: None, skip_launch: args.no_launch };
    made(global, &client.start(&args.sandbox.id, &request).await?)
}

pub async fn timeout(global: &Global, args: Timeout) -> anyhow::Result<u8> {
    let request = args.request();
    shown(global, &connect_for(global, args.key.key)?.set_deadline(&args.sandbox.id, &request).await?)
}

fn shown(global: &Global, sandbox: &Sandbox) -> anyhow::Result<u8> {
    if global.json {
        print::json(sandbox)?;
    } else {
        print::sandbox(sandbox)?;
    }
    Ok(DONE)
}

/// Removes each; one that can't be removed does not keep the others.
pub async fn remove(global: &Global, args: Rm) -> anyhow::Result<u8> {
    // One key does for all: it is a key of each sandbox by itself.
    let client = connect_for(global, args.key.key)?;
    let (mut removals, mut code) = (Vec::new(), DONE);
    for id in &args.ids {
        match client.remove_sandbox(id).await {
            Ok(removal) => {
                if !global.json {
                    let freed = print::bytes(removal.bytes_reclaimed);
                    print::line(match removal.result {
                        RemovalResult::Removed => format!("{id} removed, {freed} freed"),
                        RemovalResult::AlreadyAbsent => format!("{id} had ended before"),
                    })?;
                }
                removals.push(removal);
            }
            Err(error) => code = failure::report(&error.into()),
        }
    }
    if global.json {
        print::json(&removals)?;
    }
    Ok(code)
}
