//! Deadlines and idle limits with real sandboxes: what is due is done, once, and tells where the work is. Must wait for
//! events and never for a time of its own.

use std::sync::Arc;

use remuda_client::wire::{
    Branch, CreateSandbox, CreateSnapshot, DueTo, Event, Expiry, ExpiryResult, ForkSandbox, MachineReceipt, OnDeadline,
    RestoreSnapshot, Sandbox, SetDeadline, StartSandbox, StopResult,
};
use remuda_client::{EventStream, SandboxFilter, Told};
use remuda_types::{ErrorCode, SandboxId, SandboxState, SnapshotMode};
use rustix::process::{Pid, Signal, kill_process};

use crate::api::{Api, PATIENCE, detached, fork_of, host_processes, refused, traces};
use crate::restart::Place;
use crate::world::Server;

/// A machine that lives as long as this, unless the request says otherwise.
fn living(timeout_ms: u64) -> CreateSandbox {
    CreateSandbox { memory_mib: Some(512), timeout_ms: Some(timeout_ms), ..CreateSandbox::default() }
}

async fn events(api: &Api) -> EventStream {
    let begun = api.client.events(0).await.unwrap().newest;
    api.client.follow_events(begun).await.unwrap()
}

/// The next event of this kind about this sandbox, with all that came before about it.
async fn until(stream: &mut EventStream, id: &SandboxId, kind: &str) -> (Event, Vec<String>) {
    let mut before = Vec::new();
    loop {
        let told = tokio::time::timeout(PATIENCE, stream.next()).await;
        let told = told.unwrap_or_else(|_| panic!("no {kind} comes after {before:?}"));
        let Told::Event(event) = told.unwrap().expect("the stream has ended") else { panic!("a gap") };
        if event.about.sandbox.as_ref() != Some(id) {
            continue;
        }
        if event.kind == kind {
            return (event, before);
        }
        before.push(event.kind);
    }
}

async fn machine(api: &Api, id: &SandboxId) -> MachineReceipt {
    let receipts = api.client.receipts(Some(id), None).await.unwrap().receipts;
    receipts.into_iter().find_map(|receipt| receipt.machine).expect("a receipt of the machine")
}

async fn expiry(api: &Api, id: &SandboxId) -> Expiry {
    machine(api, id).await.expiry.expect("what was done at its deadline")
}

#[tokio::test]
async fn at_its_deadline_a_machine_is_captured_and_removed_and_its_snapshot_goes_on_where_it_stood() {
    let api = Api::own();
    let mut stream = events(&api).await;
    let labels: remuda_client::wire::Labels = [("team".to_owned(), "a".to_owned())].into();
    let made = api.create_with(&CreateSandbox { labels, ..living(600_000) }).await;
    let id = &made.id;
    assert_eq!((made.on_deadline, made.idle_at_ms), (Some(OnDeadline::Snapshot), None));
    api.start_counter(id).await;
    let before = api.count(id).await;
    let sandbox = api.client.set_deadline(id, &SetDeadline { timeout_ms: 2_000, on_deadline: None }).await.unwrap();
    let deadline = sandbox.deadline_at_ms.unwrap();
    // Work does not extend it.
    assert_eq!(api.client.sandbox(id).await.unwrap().deadline_at_ms, Some(deadline));
    let (soon, _) = until(&mut stream, id, "sandbox.deadline_soon").await;
    // After half of so short a life; how long after is a matter of the machine.
    assert!(soon.at_ms >= deadline - 1_000, "{soon:?}");

    let (expired, between) = until(&mut stream, id, "sandbox.expired").await;
    assert_eq!(between.iter().filter(|kind| *kind == "sandbox.deadline_soon").count(), 0, "it is told once");
    let snapshot = expired.about.snapshot.expect("a snapshot");
    let (gone, _) = until(&mut stream, id, "sandbox.gone").await;
    assert!(expired.at_ms >= deadline);
    assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new());

    let error = refused(api.client.sandbox(id).await, ErrorCode::GenerationGone);
    assert_eq!(error.details["snapshots"], serde_json::json!([snapshot]));
    let reason = error.details["reason"].as_str().unwrap();
    assert!(reason.contains("its deadline passed") && reason.contains(snapshot.as_str()), "{reason}");
    assert_eq!(gone.about.reason.as_deref(), Some(reason));
    assert!(error.remedy.unwrap().contains(&format!("remuda restore {snapshot}")));
    let shown = api.client.snapshot_info(snapshot.as_str()).await.unwrap();
    assert_eq!((shown.mode, shown.labels["team"].as_str()), (SnapshotMode::Memory, "a"));
    assert_eq!(shown.labels["remuda.ended-by"], "deadline");
    let told = machine(&api, id).await;
    assert_eq!((told.stop_result, told.stop_reason.as_deref()), (Some(StopResult::Stopped), Some(reason)));
    assert_eq!(told.captured.iter().map(|c| &c.snapshot).collect::<Vec<_>>(), [&snapshot]);
    let did = told.expiry.unwrap();
    assert_eq!(
        (did.due_to, did.result, did.snapshot),
        (DueTo::Deadline, ExpiryResult::Removed, Some(snapshot.clone()))
    );

    let restored = api.client.restore(snapshot.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert!(restored.deadline_at_ms.unwrap() > deadline, "the copy has a life of its own");
    let after = api.count(&restored.id).await;
    assert_eq!((after.pid, &after.nonce, after.asked), (before.pid, &before.nonce, before.asked + 1));
}

