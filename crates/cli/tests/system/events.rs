//! Events: in order, without a gap, listed and streamed, and told to a reader that comes back.

use remuda_client::wire::{CreateSandbox, CreateSnapshot, Event};
use remuda_client::{EventStream, Told};
use remuda_types::{ErrorCode, SandboxId};

use crate::api::{Api, PATIENCE, refused};

async fn next(stream: &mut EventStream) -> Event {
    let told = tokio::time::timeout(PATIENCE, stream.next()).await.expect("no event comes");
    match told.unwrap().expect("the stream has ended") {
        Told::Event(event) => event,
        gap @ Told::Gap { .. } => panic!("{gap:?}"),
    }
}

fn kinds(events: &[Event], of: &SandboxId) -> Vec<String> {
    events.iter().filter(|event| event.about.sandbox.as_ref() == Some(of)).map(|event| event.kind.clone()).collect()
}

#[tokio::test]
async fn what_happens_is_told_in_order_by_list_and_stream_alike() {
    let api = Api::own();
    // What a new server tells of its first key comes before.
    let begun = api.client.events(0).await.unwrap().newest;
    let mut stream = api.client.follow_events(begun).await.unwrap();
    let id = api.create().await.id;
    assert_eq!(next(&mut stream).await.kind, "sandbox.running");
    api.client.pause(&id).await.unwrap();
    api.client.pause(&id).await.unwrap();
    api.client.resume(&id).await.unwrap();
    let snapshot = api.client.snapshot(&id, &CreateSnapshot::default()).await.unwrap();
    api.client.remove_snapshot(snapshot.id.as_str()).await.unwrap();
    let removal = api.client.remove_sandbox(&id).await.unwrap();
    let list = api.client.events(begun).await.unwrap();
    let expected =
        ["sandbox.running", "sandbox.paused", "sandbox.running", "snapshot.active", "snapshot.deleted", "sandbox.gone"];
    assert_eq!(kinds(&list.events, &id), expected, "a repeated pause is no event");
    assert_eq!(list.events.iter().map(|e| e.sequence).collect::<Vec<_>>(), (begun + 1..=begun + 6).collect::<Vec<_>>());
    assert_eq!((list.newest, list.missed), (begun + 6, 0));
    assert_eq!(list.events[3].about.snapshot.as_ref(), Some(&snapshot.id));
    assert_eq!(list.events[5].about.receipt, removal.receipt);
    for event in &list.events[1..] {
        assert_eq!(next(&mut stream).await, *event);
    }
    // A reader that comes back goes on where it was.
    let mut later = api.client.follow_events(begun + 4).await.unwrap();
    assert_eq!(next(&mut later).await, list.events[4]);
    assert_eq!(api.client.events(begun + 6).await.unwrap().events, []);

    let text = api.server.run(&["events", "--after", &(begun + 5).to_string()]).line();
    assert!(text.contains("sandbox.gone") && text.lines().count() == 1, "{text}");
    assert_eq!(api.server.run(&["events", "--json"]).json()["newest"], begun + 6);
}

#[tokio::test]
async fn what_fails_is_told_with_its_reason() {
    let api = Api::own();
    let large = CreateSandbox { memory_mib: Some(1024), ..CreateSandbox::default() };
    let sandbox = api.create_with(&large).await;
    let capture = api.begin_long_capture(&sandbox.id).await;
    api.remove(&sandbox.id).await;
    refused(capture.await.unwrap(), ErrorCode::Unreachable);
    let events = api.client.events(0).await.unwrap().events;
    let failed = events.iter().find(|event| event.kind == "snapshot.failed").expect("the capture failed");
    assert!(failed.about.reason.is_some() && failed.about.sandbox.as_ref() == Some(&sandbox.id), "{failed:?}");
}

#[tokio::test]
async fn a_stream_ends_with_its_server_and_is_not_cut() {
    let api = Api::own();
    let begun = api.client.events(0).await.unwrap().newest;
    let mut stream = api.client.follow_events(begun).await.unwrap();
    let id = api.create().await.id;
    api.remove(&id).await;
    assert_eq!(next(&mut stream).await.kind, "sandbox.running");
    assert_eq!(next(&mut stream).await.kind, "sandbox.gone");
    let Api { client, server } = api;
    drop(client);
    let server = std::sync::Arc::into_inner(server).expect("nobody else has the server");
    let ending = tokio::task::spawn_blocking(|| server.end());
    // One that is cut breaks off with an error.
    let last = tokio::time::timeout(PATIENCE, stream.next()).await.expect("the stream stays open");
    assert_eq!(last.unwrap(), None);
    assert_eq!(ending.await.unwrap(), 0);
}

#[tokio::test]
async fn events_are_for_keys_that_may_read_them_and_only_while_they_may() {
    let api = Api::own();
    let secret = |args: &[&str]| {
        let made = api.server.run(&[&["key", "create", "--json"][..], args].concat());
        (
            made.json()["access_key"]["id"].as_str().unwrap().to_owned(),
            made.json()["secret"].as_str().unwrap().to_owned(),
        )
    };
    let client = |secret: &str| remuda_client::Client::tcp(&api.server.url(), secret).unwrap();
    let (_, without) = secret(&["--scope", "files"]);
    refused(client(&without).events(0).await, ErrorCode::Forbidden);
    refused(client(&without).receipts(None, None).await, ErrorCode::Forbidden);
    let (_, narrowed) = secret(&["--scope", "sandboxes:read", "--slot", "mine"]);
    refused(client(&narrowed).follow_events(0).await, ErrorCode::Forbidden);
    // Receipts are seen as far as their sandboxes are.
    let id = api.create().await.id;
    assert_eq!(client(&narrowed).receipts(Some(&id), None).await.unwrap().receipts, []);
    let receipt = api.client.receipts(Some(&id), None).await.unwrap().receipts.remove(0);
    refused(client(&narrowed).receipt(&receipt.id).await, ErrorCode::ReceiptNotFound);

    let (key, reader) = secret(&["--scope", "sandboxes:read"]);
    let begun = api.client.events(0).await.unwrap().newest;
    let mut stream = client(&reader).follow_events(begun).await.unwrap();
    api.client.pause(&id).await.unwrap();
    assert_eq!(next(&mut stream).await.kind, "sandbox.paused");
    assert_eq!(api.server.run(&["key", "revoke", &key]).code, 0);
    api.remove(&id).await;
    // The revocation itself may still be told, and nothing after it.
    while let Some(told) = tokio::time::timeout(PATIENCE, stream.next()).await.expect("it stays open").unwrap() {
        assert!(matches!(&told, Told::Event(event) if event.kind == "access_key.revoked"), "{told:?}");
    }
}
