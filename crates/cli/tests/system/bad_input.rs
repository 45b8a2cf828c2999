//! Calls that must be refused, each with its own word and with nothing done.

use std::fs;
use std::net::TcpStream;
use std::path::Path;

use remuda_client::wire::{
    Branch, ChangeFiles, CreateSandbox, CreateSnapshot, FileChange, RemovalResult, RestoreSnapshot, StartExecution,
};
use remuda_client::{Client, ClientError, FindFiles, FindText, SandboxFilter, WatchFiles, WriteFile};
use remuda_types::{ErrorCode, SandboxId, SnapshotMode, SnapshotState};
use serde_json::json;

use crate::api::{Api, exchange, fork_of, refused, script_of};
use crate::world::{Answer, remuda};

fn batch() -> ChangeFiles {
    let made = FileChange::Mkdir { path: "/workspace/d".into(), parents: false };
    ChangeFiles { user: None, changes: vec![made] }
}

/// Every call that names a sandbox, but for its removal.
async fn each_call(client: &Client, id: &SandboxId) -> Vec<(&'static str, Result<(), ClientError>)> {
    let snapshot = CreateSnapshot::default();
    vec![
        ("show", client.sandbox(id).await.map(drop)),
        ("pause", client.pause(id).await.map(drop)),
        ("resume", client.resume(id).await.map(drop)),
        ("execute", client.execute(id, &script_of("touch /workspace/ran")).await.map(drop)),
        ("executions", client.executions(id).await.map(drop)),
        ("read", client.read_file(id, "/etc/hostname").await.map(drop)),
        ("write", client.write_file(id, "/workspace/x", &WriteFile::default(), "x").await.map(drop)),
        ("list", client.list_files(id, "/").await.map(drop)),
        ("stat", client.stat_file(id, "/").await.map(drop)),
        ("remove file", client.remove_file(id, "/workspace/x", false).await),
        ("mkdir", client.make_directory(id, "/workspace/d", false).await.map(drop)),
        ("glob", client.find_files(id, "/", &FindFiles { pattern: "*".into(), ..Default::default() }).await.map(drop)),
        ("grep", client.find_text(id, "/", &FindText { pattern: "a".into(), ..Default::default() }).await.map(drop)),
        ("watch", client.watch_files(id, "/workspace", &WatchFiles::default()).await.map(drop)),
        ("batch", client.change_files(id, &batch()).await.map(drop)),
        ("port", client.port_request(id, 80, remuda_client::Method::GET, "/", Default::default(), "").await.map(drop)),
        ("snapshot", client.snapshot(id, &snapshot).await.map(drop)),
        ("fork", client.fork(id, &fork_of(1)).await.map(drop)),
    ]
}

#[tokio::test]
async fn an_unknown_id_is_not_found_by_any_call() {
    let api = Api::shared();
    let id: SandboxId = "nobody@2020-01-01T00:00:00.000Z".parse().unwrap();
    for (call, outcome) in each_call(&api.client, &id).await {
        let error = refused(outcome, ErrorCode::SandboxNotFound);
        assert!(error.message.contains(&id.to_string()), "{call}: {error:?}");
    }
    refused(api.client.remove_sandbox(&id).await, ErrorCode::SandboxNotFound);
    refused(api.client.restore("no-such-snapshot", &RestoreSnapshot::default()).await, ErrorCode::SnapshotNotFound);
    refused(api.client.remove_snapshot("no-such-snapshot").await, ErrorCode::SnapshotNotFound);
}

