//! Captures as callers ask for them: names that move, lists that stay whole, sandboxes without processes, calls that don't
//! wait, and what is left out.

use remuda_client::SnapshotFilter;
use remuda_client::wire::{Branch, CreateSnapshot, RestoreSnapshot, Snapshot};
use remuda_types::{ErrorCode, SnapshotMode, SnapshotState};
use serde_json::json;

use crate::api::{Api, PATIENCE, fork_of, python, refused};

fn files() -> CreateSnapshot {
    CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() }
}

fn named(name: &str) -> CreateSnapshot {
    CreateSnapshot { name: Some(name.into()), ..files() }
}

fn ids(snapshots: &[Snapshot]) -> Vec<String> {
    snapshots.iter().map(|snapshot| snapshot.id.to_string()).collect()
}

#[tokio::test]
async fn a_name_goes_to_another_snapshot_only_where_that_is_asked_for_and_when_it_is_active() {
    let api = Api::own();
    let id = api.create().await.id;
    api.sh(&id, "echo one > state").await;
    let first = api.client.snapshot(&id, &named("ready")).await.unwrap();
    refused(api.client.snapshot(&id, &named("ready")).await, ErrorCode::SnapshotNameTaken);
    let replacing = |mode| CreateSnapshot { replace: true, mode: Some(mode), ..named("ready") };
    refused(
        api.client.snapshot(&id, &CreateSnapshot { name: None, ..replacing(SnapshotMode::Filesystem) }).await,
        ErrorCode::InvalidRequest,
    );
    // One that fails takes nothing.
    let holder = "import os,time\nf = open('/workspace/held', 'w')\nf.write('x')\nf.flush()\nos.unlink('/workspace/held')\n\
                  print('up', flush=True)\ntime.sleep(600)";
    let (execution, _) = api.background(&id, python(holder)).await;
    refused(api.client.snapshot(&id, &replacing(SnapshotMode::Memory)).await, ErrorCode::CheckpointRefused);
    assert_eq!(api.client.snapshot_info("ready").await.unwrap().id, first.id);
    api.client.cancel(&id, &execution).await.unwrap();

    api.sh(&id, "echo two > state").await;
    let keyed = api.client.with_key("replace-it".parse().unwrap());
    let second = keyed.snapshot(&id, &replacing(SnapshotMode::Filesystem)).await.unwrap();
    assert_eq!(second.name.as_deref(), Some("ready"));
    assert_eq!(keyed.snapshot(&id, &replacing(SnapshotMode::Filesystem)).await.unwrap(), second, "once under its key");
    assert_eq!(api.client.snapshot_info("ready").await.unwrap().id, second.id);
    let before = api.client.snapshot_info(first.id.as_str()).await.unwrap();
    assert_eq!((before.name, before.state), (None, SnapshotState::Active), "it is kept, without a name");
    let restored = api.client.restore("ready", &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.sh(&restored.id, "cat state").await, "two");
    let old = api.client.restore(first.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.sh(&old.id, "cat state").await, "one");
    // A free name needs nobody to take it from; and by the command line.
    let again = api.server.run(&["snapshot", "create", &id.to_string(), "--name", "other", "--replace"]).line();
    assert_eq!(api.client.snapshot_info("other").await.unwrap().id.to_string(), again);
    api.server.run(&["snapshot", "create", &id.to_string(), "--replace"]).failed(2, "--name");
}

