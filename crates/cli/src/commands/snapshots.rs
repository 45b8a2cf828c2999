//! `snapshot`, `fork`, `restore`: copies of a sandbox. Each is one call of the client.

use std::time::Duration;

use anyhow::Context;
use remuda_client::{Client, SnapshotFilter, part_key};
use remuda_types::limits::WAIT_MS_MAX;
use remuda_types::wire::{
    Branch, ChangeKind, CreateSnapshot, FileDifference, FileFacts, ForkSandbox, LaunchRecipe, RestoreSnapshot,
    Snapshot as Captured, SnapshotList, TrialRestore,
};
use remuda_types::{IdError, SnapshotMode, SnapshotState};

use super::DONE;
use crate::args::{Fork, Global, KeyArg, LaunchArgs, Restore, Snapshot, SnapshotCreate, SnapshotDiff, SnapshotLs};
use crate::connection::{connect, connect_for};
use crate::failure::{self, Failure, NEGATIVE, USAGE};
use crate::print;

pub async fn run(global: &Global, command: Snapshot) -> anyhow::Result<u8> {
    match command {
        Snapshot::Create(args) => create(global, args).await,
        Snapshot::Ls(args) => list(global, args).await,
        Snapshot::Show { snapshot, wait } => show(global, &snapshot, wait).await,
        Snapshot::Verify { snapshot, key } => verify(global, &snapshot, key).await,
        Snapshot::Diff(args) => diff(global, args).await,
        Snapshot::Export { snapshot, file } => super::transfers::export(global, &snapshot, &file).await,
        Snapshot::Import(args) => super::transfers::import(global, args).await,
        Snapshot::Rm { snapshots, key } => remove(global, &snapshots, key).await,
    }
}

async fn create(global: &Global, args: SnapshotCreate) -> anyhow::Result<u8> {
    let request = CreateSnapshot {
        name: args.name,
        replace: args.replace,
        mode: args.mode.map(Into::into),
        labels: args.labels.labels.into_iter().collect(),
        launch: recipe(&args.launch)?,
        wait_ms: args.no_wait.then_some(0),
    };
    let snapshot = connect_for(global, args.key.key)?.snapshot(&args.sandbox.id, &request).await?;
    if global.json {
        print::json(&snapshot)?;
    } else {
        print::line(&snapshot.id)?;
        if !under_way(&snapshot) {
            tell_losses(&snapshot);
        }
    }
    Ok(DONE)
}

/// What a capture left out belongs beside its id, not only into `snapshot show`.
fn tell_losses(snapshot: &Captured) {
    for what in &snapshot.excluded {
        eprintln!("left out: {what}");
    }
}

fn under_way(snapshot: &Captured) -> bool {
    matches!(snapshot.state, SnapshotState::Capturing | SnapshotState::Verifying)
}

async fn list(global: &Global, args: SnapshotLs) -> anyhow::Result<u8> {
    let filter = SnapshotFilter {
        include_ended: args.all,
        state: args.state,
        name: args.name,
        source: args.source,
        label: args.label,
        since_ms: args.since,
        before_ms: args.before,
    };
    let snapshots = connect(global)?.snapshots_of(&filter).await?;
    if global.json {
        print::json(&SnapshotList { snapshots, next: None })?;
    } else {
        print::snapshots(&snapshots)?;
    }
    Ok(DONE)
}

async fn show(global: &Global, snapshot: &str, wait: bool) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let mut found = client.snapshot_info(snapshot).await?;
    while wait && under_way(&found) {
        // By its id: its name may go to another one meanwhile.
        let id = found.id.clone();
        found = client.snapshot_settled(id.as_str(), Duration::from_millis(WAIT_MS_MAX)).await?;
    }
    if global.json {
        print::json(&found)?;
    } else {
        print::snapshot(&found)?;
    }
    Ok(if wait && found.state == SnapshotState::Failed { NEGATIVE } else { DONE })
}