#[tokio::test]
async fn a_stale_id_is_gone_for_every_call_and_never_means_the_newer_one() {
    let api = Api::shared();
    let slot: remuda_types::Slot = "reused".parse().unwrap();
    let request = CreateSandbox { slot: Some(slot.clone()), memory_mib: Some(256), ..CreateSandbox::default() };
    let old = api.create_with(&request).await;
    let files = CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() };
    let snapshot = api.client.snapshot(&old.id, &files).await.unwrap();
    // A fork's own snapshot goes with its branches and is nothing to restore from.
    let fork = api.client.fork(&old.id, &fork_of(1)).await.unwrap();
    api.remove(&old.id).await;
    let gone = refused(api.client.sandbox(&old.id).await, ErrorCode::GenerationGone);
    assert_eq!(gone.details["slot_has_newer"], false, "{gone:?}");

    let newer = api.create_with(&request).await;
    for (call, outcome) in each_call(&api.client, &old.id).await {
        let gone = refused(outcome, ErrorCode::GenerationGone);
        let ended = gone.details["ended_at_ms"].as_i64().unwrap_or_default();
        assert!(ended >= old.created_at_ms, "{call}: {gone:?}");
        assert_eq!(gone.details["reason"], "it was removed", "{call}");
        assert_eq!(gone.details["slot_has_newer"], true, "{call}");
        assert_eq!(gone.details["snapshots"], json!([snapshot.id]), "{call}");
        assert!(!serde_json::to_string(&gone).unwrap().contains(&newer.id.to_string()), "{call}: {gone:?}");
    }
    let again = api.client.remove_sandbox(&old.id).await.unwrap();
    assert_eq!(again.result, RemovalResult::AlreadyAbsent);
    assert_eq!(api.sh(&newer.id, "ls /workspace").await, "", "the newer one is untouched");

    for branch in &fork.branches {
        if let Branch::Sandbox(branch) = branch {
            api.remove(&branch.id).await;
        }
    }
    api.client.remove_snapshot(snapshot.id.as_str()).await.unwrap();
    let gone = refused(api.client.sandbox(&old.id).await, ErrorCode::GenerationGone);
    assert_eq!(gone.details["snapshots"], json!([]));
    api.remove(&newer.id).await;
}

#[tokio::test]
async fn a_bare_slot_is_refused_with_the_reason() {
    let api = Api::shared();
    for (method, path, body) in [
        ("GET", "/v1/sandboxes/c1", ""),
        ("DELETE", "/v1/sandboxes/c1", ""),
        ("POST", "/v1/sandboxes/c1/forks", r#"{"count":1}"#),
        ("POST", "/v1/sandboxes/c1/snapshots", "{}"),
        ("POST", "/v1/sandboxes/c1/executions", r#"{"command":"true"}"#),
        ("GET", "/v1/sandboxes/c1/files?path=/etc/hostname", ""),
        ("GET", "/v1/sandboxes/c1/ports/80/", ""),
    ] {
        let (status, answer) = api.raw(method, path, "", body);
        assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("bare_slot")), "{method} {path}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("must name the generation too"), "{message}");
    }
    let (status, answer) = api.raw("GET", "/v1/sandboxes/c1@yesterday", "", "");
    assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("invalid_id")), "{answer}");
}

#[tokio::test]
async fn without_the_right_key_nothing_is_told_or_done() {
    let api = Api::own();
    let (url, key) = (api.server.url(), api.server.key().unwrap());
    let address = url.strip_prefix("http://").unwrap();
    let wrong = format!("rmd_{}", "0".repeat(64));
    let cut = &key[..key.len() - 1];
    let credentials = [
        String::new(),
        format!("Authorization: Bearer {wrong}\r\n"),
        format!("Authorization: Bearer {cut}\r\n"),
        format!("Authorization: Basic {key}\r\n"),
        "Authorization: Bearer \r\n".into(),
    ];
    for headers in &credentials {
        for (method, path) in [("GET", "/v1/sandboxes"), ("POST", "/v1/sandboxes"), ("GET", "/v1/capabilities")] {
            let mut stream = TcpStream::connect(address).unwrap();
            let (status, answer) = exchange(&mut stream, method, path, headers, "{}");
            assert_eq!((status, answer["error"]["code"].as_str()), (401, Some("unauthorized")), "{method} {path}");
            assert!(!answer.to_string().contains(&key[4..]));
        }
    }
    let right = Client::tcp(&url, &key).unwrap();
    assert_eq!(right.list_sandboxes(&SandboxFilter::default()).await.unwrap(), []);
}