#[tokio::test]
async fn one_that_is_to_be_deleted_is_removed_without_a_snapshot() {
    let api = Api::shared();
    let mut stream = events(&api).await;
    let sandbox = api.create_with(&CreateSandbox { on_deadline: Some(OnDeadline::Delete), ..living(1_500) }).await;
    let id = &sandbox.id;
    let (expired, _) = until(&mut stream, id, "sandbox.expired").await;
    assert_eq!(expired.about.snapshot, None);
    until(&mut stream, id, "sandbox.gone").await;
    let error = refused(api.client.execute(id, &detached("true")).await, ErrorCode::GenerationGone);
    assert_eq!(
        (error.details["snapshots"].clone(), error.details["reason"].as_str()),
        (serde_json::json!([]), Some("its deadline passed"))
    );
    let did = expiry(&api, id).await;
    assert_eq!((did.on_deadline, did.result, did.snapshot), (OnDeadline::Delete, ExpiryResult::Removed, None));
    assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new());
    // It was done by one operation, which can be looked at.
    let key = format!("end-{}-0-1", sandbox.uid).parse().unwrap();
    let operations = api.client.operations(&key).await.unwrap();
    assert_eq!(operations.len(), 1);
    let operation = api.client.operation(&operations[0].id).await.unwrap();
    assert_eq!(
        (operation.kind.as_str(), operation.steps),
        ("end_when_due", vec!["fenced".to_owned(), "settled".to_owned()])
    );
}

#[tokio::test]
async fn work_renews_an_idle_limit_and_looking_does_not() {
    let api = Api::own();
    let mut stream = events(&api).await;
    let request = CreateSandbox { idle_timeout_ms: Some(3_000), ..living(600_000) };
    let sandbox = api.create_with(&request).await;
    let id = &sandbox.id;
    // What runs is work: it is not idle for as long as that takes, which is more than the limit.
    let (execution, _) = api.background(id, detached("echo ready; sleep 4; echo over")).await;
    let busy = api.client.sandbox(id).await.unwrap();
    assert_eq!((busy.idle_timeout_ms, busy.idle_at_ms), (Some(3_000), None));
    let ended = api.client.execution(id, &execution, PATIENCE).await.unwrap();
    assert!(ended.ended_at_ms.unwrap() - ended.started_at_ms >= 4_000, "{ended:?}");
    let idle_at = |seen: &Sandbox| seen.idle_at_ms.expect("nothing is under way");
    let seen = api.until(id, "idle", |seen| seen.idle_at_ms.is_some()).await;
    assert!(idle_at(&seen) >= ended.ended_at_ms.unwrap() + 2_900, "{seen:?} {ended:?}");
    // Polling, listing and reading of logs change nothing, however often they come.
    for _ in 0..20 {
        api.client.output(id, &execution, &remuda_client::OutputQuery::default()).await.unwrap();
        api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap();
        assert_eq!(idle_at(&api.client.sandbox(id).await.unwrap()), idle_at(&seen));
    }
    // A file does.
    api.client.write_file(id, "/workspace/x", &remuda_client::WriteFile::default(), "x").await.unwrap();
    let renewed = api.client.sandbox(id).await.unwrap();
    assert!(idle_at(&renewed) > idle_at(&seen), "{renewed:?} {seen:?}");

    // Only looked at from here on, it ends.
    let (client, polled) = (api.client.clone(), id.clone());
    let polling = tokio::spawn(async move { while client.sandbox(&polled).await.is_ok() {} });
    let (expired, before) = until(&mut stream, id, "sandbox.expired").await;
    assert!(!before.contains(&"sandbox.deadline_soon".to_owned()), "{before:?}");
    assert!(expired.at_ms >= idle_at(&renewed), "{expired:?}");
    until(&mut stream, id, "sandbox.gone").await;
    polling.await.unwrap();
    let did = expiry(&api, id).await;
    assert_eq!((did.due_to, did.result), (DueTo::Idle, ExpiryResult::Removed));
    let error = refused(api.client.sandbox(id).await, ErrorCode::GenerationGone);
    assert!(error.details["reason"].as_str().unwrap().starts_with("it was idle"), "{error:?}");
}

