//! `stop` and `start`: processes end, files stay, and whoever goes on with them is another generation.

use std::fs;
use std::sync::Arc;

use remuda_client::SandboxFilter;
use remuda_client::wire::{CreateSnapshot, RestoreSnapshot, StartSandbox, StopResult};
use remuda_types::{ErrorCode, ExecutionState, SandboxState, SnapshotMode};
use serde_json::json;

use crate::api::{Api, detached, host_processes, refused, script_of, traces};
use crate::keys::keyed;
use crate::restart::{KILL_AFTER_MS, Place, killed_after, settled};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_sandbox_keeps_its_files_and_goes_on_as_the_next_generation() {
    let api = Api::own();
    let old = api.create().await;
    api.sh(&old.id, "mkdir /workspace/d; echo kept > /workspace/d/file; echo lost > /tmp/file").await;
    api.root(&old.id, "echo changed > /etc/motd; rm /usr/bin/who || rm /bin/who").await;
    let (running, _) = api.background(&old.id, detached("echo ready; sleep 600")).await;

    let stop = api.client.stop(&old.id).await.unwrap();
    assert_eq!((stop.result, stop.flushed, stop.sandbox.state), (StopResult::Stopped, true, SandboxState::Stopped));
    // Nothing of it is left but its files.
    assert_eq!(host_processes(old.uid.as_str(), "runsc-sandbox"), Vec::<i32>::new());
    assert_eq!(traces(old.uid.as_str()), Vec::<String>::new());
    assert_eq!(
        api.client.execution(&old.id, &running, Default::default()).await.unwrap().state,
        ExecutionState::SandboxGone
    );
    let seen = api.client.sandbox(&old.id).await.unwrap();
    assert_eq!((seen.state, seen.reason.as_deref()), (SandboxState::Stopped, Some("it was stopped")));
    refused(api.client.execute(&old.id, &script_of("true")).await, ErrorCode::WrongState);
    refused(api.client.pause(&old.id).await, ErrorCode::WrongState);
    let again = api.client.stop(&old.id).await.unwrap();
    assert_eq!((again.result, again.sandbox.state), (StopResult::AlreadyAbsent, SandboxState::Stopped));

    let new = api.client.start(&old.id, &StartSandbox::default()).await.unwrap();
    assert_eq!((&new.id.slot, new.state, new.continues.as_ref()), (&old.id.slot, SandboxState::Running, Some(&old.id)));
    assert!(new.id.generation > old.id.generation && new.uid != old.uid);
    let files = "cat /workspace/d/file /etc/motd; ls /tmp/file /usr/bin/who /bin/who 2>/dev/null | wc -l; stat -c %U /workspace/d";
    assert_eq!(api.sh(&new.id, files).await, "kept\nchanged\n0\nuser");
    let gone = refused(api.client.sandbox(&old.id).await, ErrorCode::GenerationGone);
    assert_eq!(gone.details["continued_as"], new.id.to_string());
    for stale in [
        refused(api.client.stop(&old.id).await, ErrorCode::GenerationGone),
        refused(api.client.start(&old.id, &StartSandbox::default()).await, ErrorCode::GenerationGone),
    ] {
        assert_eq!(stale.details["slot_has_newer"], true);
    }
    assert_eq!(api.sh(&new.id, "echo alive").await, "alive", "a late stop of the old one never reaches the new one");
    let receipts = api.client.receipts(Some(&old.id), None).await.unwrap().receipts;
    let machine = receipts[0].machine.as_ref().unwrap();
    assert_eq!((machine.replacement.as_ref(), machine.stop_result), (Some(&new.id), Some(StopResult::Stopped)));
    assert!(!api.server.data_dir.join("sandboxes").join(old.uid.as_str()).exists());
    api.remove(&new.id).await;
    assert_eq!(fs::read_dir(api.server.data_dir.join("sandboxes")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_died_can_be_gone_on_with_and_so_can_a_branch_of_memory() {
    let api = Api::own();
    let source = api.create().await;
    api.sh(&source.id, "echo base > /workspace/base").await;
    let snapshot = api.client.snapshot(&source.id, &CreateSnapshot::default()).await.unwrap();
    let copy = api.client.restore(snapshot.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    api.sh(&copy.id, "echo own > /workspace/own; sync").await;
    let sentry = rustix::process::Pid::from_raw(host_processes(copy.uid.as_str(), "runsc-sandbox")[0]).unwrap();
    rustix::process::kill_process(sentry, rustix::process::Signal::KILL).unwrap();
    api.until(&copy.id, "stopped", |seen| seen.state == SandboxState::Stopped).await;
    let next = api.client.start(&copy.id, &StartSandbox::default()).await.unwrap();
    assert_eq!(api.sh(&next.id, "cat /workspace/base /workspace/own").await, "base\nown");
    // And once more, and paused in between.
    api.client.pause(&next.id).await.unwrap();
    assert!(api.client.stop(&next.id).await.unwrap().flushed);
    let third = api.client.start(&next.id, &StartSandbox::default()).await.unwrap();
    assert_eq!(api.sh(&third.id, "cat /workspace/base /workspace/own").await, "base\nown");
    refused(api.client.start(&third.id, &StartSandbox::default()).await, ErrorCode::WrongState);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_does_not_come_up_keeps_the_files() {
    let api = Api::own();
    let old = api.create().await;
    api.sh(&old.id, "echo kept > /workspace/file").await;
    api.client.stop(&old.id).await.unwrap();
    let (path, request) =
        (format!("/v1/sandboxes/{}/start", old.id), json!({ "launch": { "argv": ["false"], "port": 9 } }));
    let told = keyed(&api.server, "POST", &path, "k", &request.to_string());
    assert_eq!((told.status, told.code()), (422, "launch_failed"), "{told:?}");
    let stopped = told.body["error"]["details"]["stopped_as"].as_str().unwrap().parse().unwrap();
    // What failed says what it still holds: the disk of the files that are kept, and no place of a machine.
    let (_, operations) = api.raw("GET", "/v1/operations?key=k", "", "");
    let (state, holds) = (&operations["operations"][0]["state"], &operations["operations"][0]["holds"]);
    assert_eq!((state, holds), (&json!("failed"), &json!({ "disk_bytes": holds["disk_bytes"] })), "{operations}");
    assert!(holds["disk_bytes"].as_u64().unwrap() > 0);
    assert_eq!(api.client.sandbox(&stopped).await.unwrap().state, SandboxState::Stopped);
    let without = StartSandbox { skip_launch: true, ..StartSandbox::default() };
    let next = api.client.start(&stopped, &without).await.unwrap();
    assert_eq!(api.sh(&next.id, "cat /workspace/file").await, "kept");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_sandbox_gives_its_place_back_and_takes_it_again() {
    let api = Api::own();
    let id = api.create().await.id;
    let held = async || {
        let usage = api.client.usage(None).await.unwrap();
        serde_json::to_value(&usage.reserved).unwrap()
    };
    let running = held().await;
    api.client.stop(&id).await.unwrap();
    let stopped = held().await;
    assert_ne!(running, stopped);
    let next = api.client.start(&id, &StartSandbox::default()).await.unwrap();
    assert_eq!(held().await, running);
    api.remove(&next.id).await;
    assert_ne!(held().await, stopped, "and its disk with its end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_and_a_start_that_are_cut_off_anywhere_are_carried_out_once_and_lose_no_file() {
    let place = Place::new();
    let mut api = place.start();
    let mut id = api.create().await.id;
    let mut expected = String::new();
    for (n, after_ms) in KILL_AFTER_MS.into_iter().enumerate() {
        api.sh(&id, &format!("echo {n} >> /workspace/all")).await;
        expected += &format!("{n}\n");
        let path = format!("/v1/sandboxes/{id}/stop");
        api = killed_after(api, &place, after_ms, "POST", &path, "k", "");
        let told = settled(&api, "POST", &path, "k", "");
        assert_eq!((told.status, &told.body["result"]), (200, &json!("stopped")), "{after_ms}: {told:?}");
        assert_eq!(api.client.sandbox(&id).await.unwrap().reason.as_deref(), Some("it was stopped"));
        let path = format!("/v1/sandboxes/{id}/start");
        api = killed_after(api, &place, after_ms, "POST", &path, "k", "{}");
        let told = settled(&api, "POST", &path, "k", "{}");
        assert_eq!(told.status, 201, "{after_ms}: {told:?}");
        let living = api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap();
        assert_eq!(living.len(), 1, "{after_ms}: {living:?}");
        id = living[0].id.clone();
        assert_eq!(told.body["id"], id.to_string());
        assert_eq!(api.sh(&id, "cat /workspace/all").await, expected.trim_end(), "{after_ms}");
        assert_eq!(fs::read_dir(place.data_dir.join("sandboxes")).unwrap().count(), 1, "{after_ms}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_races_with_everything_and_wins() {
    let api = Arc::new(Api::own());
    for n in 0..4 {
        let sandbox = api.create().await;
        let (a, b, c, id) = (api.clone(), api.clone(), api.clone(), sandbox.id.clone());
        let (x, y) = (id.clone(), id.clone());
        let work = tokio::spawn(async move { a.client.execute(&x, &script_of("sleep 600")).await });
        let mode = if n % 2 == 0 { SnapshotMode::Memory } else { SnapshotMode::Filesystem };
        let request = CreateSnapshot { mode: Some(mode), ..CreateSnapshot::default() };
        let capture = tokio::spawn(async move { b.client.snapshot(&y, &request).await });
        let other = id.clone();
        let second = tokio::spawn(async move { c.client.stop(&other).await });
        let first = api.client.stop(&id).await.unwrap();
        let second = second.await.unwrap().unwrap();
        let results = [first.result, second.result];
        assert!(results.contains(&StopResult::Stopped) && results.contains(&StopResult::AlreadyAbsent), "{results:?}");
        let _ = (work.await.unwrap(), capture.await.unwrap());
        assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new());
        let starts = (0..3).map(|n| {
            let (server, path) = (api.server.clone(), format!("/v1/sandboxes/{id}/start"));
            tokio::task::spawn_blocking(move || keyed(&server, "POST", &path, &format!("s{n}"), "{}"))
        });
        let told: Vec<_> = futures_util::future::join_all(starts).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(
            told.iter().filter(|told| told.status == 201).count(),
            1,
            "one goes on, the others are told: {told:?}"
        );
        let next = told.iter().find(|told| told.status == 201).unwrap().body["id"].as_str().unwrap().parse().unwrap();
        assert!(told.iter().filter(|told| told.status != 201).all(|told| told.code() == "generation_gone"), "{told:?}");
        api.remove(&next).await;
    }
}