#[tokio::test]
async fn a_snapshot_during_a_snapshot_is_refused_and_the_first_is_whole() {
    let api = Api::own();
    let sandbox = api.create_with(&CreateSandbox { memory_mib: Some(1024), ..CreateSandbox::default() }).await;
    let id = sandbox.id.clone();
    let first = api.begin_long_capture(&id).await;
    let (capture, fork) = (CreateSnapshot::default(), fork_of(1));
    let (snapshot, fork, pause) =
        tokio::join!(api.client.snapshot(&id, &capture), api.client.fork(&id, &fork), api.client.pause(&id));
    refused(snapshot, ErrorCode::SnapshotInProgress);
    refused(fork, ErrorCode::SnapshotInProgress);
    refused(pause, ErrorCode::SnapshotInProgress);
    let first = first.await.unwrap().unwrap();
    assert_eq!(first.state, SnapshotState::Active);
    assert!(first.bytes > 300 << 20, "{first:?}");
    let all = api.client.snapshots(true).await.unwrap();
    assert_eq!(all.len(), 1, "a refused one leaves no record: {all:?}");
    // The next one is fine, and so is the sandbox.
    let files = CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() };
    assert_eq!(api.client.snapshot(&id, &files).await.unwrap().state, SnapshotState::Active);
    assert_eq!(api.sh(&id, "echo alive").await, "alive");
}

#[tokio::test]
async fn requests_that_make_no_sense_name_what_is_wrong() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let limits = [64, 1 << 30];
    for memory_mib in limits.map(Some) {
        let request = CreateSandbox { memory_mib, ..CreateSandbox::default() };
        let error = refused(api.client.create_sandbox(&request).await, ErrorCode::InvalidRequest);
        assert!(error.message.contains("memory_mib"), "{error:?}");
    }
    refused(api.client.fork(id, &fork_of(0)).await, ErrorCode::InvalidRequest);
    refused(api.client.fork(id, &fork_of(101)).await, ErrorCode::InvalidRequest);
    let mut slots = fork_of(2);
    slots.slots = Some(vec!["one".parse().unwrap()]);
    refused(api.client.fork(id, &slots).await, ErrorCode::InvalidRequest);
    let both = StartExecution { argv: Some(vec!["true".into()]), ..script_of("true") };
    refused(api.client.execute(id, &both).await, ErrorCode::InvalidRequest);
    refused(api.client.execute(id, &StartExecution::default()).await, ErrorCode::InvalidRequest);
    let odd_name = CreateSnapshot { name: Some("../x".into()), ..CreateSnapshot::default() };
    refused(api.client.snapshot(id, &odd_name).await, ErrorCode::InvalidRequest);
    let (status, answer) = api.raw("POST", "/v1/sandboxes", "", r#"{"memmory_mib":512}"#);
    assert_eq!(status, 400);
    assert!(answer["error"].to_string().contains("memmory_mib"), "{answer}");
    api.remove(id).await;
}

/// A copy of the worker workload whose description was changed.
fn workload(directory: &Path, from: &str, to: &str) -> std::path::PathBuf {
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/worker");
    let copy = directory.join("workload");
    let copied = std::process::Command::new("cp").arg("-r").arg(&original).arg(&copy).status().unwrap();
    assert!(copied.success());
    let text = fs::read_to_string(copy.join("workload.toml")).unwrap();
    assert!(text.contains(from), "{from}");
    fs::write(copy.join("workload.toml"), text.replacen(from, to, 1)).unwrap();
    copy
}

#[test]
fn a_workload_that_cannot_be_judged_is_wrong_input() {
    for (from, to, words) in [
        ("[baseline]\nverdict = \"reproduced\"\n", "", "has no baseline"),
        ("[cold_control]\npatch = \"correct\"", "[cold_control]\npatch = \"corect\"", "has no patch \"corect\""),
        ("patches/correct/processor.mjs", "patches/perfect/processor.mjs", "patches/perfect/processor.mjs"),
    ] {
        let here = tempfile::tempdir().unwrap();
        let workload = workload(here.path(), from, to);
        let mut command = remuda();
        command.arg("--data-dir").arg(here.path().join("no-server")).args(["rodeo", "run"]).arg(&workload);
        command.arg("--key-file").arg(here.path().join("key.pem"));
        let answer = Answer::of(command.arg("--out").arg(here.path().join("out")).output().unwrap());
        answer.failed(2, words);
        assert!(!here.path().join("out").exists(), "no run was begun");
    }
}
