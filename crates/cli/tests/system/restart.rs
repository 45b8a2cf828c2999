//! What outlives the server: sandboxes and what runs in them, snapshots, and the one outcome of every keyed call. The
//! server is killed here, as a crash does it, and another one is started on its data directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use remuda_client::wire::{Branch, CreateSnapshot, RestoreSnapshot, StartExecution};
use remuda_client::{OutputQuery, SandboxFilter};
use remuda_types::{ErrorCode, ExecutionState, SandboxState, SnapshotMode, SnapshotState};
use serde_json::{Value, json};

use crate::api::{Api, PATIENCE, detached, fork_of, host_processes, refused, script_of, traces};
use crate::keys::{Told, begin, keyed};
use crate::world::Server;

/// A data directory that has one server after another. Nothing is left of it when a test ends, also by a panic.
pub struct Place {
    pub data_dir: PathBuf,
    _directory: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
        Place { data_dir: directory.path().join("d"), _directory: directory }
    }

    pub fn start(&self) -> Api {
        Api::of(Arc::new(Server::start_plain(&self.data_dir, &[])))
    }

    /// Kills the server and starts the next.
    pub fn restart(&self, api: Api) -> Api {
        Arc::into_inner(api.server).expect("somebody holds the server").kill();
        self.start()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The last server of the directory takes everything away; one that still runs ended by its own drop.
        assert_eq!(Server::start_in(&self.data_dir).end(), 0);
    }
}

const SMALL: &str = r#"{"memory_mib":512}"#;
/// When the server is killed after a call was sent, in milliseconds: before its admission, within each of its steps,
/// and after its outcome, on a fast machine and on a slow one.
pub const KILL_AFTER_MS: [u64; 8] = [0, 3, 8, 20, 45, 80, 140, 260];

