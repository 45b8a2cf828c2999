//! Tests of the verdict rules: cases by name, and properties over everything that can be observed.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::observe::{Action, Answer, Listing, Liveness, Markers};

const PATCH: &str = "5e1f";

fn expectation() -> Expectation {
    Expectation {
        pid: 7,
        nonce: "source-nonce".into(),
        preparation: "run-source".into(),
        processor: PATCH.into(),
        patched: true,
        ledger: Ledger::from_seed(12346, 5, 2),
    }
}

fn exchange(status: u16, body: impl Into<String>) -> Exchange {
    let cache_control = Some("no-store".to_owned());
    let answer = Answer::Response { status, cache_control, body: body.into() };
    Exchange { at_ms: 0, took_ms: 1, attempts: 1, method: "GET".into(), path: "/".into(), sent: None, answer }
}

fn broken() -> Exchange {
    Exchange { answer: Answer::Error { message: "connection reset".into() }, ..exchange(200, "") }
}

fn status(pending: u64, marker: Option<&str>, released: bool) -> Value {
    let fingerprint =
        if pending == 5 { expectation().ledger.fingerprint() } else { Ledger::from_seed(1, 0, 0).fingerprint() };
    json!({
        "pid": 7, "nonce": "source-nonce", "preparation": "run-source", "pending": pending, "fingerprint": fingerprint,
        "marker": marker, "released": released, "completed": released,
    })
}

fn with(mut value: Value, member: &str, to: Value) -> Exchange {
    value[member] = to;
    exchange(200, value.to_string())
}

fn ok(what: &str) -> Action {
    Action { at_ms: 0, took_ms: 1, what: what.into(), error: None }
}

fn sighting(marker: Option<&str>, files: &[&str]) -> Sighting {
    Sighting {
        status: exchange(200, status(5, marker, false).to_string()),
        files: Listing { at_ms: 0, folder: "/w".into(), names: Ok(files.iter().map(|f| (*f).to_owned()).collect()) },
    }
}

fn right_receipts() -> Vec<Value> {
    expectation().ledger.jobs.iter().map(|job| json!({"id": job.id, "amountCents": job.amount_cents()})).collect()
}

fn faulty_receipts() -> Vec<Value> {
    let jobs = expectation().ledger.jobs;
    right_receipts().into_iter().zip(jobs).filter(|(_, job)| !job.is_free()).map(|(receipt, _)| receipt).collect()
}

fn results(receipts: &[Value]) -> Exchange {
    exchange(200, json!({"completed": true, "processor": PATCH, "receipts": receipts}).to_string())
}

