//! Admission: one key, one outcome; reservations with it or not at all.

use futures_util::future::join_all;
use remuda_journal::*;
use remuda_types::{Generation, OperationState, SandboxState, SnapshotState, Uid};
use serde_json::{Value, json};

use crate::world::*;

#[tokio::test]
async fn a_key_has_one_outcome() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let first = create(Some("k"), Some("c1"));
    let again = || Admission { id: create(None, None).id, ..first.clone() };
    let operation = admit_new(&journal, first.clone()).await;
    assert_eq!(operation.state, OperationState::Pending);
    assert_eq!(sandbox_id(&operation).to_string(), format!("c1@{}", Generation::from_unix_ms(NOW).unwrap()));

    let Admitted::InFlight(found) = journal.admit(again()).await.unwrap() else { panic!() };
    assert_eq!(found, operation);
    // The same is told without an admission.
    let received = async |key: &str, request: Value| {
        journal.received(&first.account, &first.scope, &crate::world::key(key), &request).await.unwrap()
    };
    assert_eq!(received("k", first.request.clone()).await, Some(Admitted::InFlight(operation.clone())));
    assert_eq!(received("k", json!({ "slot": "c2" })).await, Some(Admitted::Conflict(operation.clone())));
    assert_eq!(received("other", first.request.clone()).await, None);
    let mut other = again();
    other.request = json!({ "slot": "c2" });
    assert!(matches!(journal.admit(other.clone()).await.unwrap(), Admitted::Conflict(found) if found == operation));

    let outcome = Outcome::Done(json!({ "sandbox": sandbox_id(&operation) }));
    let Finished::Now(done) = journal.finish(&operation.id, outcome.clone(), vec![], NOW + 5).await.unwrap() else {
        panic!()
    };
    assert_eq!((done.state, done.finished_at_ms), (OperationState::Done, Some(NOW + 5)));
    let Admitted::Replay(found) = journal.admit(again()).await.unwrap() else { panic!() };
    assert_eq!(found, done);
    assert!(matches!(journal.admit(other).await.unwrap(), Admitted::Conflict(_)));

    // In another scope the key is another key, and found beside the first.
    let mut elsewhere = call(Some("k"), json!({}));
    elsewhere.scope = Scope::on("stop", sandbox_id(&operation)).unwrap();
    admit_new(&journal, elsewhere.clone()).await;
    let found = journal.operations_by_key(&account(), &key("k")).await.unwrap();
    assert_eq!(found.iter().map(|o| &o.scope).collect::<Vec<_>>(), [&first.scope, &elsewhere.scope]);
    // And so it is in another account, which sees nothing of this one.
    let stranger = "other".parse().unwrap();
    assert_eq!(journal.operations_by_key(&stranger, &key("k")).await.unwrap(), []);
    assert_eq!(journal.operation(&stranger, &operation.id).await.unwrap(), None);
    let mut theirs = again();
    theirs.account = stranger;
    theirs.reservation.sandbox.as_mut().unwrap().uid = uid();
    admit_new(&journal, theirs).await;
}

#[tokio::test]
async fn the_first_outcome_stands() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let operation = admit_new(&journal, call(Some("k"), json!({}))).await;
    let unknown = Outcome::Indeterminate(json!({ "why": "it died" }));
    let event = || Change::Event(NewEvent { account: account(), at_ms: NOW, kind: "a".into(), doc: json!(1) });
    journal.finish(&operation.id, unknown.clone(), vec![event()], NOW).await.unwrap();
    let later = journal.finish(&operation.id, Outcome::Done(json!(1)), vec![event()], NOW + 1).await.unwrap();
    let Finished::Before(stands) = later else { panic!() };
    assert_eq!(stands.outcome, Some(unknown));
    assert_eq!(journal.events(&account(), 0, 0).await.unwrap().newest, 1, "changes of the second are not applied");
    assert!(matches!(
        refusal(journal.finish(&create(None, None).id, Outcome::Done(json!(1)), vec![], NOW).await),
        Refusal::UnknownOperation(_)
    ));
}

