//! hooks: programs of a guest's own that are told that they are in a copy. After a copy took its identity, and before it is
//! called running, what is executable in `/etc/remuda/hooks.d` is run, one after another in the order of their names, each
//! as its owner and for a bounded time. Each is an execution like any other. One that fails is told, and keeps nobody: the
//! copy exists whatever a program in it thinks of that.

use std::sync::Arc;
use std::time::Duration;

use remuda_guest_proto::{Entry, EntryKind, Reply, Request};
use remuda_types::wire::{EventAbout, Origin, StartExecution};
use remuda_types::{ErrorCode, ExecutionState};

use crate::events;
use crate::operations::execute;
use crate::platform::Platform;
use crate::registry::SandboxCell;

/// Where they lie.
const DIRECTORY: &str = "/etc/remuda/hooks.d";
/// How many are run; the rest is told as left out.
const HOOKS_MAX: usize = 16;
/// How long one may take, in milliseconds.
const HOOK_MS_MAX: u64 = 10_000;
/// How long the listing may take.
const LIST_WAIT_MAX: Duration = Duration::from_secs(5);
/// Owners whose programs are run: those that every base image has.
const OWNERS: [(u32, &str); 2] = [(0, "root"), (1000, "user")];

/// Runs them, those that were not run before a restart of the server.
pub(crate) async fn run(platform: &Platform, cell: &Arc<SandboxCell>) {
    let Origin::Snapshot { snapshot, source } = &cell.spec.origin else { return };
    // What goes on with a stopped copy's files is no copy of its own.
    if cell.continues.get().is_some() {
        return;
    }
    let Ok(live) = cell.live().cloned() else { return };
    let request = Request::List { path: DIRECTORY.into(), user: "root".into(), limit: 1_000 };
    // Nearly always there is none.
    let Ok(Reply::Entries { entries, .. }) = live.channel.call_within(request, LIST_WAIT_MAX).await else { return };
    let (hooks, left_out) = chosen(entries);
    let mut complaints: Vec<String> = left_out;
    for (path, user) in hooks {
        let argv = vec![path.clone()];
        if cell.executions.newest_of(&argv).is_some() {
            continue;
        }
        let env = [
            ("REMUDA_SANDBOX", cell.id.to_string()),
            ("REMUDA_SNAPSHOT", snapshot.to_string()),
            ("REMUDA_SOURCE", source.to_string()),
        ];
        let request = StartExecution {
            argv: Some(argv),
            cwd: Some("/".into()),
            env: env.map(|(name, value)| (name.to_owned(), value)).into(),
            user: Some(user.to_owned()),
            timeout_ms: Some(HOOK_MS_MAX),
            ..StartExecution::default()
        };
        let started = execute::start(cell, request).await;
        match started {
            Ok(execution) => {
                execution.ended().await;
                let shown = execution.show();
                if shown.state != ExecutionState::Exited || shown.exit_code != Some(0) {
                    let code = shown.exit_code.map(|code| format!(" with {code}")).unwrap_or_default();
                    complaints.push(format!("{path} ended as {}{code}: see {}", shown.state, shown.id));
                }
            }
            Err(e) if e.code == ErrorCode::WrongState => return,
            Err(e) => complaints.push(format!("{path} was not started: {}", e.message)),
        }
    }
    for complaint in complaints {
        tracing::warn!("a hook of {}: {complaint}", cell.id);
        let about = EventAbout { sandbox: Some(cell.id.clone()), reason: Some(complaint), ..EventAbout::default() };
        let told = platform.journal().apply(vec![events::event(&cell.account, events::SANDBOX_HOOK_FAILED, &about)]);
        if let Err(e) = told.await {
            tracing::error!("that a hook of {} failed is not written down: {e}", cell.id);
        }
    }
}

/// Which are run, as path and user, in their order; and what is said of those that are not. The listing is a guest's word.
fn chosen(mut entries: Vec<Entry>) -> (Vec<(String, &'static str)>, Vec<String>) {
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    let (mut hooks, mut left_out) = (Vec::new(), Vec::new());
    for entry in entries {
        let name = entry.path.rsplit('/').next().unwrap_or_default().to_owned();
        let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if entry.kind != EntryKind::File || entry.mode & 0o111 == 0 || name.is_empty() || !name.chars().all(sound) {
            continue;
        }
        let owner = OWNERS.iter().find(|(uid, _)| *uid == entry.uid);
        match owner {
            // Whoever may write to it decides what it does: it must be its owner alone.
            _ if entry.mode & 0o022 != 0 => left_out.push(format!("{name} is not run: others may write to it")),
            None => left_out.push(format!("{name} is not run: its owner is neither root nor user")),
            Some(_) if hooks.len() >= HOOKS_MAX => left_out.push(format!("{name} is not run: there are too many")),
            Some((_, user)) => hooks.push((format!("{DIRECTORY}/{name}"), *user)),
        }
    }
    left_out.truncate(HOOKS_MAX);
    (hooks, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_its_owner_alone_writes_is_run_in_order() {
        let entry = |name: &str, mode: u32, uid: u32, kind: EntryKind| Entry {
            path: format!("{DIRECTORY}/{name}"),
            kind,
            size: 1,
            mode,
            uid,
            gid: uid,
            modified_ms: 0,
            target: None,
            digest: None,
        };
        let (hooks, left_out) = chosen(vec![
            entry("20-second", 0o755, 1000, EntryKind::File),
            entry("10-first", 0o700, 0, EntryKind::File),
            entry("README", 0o644, 0, EntryKind::File),
            entry("dir", 0o755, 0, EntryKind::Directory),
            entry("link", 0o777, 0, EntryKind::Symlink),
            entry("loose", 0o777, 0, EntryKind::File),
            entry("stranger", 0o755, 7, EntryKind::File),
            entry("odd\nname", 0o755, 0, EntryKind::File),
        ]);
        let path = |name: &str| format!("{DIRECTORY}/{name}");
        assert_eq!(hooks, [(path("10-first"), "root"), (path("20-second"), "user")]);
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        let many = (0..40).map(|n| entry(&format!("h{n:02}"), 0o755, 0, EntryKind::File)).collect();
        let (hooks, left_out) = chosen(many);
        assert_eq!((hooks.len(), left_out.len()), (HOOKS_MAX, HOOKS_MAX));
    }
}
