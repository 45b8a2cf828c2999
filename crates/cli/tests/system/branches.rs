//! Forks and restores: what a copy carries, what it is told, what keeps copies apart, and copies that don't come up.

use std::collections::HashSet;
use std::sync::Arc;

use remuda_client::wire::{Branch, CreateSnapshot, Fork, ForkSandbox, LaunchRecipe, Origin, RestoreSnapshot, Sandbox};
use remuda_client::{OutputQuery, SandboxFilter};
use remuda_types::{Error, ErrorCode, ExecutionState, SandboxId, SandboxState, Slot, SnapshotMode, SnapshotState};
use serde_json::Value;

use crate::api::{Api, PATIENCE, detached, fork_of, refused, traces};
use crate::world::Server;

fn branches(fork: &Fork) -> Vec<&Sandbox> {
    let running = fork.branches.iter().map(|branch| match branch {
        Branch::Sandbox(sandbox) => sandbox,
        Branch::Error(error) => panic!("{error:?}"),
    });
    running.collect()
}

fn filesystem() -> CreateSnapshot {
    CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() }
}

async fn output(api: &Api, id: &SandboxId, execution: &remuda_types::ExecutionId) -> String {
    let page = api.client.output(id, execution, &OutputQuery::default()).await.unwrap();
    page.records.iter().map(|record| record.text.as_str()).collect()
}

#[tokio::test]
async fn branches_are_the_same_process_and_go_their_own_ways() {
    let api = Api::own();
    let source = api.create().await;
    api.start_counter(&source.id).await;
    api.sh(&source.id, "echo source > file; echo source > /tmp/file").await;
    let before = api.count(&source.id).await;
    let fork = api.client.fork(&source.id, &fork_of(3)).await.unwrap();
    let all = branches(&fork);
    assert_eq!(all.len(), 3);
    assert_eq!((fork.snapshot.connections_dropped, fork.snapshot.excluded.as_slice()), (Some(0), [].as_slice()));
    let origin = Origin::Snapshot { snapshot: fork.snapshot.id.clone(), source: source.id.clone() };
    for (n, branch) in all.iter().enumerate() {
        assert_eq!((branch.state, &branch.origin), (SandboxState::Running, &origin));
        // Each is asked another number of times: the memories are apart from here on.
        for asked in 1..=n as u64 + 1 {
            assert_eq!(api.count(&branch.id).await, before.after(asked), "branch {n}");
        }
        assert_eq!(api.sh(&branch.id, "cat file /tmp/file").await, "source\nsource");
        api.sh(&branch.id, &format!("echo {n} > file; echo {n} > /tmp/file; touch only{n} /tmp/only{n}")).await;
    }
    assert_eq!(api.count(&source.id).await, before.after(1), "the source was asked once since");
    assert_eq!(api.sh(&source.id, "cat file /tmp/file; ls; ls /tmp").await, "source\nsource\nfile\nanswer\nask\nfile");
    for (n, branch) in all.iter().enumerate() {
        let seen = api.sh(&branch.id, "cat file /tmp/file; ls; ls /tmp | grep only").await;
        assert_eq!(seen, format!("{n}\n{n}\nfile\nonly{n}\nonly{n}"));
    }
}

#[tokio::test]
async fn a_copy_is_told_who_it_is() {
    let api = Api::shared();
    let source = api.create().await;
    let mut fork = fork_of(2);
    fork.slots = Some(vec!["left".parse().unwrap(), "right".parse().unwrap()]);
    let fork = api.client.fork(&source.id, &fork).await.unwrap();
    let mut all = vec![&source];
    all.extend(branches(&fork));
    let mut seen = [HashSet::new(), HashSet::new(), HashSet::new(), HashSet::new()];
    for sandbox in &all {
        let id = &sandbox.id;
        let name = api.sh(id, "hostname; cat /etc/hostname").await;
        assert_eq!(name, format!("{0}\n{0}", id.slot));
        let identity: Value = serde_json::from_str(&api.sh(id, "cat /run/remuda/identity.json").await).unwrap();
        assert_eq!(
            (&identity["sandbox"], &identity["uid"]),
            (&Value::from(id.to_string()), &Value::from(sandbox.uid.to_string()))
        );
        let machine = api.sh(id, "cat /etc/machine-id").await;
        assert_eq!(machine.len(), 32);
        let chance = api
            .sh(id, "python3 -c 'import os; print(os.getrandom(16).hex())'; head -c 16 /dev/urandom | od -An -tx1")
            .await;
        for (seen, what) in seen.iter_mut().zip([name, machine, identity["uid"].to_string(), chance]) {
            assert!(seen.insert(what.clone()), "two have {what}");
        }
        assert_eq!(identity["snapshot"].is_null(), id == &source.id, "{identity}");
    }
    for sandbox in all {
        api.remove(&sandbox.id).await;
    }
}

