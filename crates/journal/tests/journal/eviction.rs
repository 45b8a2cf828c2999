//! Eviction: what has its time behind it goes, and a late retry still never runs again.

use remuda_journal::*;
use remuda_types::{ExecutionState, OperationState, SandboxState, SnapshotId, SnapshotState};
use serde_json::json;

use crate::world::*;

async fn evict_all(journal: &Journal, now_ms: i64) -> Vec<Evicted> {
    let mut rounds = vec![journal.evict(now_ms).await.unwrap()];
    while rounds.last().unwrap().more {
        rounds.push(journal.evict(now_ms).await.unwrap());
    }
    rounds
}

#[tokio::test]
async fn a_late_retry_finds_a_tombstone() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let done = call(Some("done"), json!({ "n": 1 }));
    let outcome = Outcome::Done(json!({ "sandbox": "c1" }));
    let operation = admit_new(&journal, done.clone()).await;
    journal.step(&operation.id, "a", json!(1), vec![]).await.unwrap();
    journal.finish(&operation.id, outcome.clone(), vec![], NOW + HOUR).await.unwrap();
    let pending = admit_new(&journal, call(Some("pending"), json!({}))).await;
    let unkeyed = admit_new(&journal, call(None, json!({}))).await;
    journal.finish(&unkeyed.id, Outcome::Failed(json!("no")), vec![], NOW).await.unwrap();
    let long = admit_new(&journal, call(Some("long"), json!({}))).await;
    let text = "x".repeat(limits::TOMBSTONE_OUTCOME_BYTES_MAX);
    journal.finish(&long.id, Outcome::Indeterminate(json!(text)), vec![], NOW).await.unwrap();

    // Nothing before its time.
    assert_eq!(journal.evict(NOW + 24 * HOUR - 1).await.unwrap(), Evicted::default());
    let again = |n: u32| {
        let mut call = call(Some("done"), json!({ "n": n }));
        call.reservation.sandbox = Some(new_sandbox(None));
        journal.admit(call)
    };
    assert!(matches!(again(1).await.unwrap(), Admitted::Replay(found) if !found.evicted));
    // Late, as it may be: the tombstone's time begins now.
    let late = NOW + 100 * HOUR;
    assert_eq!(journal.evict(late).await.unwrap().operations, 3);
    for journal in [&journal, &journal] {
        let found = journal.operation(&account(), &operation.id).await.unwrap().unwrap();
        assert!(found.evicted && found.request.is_none() && found.steps.is_empty());
        assert_eq!((found.state, &found.outcome), (OperationState::Done, &Some(outcome.clone())));
        assert_eq!((found.admitted_at_ms, found.finished_at_ms), (NOW, Some(NOW + HOUR)));
        assert!(matches!(again(1).await.unwrap(), Admitted::Replay(op) if op == found));
        assert!(matches!(again(2).await.unwrap(), Admitted::Conflict(op) if op == found));
        let forbidden = journal.forbid(&account(), &scope(), &key("done"), late).await.unwrap();
        assert_eq!(forbidden, Forbidden::Admitted(Box::new(found)));
    }
    assert_eq!(journal.operations_by_key(&account(), &key("done")).await.unwrap().len(), 1);
    let found = journal.operation(&account(), &long.id).await.unwrap().unwrap();
    assert_eq!(found.outcome, Some(Outcome::Indeterminate(json!(null))), "how it ended is kept");
    assert_eq!(journal.operation(&account(), &unkeyed.id).await.unwrap(), None);
    // One without an outcome stays, however old it is.
    assert_eq!(journal.unfinished(Paging::first()).await.unwrap().items[0].id, pending.id);

    assert_eq!(journal.evict(late + 24 * HOUR - 1).await.unwrap().tombstones, 0);
    assert_eq!(journal.evict(late + 24 * HOUR).await.unwrap().tombstones, 2);
    assert!(matches!(again(1).await.unwrap(), Admitted::New(_)));
}

#[tokio::test]
async fn a_cancelled_key_is_refused_for_as_long_as_a_key_lives() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    journal.forbid(&account(), &scope(), &key("k"), NOW).await.unwrap();
    journal.evict(NOW + 48 * HOUR - 1).await.unwrap();
    assert_eq!(refusal(journal.admit(call(Some("k"), json!({}))).await), Refusal::Cancelled(key("k")));
    assert_eq!(journal.evict(NOW + 48 * HOUR).await.unwrap().tombstones, 1);
    admit_new(&journal, call(Some("k"), json!({}))).await;
}

