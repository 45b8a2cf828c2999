//! `snapshot`, `fork`, `restore`: copies of a sandbox. Each is one call of the client.

use anyhow::Context;
use remuda_client::part_key;
use remuda_types::wire::{
    Branch, CreateSnapshot, ForkSandbox, LaunchRecipe, RestoreSnapshot, Snapshot as Captured, SnapshotList,
};

use super::DONE;
use crate::args::{Fork, Global, KeyArg, LaunchArgs, Restore, Snapshot, SnapshotCreate};
use crate::connection::{connect, connect_for};
use crate::failure::{self, Failure, NEGATIVE, USAGE};
use crate::print;

pub async fn run(global: &Global, command: Snapshot) -> anyhow::Result<u8> {
    match command {
        Snapshot::Create(args) => create(global, args).await,
        Snapshot::Ls { all } => list(global, all).await,
        Snapshot::Show { snapshot } => show(global, &connect(global)?.snapshot_info(&snapshot).await?),
        Snapshot::Rm { snapshots, key } => remove(global, &snapshots, key).await,
    }
}

async fn create(global: &Global, args: SnapshotCreate) -> anyhow::Result<u8> {
    let request = CreateSnapshot {
        name: args.name,
        mode: Some(args.mode.into()),
        labels: args.labels.labels.into_iter().collect(),
        launch: recipe(&args.launch)?,
    };
    let snapshot = connect_for(global, args.key.key)?.snapshot(&args.sandbox.id, &request).await?;
    if global.json {
        print::json(&snapshot)?;
    } else {
        print::line(&snapshot.id)?;
        tell_losses(&snapshot);
    }
    Ok(DONE)
}

/// What a capture left out belongs beside its id, not only into `snapshot show`.
fn tell_losses(snapshot: &Captured) {
    for what in &snapshot.excluded {
        eprintln!("left out: {what}");
    }
}

async fn list(global: &Global, all: bool) -> anyhow::Result<u8> {
    let snapshots = connect(global)?.snapshots(all).await?;
    if global.json {
        print::json(&SnapshotList { snapshots })?;
    } else {
        print::snapshots(&snapshots)?;
    }
    Ok(DONE)
}

fn show(global: &Global, snapshot: &Captured) -> anyhow::Result<u8> {
    if global.json {
        print::json(snapshot)?;
    } else {
        print::snapshot(snapshot)?;
    }
    Ok(DONE)
}

/// Deletes each; one that can't be deleted does not keep the others.
async fn remove(global: &Global, snapshots: &[String], KeyArg { key }: KeyArg) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let (mut removals, mut code) = (Vec::new(), DONE);
    for snapshot in snapshots {
        // A snapshot is no part of its key's scope, as a sandbox is.
        let client = match &key {
            Some(key) if snapshots.len() == 1 => client.with_key(key.clone()),
            Some(key) => client.with_key(part_key(key, snapshot)?),
            None => client.clone(),
        };
        match client.remove_snapshot(snapshot).await {
            Ok(removal) => {
                if !global.json {
                    let (freed, held) = (removal.bytes_reclaimed, removal.bytes_still_referenced);
                    let held = if held > 0 { format!(", {} still in use", print::bytes(held)) } else { String::new() };
                    print::line(format!("{} deleted, {} freed{held}", removal.id, print::bytes(freed)))?;
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

pub async fn fork(global: &Global, args: Fork) -> anyhow::Result<u8> {
    let request = ForkSandbox {
        count: args.count,
        mode: Some(args.mode.into()),
        labels: args.labels.labels.into_iter().collect(),
        slots: args.slots,
        launch: recipe(&args.launch)?,
        timeout_ms: args.deadline.timeout_ms(),
        idle_timeout_ms: args.deadline.idle_timeout_ms(),
        on_deadline: args.deadline.on_deadline(),
    };
    let fork = connect_for(global, args.key.key)?.fork(&args.sandbox.id, &request).await?;
    if global.json {
        print::json(&fork)?;
    } else {
        tell_losses(&fork.snapshot);
    }
    let mut code = DONE;
    for (index, branch) in fork.branches.into_iter().enumerate() {
        match branch {
            Branch::Sandbox(sandbox) if !global.json => print::line(&sandbox.id)?,
            Branch::Sandbox(_) => {}
            Branch::Error(error) => {
                let context = format!("branch {} did not come up: {error} ({})", index + 1, error.code);
                let mut failure = Failure::new(NEGATIVE, context);
                if let Some(cause) = &error.cause {
                    failure = failure.cause(cause);
                }
                if let Some(remedy) = &error.remedy {
                    failure = failure.remedy(remedy);
                }
                code = failure::report(&failure.into());
            }
        }
    }
    Ok(code)
}

pub async fn restore(global: &Global, args: Restore) -> anyhow::Result<u8> {
    let request = RestoreSnapshot {
        slot: args.slot,
        labels: args.labels.labels.into_iter().collect(),
        launch: recipe(&args.launch)?,
        timeout_ms: args.deadline.timeout_ms(),
        idle_timeout_ms: args.deadline.idle_timeout_ms(),
        on_deadline: args.deadline.on_deadline(),
    };
    let sandbox = connect_for(global, args.key.key)?.restore(&args.snapshot, &request).await?;
    super::sandboxes::made(global, &sandbox)
}

fn recipe(args: &LaunchArgs) -> anyhow::Result<Option<LaunchRecipe>> {
    let Some(path) = &args.launch else { return Ok(None) };
    let wrong = |e: anyhow::Error| {
        Failure::new(USAGE, format!("{} is no launch recipe", path.display()))
            .cause(format!("{e:#}"))
            .remedy(r#"write it as {"argv": ["node", "server.mjs"], "port": 3000, "ready_path": "/"}"#)
    };
    let text = std::fs::read_to_string(path).context("failed to read it").map_err(wrong)?;
    Ok(Some(serde_json::from_str(&text).map_err(|e| wrong(e.into()))?))
}