#[tokio::test]
async fn a_running_execution_goes_on_in_every_branch_under_its_own_record() {
    let api = Api::shared();
    let source = api.create().await;
    let script = "echo before; n=0; while :; do n=$((n+1)); if [ -e /tmp/go ]; then echo \"$(cat /tmp/go) after\"; echo err >&2; exit 6; fi; sleep 0.02; done";
    let (execution, _) = api.background(&source.id, detached(script)).await;
    let done = api.run(&source.id, "echo ended before").await;
    let fork = api.client.fork(&source.id, &fork_of(2)).await.unwrap();
    let mut ids = HashSet::from([execution.clone()]);
    for (n, branch) in branches(&fork).into_iter().enumerate() {
        let records = api.client.executions(&branch.id).await.unwrap();
        let carried: Vec<_> = records.iter().filter(|record| record.state == ExecutionState::Running).collect();
        assert_eq!(carried.len(), 1, "{records:?}");
        let carried = carried[0];
        assert_eq!((carried.origin.as_ref(), &carried.sandbox), (Some(&execution), &branch.id));
        assert!(ids.insert(carried.id.clone()), "each record has an id of its own");
        assert_eq!(output(&api, &branch.id, &carried.id).await, "before\n", "what was said before the fork");
        refused(api.client.execution(&branch.id, &execution, PATIENCE).await, ErrorCode::ExecutionNotFound);
        refused(api.client.execution(&branch.id, &done.id, PATIENCE).await, ErrorCode::ExecutionNotFound);
        api.sh(&branch.id, &format!("echo branch {n} > /tmp/g; mv /tmp/g /tmp/go")).await;
        let ended = api.ended(&branch.id, &carried.id).await;
        assert_eq!((ended.state, ended.exit_code), (ExecutionState::Exited, Some(6)));
        assert_eq!(output(&api, &branch.id, &carried.id).await, format!("before\nbranch {n} after\nerr\n"));
    }
    let own = api.client.execution(&source.id, &execution, std::time::Duration::ZERO).await.unwrap();
    assert_eq!(own.state, ExecutionState::Running, "the source's own knows nothing of it");
    // In a branch it can be cancelled too.
    let again = api.client.fork(&source.id, &fork_of(1)).await.unwrap();
    let branch = branches(&again)[0];
    let records = api.client.executions(&branch.id).await.unwrap();
    let carried = records.iter().find(|record| record.origin.is_some()).unwrap();
    let cancelled = api.client.cancel(&branch.id, &carried.id).await.unwrap();
    assert_eq!((cancelled.state, cancelled.exit_code), (ExecutionState::Cancelled, Some(137)));
    assert_eq!(api.client.execution(&source.id, &execution, std::time::Duration::ZERO).await.unwrap(), own);
    for sandbox in api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap() {
        if sandbox.id == source.id || matches!(&sandbox.origin, Origin::Snapshot { source: of, .. } if *of == source.id)
        {
            api.remove(&sandbox.id).await;
        }
    }
}