/// A branch in which all went well and these receipts were shown.
fn branch(receipts: &[Value]) -> Attempt {
    Attempt {
        machine: Some("b1".into()),
        no_machine: None,
        before: Some(exchange(200, status(5, None, false).to_string())),
        markers: Some(Markers {
            memory: "mine".into(),
            file: "marker-mine".into(),
            set: exchange(200, r#"{"marker":"mine"}"#),
            put: ok("put marker"),
        }),
        sighting: Some(sighting(Some("mine"), &["server.mjs", "marker-mine"])),
        put: Some(ok("put processor.mjs")),
        release: Some(exchange(200, "{}")),
        results: Some(results(receipts)),
        after: Some(exchange(200, status(0, Some("mine"), true).to_string())),
        liveness: Some(Liveness { at_ms: 0, pid: 7, runs: Ok(Some(true)) }),
    }
}

fn verdict_of(attempt: &Attempt) -> (Verdict, Rule) {
    let source = sighting(None, &["server.mjs"]);
    let other = sighting(Some("theirs"), &["server.mjs", "marker-theirs"]);
    let (source, other) = (shown(Some(&source)), shown(Some(&other)));
    let sightings = [("the source", &source), ("other", &other)];
    let judgement = judge(&expectation(), attempt, Some(Others { sightings: &sightings }));
    assert_eq!(judgement.verdict, judgement.rule.verdict());
    (judgement.verdict, judgement.rule)
}

#[track_caller]
fn assert_branch(change: impl FnOnce(&mut Attempt), verdict: Verdict, rule: Rule) {
    let mut attempt = branch(&right_receipts());
    change(&mut attempt);
    assert_eq!(verdict_of(&attempt), (verdict, rule));
}

#[track_caller]
fn assert_receipts(receipts: &[Value], verdict: Verdict) {
    assert_eq!(verdict_of(&branch(receipts)).0, verdict, "{receipts:?}");
}

#[test]
fn the_three_controls_get_their_verdicts() {
    assert_receipts(&faulty_receipts(), Verdict::Reproduced);
    assert_receipts(&right_receipts(), Verdict::Passed);
    assert_receipts(&[], Verdict::Failed);
}

#[test]
fn what_receipts_say_is_weighed_not_how_many_there_are() {
    let right = right_receipts();
    let mut twice = right.clone();
    twice[4] = twice[0].clone();
    assert_receipts(&twice, Verdict::Failed);
    let mut one_more = right.clone();
    one_more.push(right[0].clone());
    assert_receipts(&one_more, Verdict::Failed);
    let mut unknown = right.clone();
    unknown.push(json!({"id": "job-6", "amountCents": 0}));
    assert_receipts(&unknown, Verdict::Failed);
    for amount in [json!(1), json!(-1), json!(null), json!("0"), json!(0.5)] {
        let mut wrong = right.clone();
        wrong[0]["amountCents"] = if amount == wrong[0]["amountCents"] { json!(2) } else { amount };
        assert_receipts(&wrong, Verdict::Failed);
    }
    for odd in [json!(null), json!([]), json!({"id": 1}), json!("job")] {
        let mut with_odd = right.clone();
        with_odd.push(odd);
        assert_receipts(&with_odd, Verdict::Failed);
    }
    let mut fault_and_more = faulty_receipts();
    fault_and_more.pop();
    assert_receipts(&fault_and_more, Verdict::Failed);
    let mut fault_with_wrong_amount = faulty_receipts();
    fault_with_wrong_amount[0]["amountCents"] = json!(1_000_000);
    assert_receipts(&fault_with_wrong_amount, Verdict::Failed);
    let free_only: Vec<_> = right.iter().filter(|r| r["amountCents"] == 0).cloned().collect();
    assert_receipts(&free_only, Verdict::Failed);
}

#[test]
fn a_lying_completed_flag_changes_nothing() {
    // In the results it is what every patch says; in the status it is not even read at the end.
    for receipts in [&[][..], &faulty_receipts()] {
        let honest = verdict_of(&branch(receipts));
        let mut lying = branch(receipts);
        lying.after = Some(with(status(0, None, true), "completed", json!(true)));
        assert_eq!(verdict_of(&lying), honest);
        assert_ne!(honest.0, Verdict::Passed);
    }
}

#[test]
fn another_identity_before_the_release_is_a_lost_reproduction() {
    for (member, value) in [
        ("nonce", json!("another")),
        ("pid", json!(8)),
        ("preparation", json!("run-twin")),
        ("pending", json!(0)),
        ("fingerprint", json!("00")),
    ] {
        let changed = with(status(5, None, false), member, value);
        assert_branch(|b| b.before = Some(changed.clone()), Verdict::ReproductionLost, Rule::PreparedWorkAbsent);
        // Also where everything after it is broken: the prepared work is not there, and that is known.
        let everything_else_broken = |b: &mut Attempt| {
            *b = Attempt { before: Some(changed.clone()), machine: Some("b".into()), ..Attempt::default() }
        };
        assert_branch(everything_else_broken, Verdict::ReproductionLost, Rule::PreparedWorkAbsent);
    }
}

#[test]
fn a_process_that_is_gone_is_known_whatever_answers_in_its_place() {
    let said = |runs| Some(Liveness { at_ms: 0, pid: 7, runs });
    assert_branch(|b| b.liveness = said(Ok(Some(false))), Verdict::Unverified, Rule::AnotherProcessAfter);
    assert_branch(|b| b.liveness = said(Err("no answer".into())), Verdict::Unverified, Rule::UnreadableAfter);
    let other = Some(Liveness { at_ms: 0, pid: 8, runs: Ok(Some(true)) });
    assert_branch(|b| b.liveness = other, Verdict::Unverified, Rule::AnotherProcessAfter);
    // A provider that can't tell is a gap and no failure.
    assert_branch(|b| b.liveness = said(Ok(None)), Verdict::Passed, Rule::AllReceipts);
    let mut gone = branch(&right_receipts());
    gone.liveness = said(Ok(Some(false)));
    assert!(!judge(&expectation(), &gone, None).inherited);
}

#[test]
fn a_detail_is_one_line_and_not_endless_whatever_a_guest_says() {
    let processor = format!("\u{1b}[31m\n{}", "x".repeat(100_000));
    let told = json!({"completed": true, "processor": processor, "receipts": []});
    let odd = Attempt { results: Some(exchange(200, told.to_string())), ..branch(&[]) };
    let detail = judge(&expectation(), &odd, None).detail;
    assert!(detail.chars().count() <= DETAIL_CHARACTERS_MAX + 1 && !detail.contains(char::is_control), "{detail}");
}

#[test]
fn a_wrong_identity_only_afterwards_is_unverified() {
    for (member, value) in [("nonce", json!("another")), ("pid", json!(8)), ("preparation", json!("x"))] {
        let changed = with(status(0, None, true), member, value);
        assert_branch(|b| b.after = Some(changed), Verdict::Unverified, Rule::AnotherProcessAfter);
    }
}

#[test]
fn what_can_not_be_read_is_unverified() {
    assert_branch(|b| b.before = Some(broken()), Verdict::Unverified, Rule::UnreadableBefore);
    assert_branch(|b| b.before = None, Verdict::Unverified, Rule::UnreadableBefore);
    assert_branch(|b| b.release = Some(broken()), Verdict::Unverified, Rule::ReleaseFailed);
    assert_branch(|b| b.release = Some(exchange(500, "no")), Verdict::Unverified, Rule::ReleaseFailed);
    assert_branch(|b| b.results = Some(broken()), Verdict::Unverified, Rule::ResultsUnreadable);
    assert_branch(|b| b.results = None, Verdict::Unverified, Rule::ResultsUnreadable);
    assert_branch(|b| b.after = Some(broken()), Verdict::Unverified, Rule::UnreadableAfter);
    for (code, body) in [(401, "{}"), (302, ""), (502, "bad gateway"), (200, "<html>"), (200, "{}"), (200, "")] {
        assert_branch(|b| b.before = Some(exchange(code, body)), Verdict::Unverified, Rule::UnreadableBefore);
        assert_branch(|b| b.results = Some(exchange(code, body)), Verdict::Unverified, Rule::ResultsUnreadable);
        assert_branch(|b| b.after = Some(exchange(code, body)), Verdict::Unverified, Rule::UnreadableAfter);
    }
}

#[test]
fn an_answer_that_may_be_an_old_one_is_not_read() {
    let cached = |mut exchange: Exchange| {
        if let Answer::Response { cache_control, .. } = &mut exchange.answer {
            *cache_control = Some("max-age=60".into());
        }
        exchange
    };
    let before = branch(&[]).before.unwrap();
    assert_branch(|b| b.before = Some(cached(before)), Verdict::Unverified, Rule::UnreadableBefore);
    assert_branch(|b| b.results = b.results.take().map(cached), Verdict::Unverified, Rule::ResultsUnreadable);
}

#[test]
fn a_patch_that_was_not_put_or_not_loaded_is_unverified() {
    assert_branch(|b| b.put = None, Verdict::Unverified, Rule::PatchNotPut);
    let failed = Action { error: Some("disk full".into()), ..ok("put") };
    assert_branch(|b| b.put = Some(failed), Verdict::Unverified, Rule::PatchNotPut);
    for processor in [json!("another"), json!(null)] {
        let body = json!({"completed": true, "processor": processor, "receipts": right_receipts()});
        let other = exchange(200, body.to_string());
        assert_branch(|b| b.results = Some(other), Verdict::Unverified, Rule::PatchNotLoaded);
    }
    let early = exchange(200, with_value(status(5, None, false), "released", json!(true)).to_string());
    assert_branch(|b| b.before = Some(early), Verdict::Unverified, Rule::ReleasedTooEarly);
}

fn with_value(mut value: Value, member: &str, to: Value) -> Value {
    value[member] = to;
    value
}

#[test]
fn work_that_never_completed_is_unverified() {
    let body = json!({"completed": false, "processor": PATCH, "receipts": right_receipts()});
    let open = exchange(200, body.to_string());
    assert_branch(|b| b.results = Some(open), Verdict::Unverified, Rule::NotCompleted);
}

#[test]
fn a_branch_that_never_came_up_is_unverified() {
    let none = Attempt { no_machine: Some("engine failed".into()), ..Attempt::default() };
    assert_eq!(verdict_of(&none), (Verdict::Unverified, Rule::NoMachine));
}

#[test]
fn markers_must_be_where_they_were_set_and_nowhere_else() {
    let mine = Some(sighting(None, &["marker-mine"]));
    assert_branch(|b| b.sighting = mine, Verdict::Unverified, Rule::NotIsolated);
    let mine = Some(sighting(Some("theirs"), &["marker-mine"]));
    assert_branch(|b| b.sighting = mine, Verdict::Unverified, Rule::NotIsolated);
    let mine = Some(sighting(Some("mine"), &["marker-theirs"]));
    assert_branch(|b| b.sighting = mine, Verdict::Unverified, Rule::NotIsolated);
    assert_branch(|b| b.sighting = None, Verdict::Unverified, Rule::NotIsolated);
    assert_branch(|b| b.markers = None, Verdict::Unverified, Rule::NotIsolated);

    let attempt = branch(&right_receipts());
    let judged = |other: Option<&Sighting>| {
        judge(&expectation(), &attempt, Some(Others { sightings: &[("the source", &shown(other))] })).rule
    };
    assert_eq!(judged(Some(&sighting(None, &[]))), Rule::AllReceipts);
    assert_eq!(judged(Some(&sighting(Some("mine"), &[]))), Rule::NotIsolated, "seen in another memory");
    assert_eq!(judged(Some(&sighting(None, &["marker-mine"]))), Rule::NotIsolated, "seen in other files");
    assert_eq!(judged(None), Rule::NotIsolated, "not asked");
    assert_eq!(judged(Some(&Sighting { status: broken(), ..sighting(None, &[]) })), Rule::NotIsolated, "not readable");
}

#[test]
fn a_twin_needs_no_patch_and_no_markers() {
    let expected = Expectation { patched: false, ..expectation() };
    let twin = Attempt { markers: None, sighting: None, put: None, ..branch(&faulty_receipts()) };
    assert_eq!(judge(&expected, &twin, None).verdict, Verdict::Reproduced);
}

#[test]
fn a_process_is_inherited_only_if_it_answers_before_and_after() {
    let inherited = |attempt: &Attempt| judge(&expectation(), attempt, None).inherited;
    assert!(inherited(&branch(&[])));
    assert!(!inherited(&Attempt { after: Some(with(status(0, None, true), "nonce", json!("x"))), ..branch(&[]) }));
    assert!(!inherited(&Attempt { before: Some(with(status(5, None, false), "pid", json!(9))), ..branch(&[]) }));
    assert!(!inherited(&Attempt { after: None, ..branch(&[]) }));
}

#[test]
fn the_source_is_unchanged_only_if_nothing_about_it_changed() {
    let state = |end: Option<Exchange>| source_state(&expectation(), &SourceWatch { sighting: None, end });
    assert_eq!(
        state(Some(exchange(200, status(5, None, false).to_string()))),
        SourceState { pending: Some(5), unchanged: true }
    );
    for (member, value) in [
        ("pending", json!(4)),
        ("nonce", json!("x")),
        ("pid", json!(1)),
        ("fingerprint", json!("x")),
        ("marker", json!("mine")),
        ("released", json!(true)),
        ("completed", json!(true)),
    ] {
        assert!(!state(Some(with(status(5, None, false), member, value))).unchanged, "{member}");
    }
    assert_eq!(state(Some(broken())), SourceState { pending: None, unchanged: false });
    assert_eq!(state(None), SourceState { pending: None, unchanged: false });
}

#[test]
fn a_machine_is_prepared_only_with_the_whole_queue_of_the_ledger() {
    let ledger = expectation().ledger;
    let good = exchange(200, status(5, None, false).to_string());
    assert_eq!(prepared("run-source", &ledger, Some(&good)).unwrap().pid, 7);
    assert!(prepared("run-twin", &ledger, Some(&good)).is_err());
    assert!(prepared("run-source", &Ledger::from_seed(1, 5, 2), Some(&good)).is_err());
    assert!(prepared("run-source", &ledger, Some(&broken())).is_err());
}

/// Receipts as a patch may leave them: right, dropped, doubled, with another amount, or never submitted.
fn any_receipts() -> impl Strategy<Value = Vec<Value>> {
    let each = prop::collection::vec(0u8..5, 5);
    (each, any::<bool>(), any::<prop::sample::Index>()).prop_map(|(changes, foreign, turn)| {
        let mut receipts = Vec::new();
        for (receipt, change) in right_receipts().into_iter().zip(changes) {
            match change {
                0 | 1 => receipts.push(receipt),
                2 => {}
                3 => receipts.extend([receipt.clone(), receipt]),
                _ => receipts.push(with_value(
                    receipt.clone(),
                    "amountCents",
                    json!(receipt["amountCents"].as_i64().unwrap() + 1),
                )),
            }
        }
        if foreign && receipts.len() == 2 {
            receipts.push(json!({"id": "job-x", "amountCents": 1}));
        }
        if !receipts.is_empty() {
            let by = turn.index(receipts.len());
            receipts.rotate_left(by);
        }
        receipts
    })
}

fn sorted(receipts: &[Value]) -> Vec<String> {
    let mut texts: Vec<_> = receipts.iter().map(Value::to_string).collect();
    texts.sort();
    texts
}

/// Some exchange, good or not, that has nothing to do with the right one.
fn any_exchange() -> impl Strategy<Value = Option<Exchange>> {
    prop_oneof![
        Just(None),
        Just(Some(broken())),
        (100u16..600, "\\PC{0,60}").prop_map(|(code, body)| Some(exchange(code, body))),
        (0u64..6, any::<bool>())
            .prop_map(|(pending, released)| Some(exchange(200, status(pending, None, released).to_string()))),
        any_receipts().prop_map(|receipts| Some(results(&receipts))),
    ]
}

proptest! {
    #[test]
    fn receipts_decide_as_a_set_of_their_contents(receipts in any_receipts()) {
        // The oracle compares whole lists of texts, and knows no ids.
        let expected = if sorted(&receipts) == sorted(&right_receipts()) {
            Verdict::Passed
        } else if sorted(&receipts) == sorted(&faulty_receipts()) {
            Verdict::Reproduced
        } else {
            Verdict::Failed
        };
        prop_assert_eq!(verdict_of(&branch(&receipts)).0, expected);
    }

    #[test]
    fn nothing_but_a_whole_good_branch_passes(
        before in any_exchange(), release in any_exchange(), results in any_exchange(), after in any_exchange(), which in 1u8..16,
    ) {
        let mut attempt = branch(&right_receipts());
        let whole = attempt.clone();
        if which & 1 != 0 { attempt.before = before; }
        if which & 2 != 0 { attempt.release = release; }
        if which & 4 != 0 { attempt.results = results; }
        if which & 8 != 0 { attempt.after = after; }
        let judgement = judge(&expectation(), &attempt, None);
        if judgement.verdict == Verdict::Passed {
            // Then every reading says what the whole one says about the work.
            prop_assert_eq!(reading::status(attempt.before.as_ref()), reading::status(whole.before.as_ref()));
            prop_assert!(reading::expect_status(attempt.release.as_ref(), 200).is_ok());
            let shown = reading::results(attempt.results.as_ref()).unwrap();
            prop_assert_eq!(shown.receipts.len(), 5);
            prop_assert!(judgement.inherited);
        }
    }

    #[test]
    fn another_nonce_before_is_lost_whatever_follows(
        nonce in "[a-f0-9]{32}", release in any_exchange(), results in any_exchange(), after in any_exchange(),
    ) {
        let before = Some(with(status(5, None, false), "nonce", json!(nonce)));
        let attempt = Attempt { before, release, results, after, ..branch(&[]) };
        prop_assert_eq!(verdict_of(&attempt).0, Verdict::ReproductionLost);
    }

    #[test]
    fn no_body_of_a_guest_makes_judging_panic(body in "\\PC{0,200}", code: u16) {
        let odd = Some(exchange(code, body));
        for place in 0..4 {
            let mut attempt = branch(&right_receipts());
            *[&mut attempt.before, &mut attempt.release, &mut attempt.results, &mut attempt.after][place] = odd.clone();
            let _ = verdict_of(&attempt);
        }
    }

    #[test]
    fn recorded_observations_give_the_same_judgement_again(
        before in any_exchange(), results in any_exchange(), after in any_exchange(),
    ) {
        let attempt = Attempt { before, results, after, ..branch(&right_receipts()) };
        let text = serde_json::to_string(&(expectation(), &attempt)).unwrap();
        let (expected, again): (Expectation, Attempt) = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(judge(&expected, &again, None), judge(&expectation(), &attempt, None));
    }
}