async fn verify(global: &Global, snapshot: &str, KeyArg { key }: KeyArg) -> anyhow::Result<u8> {
    let verification = connect_for(global, key)?.verify_snapshot(snapshot).await?;
    if global.json {
        print::json(&verification)?;
    } else {
        let word = |sound: bool, why: Option<&String>| match (sound, why) {
            (true, _) => "sound".to_owned(),
            (false, Some(why)) => why.clone(),
            (false, None) => "not sound".to_owned(),
        };
        let parts = verification.parts.iter().map(|part| (part.part.as_str(), word(part.sound, part.detail.as_ref())));
        let mut rows: Vec<(&str, String)> = parts.collect();
        match &verification.trial {
            Some(TrialRestore { took_ms, error: None }) => {
                rows.push(("trial", format!("it came up in {took_ms:.0} ms")))
            }
            Some(TrialRestore { error: Some(error), .. }) => rows.push(("trial", format!("{error} ({})", error.code))),
            None => rows.push(("trial", "none: nothing can be restored from it".to_owned())),
        }
        print::pairs(&rows)?;
    }
    Ok(if verification.sound { DONE } else { NEGATIVE })
}

/// Files of a sandbox are captured for a comparison, and let go of again.
struct Side {
    name: String,
    captured: bool,
}

impl Side {
    async fn of(client: &Client, name: String) -> anyhow::Result<Side> {
        if !name.contains('@') {
            return Ok(Side { name, captured: false });
        }
        let id = name.parse().map_err(|e: IdError| Failure::new(USAGE, e.to_string()))?;
        let sandbox = client.sandbox(&id).await?;
        // Whoever sees the sandbox sees its capture.
        let request = CreateSnapshot {
            mode: Some(SnapshotMode::Filesystem),
            labels: sandbox.labels,
            ..CreateSnapshot::default()
        };
        let snapshot = client.snapshot(&id, &request).await?;
        Ok(Side { name: snapshot.id.to_string(), captured: true })
    }

    async fn let_go(self, client: &Client) -> anyhow::Result<()> {
        if self.captured {
            client.remove_snapshot(&self.name).await?;
        }
        Ok(())
    }
}

async fn diff(global: &Global, args: SnapshotDiff) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let first = Side::of(&client, args.first).await?;
    let second = match args.second {
        None => None,
        Some(second) => Some(match Side::of(&client, second).await {
            Ok(second) => second,
            Err(e) => {
                first.let_go(&client).await?;
                return Err(e);
            }
        }),
    };
    let compared = match &second {
        Some(second) => client.diff_snapshots(Some(&first.name), &second.name, args.patch).await,
        None => client.diff_snapshots(None, &first.name, args.patch).await,
    };
    for side in [Some(first), second].into_iter().flatten() {
        side.let_go(&client).await?;
    }
    let diff = compared?;
    if global.json {
        print::json(&diff)?;
    } else {
        for change in &diff.changes {
            match (&change.patch, args.patch) {
                (Some(patch), true) => print::text(patch)?,
                _ => print::line(print::plain(&changed(change)))?,
            }
        }
        if diff.truncated {
            eprintln!("there is more that differs: a limit was reached");
        }
    }
    Ok(if diff.changes.is_empty() { DONE } else { NEGATIVE })
}

/// One change on one line: what happened, the mode, and the path.
fn changed(change: &FileDifference) -> String {
    let letter = match change.change {
        ChangeKind::Added => 'A',
        ChangeKind::Changed => 'M',
        ChangeKind::Removed => 'D',
    };
    let mode = |facts: &Option<FileFacts>| facts.as_ref().map_or("-".to_owned(), |facts| format!("{:04o}", facts.mode));
    let (before, after) = (mode(&change.before), mode(&change.after));
    let mode = if change.change == ChangeKind::Changed && before != after {
        format!("{before}→{after}")
    } else if change.after.is_some() {
        after
    } else {
        before
    };
    format!("{letter} {mode} {}", change.path)
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
        mode: args.mode.map(Into::into),
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

/// The launch recipe in a file.
pub fn recipe(args: &LaunchArgs) -> anyhow::Result<Option<LaunchRecipe>> {
    let Some(path) = &args.launch else { return Ok(None) };
    let wrong = |e: anyhow::Error| {
        Failure::new(USAGE, format!("{} is no launch recipe", path.display()))
            .cause(format!("{e:#}"))
            .remedy(r#"write it as {"argv": ["node", "server.mjs"], "port": 3000, "ready_path": "/"}"#)
    };
    let text = std::fs::read_to_string(path).context("failed to read it").map_err(wrong)?;
    Ok(Some(serde_json::from_str(&text).map_err(|e| wrong(e.into()))?))
}