#[tokio::test]
async fn output_that_nobody_had_read_yet_is_in_every_branch() {
    let api = Api::shared();
    let source = api.create().await;
    // It says more than every window and pipe holds, without a pause: a capture falls somewhere into the middle of it.
    let program = "out = open(1, 'w', 1 << 16, closefd=False)\nprint('begin', file=out, flush=True)\n\
                   for n in range(1800000): print(n, file=out)\nout.flush()";
    let mut caught = None;
    for _ in 0..5 {
        let (execution, _) = api.background(&source.id, crate::api::python(program)).await;
        let fork = api.client.fork(&source.id, &fork_of(1)).await.unwrap();
        let branch = branches(&fork)[0].clone();
        let records = api.client.executions(&branch.id).await.unwrap();
        let own = api.ended(&source.id, &execution).await;
        if let Some(carried) = records.iter().find(|record| record.origin.is_some()) {
            assert_eq!(api.ended(&branch.id, &carried.id).await.output_bytes, own.output_bytes);
            caught = Some([(source.id.clone(), execution), (branch.id, carried.id.clone())]);
            break;
        }
        // On a busy machine the capture may come too late to prove anything.
        api.remove(&branch.id).await;
    }
    let places = caught.expect("every capture came after the program's end");
    let branch = places[1].0.clone();
    let expected: String =
        std::iter::once("begin\n".to_owned()).chain((0..1_800_000).map(|n| format!("{n}\n"))).collect();
    for (sandbox, execution) in places {
        let (mut got, mut offset) = (Vec::new(), 0);
        loop {
            let query = OutputQuery { offset, ..OutputQuery::default() };
            let piece = api.client.output_bytes(&sandbox, &execution, &query).await.unwrap();
            assert_eq!(piece.skipped_bytes, 0);
            got.extend_from_slice(&piece.bytes);
            offset = piece.next_offset;
            if piece.complete {
                break;
            }
        }
        assert!(got == expected.as_bytes(), "{sandbox}: {} bytes, not {}", got.len(), expected.len());
    }
    api.remove(&branch).await;
    api.remove(&source.id).await;
}

#[tokio::test]
async fn a_paused_source_is_copied_and_stays_paused() {
    let api = Api::shared();
    let source = api.create().await;
    api.start_counter(&source.id).await;
    let before = api.count(&source.id).await;
    api.sh(&source.id, "echo written > late").await;
    api.client.pause(&source.id).await.unwrap();
    let fork = api.client.fork(&source.id, &fork_of(2)).await.unwrap();
    let files = api.client.snapshot(&source.id, &filesystem()).await.unwrap();
    for branch in branches(&fork) {
        assert_eq!(api.count(&branch.id).await, before.after(1));
    }
    assert_eq!(api.client.sandbox(&source.id).await.unwrap().state, SandboxState::Paused);
    let restored = api.client.restore(files.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.sh(&restored.id, "cat late").await, "written", "what was not flushed yet is in it");
    api.client.resume(&source.id).await.unwrap();
    assert_eq!(api.count(&source.id).await, before.after(1));
    for id in branches(&fork).iter().map(|branch| &branch.id).chain([&restored.id, &source.id]) {
        api.remove(id).await;
    }
}

#[tokio::test]
async fn a_branch_of_a_branch_carries_all_that_came_before() {
    let api = Api::own();
    let first = api.create().await;
    api.start_counter(&first.id).await;
    let mut last = api.count(&first.id).await;
    let mut current = first.id.clone();
    let mut chain = vec![current.clone()];
    for depth in 1..=20 {
        api.sh(&current, &format!("echo {depth} > f{depth}; rm -f f{}", depth - 2)).await;
        let fork = api.client.fork(&current, &fork_of(1)).await.unwrap();
        let branch = branches(&fork)[0].id.clone();
        // The parent is not needed for what stands on it.
        api.remove(&current).await;
        let next = api.count(&branch).await;
        assert_eq!(next, last.after(1), "depth {depth}");
        (last, current) = (next, branch.clone());
        chain.push(branch);
    }
    assert_eq!(api.sh(&current, "cat f*").await, "19\n20", "files made and removed on the way");
    let layers = api.captured();
    assert!(layers.len() >= 20, "{layers:?}");
    api.remove(&current).await;
    // Nobody stands on any of them any more; the last fork may still be looking at its own.
    let collected = async {
        while !api.captured().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, collected).await.unwrap_or_else(|_| panic!("left: {:?}", api.captured()));
}

fn serving(argv: &[&str]) -> LaunchRecipe {
    LaunchRecipe {
        argv: argv.iter().map(ToString::to_string).collect(),
        port: 8000,
        ready_path: Some("/ready.txt".into()),
        timeout_ms: Some(60_000),
        ..LaunchRecipe::default()
    }
}

fn files_fork(count: u32, launch: LaunchRecipe) -> ForkSandbox {
    ForkSandbox { mode: Some(SnapshotMode::Filesystem), launch: Some(launch), ..fork_of(count) }
}