#[tokio::test]
async fn a_step_is_taken_once() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let operation = admit_new(&journal, call(None, json!({}))).await;
    let event = || Change::Event(NewEvent { account: account(), at_ms: NOW, kind: "a".into(), doc: json!(1) });
    let step = |name: &'static str, n: u32| journal.step(&operation.id, name, json!(n), vec![event()]);
    assert_eq!(step("network", 1).await.unwrap(), Stepped::New);
    assert_eq!(step("start", 2).await.unwrap(), Stepped::New);
    assert_eq!(step("network", 3).await.unwrap(), Stepped::Before(json!(1)));
    let found = journal.unfinished(Paging::first()).await.unwrap().items.remove(0);
    let steps: Vec<_> = found.steps.iter().map(|s| (s.name.as_str(), s.data.clone())).collect();
    assert_eq!(steps, [("network", json!(1)), ("start", json!(2))]);
    assert_eq!(journal.events(&account(), 0, 0).await.unwrap().newest, 2);
    journal.finish(&operation.id, Outcome::Failed(json!("no")), vec![], NOW).await.unwrap();
    assert_eq!(step("start", 4).await.unwrap(), Stepped::Before(json!(2)), "repeating is safe after the end too");
    assert_eq!(refusal(step("more", 5).await), Refusal::OperationEnded(operation.id.clone()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_64_at_once_exactly_one_is_new() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    for round in 0..20 {
        let name = format!("key-{round}");
        let calls = (0..64).map(|_| {
            let (journal, mut call) = (journal.clone(), create(Some(&name), None));
            call.request = json!({});
            tokio::spawn(async move { journal.admit(call).await.unwrap() })
        });
        let answers: Vec<_> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
        let new: Vec<_> =
            answers.iter().filter_map(|a| if let Admitted::New(o) = a { Some(o) } else { None }).collect();
        assert_eq!(new.len(), 1);
        let same = |a: &Admitted| matches!(a, Admitted::New(o) | Admitted::InFlight(o) if o.id == new[0].id);
        assert!(answers.iter().all(same));
    }
    let all = journal.sandboxes(Whose::Of(&account()), SandboxFilter::default(), Paging::first()).await.unwrap();
    assert_eq!(all.items.len(), 20, "one reservation for each key");
}

/// The same from threads that each have their own runtime, as little related as threads of one process can be.
#[test]
fn of_64_threads_exactly_one_is_new() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let start = std::sync::Barrier::new(64);
    let new: usize = std::thread::scope(|threads| {
        let one = || {
            let mut call = create(Some("k"), None);
            call.request = json!({});
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            start.wait();
            usize::from(matches!(runtime.block_on(journal.admit(call)).unwrap(), Admitted::New(_)))
        };
        let all: Vec<_> = (0..64).map(|_| threads.spawn(one)).collect();
        all.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(new, 1);
}

#[tokio::test]
async fn a_refused_admission_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let first = admit_new(&journal, create(None, Some("c1"))).await;
    let mut second = create(Some("k"), Some("c1"));
    second.reservation.snapshot = Some(new_snapshot(Some("base")));
    second.reservation.counts = vec![Count { name: "starts".into(), period: "2026-10".into(), amount: 1, limit: None }];
    let taken = refusal(journal.admit(second.clone()).await);
    assert_eq!(taken, Refusal::SlotInUse { slot: slot("c1"), occupant: sandbox_id(&first) });
    assert_eq!(journal.used(&account()).await.unwrap(), []);
    assert_eq!(journal.snapshot_by_name(&account(), "base").await.unwrap(), None);
    assert_eq!(journal.operations_by_key(&account(), &key("k")).await.unwrap(), []);
    // The same key may come again, once the reason is gone.
    let uid = journal.sandbox(&account(), &sandbox_id(&first)).await.unwrap().unwrap().uid;
    end(&journal, &uid, NOW).await;
    let operation = admit_new(&journal, second).await;
    assert!(sandbox_id(&operation).generation > sandbox_id(&first).generation);
    assert_eq!(journal.used(&account()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_cancelled_key_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let forbid = |k: &'static str| {
        let journal = journal.clone();
        async move { journal.forbid(&account(), &scope(), &key(k), NOW).await.unwrap() }
    };
    assert_eq!(forbid("early").await, Forbidden::Forbidden);
    assert_eq!(forbid("early").await, Forbidden::Forbidden);
    assert_eq!(refusal(journal.admit(call(Some("early"), json!({}))).await), Refusal::Cancelled(key("early")));
    assert_eq!(journal.operations_by_key(&account(), &key("early")).await.unwrap(), []);
    // In another scope it is another key.
    let mut elsewhere = call(Some("early"), json!({}));
    elsewhere.scope = Scope::new("capture").unwrap();
    admit_new(&journal, elsewhere).await;

    let operation = admit_new(&journal, call(Some("late"), json!({}))).await;
    assert_eq!(forbid("late").await, Forbidden::Admitted(Box::new(operation)));
    assert!(matches!(journal.admit(call(Some("late"), json!({}))).await.unwrap(), Admitted::InFlight(_)));
}

#[tokio::test]
async fn generations_grow_when_the_clock_steps_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut last = None;
    for (round, now_ms) in [NOW, NOW, NOW - 7 * 24 * HOUR, 1, NOW + 3, NOW - 1].into_iter().enumerate() {
        // In between the server ends: it is the journal that remembers.
        let journal = open(directory.path());
        let record = running(&journal, Some("c1"), now_ms).await;
        assert!(last.is_none_or(|last| record.id.generation > last), "round {round}");
        last = Some(record.id.generation);
        end(&journal, &record.uid, now_ms).await;
    }
    assert_eq!(last.unwrap().unix_ms(), NOW + 5);
}

#[tokio::test]
async fn the_first_free_slot_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let mut uids = Vec::new();
    for n in 1..=12 {
        let record = running(&journal, None, NOW).await;
        assert_eq!(record.id.slot, slot(&format!("c{n}")));
        uids.push(record.uid);
    }
    running(&journal, Some("c13"), NOW).await;
    end(&journal, &uids[4], NOW).await;
    assert_eq!(running(&journal, None, NOW).await.id.slot, slot("c5"));
    assert_eq!(running(&journal, None, NOW).await.id.slot, slot("c14"));
}