#[tokio::test]
async fn a_deadline_moves_by_a_call_of_its_own_and_by_nothing_else() {
    let api = Api::own();
    let mut stream = events(&api).await;
    let id = api.create_with(&living(6_000)).await.id;
    let longer = SetDeadline { timeout_ms: 600_000, on_deadline: None };
    let moved = api.client.set_deadline(&id, &longer).await.unwrap();
    let seen = api.client.sandbox(&id).await.unwrap();
    assert_eq!((seen.deadline_at_ms, seen.on_deadline), (moved.deadline_at_ms, Some(OnDeadline::Snapshot)));
    // Its first deadline passes, and nothing happens: what is told next comes of the second change.
    let passed = moved.deadline_at_ms.unwrap() - 600_000 + 6_000;
    api.sh(&id, "sleep 6.2").await;
    let now = api.run(&id, "true").await.started_at_ms;
    assert!(now > passed && api.client.sandbox(&id).await.unwrap().state == SandboxState::Running);
    let text = api.server.run(&["timeout", &id.to_string(), "1s", "--on-deadline", "delete", "--key", "k1"]).line();
    assert!(text.contains("then removed"), "{text}");
    let (_, between) = until(&mut stream, &id, "sandbox.gone").await;
    // That the first deadline is near may have been told on a slow machine.
    assert!(between.ends_with(&["sandbox.deadline_soon".to_owned(), "sandbox.expired".to_owned()]), "{between:?}");
    assert_eq!(between.iter().filter(|kind| *kind == "sandbox.expired").count(), 1, "{between:?}");
    // The same call with its key has the outcome that it had.
    let again = api.server.run(&["timeout", &id.to_string(), "1s", "--on-deadline", "delete", "--key", "k1", "--json"]);
    assert_eq!(again.json()["id"], id.to_string());
    refused(api.client.set_deadline(&id, &longer).await, ErrorCode::GenerationGone);
}

#[tokio::test]
async fn times_outside_of_the_servers_limits_are_refused_with_both_figures() {
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let server = Server::start_with(&directory.path().join("data"), &["--timeout-max", "30m"]);
    let api = Api::of(Arc::new(server));
    let error = refused(api.client.create_sandbox(&living(1_800_001)).await, ErrorCode::InvalidRequest);
    assert!(error.message.contains("1800001") && error.message.contains("1800000"), "{error}");
    assert_eq!((&error.details["maximum"], &error.details["wanted"]), (&1_800_000.into(), &1_800_001.into()));
    refused(api.client.create_sandbox(&living(0)).await, ErrorCode::InvalidRequest);
    let idle = CreateSandbox { idle_timeout_ms: Some(1_800_001), ..CreateSandbox::default() };
    assert!(
        refused(api.client.create_sandbox(&idle).await, ErrorCode::InvalidRequest).message.contains("idle_timeout_ms")
    );
    api.server.run(&["create", "--timeout", "1h"]).failed(2, "3600000");
    api.server.run(&["create", "--timeout", "soon"]).failed(2, "--timeout");
    // Without a word it is the server's limit, where that is less than an hour.
    let sandbox = api.create().await;
    let whole = sandbox.deadline_at_ms.unwrap() - sandbox.created_at_ms;
    assert!((1_790_000..=1_800_000).contains(&whole), "{whole}");
    let more = SetDeadline { timeout_ms: 1_800_001, on_deadline: None };
    refused(api.client.set_deadline(&sandbox.id, &more).await, ErrorCode::InvalidRequest);
    let too_long = ForkSandbox { timeout_ms: Some(1_800_001), ..fork_of(1) };
    refused(api.client.fork(&sandbox.id, &too_long).await, ErrorCode::InvalidRequest);
    let text = api.server.run(&["show", &sandbox.id.to_string()]).line();
    assert!(text.contains("deadline") && text.contains("then captured and removed"), "{text}");
    let capabilities = api.client.capabilities().await.unwrap();
    assert_eq!(
        (capabilities.limits["timeout_ms_max"], capabilities.limits["timeout_ms_default"]),
        (1_800_000, 1_800_000)
    );
}

