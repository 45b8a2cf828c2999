//! The end of a server, in order and by a crash, with everything that can be under way then. Must find by itself what a
//! server leaves, not by asking it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use remuda_client::wire::{CreateSandbox, CreateSnapshot, Sandbox};
use remuda_client::{ClientError, SandboxFilter, WriteFile};
use remuda_types::{SandboxState, SnapshotMode};

use crate::api::{Api, PATIENCE, detached, fork_of, host_processes, script_of, traces};
use crate::world::Server;

fn place() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap()
}

/// The server's own name for what is not in its data directory: its directory on tmpfs and its level of cgroups.
fn instance(sandbox: &Sandbox) -> String {
    let found = traces(sandbox.uid.as_str());
    let parent = |path: &String| Path::new(path).parent()?.file_name()?.to_str().map(str::to_owned);
    found.iter().filter(|path| path.starts_with('/')).find_map(parent).unwrap_or_else(|| panic!("{found:?}"))
}

fn nothing_is_left(data_dir: &Path, instance: &str) {
    assert!(instance.starts_with("remuda-"), "{instance}");
    assert_eq!(traces(instance), Vec::<String>::new());
    let of_directory = traces(data_dir.to_str().unwrap());
    assert_eq!(of_directory, Vec::<String>::new());
    for place in ["sandboxes", "layers", "memory"] {
        let left: Vec<_> = fs::read_dir(data_dir.join(place)).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// Sandboxes in every state, with work under way in them.
async fn busy(api: &Api) -> Vec<Sandbox> {
    let (running, paused, dead) = tokio::join!(api.create(), api.create(), api.create());
    api.background(&running.id, detached("echo ready; sleep 600")).await;
    api.client.pause(&paused.id).await.unwrap();
    let files = CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() };
    for capture in [files, CreateSnapshot::default()] {
        api.client.snapshot(&running.id, &capture).await.unwrap();
    }
    let sentry = rustix::process::Pid::from_raw(host_processes(dead.uid.as_str(), "runsc-sandbox")[0]).unwrap();
    rustix::process::kill_process(sentry, rustix::process::Signal::KILL).unwrap();
    api.until(&dead.id, "stopped", |seen| seen.state == SandboxState::Stopped).await;
    vec![running, paused, dead]
}

/// Calls that are waited for while the server ends: each must get an answer or see the connection end.
fn under_way(api: &Api, sandbox: &Sandbox) -> Vec<tokio::task::JoinHandle<Result<(), ClientError>>> {
    let body =
        remuda_client::Body::wrap_stream(futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>());
    let (a, b, c, d) = (api.client.clone(), api.client.clone(), api.client.clone(), api.client.clone());
    let id = || sandbox.id.clone();
    let (w, x, y) = (id(), id(), id());
    vec![
        tokio::spawn(async move { a.execute(&w, &script_of("touch /tmp/begun; sleep 600")).await.map(drop) }),
        tokio::spawn(async move { b.write_file(&x, "/tmp/x", &WriteFile::default(), body).await.map(drop) }),
        tokio::spawn(async move { c.fork(&y, &fork_of(2)).await.map(drop) }),
        tokio::spawn(async move { d.create_sandbox(&CreateSandbox::default()).await.map(drop) }),
    ]
}

async fn begun(api: &Api, sandbox: &Sandbox) {
    api.sh(&sandbox.id, "while [ ! -e /tmp/begun ]; do sleep 0.02; done").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_asked_to_end_leaves_nothing() {
    let directory = place();
    let data_dir = directory.path().join("d");
    let api = Api::of(Arc::new(Server::start_in(&data_dir)));
    let sandboxes = busy(&api).await;
    let instance = instance(&sandboxes[0]);
    let calls = under_way(&api, &sandboxes[0]);
    begun(&api, &sandboxes[0]).await;
    let server = Arc::into_inner(api.server).unwrap();
    assert_eq!(tokio::task::spawn_blocking(|| server.end()).await.unwrap(), 0);
    for call in calls {
        // Whatever the answer is, there is one.
        let _ = tokio::time::timeout(PATIENCE, call).await.expect("a call hangs").unwrap();
    }
    nothing_is_left(&data_dir, &instance);
    assert!(!data_dir.join("remuda.sock").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ephemeral_server_ends_what_a_killed_one_left_as_well() {
    let directory = place();
    let data_dir = directory.path().join("d");
    let api = Api::of(Arc::new(Server::start_in(&data_dir)));
    let sandboxes = busy(&api).await;
    let instance = instance(&sandboxes[0]);
    let calls = under_way(&api, &sandboxes[0]);
    begun(&api, &sandboxes[0]).await;
    Arc::into_inner(api.server).unwrap().kill();
    for call in calls {
        let _ = tokio::time::timeout(PATIENCE, call).await.expect("a call hangs").unwrap();
    }

    let next = Api::of(Arc::new(Server::start_in(&data_dir)));
    let all = next.client.list_sandboxes(&SandboxFilter::default()).await.unwrap();
    for (sandbox, state) in sandboxes.iter().zip([SandboxState::Running, SandboxState::Paused, SandboxState::Stopped]) {
        let found = all.iter().find(|found| found.id == sandbox.id).unwrap();
        assert_eq!(found.state, state, "{found:?}");
    }
    let fresh = next.create().await;
    assert_eq!(next.sh(&fresh.id, "echo serves").await, "serves");
    let server = Arc::into_inner(next.server).unwrap();
    assert_eq!(tokio::task::spawn_blocking(|| server.end()).await.unwrap(), 0);
    nothing_is_left(&data_dir, &instance);

    let last = Api::of(Arc::new(Server::start_in(&data_dir)));
    assert_eq!(last.client.list_sandboxes(&SandboxFilter::default()).await.unwrap(), []);
    assert_eq!(last.client.snapshots(false).await.unwrap(), []);
    let all = SandboxFilter { include_ended: true, ..SandboxFilter::default() };
    let ended = last.client.list_sandboxes(&all).await.unwrap();
    for sandbox in &sandboxes {
        let record = ended.iter().find(|record| record.id == sandbox.id).unwrap();
        assert!(record.ended_at_ms.is_some() && record.state == SandboxState::Gone, "{record:?}");
    }
}