#[tokio::test]
async fn a_list_is_filtered_and_its_pages_hold_each_once() {
    let api = Api::own();
    let (a, b) = (api.create().await.id, api.create().await.id);
    let mut all = Vec::new();
    for n in 0..7 {
        let labels = [("n".to_owned(), (n % 2).to_string())].into();
        let request = CreateSnapshot { labels, ..named(&format!("s{n}")) };
        all.push(api.client.snapshot(if n < 4 { &a } else { &b }, &request).await.unwrap());
    }
    let every = ids(&all);
    let of = async |filter: SnapshotFilter| ids(&api.client.snapshots_of(&filter).await.unwrap());
    let filter = SnapshotFilter::default;
    assert_eq!(of(filter()).await, every);
    assert_eq!(of(SnapshotFilter { source: Some(b.clone()), ..filter() }).await, every[4..]);
    assert_eq!(of(SnapshotFilter { name: Some("s3".into()), ..filter() }).await, every[3..4]);
    let odd = SnapshotFilter { label: Some(("n".into(), "1".into())), ..filter() };
    assert_eq!(of(odd).await, [every[1].clone(), every[3].clone(), every[5].clone()]);
    let at = all[4].created_at_ms;
    let late = of(SnapshotFilter { since_ms: Some(at), ..filter() }).await;
    let early = of(SnapshotFilter { before_ms: Some(at), ..filter() }).await;
    assert_eq!([early, late].concat(), every);

    // What is there all the time is told once, whatever comes and goes between two pages.
    let (mut seen, mut after) = (Vec::new(), None::<String>);
    let mut pages = 0;
    loop {
        let page = api.client.snapshots_page(&filter(), after.as_deref(), Some(2)).await.unwrap();
        assert!(page.snapshots.len() <= 2);
        seen.extend(ids(&page.snapshots));
        pages += 1;
        if pages == 1 {
            for gone in [&every[0], &every[5]] {
                api.client.remove_snapshot(gone).await.unwrap();
            }
            all.push(api.client.snapshot(&a, &named("later")).await.unwrap());
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let kept = |n: &usize| *n != 5;
    let expected: Vec<String> = (0..8).filter(kept).map(|n| all[n].id.to_string()).collect();
    assert_eq!(seen, expected);
    assert!(pages >= 4);
    let deleted = of(SnapshotFilter { state: Some(SnapshotState::Deleted), ..filter() }).await;
    assert_eq!(deleted, [every[0].clone(), every[5].clone()]);
    assert_eq!(of(SnapshotFilter { include_ended: true, ..filter() }).await.len(), 8);

    for (query, word) in
        [("after=x", "cursor"), ("limit=5000", "1000"), ("label=x", "name=value"), ("state=x", "state")]
    {
        let (status, body) = api.raw("GET", &format!("/v1/snapshots?{query}"), "", "");
        assert_eq!((status, &body["error"]["code"]), (400, &json!("invalid_request")), "{query}: {body}");
        assert!(body.to_string().contains(word), "{word:?} in {body}");
    }
    let line = api.server.run(&["snapshot", "ls", "--source", &b.to_string(), "--label", "n=0", "--state", "active"]);
    assert_eq!(line.line().lines().count(), 3, "a heading, s4 and s6");
    api.server.run(&["snapshot", "ls", "--state", "odd"]).failed(2, "capturing");
}

#[tokio::test]
async fn a_stopped_sandbox_is_captured_and_forked_by_its_files() {
    let api = Api::own();
    let id = api.create().await.id;
    api.sh(&id, "mkdir d; echo kept > d/file; ln d/file d/same").await;
    api.client.stop(&id).await.unwrap();
    let memory = CreateSnapshot { mode: Some(SnapshotMode::Memory), ..CreateSnapshot::default() };
    let error = refused(api.client.snapshot(&id, &memory).await, ErrorCode::WrongState);
    assert!(error.remedy.unwrap().contains("filesystem"));
    let captured = api.client.snapshot(&id, &CreateSnapshot::default()).await.unwrap();
    assert_eq!((captured.mode, captured.state), (SnapshotMode::Filesystem, SnapshotState::Active));
    assert_eq!((captured.excluded.as_slice(), captured.pause_ms), ([].as_slice(), None), "nothing stood still for it");
    let restored = api.client.restore(captured.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    let fork = api.client.fork(&id, &fork_of(2)).await.unwrap();
    assert_eq!(fork.snapshot.mode, SnapshotMode::Filesystem);
    let branches = fork.branches.iter().map(|branch| match branch {
        Branch::Sandbox(sandbox) => sandbox.id.clone(),
        Branch::Error(error) => panic!("{error:?}"),
    });
    for copy in branches.chain([restored.id]) {
        assert_eq!(api.sh(&copy, "cat d/same; stat -c %h d/file; echo own > d/file").await, "kept\n2");
    }
    let next = api.client.start(&id, &Default::default()).await.unwrap();
    assert_eq!(api.sh(&next.id, "cat d/file").await, "kept", "the source has its own");
    // One that died had no time to write back.
    let uid = next.uid.to_string();
    for pid in crate::api::host_processes(&uid, "runsc-sandbox") {
        rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL)
            .unwrap();
    }
    api.until(&next.id, "stopped", |s| s.state == remuda_types::SandboxState::Stopped).await;
    let of_dead = api.client.snapshot(&next.id, &CreateSnapshot::default()).await.unwrap();
    assert_eq!(of_dead.excluded.len(), 1, "{of_dead:?}");
}

#[tokio::test]
async fn a_capture_that_nobody_waits_for_is_found_by_its_id() {
    let api = Api::own();
    let id = api.create().await.id;
    let heap = "import os,time\nheap = os.urandom(100 << 20)\nprint('ready', flush=True)\ntime.sleep(600)";
    api.background(&id, python(heap)).await;
    let at_once = CreateSnapshot { wait_ms: Some(0), ..CreateSnapshot::default() };
    let begun = api.client.snapshot(&id, &at_once).await.unwrap();
    assert!(matches!(begun.state, SnapshotState::Capturing | SnapshotState::Verifying), "{begun:?}");
    let settled = api.client.snapshot_settled(begun.id.as_str(), PATIENCE).await.unwrap();
    assert_eq!((settled.state, &settled.id), (SnapshotState::Active, &begun.id));
    // A failure is waited for as well, and told.
    let holder = "import os,time\nf = open('/workspace/held', 'w')\nf.write('x')\nf.flush()\nos.unlink('/workspace/held')\n\
                  print('up', flush=True)\ntime.sleep(600)";
    api.background(&id, python(holder)).await;
    let failing = api.server.run(&["snapshot", "create", &id.to_string(), "--no-wait"]).line();
    let shown = api.server.run(&["snapshot", "show", &failing, "--wait", "--json"]);
    assert_eq!((shown.code, &shown.json()["state"]), (1, &json!("failed")), "{}", shown.stderr);
    assert_eq!(shown.json()["failure"]["code"], "checkpoint_refused");
    // The wait is no part of what a key stands for.
    let keyed = api.client.with_key("no-wait".parse().unwrap());
    let first = keyed.snapshot(&id, &CreateSnapshot { wait_ms: Some(0), ..files() }).await.unwrap();
    api.client.snapshot_settled(first.id.as_str(), PATIENCE).await.unwrap();
    assert_eq!(keyed.snapshot(&id, &files()).await.unwrap().id, first.id);
}

#[tokio::test]
async fn what_a_capture_of_files_leaves_out_is_named() {
    let api = Api::shared();
    let id = api.create().await.id;
    let without = api.client.snapshot(&id, &files()).await.unwrap();
    assert_eq!(without.excluded, ["processes and everything in their memory"]);
    let program = "import os,socket,time\nos.mkfifo('/workspace/pipe')\ns = socket.socket(socket.AF_UNIX)\n\
                   s.bind('/workspace/a socket')\nopen('/tmp/lost', 'w').write('x' * 4096)\n\
                   open('/workspace/kept', 'w').write('y')\nprint('up', flush=True)\ntime.sleep(600)";
    api.background(&id, python(program)).await;
    let captured = api.client.snapshot(&id, &files()).await.unwrap();
    let expected = [
        "processes and everything in their memory",
        "/tmp, which is kept in memory: 1 file, 4096 bytes",
        "the named pipe /workspace/pipe",
        "the socket /workspace/a socket",
    ];
    assert_eq!(captured.excluded, expected);
    let copy = api.client.restore(captured.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.sh(&copy.id, "ls /workspace /tmp").await, "/tmp:\n\n/workspace:\nkept", "as was said");
    let again = api.server.run(&["snapshot", "create", &id.to_string(), "--mode", "filesystem"]);
    assert!(again.stderr.contains("left out: the named pipe /workspace/pipe\n"), "{}", again.stderr);
    for id in [&id, &copy.id] {
        api.remove(id).await;
    }
}