#[tokio::test]
async fn branches_have_deadlines_of_their_own_also_while_they_are_paused() {
    let api = Api::own();
    let mut stream = events(&api).await;
    let source = api.create().await;
    let request = ForkSandbox { timeout_ms: Some(2_500), on_deadline: Some(OnDeadline::Delete), ..fork_of(2) };
    let fork = api.client.fork(&source.id, &request).await.unwrap();
    let branches = fork.branches.iter().map(|branch| match branch {
        Branch::Sandbox(sandbox) => sandbox,
        Branch::Error(e) => panic!("{e}"),
    });
    let branches: Vec<_> = branches.collect();
    let paused = &branches[1].id;
    // It may be too late for that on a slow machine; then there is one less to be seen.
    let _ = api.client.pause(paused).await;
    for branch in &branches {
        assert!(branch.deadline_at_ms.unwrap() < source.deadline_at_ms.unwrap());
    }
    let mut left: Vec<SandboxId> = branches.iter().map(|branch| branch.id.clone()).collect();
    while !left.is_empty() {
        let told = tokio::time::timeout(PATIENCE, stream.next()).await.expect("a branch does not end");
        let Some(Told::Event(event)) = told.unwrap() else { panic!("no event") };
        if event.kind == "sandbox.gone" {
            left.retain(|id| Some(id) != event.about.sandbox.as_ref());
        }
    }
    assert_eq!(api.client.sandbox(&source.id).await.unwrap().state, SandboxState::Running);
}

#[tokio::test]
async fn of_a_machine_that_cannot_be_checkpointed_the_files_are_kept() {
    let api = Api::own();
    let mut stream = events(&api).await;
    let id = api.create_with(&living(600_000)).await.id;
    api.sh(&id, "echo work > /workspace/file").await;
    // A deleted file that is open can't be checkpointed.
    let open = "exec 3> /workspace/open; rm /workspace/open; echo ready; sleep 600";
    api.background(&id, detached(open)).await;
    refused(api.client.snapshot(&id, &CreateSnapshot::default()).await, ErrorCode::CheckpointRefused);
    api.client.set_deadline(&id, &SetDeadline { timeout_ms: 1_000, on_deadline: None }).await.unwrap();
    let (gone, _) = until(&mut stream, &id, "sandbox.gone").await;
    let reason = gone.about.reason.unwrap();
    assert!(reason.contains("its files are in") && reason.contains("checkpoint_refused"), "{reason}");
    let did = expiry(&api, &id).await;
    assert!(did.failure.is_some() && did.result == ExpiryResult::Removed, "{did:?}");
    let snapshot = api.client.snapshot_info(did.snapshot.unwrap().as_str()).await.unwrap();
    assert_eq!(snapshot.mode, SnapshotMode::Filesystem);
    let restored = api.client.restore(snapshot.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.sh(&restored.id, "cat /workspace/file").await, "work");
}

#[tokio::test]
async fn the_files_of_a_machine_that_died_are_captured_at_its_deadline() {
    let api = Api::own();
    let mut stream = events(&api).await;
    let sandbox = api.create_with(&living(600_000)).await;
    let id = &sandbox.id;
    api.sh(id, "echo work > /workspace/file; sync").await;
    let sentry = host_processes(sandbox.uid.as_str(), "runsc-sandbox")[0];
    kill_process(Pid::from_raw(sentry).unwrap(), Signal::KILL).unwrap();
    let (died, _) = until(&mut stream, id, "sandbox.stopped").await;
    api.client.set_deadline(id, &SetDeadline { timeout_ms: 1_000, on_deadline: None }).await.unwrap();
    let (gone, _) = until(&mut stream, id, "sandbox.gone").await;
    let reason = gone.about.reason.unwrap();
    assert!(
        reason.starts_with(&died.about.reason.unwrap()) && reason.contains("; then its deadline passed"),
        "{reason}"
    );
    let told = machine(&api, id).await;
    assert_eq!(told.stop_result, Some(StopResult::AlreadyAbsent));
    let snapshot = told.expiry.unwrap().snapshot.unwrap();
    let restored = api.client.restore(snapshot.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.sh(&restored.id, "cat /workspace/file").await, "work");
}

