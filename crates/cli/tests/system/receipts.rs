//! Receipts: what was done to a generation is told after its end, and each fact of a deletion is held against the machine.

use remuda_client::wire::{CreateSandbox, CreateSnapshot, MachineReceipt, Receipt, RemovalResult, StopResult};
use remuda_types::{ErrorCode, SandboxId, SandboxState, SnapshotMode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::api::{Api, fork_of, host_processes, refused, traces};

async fn of(api: &Api, id: &SandboxId) -> Vec<Receipt> {
    api.client.receipts(Some(id), None).await.unwrap().receipts
}

async fn machine(api: &Api, id: &SandboxId) -> MachineReceipt {
    of(api, id).await.into_iter().find_map(|receipt| receipt.machine).expect("a receipt of the machine")
}

#[tokio::test]
async fn the_life_of_a_machine_and_the_four_facts_of_its_deletion_are_told_after_its_end() {
    let api = Api::own();
    let labels = [("thread".to_owned(), "t-17".to_owned()), ("checkpoint".to_owned(), "cp-3".to_owned())].into();
    let request = CreateSandbox { memory_mib: Some(512), labels, ..CreateSandbox::default() };
    let sandbox = api.create_with(&request).await;
    let id = &sandbox.id;
    let begun = machine(&api, id).await;
    assert_eq!((&begun.slot, begun.generation, &begun.uid), (&id.slot, id.generation, &sandbox.uid));
    assert_eq!((&begun.labels, begun.stop_result), (&request.labels, None));
    let files = CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() };
    let first = api.client.snapshot(id, &files).await.unwrap();
    let second = api.client.snapshot(id, &CreateSnapshot::default()).await.unwrap();
    let refused_capture = CreateSnapshot { name: Some("/".into()), ..CreateSnapshot::default() };
    refused(api.client.snapshot(id, &refused_capture).await, ErrorCode::InvalidRequest);

    let removal = api.client.remove_sandbox(id).await.unwrap();
    assert_eq!(removal.result, RemovalResult::Removed);
    let deletion = api.client.receipt(removal.receipt.as_ref().unwrap()).await.unwrap();
    let facts = deletion.deletion.unwrap();
    for (fact, name) in [
        (&facts.absent, "absent"),
        (&facts.processes_gone, "processes"),
        (&facts.credentials_refused, "credentials"),
        (&facts.bytes_gone, "bytes"),
    ] {
        assert!(fact.holds && fact.at_ms >= removal.ended_at_ms && !fact.method.is_empty(), "{name}: {fact:?}");
    }
    assert_eq!(facts.bytes_reclaimed, removal.bytes_reclaimed);
    assert_eq!(traces(sandbox.uid.as_str()), Vec::<String>::new(), "what the receipt states is so");

    let told = machine(&api, id).await;
    let captured: Vec<_> = told.captured.iter().map(|c| (&c.snapshot, c.mode, c.at_ms)).collect();
    assert_eq!(
        captured,
        [(&first.id, first.mode, first.created_at_ms), (&second.id, second.mode, second.created_at_ms)]
    );
    assert_eq!((told.stop_target.as_ref(), told.stop_result), (Some(id), Some(StopResult::Stopped)));
    assert_eq!(of(&api, id).await.len(), 2);

    // Whoever comes later is led there.
    let gone = refused(api.client.sandbox(id).await, ErrorCode::GenerationGone);
    assert_eq!(gone.details["receipt"], json!(deletion.id));
    let again = api.client.remove_sandbox(id).await.unwrap();
    assert_eq!((again.result, again.receipt), (RemovalResult::AlreadyAbsent, removal.receipt));
    assert_eq!(machine(&api, id).await, told, "a repeated removal adds nothing");
    let shown = api.server.run(&["receipt", &id.to_string()]).line();
    assert!(shown.contains("credentials refused") && shown.contains("thread=t-17"), "{shown}");
    let one = api.server.run(&["receipt", &deletion.id.to_string(), "--json"]).json();
    assert_eq!(one["deletion"]["absent"]["holds"], true, "{one}");
}

#[tokio::test]
async fn a_receipt_tells_of_a_death_of_layers_that_stay_and_of_the_key_that_made_the_machine() {
    let api = Api::own();
    let made = crate::keys::keyed(&api.server, "POST", "/v1/sandboxes", "the-key", r#"{"memory_mib":512}"#);
    let id: SandboxId = serde_json::from_value(made.body["id"].clone()).unwrap();
    let uid = made.body["uid"].as_str().unwrap();
    let branch = api.client.fork(&id, &fork_of(1)).await.unwrap();
    let remuda_client::wire::Branch::Sandbox(branch_made) = &branch.branches[0] else { panic!("{branch:?}") };
    let processes = host_processes(uid, "runsc-sandbox");
    kill_process(Pid::from_raw(processes[0]).unwrap(), Signal::KILL).unwrap();
    let dead = api.until(&id, "stopped", |seen| seen.state == SandboxState::Stopped).await;
    api.client.remove_sandbox(&id).await.unwrap();
    let told = machine(&api, &id).await;
    assert_eq!(told.create_key.map(|key| key.to_string()).as_deref(), Some("the-key"));
    assert_eq!(told.died.map(|death| death.reason), dead.reason);
    assert_eq!(told.stop_result, Some(StopResult::AlreadyAbsent), "its processes had ended by themselves");

    // The branch stands on a layer that a snapshot of it needs too.
    let kept = api.client.snapshot(&branch_made.id, &CreateSnapshot::default()).await.unwrap();
    let removal = api.client.remove_sandbox(&branch_made.id).await.unwrap();
    let deletion = api.client.receipt(&removal.receipt.unwrap()).await.unwrap().deletion.unwrap();
    assert_eq!(deletion.still_referenced, std::slice::from_ref(&branch.snapshot.id), "{deletion:?}");
    assert_eq!(machine(&api, &branch_made.id).await.captured[0].snapshot, kept.id);
}

#[tokio::test]
async fn what_is_no_receipt_is_told_so() {
    let api = Api::shared();
    let unknown = "rcpt-aaaaaaaaaaaaaaaaaaaa".parse().unwrap();
    refused(api.client.receipt(&unknown).await, ErrorCode::ReceiptNotFound);
    refused(api.client.receipts(None, Some("no cursor")).await, ErrorCode::InvalidRequest);
    api.server.run(&["receipt", "c1"]).failed(2, "must name the generation too");
}
