//! Sandboxes that die unasked: killed from outside, or out of memory. What is known is told, and nothing is left.

use remuda_client::WriteFile;
use remuda_client::wire::{CreateSandbox, CreateSnapshot, ForkSandbox, RemovalResult};
use remuda_types::{ErrorCode, ExecutionState, SandboxState, SnapshotMode, SnapshotState};

use crate::api::{Api, PATIENCE, detached, fork_of, host_processes, python, refused, script_of, traces};

fn kill_9(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

async fn killed_from_outside(kind: &str) {
    let api = Api::shared();
    let (victim, other) = (api.create().await, api.create().await);
    let (id, uid) = (&victim.id, victim.uid.as_str());
    let (detached, _) = api.background(id, detached("echo ready; sleep 600")).await;
    let waiting = tokio::spawn({
        let (client, id) = (api.client.clone(), id.clone());
        async move { client.execute(&id, &script_of("echo partial; touch /tmp/begun; sleep 600")).await }
    });
    api.sh(id, "while [ ! -e /tmp/begun ]; do sleep 0.02; done").await;
    let processes = host_processes(uid, kind);
    assert_eq!(processes.len(), 1, "{kind} of {uid}: {processes:?}");
    kill_9(processes[0]);

    let dead = api.until(id, "stopped", |seen| seen.state == SandboxState::Stopped).await;
    let reason = dead.reason.clone().unwrap();
    assert!(!reason.contains("memory") && dead.ended_at_ms.is_some(), "{dead:?}");
    let waited = waiting.await.unwrap().unwrap();
    assert_eq!((waited.state, waited.exit_code), (ExecutionState::SandboxGone, None), "{waited:?}");
    assert_eq!(waited.stdout.as_deref(), Some("partial\n"), "what it had said is kept");
    let ended = api.ended(id, &detached).await;
    assert_eq!(ended.state, ExecutionState::SandboxGone);
    for outcome in [
        api.client.execute(id, &script_of("true")).await.map(drop),
        api.client.pause(id).await.map(drop),
        api.client.list_files(id, "/").await.map(drop),
    ] {
        let error = refused(outcome, ErrorCode::WrongState);
        assert_eq!(error.cause.as_deref(), Some(reason.as_str()), "{error:?}");
    }
    // Its memory is lost, and its files are not.
    let memory = CreateSnapshot { mode: Some(SnapshotMode::Memory), ..CreateSnapshot::default() };
    refused(api.client.snapshot(id, &memory).await, ErrorCode::WrongState);
    let memory = ForkSandbox { mode: Some(SnapshotMode::Memory), ..fork_of(1) };
    refused(api.client.fork(id, &memory).await, ErrorCode::WrongState);
    let kept = api.client.snapshot(id, &CreateSnapshot::default()).await.unwrap();
    assert_eq!((kept.mode, kept.state), (SnapshotMode::Filesystem, SnapshotState::Active), "{kept:?}");
    api.client.remove_snapshot(kept.id.as_str()).await.unwrap();
    for kind in ["runsc-sandbox", "runsc-gofer"] {
        assert_eq!(host_processes(uid, kind), Vec::<i32>::new(), "{kind} is left");
    }
    assert_eq!(api.sh(&other.id, "echo alive").await, "alive", "nobody else is touched");

    let removal = api.client.remove_sandbox(id).await.unwrap();
    assert_eq!(removal.result, RemovalResult::Removed);
    assert!(removal.processes_gone && removal.files_gone);
    assert_eq!(traces(uid), Vec::<String>::new());
    assert!(!api.server.data_dir.join("sandboxes").join(uid).exists());
    let gone = refused(api.client.sandbox(id).await, ErrorCode::GenerationGone);
    assert_eq!(gone.details["reason"], reason, "why it died stays known");
    api.remove(&other.id).await;
}

#[tokio::test]
async fn a_killed_sentry_is_a_stopped_sandbox() {
    killed_from_outside("runsc-sandbox").await;
}

#[tokio::test]
async fn a_killed_gofer_is_a_stopped_sandbox() {
    killed_from_outside("runsc-gofer").await;
}

#[tokio::test]
async fn memory_that_runs_out_is_told_as_that() {
    let api = Api::shared();
    let sandbox = api.create_with(&CreateSandbox { memory_mib: Some(128), ..CreateSandbox::default() }).await;
    let other = api.create().await;
    let id = &sandbox.id;
    let (resting, _) = api.background(id, detached("echo ready; sleep 600")).await;
    let eater = "held = []\nwhile True: held.append(bytearray(b'x' * (8 << 20)))";
    let request = remuda_client::wire::StartExecution { wait_ms: script_of("").wait_ms, ..python(eater) };
    let eaten = api.client.execute(id, &request).await.unwrap();
    assert_eq!((eaten.state, eaten.exit_code), (ExecutionState::Oom, None), "{eaten:?}");
    assert_eq!(api.ended(id, &resting).await.state, ExecutionState::Oom);
    let dead = api.until(id, "stopped", |seen| seen.state == SandboxState::Stopped).await;
    assert!(dead.reason.as_ref().is_some_and(|reason| reason.contains("out of memory")), "{dead:?}");
    let error = refused(api.client.execute(id, &script_of("true")).await, ErrorCode::WrongState);
    assert_eq!(error.cause, dead.reason);
    assert_eq!(api.sh(&other.id, "echo alive").await, "alive");
    api.remove(id).await;
    assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new());
    api.remove(&other.id).await;
}

