//! Records: written, changed, listed in stable pages, and invisible to other accounts.

use std::time::Duration;

use remuda_journal::*;
use remuda_types::{AccessKeyId, ExecutionId, ExecutionState, PreviewId, SandboxState};
use serde_json::json;

use crate::world::*;

fn event(kind: &str) -> Change {
    Change::Event(NewEvent { account: account(), at_ms: NOW, kind: kind.into(), doc: json!({}) })
}

#[tokio::test]
async fn a_sandbox_changes_only_where_it_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let before = running(&journal, Some("c1"), NOW).await;
    let host = json!({ "boot_id": "b", "pids": [7], "start_ticks": [99] });
    journal.apply(vec![Change::Sandbox(SandboxChange::of(&before.uid).host(host.clone()))]).await.unwrap();
    let found = journal.sandbox(&account(), &before.id).await.unwrap().unwrap();
    assert_eq!(found, SandboxRecord { host, ..before.clone() });
    let died = SandboxChange::of(&before.uid).state(SandboxState::Stopped).reason(Some("out of memory".into()));
    journal.apply(vec![Change::Sandbox(died)]).await.unwrap();
    journal.apply(vec![Change::Sandbox(SandboxChange::of(&before.uid).reason(None))]).await.unwrap();
    assert_eq!(journal.sandbox(&account(), &before.id).await.unwrap().unwrap().reason, None);
    end(&journal, &before.uid, NOW + 1).await;
    // The first end counts: whoever comes late changes nothing of it.
    let late = SandboxChange::of(&before.uid).state(SandboxState::Running).reason(None).ended(NOW + 9);
    journal.apply(vec![Change::Sandbox(late)]).await.unwrap();
    let found = journal.sandbox(&account(), &before.id).await.unwrap().unwrap();
    let end = (found.state, found.reason.as_deref(), found.ended_at_ms);
    assert_eq!(end, (SandboxState::Gone, Some("removed"), Some(NOW + 1)));
    let nobody = journal.apply(vec![Change::Sandbox(SandboxChange::of(&uid()))]).await;
    assert!(matches!(refusal(nobody), Refusal::UnknownRecord(_)));
}

#[tokio::test]
async fn changes_are_applied_all_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let sandbox = running(&journal, Some("c1"), NOW).await;
    let paused = Change::Sandbox(SandboxChange::of(&sandbox.uid).state(SandboxState::Paused));
    let unknown = Change::Sandbox(SandboxChange::of(&uid()));
    refusal(journal.apply(vec![event("a"), paused, unknown]).await);
    assert_eq!(journal.sandbox(&account(), &sandbox.id).await.unwrap().unwrap(), sandbox);
    assert_eq!(journal.events(&account(), 0, 0).await.unwrap().newest, 0);
}

#[tokio::test]
async fn pages_are_stable_while_records_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let mut made = Vec::new();
    for n in 0..25 {
        made.push(running(&journal, None, NOW + n / 3).await);
    }
    let filter = SandboxFilter { include_ended: true, ..Default::default() };
    let page = |after, include_ended| {
        let filter = SandboxFilter { include_ended, ..filter.clone() };
        let journal = &journal;
        async move { journal.sandboxes(Whose::Of(&account()), filter, Paging { after, limit: 4 }).await.unwrap() }
    };
    let mut seen = Vec::new();
    let mut next = None;
    loop {
        let found = page(next.clone(), false).await;
        seen.extend(found.items.iter().map(|s| s.id.clone()));
        // Behind the cursor, at it and before it something goes; and something comes.
        end(&journal, &made[seen.len().min(25) - 1].uid, NOW).await;
        running(&journal, Some(&format!("new-{}", seen.len())), NOW + 1_000).await;
        match found.next {
            Some(cursor) if seen.len() < 25 => next = Some(cursor.to_string().parse().unwrap()),
            _ => break,
        }
    }
    let mut expected: Vec<_> = made.iter().map(|s| s.id.clone()).collect();
    expected.sort_by_key(|id| (id.generation, id.slot.clone()));
    assert_eq!(seen[..25], expected);
    let first = page(None, true).await;
    assert_eq!(first.items.iter().map(|s| s.id.clone()).collect::<Vec<_>>(), expected[..4]);
    for wrong in ["", "1", "x.c1", "1.", "1.a b", "1.\u{e4}"] {
        assert!(wrong.parse::<Cursor>().is_err(), "{wrong}");
    }
    // A page is bounded also where nobody asks for it.
    let all = journal.sandboxes(Whose::Everyones, filter, Paging { after: None, limit: usize::MAX }).await.unwrap();
    assert_eq!((all.items.len(), all.next), (32, None));
}