#[tokio::test]
async fn a_stopped_generation_is_continued_by_one() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let old = running(&journal, Some("c1"), NOW).await;
    let start = || {
        let mut call = create(None, None);
        call.reservation.sandbox.as_mut().unwrap().continues = Some(old.id.clone());
        call
    };
    let uid_of = |call: &Admission| -> Uid { call.reservation.sandbox.as_ref().unwrap().uid.clone() };
    let stopped = SandboxChange::of(&old.uid).state(SandboxState::Stopped);
    journal.apply(vec![Change::Sandbox(stopped)]).await.unwrap();

    let failing = start();
    let uid = uid_of(&failing);
    let operation = admit_new(&journal, failing).await;
    let new = sandbox_id(&operation);
    let given_up = journal.sandbox(&account(), &old.id).await.unwrap().unwrap();
    assert_eq!((given_up.continued_as, given_up.ended_at_ms), (Some(new.clone()), Some(NOW)));
    assert_eq!(refusal(journal.admit(start()).await), Refusal::NotContinuable(old.id.clone()));
    // It never comes up: the old one has its slot again, as if nothing had been.
    let failed = SandboxChange::of(&uid).state(SandboxState::Failed).ended(NOW + 1).hands_back();
    let changes = vec![Change::Sandbox(failed)];
    journal.finish(&operation.id, Outcome::Failed(json!("no")), changes, NOW + 1).await.unwrap();
    let back = journal.sandbox(&account(), &old.id).await.unwrap().unwrap();
    assert_eq!((back.state, back.continued_as, back.ended_at_ms), (SandboxState::Stopped, None, None));

    let operation = admit_new(&journal, start()).await;
    assert!(sandbox_id(&operation).generation > new.generation);
    let record = journal.sandbox(&account(), &sandbox_id(&operation)).await.unwrap().unwrap();
    assert_eq!((record.state, record.continues), (SandboxState::Starting, Some(old.id.clone())));
}

#[tokio::test]
async fn a_name_belongs_to_one_snapshot_that_is_or_will_be_active() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let first = admit_new(&journal, capture(None, Some("base"))).await.reserved.snapshot.unwrap();
    let taken = Refusal::NameTaken { name: "base".into(), owner: first.clone() };
    assert_eq!(refusal(journal.admit(capture(None, Some("base"))).await), taken);
    let state = |id, state| Change::Snapshot(SnapshotChange::of(id).state(state, NOW));
    journal.apply(vec![state(&first, SnapshotState::Active)]).await.unwrap();
    assert_eq!(refusal(journal.admit(capture(None, Some("base"))).await), taken);
    let other = admit_new(&journal, capture(None, None)).await.reserved.snapshot.unwrap();
    let rename = |id| Change::Snapshot(SnapshotChange::of(id).name(Some("base".into())));
    assert_eq!(refusal(journal.apply(vec![rename(&other)]).await), taken);
    // Another account has names of its own.
    let mut theirs = capture(None, Some("base"));
    theirs.account = "other".parse().unwrap();
    admit_new(&journal, theirs).await;
    // One takes it over from the other, in one transaction.
    let free = Change::Snapshot(SnapshotChange::of(&first).name(None));
    journal.apply(vec![free, rename(&other)]).await.unwrap();
    assert_eq!(journal.snapshot_by_name(&account(), "base").await.unwrap().unwrap().id, other);
    journal.apply(vec![state(&other, SnapshotState::Deleting), rename(&first)]).await.unwrap();
    assert_eq!(journal.snapshot_by_name(&account(), "base").await.unwrap().unwrap().id, first);
    // What failed stays failed.
    journal.apply(vec![state(&first, SnapshotState::Failed), state(&first, SnapshotState::Active)]).await.unwrap();
    let record = journal.snapshot(&account(), &first).await.unwrap().unwrap();
    assert_eq!((record.state, record.ended_at_ms), (SnapshotState::Failed, Some(NOW)));
}