#[tokio::test]
async fn a_death_during_a_capture_leaves_nothing_of_the_capture() {
    let api = Api::own();
    let large = CreateSandbox { memory_mib: Some(1024), ..CreateSandbox::default() };
    let sandbox = api.create_with(&large).await;
    let id = &sandbox.id;
    let capture = api.begin_long_capture(id).await;
    kill_9(host_processes(sandbox.uid.as_str(), "runsc-sandbox")[0]);
    let error = refused(capture.await.unwrap(), ErrorCode::Unreachable);
    let snapshot = error.details["snapshot"].as_str().unwrap();
    assert_eq!(api.client.snapshot_info(snapshot).await.unwrap().state, SnapshotState::Failed);
    assert_eq!(api.captured(), Vec::<String>::new());
    api.until(id, "stopped", |seen| seen.state == SandboxState::Stopped).await;
    api.remove(id).await;
    assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new());
}

#[tokio::test]
async fn a_removal_during_a_capture_leaves_nothing_of_either() {
    let api = Api::own();
    for pause in [false, true] {
        let large = CreateSandbox { memory_mib: Some(1024), ..CreateSandbox::default() };
        let sandbox = api.create_with(&large).await;
        let id = &sandbox.id;
        let first = api.begin_long_capture(id).await.await.unwrap().unwrap();
        api.client.remove_snapshot(first.id.as_str()).await.unwrap();
        if pause {
            api.client.pause(id).await.unwrap();
        }
        let capture = api.begin_capture(id).await;
        api.remove(id).await;
        refused(capture.await.unwrap(), ErrorCode::Unreachable);
        assert_eq!(api.captured(), Vec::<String>::new(), "paused: {pause}");
        assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new());
    }
}

#[tokio::test]
async fn calls_that_wait_when_a_sandbox_dies_are_answered() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    api.sh(id, "head -c 30000000 /dev/zero > large").await;
    let download = api.client.read_file(id, "/workspace/large").await.unwrap();
    let endless = futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
    let upload = tokio::spawn({
        let (client, id) = (api.client.clone(), id.clone());
        let body = remuda_client::Body::wrap_stream(endless);
        async move { client.write_file(&id, "/workspace/never", &WriteFile::default(), body).await }
    });
    api.sh(id, "until ls -A | grep -q part; do sleep 0.02; done").await;
    kill_9(host_processes(sandbox.uid.as_str(), "runsc-sandbox")[0]);
    refused(tokio::time::timeout(PATIENCE, upload).await.expect("the upload hangs").unwrap(), ErrorCode::Unreachable);
    let cut = tokio::time::timeout(PATIENCE, download.body.collect(64 << 20)).await.expect("the download hangs");
    assert!(cut.is_err(), "half a file never looks whole");
    api.remove(id).await;
}