#[tokio::test]
async fn what_cannot_be_captured_at_all_is_kept_stopped_and_captured_at_its_next_deadline() {
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let quota = ["--quota", "snapshots=1"];
    let api = Api::of(Arc::new(Server::start_with(&directory.path().join("data"), &quota)));
    let mut stream = events(&api).await;
    let id = api.create_with(&living(600_000)).await.id;
    api.sh(&id, "echo work > /workspace/file").await;
    let files = CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() };
    let in_the_way = api.client.snapshot(&id, &files).await.unwrap();
    api.client.set_deadline(&id, &SetDeadline { timeout_ms: 1_000, on_deadline: None }).await.unwrap();
    let (expired, between) = until(&mut stream, &id, "sandbox.expired").await;
    assert!(between.contains(&"sandbox.stopped".to_owned()), "{between:?}");
    assert!(expired.about.reason.unwrap().contains("its files are kept"));
    let did = expiry(&api, &id).await;
    assert_eq!((did.result, did.snapshot), (ExpiryResult::Kept, None));
    assert!(did.failure.unwrap().contains("limit_reached"));
    let seen = api.until(&id, "stopped", |seen| seen.state == SandboxState::Stopped).await;
    assert!(seen.reason.as_ref().unwrap().contains("its files are kept"), "{seen:?}");
    let error = refused(api.client.execute(&id, &detached("true")).await, ErrorCode::WrongState);
    assert!(error.cause.unwrap().contains("its files are kept"));

    api.client.remove_snapshot(in_the_way.id.as_str()).await.unwrap();
    api.client.set_deadline(&id, &SetDeadline { timeout_ms: 1_000, on_deadline: None }).await.unwrap();
    let (gone, _) = until(&mut stream, &id, "sandbox.gone").await;
    assert!(gone.about.reason.unwrap().contains("its files are in"));
    let snapshot = expiry(&api, &id).await.snapshot.unwrap();
    let restored = api.client.restore(snapshot.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.sh(&restored.id, "cat /workspace/file").await, "work");
}

#[tokio::test]
async fn a_deadline_waits_for_a_capture_that_is_under_way_and_lets_no_work_in() {
    let api = Api::own();
    let mut stream = events(&api).await;
    let large = CreateSandbox { memory_mib: Some(1024), ..living(600_000) };
    let id = api.create_with(&large).await.id;
    let capture = api.begin_long_capture(&id).await;
    api.client.set_deadline(&id, &SetDeadline { timeout_ms: 1_000, on_deadline: None }).await.unwrap();
    let theirs = capture.await.unwrap().unwrap();
    let (expired, _) = until(&mut stream, &id, "sandbox.expired").await;
    let ours = expired.about.snapshot.unwrap();
    assert_ne!(ours, theirs.id);
    until(&mut stream, &id, "sandbox.gone").await;
    let error = refused(api.client.sandbox(&id).await, ErrorCode::GenerationGone);
    let kept = error.details["snapshots"].as_array().unwrap();
    assert!(kept.contains(&ours.to_string().into()) && kept.contains(&theirs.id.to_string().into()), "{kept:?}");
}