#[tokio::test]
async fn listings_are_filtered() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let source = running(&journal, Some("c1"), NOW).await;
    let mut ids = Vec::new();
    for n in 0..6_i64 {
        let mut call = capture(None, (n == 2).then_some("base"));
        call.now_ms = NOW + n;
        let new = call.reservation.snapshot.as_mut().unwrap();
        new.source = (n < 4).then(|| source.id.clone());
        new.labels.insert("n".into(), (n % 2).to_string());
        ids.push(admit_new(&journal, call).await.reserved.snapshot.unwrap());
    }
    let find = |filter: SnapshotFilter| {
        let (journal, ids) = (&journal, &ids);
        async move {
            let found = journal.snapshots(Whose::Of(&account()), filter, Paging::first()).await.unwrap().items;
            found.iter().map(|s| ids.iter().position(|id| *id == s.id).unwrap()).collect::<Vec<_>>()
        }
    };
    let all = SnapshotFilter::default();
    assert_eq!(find(all.clone()).await, [0, 1, 2, 3, 4, 5]);
    assert_eq!(find(SnapshotFilter { source: Some(source.id.clone()), ..all.clone() }).await, [0, 1, 2, 3]);
    assert_eq!(find(SnapshotFilter { label: Some(("n".into(), "1".into())), ..all.clone() }).await, [1, 3, 5]);
    assert_eq!(find(SnapshotFilter { name: Some("base".into()), ..all.clone() }).await, [2]);
    let some = SnapshotFilter { since_ms: Some(NOW + 1), before_ms: Some(NOW + 3), ..all.clone() };
    assert_eq!(find(some).await, [1, 2]);
    let failed = SnapshotChange::of(&ids[3]).state(remuda_types::SnapshotState::Failed, NOW);
    journal.apply(vec![Change::Snapshot(failed)]).await.unwrap();
    assert_eq!(find(all.clone()).await, [0, 1, 2, 4, 5]);
    assert_eq!(find(SnapshotFilter { include_ended: true, ..all.clone() }).await, [0, 1, 2, 3, 4, 5]);
    let state = Some(remuda_types::SnapshotState::Failed);
    assert_eq!(find(SnapshotFilter { state, ..all }).await, [3]);
    let label = |value: &str| SandboxFilter { label: Some(("purpose".into(), value.into())), ..Default::default() };
    let count =
        |filter| async { journal.sandboxes(Whose::Everyones, filter, Paging::first()).await.unwrap().items.len() };
    assert_eq!((count(label("test")).await, count(label("other")).await), (1, 0));
}