#[tokio::test]
async fn a_filesystem_fork_comes_up_serving_by_its_recipe() {
    let api = Api::shared();
    let source = api.create().await;
    api.start_counter(&source.id).await;
    api.sh(&source.id, "echo it serves > ready.txt").await;
    let recipe = serving(&["python3", "-m", "http.server", "8000"]);
    let fork = api.client.fork(&source.id, &files_fork(2, recipe.clone())).await.unwrap();
    for branch in branches(&fork) {
        let get = remuda_client::Method::GET;
        let answer =
            api.client.port_request(&branch.id, 8000, get, "/ready.txt", Default::default(), "").await.unwrap();
        assert_eq!(answer.collect(1000).await.unwrap(), "it serves\n");
        assert_eq!(api.sh(&branch.id, "ls /tmp").await, "", "no process and nothing of memory came along");
        api.remove(&branch.id).await;
    }
    // Kept with a snapshot, it is used by every restore, and can be replaced.
    let capture = CreateSnapshot { launch: Some(recipe), ..filesystem() };
    let snapshot = api.client.snapshot(&source.id, &capture).await.unwrap();
    let restored = api.client.restore(snapshot.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.client.executions(&restored.id).await.unwrap()[0].command[0], "python3");
    api.remove(&restored.id).await;
    let other = RestoreSnapshot { launch: Some(serving(&["no-such-program"])), ..RestoreSnapshot::default() };
    refused(api.client.restore(snapshot.id.as_str(), &other).await, ErrorCode::LaunchFailed);
    // A machine that wakes up running takes none.
    let memory = ForkSandbox { mode: None, ..files_fork(1, serving(&["true"])) };
    refused(api.client.fork(&source.id, &memory).await, ErrorCode::InvalidRequest);
    api.client.remove_snapshot(snapshot.id.as_str()).await.unwrap();
    api.remove(&source.id).await;
}

#[tokio::test]
async fn a_launch_that_fails_tells_why_and_leaves_nothing() {
    let api = Api::own();
    let source = api.create().await;
    let snapshot = api.client.snapshot(&source.id, &filesystem()).await.unwrap();
    let slow = LaunchRecipe { timeout_ms: Some(1500), ..serving(&["sh", "-c", "echo not today; sleep 600"]) };
    for (what, recipe, code, said) in [
        ("a program that is not there", serving(&["no-such-program"]), Value::Null, ""),
        (
            "one that ends",
            serving(&["sh", "-c", "echo starting; echo broken >&2; exit 3"]),
            3.into(),
            "starting\nbroken\n",
        ),
        ("one that never listens", slow, Value::Null, "not today\n"),
    ] {
        let request = RestoreSnapshot { launch: Some(recipe.clone()), ..RestoreSnapshot::default() };
        let check = |error: Error| {
            assert_eq!(error.code, ErrorCode::LaunchFailed, "{what}: {error:?}");
            assert_eq!(error.details.get("exit_code").unwrap_or(&Value::Null), &code, "{what}: {error:?}");
            assert_eq!(error.details.get("output").and_then(Value::as_str).unwrap_or(""), said, "{what}: {error:?}");
        };
        check(refused(api.client.restore(snapshot.id.as_str(), &request).await, ErrorCode::LaunchFailed));
        let fork = api.client.fork(&source.id, &files_fork(1, recipe)).await.unwrap();
        let Branch::Error(error) = &fork.branches[0] else { panic!("{what}: {fork:?}") };
        check(error.clone());
    }
    assert_eq!(api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap().len(), 1);
    let all = SandboxFilter { include_ended: true, ..SandboxFilter::default() };
    for ended in api.client.list_sandboxes(&all).await.unwrap().iter().filter(|s| s.id != source.id) {
        assert_eq!(traces(ended.uid.as_str()), Vec::<String>::new());
        assert!(!api.server.data_dir.join("sandboxes").join(ended.uid.as_str()).exists());
    }
}

