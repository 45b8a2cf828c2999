//! What people and programs read on standard output: tables and JSON. Must write nothing to standard error.

use std::io::{self, Write};

use comfy_table::{Table, presets};
use remuda_types::SnapshotState;
use remuda_types::wire::{Execution, Labels, OnDeadline, Operation, Sandbox, Snapshot};
use serde::Serialize;

/// One line.
pub fn line(text: impl std::fmt::Display) -> io::Result<()> {
    writeln!(io::stdout(), "{text}")
}

/// Text of several lines, without what would steer a terminal but its line breaks and tabs.
pub fn text(text: &str) -> io::Result<()> {
    let plain: String =
        text.chars().map(|c| if c.is_control() && !matches!(c, '\n' | '\t') { ' ' } else { c }).collect();
    write!(io::stdout(), "{plain}")
}

/// One value as JSON.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    Ok(line(text)?)
}

/// Rows under a heading, in columns. What somebody else named, such as a label, stays in its row and steers no terminal.
pub fn table<const N: usize>(heading: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> io::Result<()> {
    for row in rows_of(heading, rows).lines() {
        line(row.trim_end())?;
    }
    Ok(())
}

fn rows_of<const N: usize>(heading: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(heading);
    table.add_rows(rows.into_iter().map(|row| row.map(|cell| plain(&cell))));
    // The first column begins where the line does.
    if let Some(column) = table.column_mut(0) {
        column.set_padding((0, 1));
    }
    table.to_string()
}

/// Names and values, one pair a line, whatever is in a value.
pub fn pairs(pairs: &[(&str, String)]) -> io::Result<()> {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in pairs {
        line(format!("{name:width$}  {}", plain(value)))?;
    }
    Ok(())
}

/// Sandboxes as a table.
pub fn sandboxes(sandboxes: &[Sandbox]) -> io::Result<()> {
    table(
        ["ID", "STATE", "MEMORY", "FROM", "LABELS"],
        sandboxes.iter().map(|sandbox| {
            let memory = format!("{} MiB", sandbox.memory_mib);
            [sandbox.id.to_string(), sandbox.state.to_string(), memory, origin(sandbox), labels(&sandbox.labels)]
        }),
    )
}

/// One sandbox in full.
pub fn sandbox(sandbox: &Sandbox) -> io::Result<()> {
    let mut rows = vec![
        ("id", sandbox.id.to_string()),
        ("uid", sandbox.uid.to_string()),
        ("state", sandbox.state.to_string()),
        ("memory", format!("{} MiB", sandbox.memory_mib)),
        ("disk", format!("{} MiB", sandbox.disk_mib)),
        ("internet", if sandbox.internet { "yes" } else { "no" }.to_owned()),
        ("from", origin(sandbox)),
    ];
    rows.extend(sandbox.continues.as_ref().map(|id| ("continues", id.to_string())));
    let on_deadline = sandbox.on_deadline.map_or("", |what| match what {
        OnDeadline::Snapshot => ", then captured and removed",
        OnDeadline::Delete => ", then removed",
    });
    rows.extend(sandbox.deadline_at_ms.map(|at| ("deadline", format!("{}{on_deadline}", moment(at)))));
    rows.extend(sandbox.idle_timeout_ms.map(|limit| {
        let limit = format!("{:#}", jiff::SignedDuration::from_millis(limit.try_into().unwrap_or(i64::MAX)));
        let at = sandbox.idle_at_ms.map_or_else(|| "it is at work".to_owned(), |at| format!("at {}", moment(at)));
        ("when idle for", format!("{limit}: {at}"))
    }));
    rows.extend(sandbox.reason.clone().map(|reason| ("reason", reason)));
    rows.extend((!sandbox.labels.is_empty()).then(|| ("labels", labels(&sandbox.labels))));
    pairs(&rows)
}

fn origin(sandbox: &Sandbox) -> String {
    use remuda_types::wire::Origin;
    match &sandbox.origin {
        Origin::Image { .. } => "base image".to_owned(),
        Origin::Snapshot { snapshot, .. } => snapshot.to_string(),
    }
}

/// Executions as a table.
pub fn executions(executions: &[Execution]) -> io::Result<()> {
    table(
        ["ID", "STATE", "EXIT", "OUTPUT", "COMMAND"],
        executions.iter().map(|execution| {
            let code = execution.exit_code.map_or_else(|| "-".to_owned(), |code| code.to_string());
            let output = bytes(execution.output_bytes);
            let left = if execution.left_running { ", children run" } else { "" };
            let state = format!("{}{left}", execution.state);
            [execution.id.to_string(), state, code, output, command(&execution.command)]
        }),
    )
}

/// A command on one line that fits a table.
fn command(words: &[String]) -> String {
    const CHARS_MAX: usize = 60;
    let text = words.join(" ");
    // A guest's text may hold anything; only what is printable reaches the terminal.
    let mut short: String = plain(&text).chars().take(CHARS_MAX).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        short.push('…');
    }
    short
}