#[tokio::test]
async fn an_executions_key_lives_as_long_as_its_record() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let sandbox = running(&journal, Some("c1"), NOW).await;
    let execute = |name: &str| {
        let mut call = call(Some(name), json!({ "command": "true" }));
        call.scope = Scope::on("execute", sandbox.id.clone()).unwrap();
        let id = remuda_types::ExecutionId::from_entropy(entropy());
        call.reservation.execution = Some(NewExecution { id, sandbox: sandbox.uid.clone(), doc: json!({}) });
        call
    };
    let mut ids = Vec::new();
    for name in ["forgotten", "kept"] {
        let operation = admit_new(&journal, execute(name)).await;
        let id = operation.reserved.execution.clone().unwrap();
        let record = journal.execution(&account(), &id).await.unwrap().unwrap();
        assert_eq!((record.state, record.started_at_ms), (ExecutionState::Running, NOW));
        journal.finish(&operation.id, Outcome::Done(json!({})), vec![], NOW).await.unwrap();
        ids.push(id);
    }
    journal.evict(NOW + 90 * HOUR).await.unwrap();
    assert!(matches!(journal.admit(execute("kept")).await.unwrap(), Admitted::Replay(op) if !op.evicted));
    let forget = Change::ForgetExecution { id: ids[0].clone(), now_ms: NOW + 90 * HOUR };
    journal.apply(vec![forget.clone(), forget]).await.unwrap();
    assert_eq!(journal.evict(NOW + 90 * HOUR).await.unwrap().operations, 1);
    assert!(matches!(journal.admit(execute("forgotten")).await.unwrap(), Admitted::Replay(op) if op.evicted));
    assert!(matches!(journal.admit(execute("kept")).await.unwrap(), Admitted::Replay(op) if !op.evicted));

    // With the sandbox's record its executions' go, and their keys begin to run out.
    end(&journal, &sandbox.uid, NOW).await;
    let late = NOW + limits::ENDED_RETENTION_MS;
    let gone = evict_all(&journal, late).await;
    assert_eq!((gone[0].executions, gone[0].sandboxes), (1, 1));
    assert_eq!(journal.sandbox(&account(), &sandbox.id).await.unwrap(), None);
    evict_all(&journal, late).await;
    assert!(matches!(journal.admit(execute("kept")).await.unwrap(), Admitted::Replay(op) if op.evicted));
    // The slot's newest generation is known for good: the next is newer, whatever the clock says.
    assert_eq!(journal.newest_generation(&account(), &slot("c1")).await.unwrap(), Some(sandbox.id.generation));
    assert!(running(&journal, Some("c1"), 5).await.id.generation > sandbox.id.generation);
}

#[tokio::test]
async fn records_go_when_they_are_old_and_no_earlier() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let (ended, living) = (running(&journal, None, NOW).await, running(&journal, None, NOW).await);
    let preview = |sandbox: &SandboxRecord, expires: Option<i64>| Preview {
        account: account(),
        id: remuda_types::PreviewId::from_entropy(entropy()),
        sandbox: sandbox.uid.clone(),
        token_hash: *blake3::hash(&entropy()).as_bytes(),
        created_at_ms: NOW,
        expires_at_ms: expires,
        revoked_at_ms: None,
        doc: json!({ "port": 80 }),
    };
    let access_key = |revoked: Option<i64>| AccessKey {
        account: account(),
        id: remuda_types::AccessKeyId::from_entropy(entropy()),
        hash: *blake3::hash(&entropy()).as_bytes(),
        scopes: vec!["admin".into()],
        narrowing: json!(null),
        created_at_ms: NOW,
        expires_at_ms: None,
        revoked_at_ms: revoked,
        doc: json!({}),
    };
    let receipt = Receipt {
        account: account(),
        id: remuda_types::ReceiptId::from_entropy(entropy()),
        kind: ReceiptKind::Deletion,
        sandbox: ended.id.clone(),
        operation: None,
        created_at_ms: NOW,
        doc: json!({ "absent": true }),
    };
    let captured = admit_new(&journal, capture(None, None)).await;
    journal.finish(&captured.id, Outcome::Done(json!({})), vec![], NOW).await.unwrap();
    let snapshot = captured.reserved.snapshot.unwrap();
    journal
        .apply(vec![
            Change::Preview(preview(&ended, None)),
            Change::Preview(preview(&living, Some(NOW))),
            Change::Preview(preview(&living, None)),
            Change::AccessKey(access_key(Some(NOW))),
            Change::AccessKey(access_key(None)),
            Change::Receipt(receipt.clone()),
            Change::Snapshot(SnapshotChange::of(&snapshot).state(SnapshotState::Deleted, NOW)),
        ])
        .await
        .unwrap();
    end(&journal, &ended.uid, NOW).await;
    let early = journal.evict(NOW + limits::ENDED_RETENTION_MS - 1).await.unwrap();
    assert_eq!((early.sandboxes, early.snapshots, early.previews, early.access_keys), (0, 0, 0, 0));
    let due = journal.evict(NOW + limits::ENDED_RETENTION_MS).await.unwrap();
    assert_eq!((due.sandboxes, due.snapshots, due.previews, due.access_keys, due.receipts), (1, 1, 2, 1, 0));
    assert_eq!(journal.sandbox(&account(), &living.id).await.unwrap().unwrap().state, SandboxState::Running);
    // The receipt is found without the sandbox.
    let found = journal.receipts(&account(), Some(&ended.id), Paging::first()).await.unwrap().items;
    assert_eq!(found, [receipt]);
    assert_eq!(journal.evict(NOW + limits::RECEIPTS_RETENTION_MS).await.unwrap().receipts, 1);
}