#[tokio::test]
async fn nothing_of_one_account_is_visible_to_another() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let sandbox = running(&journal, Some("c1"), NOW).await;
    let snapshot = admit_new(&journal, capture(Some("k"), Some("base"))).await;
    let execution = ExecutionRecord {
        account: account(),
        id: ExecutionId::from_entropy(entropy()),
        sandbox: sandbox.uid.clone(),
        state: ExecutionState::Running,
        started_at_ms: NOW,
        doc: json!({}),
    };
    journal.apply(vec![Change::Execution(execution.clone()), event("a")]).await.unwrap();
    let other = "other".parse().unwrap();
    let theirs = Whose::Of(&other);
    let first = Paging::first;
    assert_eq!(journal.sandbox(&other, &sandbox.id).await.unwrap(), None);
    assert_eq!(journal.sandboxes(theirs, SandboxFilter::default(), first()).await.unwrap().items, []);
    assert_eq!(journal.newest_generation(&other, &slot("c1")).await.unwrap(), None);
    assert_eq!(journal.snapshot_by_name(&other, "base").await.unwrap(), None);
    assert_eq!(journal.snapshot(&other, &snapshot.reserved.snapshot.unwrap()).await.unwrap(), None);
    assert_eq!(journal.snapshots(theirs, SnapshotFilter::default(), first()).await.unwrap().items, []);
    assert_eq!(journal.execution(&other, &execution.id).await.unwrap(), None);
    assert_eq!(journal.executions(theirs, &sandbox.uid, first()).await.unwrap().items, []);
    assert_eq!(journal.operation(&other, &snapshot.id).await.unwrap(), None);
    assert_eq!(journal.operations_by_key(&other, &key("k")).await.unwrap(), []);
    assert_eq!(journal.events(&other, 0, 0).await.unwrap(), EventPage { events: vec![], oldest: 1, newest: 0 });
    // Nor can another account write over it.
    let stolen = ExecutionRecord { account: other.clone(), ..execution.clone() };
    assert!(matches!(refusal(journal.apply(vec![Change::Execution(stolen)]).await), Refusal::Contradiction(_)));
    assert_eq!(journal.execution(&account(), &execution.id).await.unwrap(), Some(execution));
}

#[tokio::test]
async fn credentials_are_found_by_their_digests_and_stay_revoked() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let sandbox = running(&journal, None, NOW).await;
    let mut preview = Preview {
        account: account(),
        id: PreviewId::from_entropy(entropy()),
        sandbox: sandbox.uid.clone(),
        token_hash: [1; 32],
        created_at_ms: NOW,
        expires_at_ms: Some(NOW + HOUR),
        revoked_at_ms: None,
        doc: json!({ "port": 5173 }),
    };
    let mut access_key = AccessKey {
        account: account(),
        id: AccessKeyId::from_entropy(entropy()),
        hash: [2; 32],
        scopes: vec!["sandboxes:read".into(), "usage".into()],
        narrowing: json!({ "slot": "c1" }),
        created_at_ms: NOW,
        expires_at_ms: None,
        revoked_at_ms: None,
        doc: json!({ "label": "ci" }),
    };
    let write =
        |p: &Preview, k: &AccessKey| journal.apply(vec![Change::Preview(p.clone()), Change::AccessKey(k.clone())]);
    write(&preview, &access_key).await.unwrap();
    assert_eq!(journal.preview_by_hash([1; 32]).await.unwrap(), Some(preview.clone()));
    assert_eq!(journal.access_key_by_hash([2; 32]).await.unwrap(), Some(access_key.clone()));
    assert_eq!(journal.access_key_by_hash([1; 32]).await.unwrap(), None);
    // Rotated: the old credential finds nothing.
    preview.token_hash = [3; 32];
    write(&preview, &access_key).await.unwrap();
    assert_eq!(journal.preview_by_hash([1; 32]).await.unwrap(), None);
    // Revoked, and written again by somebody who didn't know.
    let stale = (preview.clone(), access_key.clone());
    preview.revoked_at_ms = Some(NOW + 1);
    access_key.revoked_at_ms = Some(NOW + 2);
    write(&preview, &access_key).await.unwrap();
    write(&stale.0, &stale.1).await.unwrap();
    assert_eq!(journal.preview(&account(), &preview.id).await.unwrap(), Some(preview.clone()));
    assert_eq!(journal.access_key(&account(), &access_key.id).await.unwrap(), Some(access_key.clone()));
    let whose = Whose::Of(&stale.0.account);
    assert_eq!(journal.previews(whose, Some(&sandbox.uid), Paging::first()).await.unwrap().items, [preview]);
    assert_eq!(journal.access_keys(whose, Paging::first()).await.unwrap().items, [access_key]);
}