/// Snapshots as a table.
pub fn snapshots(snapshots: &[Snapshot]) -> io::Result<()> {
    table(
        ["ID", "NAME", "MODE", "STATE", "SIZE", "SOURCE"],
        snapshots.iter().map(|snapshot| {
            [
                snapshot.id.to_string(),
                snapshot.name.clone().unwrap_or_else(|| "-".to_owned()),
                snapshot.mode.to_string(),
                standing(snapshot),
                bytes(snapshot.bytes),
                snapshot.source.to_string(),
            ]
        }),
    )
}

/// Where it stands. What is active and can't be restored is the layer under a fork's branches.
fn standing(snapshot: &Snapshot) -> String {
    match snapshot.state {
        SnapshotState::Active if snapshot.damage.is_some() => "damaged".to_owned(),
        SnapshotState::Active if !snapshot.restorable => "layer only".to_owned(),
        state => state.to_string(),
    }
}

/// One snapshot in full.
pub fn snapshot(snapshot: &Snapshot) -> io::Result<()> {
    let mut rows = vec![
        ("id", snapshot.id.to_string()),
        ("name", snapshot.name.clone().unwrap_or_else(|| "-".to_owned())),
        ("mode", snapshot.mode.to_string()),
        ("state", standing(snapshot)),
        ("source", snapshot.source.to_string()),
        ("size", bytes(snapshot.bytes)),
    ];
    rows.extend(snapshot.pause_ms.map(|ms| ("source stood still", format!("{ms:.0} ms"))));
    rows.extend(snapshot.connections_dropped.map(|count| ("connections reset", count.to_string())));
    rows.extend(snapshot.damage.clone().map(|damage| ("damage", damage)));
    rows.extend(snapshot.failure.as_ref().map(|failure| ("failure", failure.to_string())));
    rows.extend((!snapshot.labels.is_empty()).then(|| ("labels", labels(&snapshot.labels))));
    rows.extend(snapshot.excluded.iter().map(|what| ("left out", what.clone())));
    pairs(&rows)
}

/// One operation: where it stands and what came of it.
pub fn operation(operation: &Operation) -> io::Result<()> {
    let mut rows = vec![("id", operation.id.to_string()), ("kind", operation.kind.clone())];
    rows.extend(operation.key.as_ref().map(|key| ("key", key.to_string())));
    rows.extend(operation.sandbox.as_ref().map(|sandbox| ("sandbox", sandbox.to_string())));
    rows.push(("state", operation.state.to_string()));
    let made = &operation.made;
    rows.extend(made.sandbox.as_ref().map(|id| ("new sandbox", id.to_string())));
    rows.extend(made.snapshot.as_ref().map(|id| ("new snapshot", id.to_string())));
    rows.extend(made.execution.as_ref().map(|id| ("execution", id.to_string())));
    rows.extend(operation.error.as_ref().map(|error| ("error", format!("{error} ({})", error.code))));
    let holds = operation.holds.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ");
    rows.extend((!holds.is_empty()).then_some(("still holds", holds)));
    pairs(&rows)
}

/// Labels on one line.
pub fn labels(labels: &Labels) -> String {
    labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// A text of somebody else's on one line, without what would steer a terminal.
pub fn plain(text: &str) -> String {
    remuda_rodeo::text::line(text, usize::MAX)
}

/// A moment for people, in UTC.
pub fn moment(unix_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(unix_ms).map_or_else(|_| unix_ms.to_string(), |at| format!("{at:.0}"))
}

/// A size for people.
pub fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_a_guest_cannot_steer_the_terminal() {
        assert_eq!(command(&["printf".into(), "\x1b[2J\nx".into()]), "printf  [2J x");
        assert!(command(&["x".repeat(100)]).ends_with('…'));
    }

    #[test]
    fn a_label_stays_in_its_row_and_cannot_steer_the_terminal() {
        let rows = [["c1".to_owned(), "a=\x1b[2J\nc2 running".to_owned()], ["c3".to_owned(), "b".to_owned()]];
        let text = rows_of(["ID", "LABELS"], rows);
        assert_eq!(text.lines().count(), 3, "{text:?}");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    }
}