#[tokio::test]
async fn a_removed_snapshot_is_kept_on_record_as_long_as_something_stands_on_its_layer() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let mut captured = Vec::new();
    for _ in 0..3 {
        let operation = admit_new(&journal, capture(None, None)).await;
        journal.finish(&operation.id, Outcome::Done(json!({})), vec![], NOW).await.unwrap();
        captured.push(operation.reserved.snapshot.unwrap());
    }
    let [below, between, above] = captured.try_into().unwrap();
    let sandbox = running(&journal, None, NOW).await;
    let deleted = |id: &SnapshotId| Change::Snapshot(SnapshotChange::of(id).state(SnapshotState::Deleted, NOW));
    let stands_on = json!({ "layers": [above, between] });
    journal
        .apply(vec![
            deleted(&below),
            deleted(&between),
            Change::Snapshot(SnapshotChange::of(&above).state(SnapshotState::Active, NOW).doc(stands_on)),
            Change::Sandbox(SandboxChange::of(&sandbox.uid).layers(vec![below.clone()])),
        ])
        .await
        .unwrap();
    let late = NOW + limits::ENDED_RETENTION_MS;
    assert_eq!(evict_all(&journal, late).await.iter().map(|r| r.snapshots).sum::<usize>(), 0);
    end(&journal, &sandbox.uid, NOW).await;
    assert_eq!(evict_all(&journal, late).await.iter().map(|r| r.snapshots).sum::<usize>(), 1);
    assert_eq!(journal.snapshot(&account(), &below).await.unwrap(), None);
    journal.apply(vec![deleted(&above)]).await.unwrap();
    assert_eq!(evict_all(&journal, late).await.iter().map(|r| r.snapshots).sum::<usize>(), 2);
}

#[tokio::test]
async fn it_goes_in_rounds() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let count = limits::EVICTION_ROWS_MAX + 10;
    let calls = (0..count).map(|n| {
        let (journal, call) = (&journal, call(Some(&format!("k{n}")), json!({})));
        async move {
            let id = admit_new(journal, call).await.id;
            let event = NewEvent { account: account(), at_ms: NOW, kind: "a".into(), doc: json!({}) };
            journal.finish(&id, Outcome::Done(json!({})), vec![Change::Event(event)], NOW).await.unwrap();
        }
    });
    futures_util::future::join_all(calls).await;
    let rounds = evict_all(&journal, NOW + 8 * 24 * HOUR).await;
    let operations: Vec<_> = rounds.iter().map(|r| r.operations).collect();
    let events: Vec<_> = rounds.iter().map(|r| r.events).collect();
    assert_eq!((operations, events), (vec![limits::EVICTION_ROWS_MAX, 10], vec![limits::EVICTION_ROWS_MAX, 10]));
    let page = journal.events(&account(), 0, 0).await.unwrap();
    assert_eq!((page.events.len(), page.oldest, page.newest), (0, count as u64 + 1, count as u64));
    assert_eq!(page.missed_since(3), count as u64 - 3);
    // No number is given twice.
    let event = NewEvent { account: account(), at_ms: NOW, kind: "a".into(), doc: json!({}) };
    journal.apply(vec![Change::Event(event)]).await.unwrap();
    assert_eq!(journal.events(&account(), 0, 0).await.unwrap().events[0].sequence, count as u64 + 1);
}