/// Sends a call until it has an outcome.
pub fn settled(api: &Api, method: &str, path: &str, key: &str, body: &str) -> Told {
    let begun = std::time::Instant::now();
    loop {
        let told = keyed(&api.server, method, path, key, body);
        if !matches!(told.code(), "operation_in_progress" | "unreachable") {
            return told;
        }
        assert!(begun.elapsed() < PATIENCE, "{told:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a call and kills the server so long after it.
pub fn killed_after(api: Api, place: &Place, after_ms: u64, method: &str, path: &str, key: &str, body: &str) -> Api {
    let call = begin(&api.server, method, path, key, body);
    // Not waiting for an event is the point: the kill falls wherever the call is by then.
    std::thread::sleep(Duration::from_millis(after_ms));
    let next = place.restart(api);
    drop(call);
    next
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_and_what_runs_in_it_go_on_without_the_server() {
    let place = Place::new();
    let api = place.start();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    api.start_counter(id).await;
    let before = api.count(id).await;
    let identity = api.sh(id, "cat /run/remuda/identity.json /etc/machine-id; hostname").await;
    let many = "i=0; while [ $i -lt 4000 ]; do echo line $i; i=$((i+1)); [ $((i % 50)) != 0 ] || sleep 0.02; done";
    let (counting, _) = api.background(id, detached(many)).await;
    let processes = host_processes(sandbox.uid.as_str(), "runsc-sandbox");

    let mut api = place.restart(api);
    for _ in 0..3 {
        api = place.restart(api);
    }
    assert_eq!(host_processes(sandbox.uid.as_str(), "runsc-sandbox"), processes);
    let listed = api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap();
    assert_eq!(listed, [api.client.sandbox(id).await.unwrap()]);
    assert_eq!((listed[0].state, &listed[0].uid), (SandboxState::Running, &sandbox.uid));
    assert_eq!(api.count(id).await, before.after(1));
    assert_eq!(api.sh(id, "cat /run/remuda/identity.json /etc/machine-id; hostname").await, identity);
    let ended = api.ended(id, &counting).await;
    assert_eq!((ended.state, ended.exit_code), (ExecutionState::Exited, Some(0)));
    let (mut text, mut offset) = (String::new(), 0);
    loop {
        let page = api.client.output(id, &counting, &OutputQuery { offset, ..OutputQuery::default() }).await.unwrap();
        text.extend(page.records.iter().map(|record| record.text.as_str()));
        offset = page.next_offset;
        if page.complete {
            break;
        }
    }
    let expected: String = (0..4000).map(|n| format!("line {n}\n")).collect();
    assert!(text == expected, "{} of {} bytes", text.len(), expected.len());
    api.remove(id).await;
    assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_asked_to_end_leaves_its_sandboxes_running() {
    let place = Place::new();
    let api = place.start();
    let id = api.create().await.id;
    api.start_counter(&id).await;
    let before = api.count(&id).await;
    let client = api.client.clone();
    let waited = id.clone();
    let waiting = tokio::spawn(async move { client.execute(&waited, &script_of("touch /tmp/begun; sleep 600")).await });
    api.sh(&id, "while [ ! -e /tmp/begun ]; do sleep 0.02; done").await;
    let server = Arc::into_inner(api.server).unwrap();
    assert_eq!(tokio::task::spawn_blocking(|| server.end()).await.unwrap(), 0);
    let told = tokio::time::timeout(PATIENCE, waiting).await.expect("it hangs").unwrap();
    assert_eq!(told.unwrap().state, ExecutionState::Running, "whoever waited is told how it stands");
    let api = place.start();
    assert_eq!(api.count(&id).await, before.after(1));
    let running = api.client.executions(&id).await.unwrap();
    assert_eq!(running.iter().filter(|e| e.state == ExecutionState::Running).count(), 2, "{running:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_sandbox_stays_paused_and_can_be_captured_before_anybody_speaks_to_it() {
    let place = Place::new();
    let api = place.start();
    let id = api.create().await.id;
    api.start_counter(&id).await;
    let before = api.count(&id).await;
    let (ticking, _) = api.background(&id, detached("while :; do echo tick; sleep 0.05; done")).await;
    api.client.pause(&id).await.unwrap();
    let ticks = api.client.execution(&id, &ticking, Duration::ZERO).await.unwrap().output_bytes;

    let api = place.restart(api);
    assert_eq!(api.client.sandbox(&id).await.unwrap().state, SandboxState::Paused);
    refused(api.client.execute(&id, &script_of("true")).await, ErrorCode::WrongState);
    let snapshot = api.client.snapshot(&id, &CreateSnapshot::default()).await.unwrap();
    let copy = api.client.restore(snapshot.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.count(&copy.id).await, before.after(1));
    let files = CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() };
    api.client.snapshot(&id, &files).await.unwrap();
    assert_eq!(api.client.sandbox(&id).await.unwrap().state, SandboxState::Paused);
    assert_eq!(api.client.execution(&id, &ticking, Duration::ZERO).await.unwrap().output_bytes, ticks);

    let api = place.restart(api);
    api.client.resume(&id).await.unwrap();
    assert_eq!(api.count(&id).await, before.after(1));
    let more = OutputQuery { offset: ticks, wait: PATIENCE, ..OutputQuery::default() };
    assert!(!api.client.output(&id, &ticking, &more).await.unwrap().records.is_empty());
    assert_eq!(api.count(&copy.id).await, before.after(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_are_kept_and_restored_by_later_servers() {
    let place = Place::new();
    let api = place.start();
    let id = api.create().await.id;
    api.start_counter(&id).await;
    api.sh(&id, "echo kept > /workspace/file").await;
    let before = api.count(&id).await;
    let (ticking, _) = api.background(&id, detached("while :; do echo tick; sleep 0.05; done")).await;
    let named = |name: &str, mode| CreateSnapshot { name: Some(name.into()), mode: Some(mode), ..Default::default() };
    let memory = api.client.snapshot(&id, &named("memory", SnapshotMode::Memory)).await.unwrap();
    let files = api.client.snapshot(&id, &named("files", SnapshotMode::Filesystem)).await.unwrap();
    let fork = api.client.fork(&id, &fork_of(1)).await.unwrap();
    let Branch::Sandbox(branch) = &fork.branches[0] else { panic!("{fork:?}") };
    let branch = branch.id.clone();
    api.remove(&id).await;

    let api = place.restart(api);
    let listed = api.client.snapshots(false).await.unwrap();
    let kept: Vec<_> = listed.iter().filter(|s| s.name.is_some()).collect();
    assert_eq!(kept, [&memory, &files]);
    let copy = api.client.restore("memory", &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.count(&copy.id).await, before.after(1));
    let carried = api.client.executions(&copy.id).await.unwrap();
    assert!(carried.iter().any(|e| e.origin.as_ref() == Some(&ticking) && e.state == ExecutionState::Running));
    let other = api.client.restore("files", &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.sh(&other.id, "cat /workspace/file").await, "kept");
    assert_eq!(api.count(&branch).await, before.after(1), "a branch stands on a layer that is kept for it");
    assert!(api.client.remove_snapshot("memory").await.unwrap().bytes_reclaimed > 0);
    let api = place.restart(api);
    assert_eq!(api.count(&copy.id).await, before.after(2), "and a copy on that of a snapshot that was removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_whose_snapshot_was_removed_is_held_against_its_seal_and_goes_with_the_last_on_it() {
    let place = Place::new();
    let api = place.start();
    let id = api.create().await.id;
    api.sh(&id, "echo the work of a day > work").await;
    let files = CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() };
    let below = api.client.snapshot(&id, &files).await.unwrap().id;
    let copy = api.client.restore(below.as_str(), &RestoreSnapshot::default()).await.unwrap().id;
    let above = api.client.snapshot(&copy, &files).await.unwrap().id;
    api.client.remove_snapshot(below.as_str()).await.unwrap();

    let api = place.restart(api);
    let work = crate::damage::find(&place.data_dir.join("layers").join(below.as_str()), "work");
    let byte = crate::damage::change(&work, None);
    refused(api.client.restore(above.as_str(), &RestoreSnapshot::default()).await, ErrorCode::SnapshotDamaged);
    crate::damage::change(&work, Some(byte));
    let other = api.client.restore(above.as_str(), &RestoreSnapshot::default()).await.unwrap().id;
    api.client.remove_snapshot(above.as_str()).await.unwrap();
    api.remove(&copy).await;
    assert_eq!(api.captured().len(), 2, "one stands on both");
    api.remove(&other).await;
    assert_eq!(api.captured(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_is_told_as_ended_and_keeps_its_files() {
    let place = Place::new();
    let api = place.start();
    let (early, late) = tokio::join!(api.create(), api.create());
    let (running, _) = api.background(&late.id, detached("echo ready; sleep 600")).await;
    let sentry = |uid: &str| rustix::process::Pid::from_raw(host_processes(uid, "runsc-sandbox")[0]).unwrap();
    let kill = |uid: &str| rustix::process::kill_process(sentry(uid), rustix::process::Signal::KILL).unwrap();
    kill(early.uid.as_str());
    let stopped = api.until(&early.id, "stopped", |seen| seen.state == SandboxState::Stopped).await;
    Arc::into_inner(api.server).unwrap().kill();
    kill(late.uid.as_str());

    let api = place.start();
    assert_eq!(api.client.sandbox(&early.id).await.unwrap(), stopped);
    let told = api.client.sandbox(&late.id).await.unwrap();
    assert_eq!(
        (told.state, told.reason.as_deref()),
        (SandboxState::Stopped, Some("its processes on the host ended unasked"))
    );
    assert_eq!(
        api.client.execution(&late.id, &running, Duration::ZERO).await.unwrap().state,
        ExecutionState::SandboxGone
    );
    refused(api.client.execute(&late.id, &script_of("true")).await, ErrorCode::WrongState);
    assert!(place.data_dir.join("sandboxes").join(late.uid.as_str()).join("upper").exists());
    let list = api.client.receipts(Some(&late.id), None).await.unwrap();
    assert!(list.receipts.iter().any(|r| r.machine.as_ref().is_some_and(|m| m.died.is_some())), "{list:?}");
    for sandbox in [&early, &late] {
        api.remove(&sandbox.id).await;
        assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_that_was_cut_off_leaves_its_source_running_and_nothing_else() {
    let place = Place::new();
    let api = place.start();
    let request = remuda_client::wire::CreateSandbox { memory_mib: Some(1024), ..Default::default() };
    let id = api.create_with(&request).await.id;
    api.start_counter(&id).await;
    let before = api.count(&id).await;
    let capture = api.begin_long_capture(&id).await;
    let api = place.restart(api);
    let _ = capture.await;
    assert_eq!(api.client.sandbox(&id).await.unwrap().state, SandboxState::Running);
    assert_eq!(api.count(&id).await, before.after(1));
    let over = async {
        loop {
            let all = api.client.snapshots(true).await.unwrap();
            assert_eq!(all.len(), 1, "it is never out of sight: {all:?}");
            if all[0].state == SnapshotState::Failed {
                return all;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let all = tokio::time::timeout(PATIENCE, over).await.unwrap();
    assert_eq!(all[0].failure.as_ref().unwrap().code, ErrorCode::Interrupted);
    assert_eq!(api.captured(), Vec::<String>::new());
    assert_eq!(api.client.snapshot(&id, &CreateSnapshot::default()).await.unwrap().state, SnapshotState::Active);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_is_cut_off_anywhere_makes_one_sandbox() {
    let place = Place::new();
    let mut api = place.start();
    for (n, after_ms) in KILL_AFTER_MS.into_iter().enumerate() {
        let key = format!("create-{n}");
        api = killed_after(api, &place, after_ms, "POST", "/v1/sandboxes", &key, SMALL);
        let told = settled(&api, "POST", "/v1/sandboxes", &key, SMALL);
        assert_eq!(told.status, 201, "{after_ms}: {told:?}");
        let living = api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap();
        assert_eq!(living.len(), 1, "{after_ms}: {living:?}");
        assert_eq!(told.body["id"], living[0].id.to_string());
        assert_eq!(api.sh(&living[0].id, "echo alive").await, "alive");
        api.remove(&living[0].id).await;
        assert_eq!(traces(living[0].uid.as_str()), Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_that_is_cut_off_anywhere_is_one_snapshot_or_none() {
    let place = Place::new();
    let mut api = place.start();
    let id = api.create().await.id;
    api.start_counter(&id).await;
    let mut count = api.count(&id).await;
    let path = format!("/v1/sandboxes/{id}/snapshots");
    for (n, after_ms) in KILL_AFTER_MS.into_iter().enumerate() {
        let (key, body) = (format!("capture-{n}"), json!({ "name": format!("n{n}") }).to_string());
        api = killed_after(api, &place, after_ms, "POST", &path, &key, &body);
        let told = settled(&api, "POST", &path, &key, &body);
        let named = |s: &&remuda_client::wire::Snapshot| s.name.as_deref() == Some(&format!("n{n}"));
        let kept = api.client.snapshots(false).await.unwrap();
        let kept: Vec<_> = kept.iter().filter(named).collect();
        match told.status {
            201 => assert_eq!((kept.len(), &told.body["id"]), (1, &json!(kept[0].id)), "{after_ms}"),
            _ => assert_eq!((told.code(), kept.len()), ("interrupted", 0), "{after_ms}: {told:?}"),
        }
        assert_eq!(settled(&api, "POST", &path, &key, &body).body, told.body, "the outcome stands");
        assert_eq!(api.count(&id).await, count.after(1), "{after_ms}: the source goes on");
        count = count.after(1);
        for snapshot in kept {
            api.client.remove_snapshot(snapshot.id.as_str()).await.unwrap();
        }
        assert_eq!(api.captured(), Vec::<String>::new(), "{after_ms}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_that_is_cut_off_anywhere_makes_its_branches_once_or_none() {
    let place = Place::new();
    let mut api = place.start();
    let id = api.create().await.id;
    api.start_counter(&id).await;
    let mut count = api.count(&id).await;
    let path = format!("/v1/sandboxes/{id}/forks");
    for (n, after_ms) in KILL_AFTER_MS.into_iter().enumerate() {
        let key = format!("fork-{n}");
        api = killed_after(api, &place, after_ms, "POST", &path, &key, r#"{"count":2}"#);
        let told = settled(&api, "POST", &path, &key, r#"{"count":2}"#);
        let living = api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap();
        let branches: Vec<_> = living.iter().filter(|sandbox| sandbox.id != id).collect();
        if told.status == 201 {
            let made: Vec<&Value> =
                told.body["branches"].as_array().unwrap().iter().map(|b| &b["sandbox"]["id"]).collect();
            assert_eq!(made.len(), 2, "{after_ms}: {told:?}");
            assert!(
                branches.iter().all(|b| made.contains(&&json!(b.id))) && branches.len() == 2,
                "{after_ms}: {told:?}"
            );
        } else {
            assert_eq!((told.code(), branches.len()), ("interrupted", 0), "{after_ms}: {told:?} {branches:?}");
        }
        assert_eq!(api.count(&id).await, count.after(1), "{after_ms}");
        for branch in branches {
            let executions = api.client.executions(&branch.id).await.unwrap();
            let running = executions.iter().filter(|e| e.state == ExecutionState::Running).count();
            assert_eq!(running, 1, "{after_ms}: the source's counter, and once: {executions:?}");
            assert_eq!(api.count(&branch.id).await, count.after(1), "{after_ms}: each goes on from the source's");
            api.remove(&branch.id).await;
        }
        count = count.after(1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_that_is_cut_off_anywhere_is_carried_out() {
    let place = Place::new();
    let mut api = place.start();
    for after_ms in KILL_AFTER_MS {
        let sandbox = api.create().await;
        let path = format!("/v1/sandboxes/{}", sandbox.id);
        api = killed_after(api, &place, after_ms, "DELETE", &path, "k", "");
        let told = settled(&api, "DELETE", &path, "k", "");
        assert_eq!((told.status, &told.body["result"]), (200, &json!("removed")), "{after_ms}: {told:?}");
        assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new());
        let gone = refused(api.client.sandbox(&sandbox.id).await, ErrorCode::GenerationGone);
        assert_eq!(gone.details["reason"], "it was removed", "{after_ms}: it did not die by itself");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_is_cut_off_anywhere_runs_at_most_once_and_its_outcome_says_so() {
    let place = Place::new();
    let mut api = place.start();
    let id = api.create().await.id;
    let path = format!("/v1/sandboxes/{id}/executions");
    for (n, after_ms) in KILL_AFTER_MS.into_iter().enumerate() {
        let (key, file) = (format!("run-{n}"), format!("/workspace/ran-{n}"));
        let body =
            json!({ "command": format!("echo ran >> {file}; sleep 0.2; echo end"), "wait_ms": 60_000 }).to_string();
        api = killed_after(api, &place, after_ms, "POST", &path, &key, &body);
        let told = settled(&api, "POST", &path, &key, &body);
        let ran = api.sh(&id, &format!("cat {file} 2>/dev/null || true")).await;
        match told.status {
            201 => assert_eq!((ran.as_str(), &told.body["stdout"]), ("ran", &json!("end\n")), "{after_ms}: {told:?}"),
            _ => assert_eq!((told.code(), ran.as_str()), ("interrupted", ""), "{after_ms}: {told:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_or_resume_that_is_cut_off_is_done() {
    let place = Place::new();
    let mut api = place.start();
    let id = api.create().await.id;
    for (n, after_ms) in [0, 1, 3, 8, 20].into_iter().enumerate() {
        for (call, state) in [("pause", SandboxState::Paused), ("resume", SandboxState::Running)] {
            let (path, key) = (format!("/v1/sandboxes/{id}/{call}"), format!("{call}-{n}"));
            api = killed_after(api, &place, after_ms, "POST", &path, &key, "");
            let told = settled(&api, "POST", &path, &key, "");
            if told.code() == "interrupted" {
                assert_ne!(api.client.sandbox(&id).await.unwrap().state, state, "{call} after {after_ms}");
                assert_eq!(settled(&api, "POST", &path, &format!("{key}-again"), "").status, 200);
            }
            assert_eq!(api.client.sandbox(&id).await.unwrap().state, state, "{call} after {after_ms}: {told:?}");
        }
        assert_eq!(api.sh(&id, "echo alive").await, "alive");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_was_being_written_is_there_whole_or_not_at_all() {
    let place = Place::new();
    let mut api = place.start();
    let id = api.create().await.id;
    for (n, after_ms) in KILL_AFTER_MS.into_iter().enumerate() {
        let (path, key) = (format!("/v1/sandboxes/{id}/files?path=/workspace/f{n}"), format!("write-{n}"));
        let body = "0123456789abcdef".repeat(256 << 10 >> 4);
        api = killed_after(api, &place, after_ms, "PUT", &path, &key, &body);
        let told = settled(&api, "PUT", &path, &key, &body);
        let size = api.sh(&id, &format!("stat -c %s /workspace/f{n} 2>/dev/null || echo none")).await;
        match told.status {
            201 => assert_eq!((size.as_str(), &told.body["size"]), ("262144", &json!(262_144)), "{after_ms}: {told:?}"),
            _ => assert_eq!((told.code(), size.as_str()), ("interrupted", "none"), "{after_ms}: {told:?}"),
        }
        assert_eq!(
            api.sh(&id, "ls -A /workspace | grep -cv '^f[0-9]$' || true").await,
            "0",
            "nothing half-written is left"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_limit_goes_on_being_counted() {
    let place = Place::new();
    let api = place.start();
    let id = api.create().await.id;
    let limited = |ms| StartExecution { timeout_ms: Some(ms), ..detached("echo begun; sleep 600") };
    let (short, _) = api.background(&id, limited(1_500)).await;
    let (long, _) = api.background(&id, limited(600_000)).await;
    let api = place.restart(api);
    let ended = api.ended(&id, &short).await;
    assert_eq!((ended.state, ended.exit_code), (ExecutionState::TimedOut, Some(124)));
    assert_eq!(api.client.execution(&id, &long, Duration::ZERO).await.unwrap().state, ExecutionState::Running);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_does_not_answer_is_unreachable_and_not_gone() {
    let place = Place::new();
    let api = place.start();
    let (sandbox, other) = (api.create().await, api.create().await);
    api.start_counter(&sandbox.id).await;
    let before = api.count(&sandbox.id).await;
    // As a machine that is starved of processor time: its kernel stands still, and nobody has paused it.
    let sentry = rustix::process::Pid::from_raw(host_processes(sandbox.uid.as_str(), "runsc-sandbox")[0]).unwrap();
    rustix::process::kill_process(sentry, rustix::process::Signal::STOP).unwrap();
    let api = place.restart(api);
    assert_eq!(api.sh(&other.id, "echo alive").await, "alive", "nobody else waits for it");
    let path = format!("/v1/sandboxes/{}/executions", sandbox.id);
    let told = keyed(&api.server, "POST", &path, "k", r#"{"argv":["true"],"wait_ms":60000}"#);
    assert_eq!((told.status, told.code()), (503, "unreachable"), "{told:?}");
    assert_eq!(api.client.sandbox(&sandbox.id).await.unwrap().state, SandboxState::Running);
    rustix::process::kill_process(sentry, rustix::process::Signal::CONT).unwrap();
    let found = settled(&api, "POST", &path, "k", r#"{"argv":["true"],"wait_ms":60000}"#);
    assert_eq!((found.status, &found.body["exit_code"]), (201, &json!(0)), "{found:?}");
    assert_eq!(api.count(&sandbox.id).await, before.after(1));
}

#[tokio::test]
async fn a_move_that_is_cut_off_anywhere_happens_once_or_not_at_all() {
    let place = Place::new();
    let mut api = place.start();
    let id = api.create().await.id;
    for (n, after_ms) in KILL_AFTER_MS.into_iter().enumerate() {
        api.sh(&id, &format!("echo {n} > from{n}")).await;
        let path = format!("/v1/sandboxes/{id}/files/move?path=/workspace/from{n}&to=/workspace/to{n}");
        let key = format!("move-{n}");
        api = killed_after(api, &place, after_ms, "POST", &path, &key, "");
        let told = settled(&api, "POST", &path, &key, "");
        let there = api.sh(&id, &format!("ls | grep '[mo]{n}$'; cat from{n} to{n} 2>/dev/null || true")).await;
        match told.status {
            200 => assert_eq!(there, format!("to{n}\n{n}"), "{after_ms}: {told:?}"),
            _ => assert_eq!((told.code(), there), ("interrupted", format!("from{n}\n{n}")), "{after_ms}: {told:?}"),
        }
    }
}