#[tokio::test]
async fn quotas_are_held_released_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let with = |amount| {
        let mut call = create(None, None);
        let holder = Holder::from(&call.reservation.sandbox.as_ref().unwrap().uid);
        let hold = Hold { holder: holder.clone(), name: "memory_mib".into(), amount, limit: Some(10) };
        call.reservation.holds = vec![hold];
        let count = Count { name: "starts".into(), period: "2026-10".into(), amount: 1, limit: Some(3) };
        call.reservation.counts = vec![count];
        (call, holder)
    };
    let used = || async { journal.used(&account()).await.unwrap().into_iter().map(|u| u.amount).collect::<Vec<_>>() };
    let (call, first) = with(6);
    admit_new(&journal, call).await;
    let limit = |current, wanted| Refusal::Limit { name: "memory_mib".into(), limit: 10, current, wanted };
    assert_eq!(refusal(journal.admit(with(5).0).await), limit(6, 5));
    let (call, second) = with(4);
    admit_new(&journal, call).await;
    assert_eq!(used().await, [10, 2]);
    let hold = |amount| Hold { holder: second.clone(), name: "memory_mib".into(), amount, limit: Some(10) };
    assert_eq!(refusal(journal.apply(vec![Change::Hold(account(), hold(5))]).await), limit(10, 1));
    journal.apply(vec![Change::Hold(account(), hold(1))]).await.unwrap();
    assert_eq!(used().await, [7, 2]);
    for _ in 0..2 {
        journal.apply(vec![Change::Release(first.clone())]).await.unwrap();
        assert_eq!(used().await, [1, 2]);
    }
    assert_eq!(journal.held(&account(), &first).await.unwrap(), []);
    assert_eq!(journal.held(&account(), &second).await.unwrap()[0].amount, 1);
    assert_eq!(journal.all_held(None).await.unwrap().len(), 1);
    admit_new(&journal, with(1).0).await;
    assert!(matches!(refusal(journal.admit(with(1).0).await), Refusal::Limit { name, .. } if name == "starts"));
    assert_eq!(used().await, [2, 3], "what the refused one would have held is not held");
}

#[tokio::test]
async fn limits_are_refusals() {
    let directory = tempfile::tempdir().unwrap();
    let journal = open(directory.path());
    let operation = admit_new(&journal, call(None, json!({}))).await;
    let long = "x".repeat(limits::STEP_BYTES_MAX);
    let step = journal.step(&operation.id, "a", json!(long), vec![]).await;
    assert!(matches!(refusal(step), Refusal::TooLarge { name: "step_bytes_max", .. }));
    let long = json!("x".repeat(limits::OUTCOME_BYTES_MAX));
    let finish = journal.finish(&operation.id, Outcome::Done(long), vec![], NOW).await;
    assert!(matches!(refusal(finish), Refusal::TooLarge { name: "outcome_bytes_max", .. }));
    for n in 0..limits::STEPS_MAX {
        journal.step(&operation.id, &format!("step-{n}"), json!(n), vec![]).await.unwrap();
    }
    let one_more = journal.step(&operation.id, "more", json!(1), vec![]).await;
    assert!(matches!(refusal(one_more), Refusal::Limit { name, .. } if name == "steps_max"));
    let releases = vec![Change::Release(Holder::from(&uid())); limits::CHANGES_MAX + 1];
    assert!(matches!(refusal(journal.apply(releases).await), Refusal::Limit { name, .. } if name == "changes_max"));
}