#[tokio::test]
async fn a_snapshot_that_is_removed_stays_under_those_who_stand_on_it() {
    let api = Api::own();
    let source = api.create().await;
    api.start_counter(&source.id).await;
    api.sh(&source.id, "head -c 3000000 /dev/urandom > data; cksum data > sum").await;
    let before = api.count(&source.id).await;
    let snapshot = api.client.snapshot(&source.id, &CreateSnapshot::default()).await.unwrap();
    let restored = api.client.restore(snapshot.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    let removal = api.client.remove_snapshot(snapshot.id.as_str()).await.unwrap();
    assert!(removal.bytes_reclaimed > 1_000_000, "the memory image goes: {removal:?}");
    assert!(removal.bytes_still_referenced >= 3_000_000, "the layer stays: {removal:?}");
    refused(api.client.restore(snapshot.id.as_str(), &RestoreSnapshot::default()).await, ErrorCode::SnapshotNotActive);
    assert_eq!(api.captured(), [snapshot.id.to_string()]);
    assert_eq!(api.sh(&restored.id, "cksum data | cmp - sum && echo same").await, "same");
    assert_eq!(api.count(&restored.id).await, before.after(1));
    // It can be copied itself, and what it stood on goes with the last that stands on it.
    let fork = api.client.fork(&restored.id, &fork_of(1)).await.unwrap();
    let branch = branches(&fork)[0];
    api.remove(&restored.id).await;
    assert_eq!(api.sh(&branch.id, "cksum data | cmp - sum && echo same").await, "same");
    assert!(api.captured().contains(&snapshot.id.to_string()));
    let verified = async {
        while api.client.snapshot_info(fork.snapshot.id.as_str()).await.unwrap().state == SnapshotState::Verifying {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, verified).await.unwrap();
    api.remove(&branch.id).await;
    assert_eq!(api.captured(), Vec::<String>::new());
}

#[tokio::test]
async fn a_fork_into_slots_that_are_taken_captures_nothing() {
    let api = Api::own();
    let source = api.create().await;
    let taken = api.create().await;
    let slot = |name: &str| name.parse::<Slot>().unwrap();
    let fork = |slots: &[Slot]| ForkSandbox { slots: Some(slots.to_vec()), ..fork_of(slots.len() as u32) };
    let into_taken = fork(&[slot("free-one"), taken.id.slot.clone()]);
    let error = refused(api.client.fork(&source.id, &into_taken).await, ErrorCode::SlotInUse);
    assert_eq!(error.details["occupant"], taken.id.to_string());
    refused(api.client.fork(&source.id, &fork(std::slice::from_ref(&source.id.slot))).await, ErrorCode::SlotInUse);
    let twice = fork(&[slot("free-one"), slot("free-one")]);
    refused(api.client.fork(&source.id, &twice).await, ErrorCode::InvalidRequest);
    assert_eq!(api.client.snapshots(true).await.unwrap(), [], "nothing was captured");
    assert_eq!(api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap().len(), 2, "nothing was made");

    // The same key tells the same outcome, although its own branches are in the slots now.
    api.remove(&taken.id).await;
    let keyed = api.client.with_key("once".parse().unwrap());
    let first = keyed.fork(&source.id, &into_taken).await.unwrap();
    assert_eq!(keyed.fork(&source.id, &into_taken).await.unwrap(), first);
    assert_eq!(branches(&first).iter().map(|b| &b.id.slot).collect::<Vec<_>>(), [&slot("free-one"), &taken.id.slot]);
}

#[tokio::test]
async fn a_branch_that_fails_fails_alone() {
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let server = Server::start_with(&directory.path().join("data"), &["--quota", "sandboxes=3"]);
    let api = Api::of(Arc::new(server));
    let source = api.create().await;
    api.start_counter(&source.id).await;
    let before = api.count(&source.id).await;
    let fork = api.client.fork(&source.id, &fork_of(3)).await.unwrap();
    let (mut up, mut failed) = (0, 0);
    for branch in &fork.branches {
        match branch {
            Branch::Sandbox(branch) => {
                assert_eq!(api.count(&branch.id).await, before.after(1));
                up += 1;
            }
            Branch::Error(error) => {
                assert_eq!(error.code, ErrorCode::LimitReached, "{error:?}");
                failed += 1;
            }
        }
    }
    assert_eq!((up, failed), (2, 1));
    assert_eq!(api.count(&source.id).await, before.after(1));
}

#[tokio::test]
async fn connections_that_a_capture_resets_are_counted_and_told() {
    const PROGRAM: &str = "import socket, time\n\
        server = socket.create_server(('0.0.0.0', 8080))\n\
        print('up', flush=True)\n\
        kept = server.accept()\n\
        print('accepted', flush=True)\n\
        time.sleep(600)\n";
    let api = Api::shared();
    let source = api.create().await;
    let (server, _) = api.background(&source.id, crate::api::python(PROGRAM)).await;
    let (client, id) = (api.client.clone(), source.id.clone());
    let asking = tokio::spawn(async move {
        client.port_request(&id, 8080, remuda_client::Method::GET, "/", Default::default(), "").await.map(drop)
    });
    let accepted = OutputQuery { offset: 3, wait: PATIENCE, ..OutputQuery::default() };
    let page = api.client.output(&source.id, &server, &accepted).await.unwrap();
    assert!(page.records[0].text.starts_with("accepted"), "{page:?}");
    let fork = api.server.run(&["fork", &source.id.to_string(), "--count", "1"]);
    assert_eq!(fork.stderr, "left out: 1 TCP connection to the outside: reset in the source and absent in copies\n");
    let told = tokio::time::timeout(PATIENCE, asking).await.unwrap().unwrap();
    refused(told, ErrorCode::PortUnreachable);
    // What was reset is gone, and there is nothing to tell any more.
    let again = api.server.run(&["fork", &source.id.to_string(), "--count", "1"]);
    assert_eq!(again.stderr, "");
    for id in [&fork.line(), &again.line(), &source.id.to_string()] {
        api.remove(&id.parse().unwrap()).await;
    }
}

/// Two descriptors that one `epoll_wait` found not ready together, of which one was closed later: gVisor's checkpoint
/// takes the closed one along, and a copy would be woken for it without end.
#[tokio::test]
async fn a_copy_is_not_woken_for_a_descriptor_that_was_closed_before() {
    const PROGRAM: &str = "import os, select, socket\n\
        e = select.epoll()\n\
        server = socket.create_server(('127.0.0.1', 0))\n\
        pair = lambda: (socket.create_connection(server.getsockname()), server.accept()[0])\n\
        (a, a2), (b, b2) = pair(), pair()\n\
        e.register(b, select.EPOLLIN); e.register(a, select.EPOLLIN)\n\
        a2.send(b'x'); b2.send(b'x')\n\
        while len(e.poll()) < 2: pass\n\
        a.recv(1); b.recv(1)\n\
        assert e.poll(0) == []\n\
        a.close(); a2.close()\n\
        os.mkfifo('/tmp/ask'); os.mkfifo('/tmp/answer')\n\
        print('up', flush=True)\n\
        while True:\n    \
            open('/tmp/ask').read()\n    \
            b2.send(b'x'); woken = [e.poll(5) == [(b.fileno(), select.EPOLLIN)]]\n    \
            b.recv(1); woken.append(e.poll(0) == [])\n    \
            open('/tmp/answer', 'w').write(repr(woken))\n";
    let api = Api::shared();
    let source = api.create().await;
    api.background(&source.id, crate::api::python(PROGRAM)).await;
    let fork = api.client.fork(&source.id, &fork_of(2)).await.unwrap();
    for id in branches(&fork).into_iter().map(|b| &b.id).chain([&source.id]) {
        for _ in 0..2 {
            assert_eq!(api.sh(id, "echo > /tmp/ask; cat /tmp/answer").await, "[True, True]", "{id}");
        }
        api.remove(id).await;
    }
}

#[tokio::test]
async fn the_snapshot_of_a_memory_fork_says_that_only_its_layer_is_left() {
    let api = Api::own();
    let id = api.create().await.id;
    let forked = api.client.fork(&id, &fork_of(1)).await.unwrap();
    let own = forked.snapshot.id.to_string();
    let captured = forked.snapshot.bytes;
    let settled = async {
        loop {
            let shown = api.client.snapshot_info(&own).await.unwrap();
            if shown.state == SnapshotState::Active {
                return shown;
            }
            // It is verified behind the answer; its event would do as well, and tells less.
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let shown = tokio::time::timeout(PATIENCE, settled).await.expect("it is never settled");
    assert_eq!((shown.memory_kept, shown.restorable), (false, false), "{shown:?}");
    assert!(shown.bytes < captured, "its layer is counted, and not the memory that is gone: {shown:?}");
    let usage = api.server.run(&["--json", "usage"]).json();
    let held = usage["reserved"].as_array().unwrap().iter().find(|r| r["quota"] == "snapshot_bytes").unwrap();
    assert_eq!((&held["amount"], &usage["captured"]["bytes"]), (&shown.bytes.into(), &shown.bytes.into()), "{usage:#}");
    let line = api.server.run(&["snapshot", "ls"]).line();
    assert!(line.contains("layer only") && !line.contains("active"), "{line}");
    let refusal = api.server.run(&["restore", &own]);
    assert_ne!(refusal.code, 0, "it can't be restored, and says so");
    // One that was captured on purpose can.
    let kept = api.client.snapshot(&id, &CreateSnapshot::default()).await.unwrap();
    assert!(kept.restorable && kept.memory_kept, "{kept:?}");
    api.server.run(&["restore", kept.id.as_str()]).line();
}