#[tokio::test]
async fn an_account_is_made_once_and_what_is_set_for_it_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    // Events alone make no account.
    journal.apply(vec![event("a")]).await.unwrap();
    assert_eq!(journal.accounts(None).await.unwrap(), []);
    let record = |name: &str, created_at_ms, doc| AccountRecord { account: name.parse().unwrap(), created_at_ms, doc };
    let set = |record| journal.apply(vec![Change::Account(record)]);
    set(record("main", NOW, json!(null))).await.unwrap();
    set(record("alpha", NOW + 1, json!({ "quotas": {} }))).await.unwrap();
    set(record("main", NOW + 2, json!({ "quotas": { "sandboxes": 3 } }))).await.unwrap();
    let main = record("main", NOW, json!({ "quotas": { "sandboxes": 3 } }));
    let all = [record("alpha", NOW + 1, json!({ "quotas": {} })), main.clone()];
    assert_eq!(journal.accounts(None).await.unwrap(), all);
    assert_eq!(journal.accounts(Some("alpha".parse().unwrap())).await.unwrap(), [main]);
    assert_eq!(journal.events(&account(), 0, 0).await.unwrap().newest, 1, "its events go on");
}

#[tokio::test]
async fn executions_are_written_soon_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let sandbox = running(&journal, None, NOW).await;
    let record = |n: i64, state| ExecutionRecord {
        account: account(),
        id: ExecutionId::from_entropy([u8::try_from(n).unwrap(); 20]),
        sandbox: sandbox.uid.clone(),
        state,
        started_at_ms: NOW + n,
        doc: json!({ "state": state.to_string() }),
    };
    for n in 0..20 {
        let running = vec![Change::Execution(record(n, ExecutionState::Running))];
        drop(journal.apply_soon(running).await.unwrap());
        let exited = vec![Change::Execution(record(n, ExecutionState::Exited))];
        drop(journal.apply_soon(exited).await.unwrap());
    }
    journal.flush().await.unwrap();
    let found = journal.executions(Whose::Of(&account()), &sandbox.uid, Paging::first()).await.unwrap().items;
    assert_eq!(found, (0..20).map(|n| record(n, ExecutionState::Exited)).collect::<Vec<_>>());
    // By itself too, and whoever awaits it learns when, or why not.
    let underway = journal.apply_soon(vec![Change::Execution(record(20, ExecutionState::Running))]).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), underway).await.unwrap().unwrap();
    assert!(journal.execution(&account(), &record(20, ExecutionState::Running).id).await.unwrap().is_some());
    let wrong = journal.apply_soon(vec![Change::Sandbox(SandboxChange::of(&uid()))]).await.unwrap();
    assert!(matches!(refusal(wrong.await), Refusal::UnknownRecord(_)));
    // One that has ended never runs again.
    journal.apply(vec![Change::Execution(record(3, ExecutionState::Running))]).await.unwrap();
    let found = journal.execution(&account(), &record(3, ExecutionState::Exited).id).await.unwrap().unwrap();
    assert_eq!(found, record(3, ExecutionState::Exited));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_of_events_see_no_gap() {
    const WRITERS: u64 = 8;
    const EACH: u64 = 50;
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let mut news = journal.watch_events(&account()).await.unwrap();
    assert_eq!(*news.borrow_and_update(), 0);
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let journal = journal.clone();
            tokio::spawn(async move {
                for n in 0..EACH {
                    // Some are refused and take their number back.
                    let refused = Change::Sandbox(SandboxChange::of(&uid()));
                    let changes = if n % 5 == 4 { vec![event("b"), refused] } else { vec![event("a")] };
                    assert_eq!(journal.apply(changes).await.is_ok(), n % 5 != 4);
                }
            })
        })
        .collect();
    let expected = WRITERS * EACH / 5 * 4;
    let mut seen = 0;
    while seen < expected {
        news.changed().await.unwrap();
        let told = *news.borrow_and_update();
        let page = journal.events(&account(), seen, 0).await.unwrap();
        assert!(page.newest >= told, "what is told of can be read");
        for event in page.events {
            assert_eq!((event.sequence, event.kind.as_str()), (seen + 1, "a"));
            seen += 1;
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(journal.events(&account(), 0, 10).await.unwrap().events.len(), 10);
    assert_eq!(*journal.watch_events(&account()).await.unwrap().borrow(), expected);
    assert!(!news.has_changed().unwrap());
}