/// Everything that was ever told of a sandbox, by kind.
async fn told(api: &Api, id: &SandboxId) -> Vec<String> {
    let events = api.client.events(0).await.unwrap().events;
    events.iter().filter(|event| event.about.sandbox.as_ref() == Some(id)).map(|event| event.kind.clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_that_passed_without_a_server_is_carried_out_by_the_next() {
    let place = Place::new();
    let api = place.start();
    let (kept, deleted) = (api.create_with(&living(600_000)).await, api.create_with(&living(600_000)).await);
    api.start_counter(&kept.id).await;
    let before = api.count(&kept.id).await;
    let delete = SetDeadline { timeout_ms: 2_000, on_deadline: Some(OnDeadline::Delete) };
    api.client.set_deadline(&deleted.id, &delete).await.unwrap();
    let soon = api.client.set_deadline(&kept.id, &SetDeadline { timeout_ms: 2_000, on_deadline: None }).await.unwrap();
    Arc::into_inner(api.server).unwrap().kill();
    // There is nothing to wait for but the time: that nobody sees it pass is what is tested.
    let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let left = u128::from(soon.deadline_at_ms.unwrap().unsigned_abs()).saturating_sub(now_ms);
    tokio::time::sleep(std::time::Duration::from_millis(u64::try_from(left).unwrap() + 50)).await;

    let api = place.start();
    let mut stream = api.client.follow_events(0).await.unwrap();
    until(&mut stream, &kept.id, "sandbox.gone").await;
    api.until_gone(&deleted.id).await;
    let snapshot = expiry(&api, &kept.id).await.snapshot.expect("its work is kept");
    assert_eq!(expiry(&api, &deleted.id).await.snapshot, None);
    let restored = api.client.restore(snapshot.as_str(), &RestoreSnapshot::default()).await.unwrap();
    let after = api.count(&restored.id).await;
    assert_eq!((after.pid, &after.nonce, after.asked), (before.pid, &before.nonce, before.asked + 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_while_it_ends_a_machine_ends_it_once_all_the_same() {
    let place = Place::new();
    let mut api = place.start();
    // From before the fence until after the removal, on a fast machine and on a slow one.
    for after_ms in [0, 20, 60, 120, 200, 350, 600] {
        let sandbox = api.create_with(&living(600_000)).await;
        let id = &sandbox.id;
        api.start_counter(id).await;
        let before = api.count(id).await;
        let due = api.client.set_deadline(id, &SetDeadline { timeout_ms: 1_000, on_deadline: None }).await.unwrap();
        let now_ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
        let left = u128::from(due.deadline_at_ms.unwrap().unsigned_abs()).saturating_sub(now_ms);
        // Not waiting for an event is the point: the kill falls wherever the end is by then.
        tokio::time::sleep(std::time::Duration::from_millis(u64::try_from(left).unwrap() + after_ms)).await;
        api = place.restart(api);
        api.until_gone(id).await;
        let events = told(&api, id).await;
        let count = |kind: &str| events.iter().filter(|told| *told == kind).count();
        assert_eq!(
            (count("sandbox.expired"), count("sandbox.gone"), count("snapshot.active")),
            (1, 1, 1),
            "{events:?}"
        );
        let error = refused(api.client.sandbox(id).await, ErrorCode::GenerationGone);
        let snapshot = expiry(&api, id).await.snapshot.expect("its work is kept");
        assert_eq!(error.details["snapshots"], serde_json::json!([snapshot]), "killed after {after_ms} ms");
        assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new());
        let restored = api.client.restore(snapshot.as_str(), &RestoreSnapshot::default()).await.unwrap();
        let after = api.count(&restored.id).await;
        assert_eq!((after.pid, &after.nonce, after.asked), (before.pid, &before.nonce, before.asked + 1));
        api.remove(&restored.id).await;
    }
}

#[tokio::test]
async fn a_stopped_machine_has_its_deadline_too_and_one_that_goes_on_has_a_new_one() {
    let api = Api::own();
    let mut stream = events(&api).await;
    let first = api.create_with(&living(600_000)).await;
    api.sh(&first.id, "echo work > /workspace/file").await;
    api.client.stop(&first.id).await.unwrap();
    let next = api.client.start(&first.id, &StartSandbox::default()).await.unwrap();
    assert!(next.deadline_at_ms > first.deadline_at_ms && next.on_deadline == first.on_deadline, "{next:?}");
    api.client.stop(&next.id).await.unwrap();
    api.client.set_deadline(&next.id, &SetDeadline { timeout_ms: 1_000, on_deadline: None }).await.unwrap();
    let (gone, _) = until(&mut stream, &next.id, "sandbox.gone").await;
    let reason = gone.about.reason.unwrap();
    assert!(reason.starts_with("it was stopped; then its deadline passed; its files are in snap-"), "{reason}");
    let snapshot = expiry(&api, &next.id).await.snapshot.unwrap();
    let restored = api.client.restore(snapshot.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.sh(&restored.id, "cat /workspace/file").await, "work");
}
