//! Whole comparisons with the real worker under this machine's Node, on a provider that is not the product: what the
//! harness asks, what it concludes, and that it cleans up. The product itself is compared where its server is built.

mod evidence;
mod local;

use std::path::Path;
use std::sync::{Arc, Mutex};

use local::{Behaviour, Local};
use remuda_rodeo::evidence::key::Signer;
use remuda_rodeo::evidence::verify::verify;
use remuda_rodeo::verdict::Rule;
use remuda_rodeo::{Attempts, RunError, RunOptions, RunReport, Verdict, page, run_with};
use remuda_types::SnapshotMode;
use serde_json::Value;

struct Ran {
    provider: Local,
    result: Result<RunReport, RunError>,
    folder: tempfile::TempDir,
}

async fn compare(behaviour: Behaviour, change: impl FnOnce(&mut RunOptions)) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let provider = Local::new(&folder.path().join("machines"), behaviour);
    let mut options = RunOptions::new("worker", folder.path().join("evidence"), Signer::generate().unwrap());
    change(&mut options);
    let result = run_with(provider.clone(), options, None).await;
    Ran { provider, result, folder }
}

fn record(report: &RunReport, name: &str) -> Value {
    let path = Path::new(&report.evidence).join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn verdicts(report: &RunReport) -> Vec<(&str, Verdict, Option<u64>)> {
    report.branches.iter().map(|b| (b.patch.as_str(), b.verdict, b.observed.receipts)).collect()
}

/// One good run, looked at in every way: each run starts six Node processes.
#[tokio::test]
async fn a_memory_comparison_gives_the_known_verdicts_and_leaves_nothing_but_evidence() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let hear = said.clone();
    let ran =
        compare(Behaviour::Good, |o| o.progress = Arc::new(move |p| hear.lock().unwrap().push(p.to_string()))).await;
    let report = ran.result.unwrap();
    assert_eq!(report.problems(), Vec::<String>::new());
    assert_eq!(report.exit_code(), 0);
    assert_eq!(
        verdicts(&report),
        [
            ("none", Verdict::Reproduced, Some(3)),
            ("correct", Verdict::Passed, Some(5)),
            ("misleading", Verdict::Failed, Some(0)),
        ]
    );
    let first = &report.branches[0].process;
    assert!(report.branches.iter().all(|b| b.process == *first && b.process.inherited && b.expected.receipts == 5));
    assert_eq!((report.source.pending, report.source.unchanged), (Some(5), true));
    assert_eq!(report.cold_control.as_ref().unwrap().verdict, Verdict::ReproductionLost);
    assert_eq!(ran.provider.living(), 0);
    // Source and twin; the imitated fork submits by itself.
    assert_eq!(
        ran.provider.calls("POST /jobs"),
        2,
        "the harness submits to the source and the twin, never to a branch"
    );
    // Twin, three branches, cold control.
    assert_eq!(ran.provider.calls("POST /release"), 5);
    assert!(said.lock().unwrap().iter().any(|line| line == "correct: passed"));
    the_json_object_has_the_members_that_scripts_rely_on(&report);
    evidence_holds_every_raw_observation(&report);
    a_cold_worker_that_says_completed_is_told_from_a_repair(&report);
}

fn the_json_object_has_the_members_that_scripts_rely_on(report: &RunReport) {
    let json = serde_json::to_value(report).unwrap();
    let members = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(members(&json), "baseline branches cold_control evidence mode provider seed source timings_ms workload");
    assert_eq!(members(&json["baseline"]), "verdict");
    assert_eq!(members(&json["branches"][1]), "expected observed patch process verdict");
    assert_eq!(members(&json["branches"][1]["process"]), "inherited nonce pid");
    assert_eq!(members(&json["cold_control"]), "patch verdict");
    assert_eq!(json["branches"][0]["expected"]["receipts"], 5);
    assert_eq!(json["branches"][0]["observed"]["receipts"], 3);
    assert_eq!(json["source"], serde_json::json!({"pending": 5, "unchanged": true}));
    assert_eq!((&json["mode"], &json["seed"]), (&"memory".into(), &12346.into()));
    assert!(json["timings_ms"]["total"].is_u64());
    let table = report.to_string();
    for text in ["reproduced", "5 of 5", "as known", "nothing left"] {
        assert!(table.contains(text), "{table}");
    }
    assert!(!table.contains('\u{1b}') && !table.contains("NOT"), "{table}");
}

fn evidence_holds_every_raw_observation(report: &RunReport) {
    let mut names: Vec<String> = std::fs::read_dir(&report.evidence)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = [
        "branch-correct",
        "branch-misleading",
        "branch-none",
        "cleanup",
        "cold-control",
        "fork",
        "inventory-after",
        "inventory-before",
        "manifest",
        "manifest.sig",
        "report",
        "run",
        "source",
        "source-prepared",
        "twin",
        "twin-prepared",
        "verdicts",
    ];
    let mut expected: Vec<String> = expected.map(|name| format!("{name}.json")).into();
    expected.push("workload".into());
    expected.sort();
    assert_eq!(names, expected);
    let run = record(report, "run");
    assert_eq!((&run["outcome"], &run["ledger"]["seed"]), (&"finished".into(), &12346.into()));
    assert_eq!(run["ledger"]["jobs"].as_array().unwrap().len(), 5);
    assert_eq!(run["digests"]["files"]["app/server.mjs"].as_str().unwrap().len(), 64);
    let branch = record(report, "branch-none");
    let body = branch["attempt"]["before"]["answer"]["response"]["body"].as_str().unwrap();
    assert!(body.contains("fingerprint"), "the answer stands there as it came: {body}");
    assert_eq!(record(report, "cleanup")["clean"], true);
}

#[tokio::test]
async fn a_filesystem_comparison_loses_the_reproduction_in_every_branch() {
    let report = compare(Behaviour::Good, |o| o.mode = SnapshotMode::Filesystem).await.result.unwrap();
    assert_eq!(report.problems(), Vec::<String>::new());
    assert!(report.branches.iter().all(|b| b.verdict == Verdict::ReproductionLost && !b.process.inherited));
    let nonces: std::collections::BTreeSet<_> =
        report.branches.iter().map(|b| b.process.nonce.clone().unwrap()).collect();
    assert_eq!(nonces.len(), 3);
    assert_eq!(report.source.pending, Some(5));
}

fn a_cold_worker_that_says_completed_is_told_from_a_repair(report: &RunReport) {
    let cold = record(report, "cold-control");
    let results = cold["attempt"]["results"]["answer"]["response"]["body"].as_str().unwrap();
    assert!(results.contains(r#""completed":true"#), "{results}");
    assert_eq!(cold["judgement"]["verdict"], "reproduction-lost");
}

#[tokio::test]
async fn new_processes_with_the_same_queue_are_no_memory_fork() {
    let report = compare(Behaviour::NewProcesses, |_| {}).await.result.unwrap();
    assert!(report.branches.iter().all(|b| b.verdict == Verdict::ReproductionLost), "{report}");
    assert!(report.branches[1].detail.contains("nonce"), "{}", report.branches[1].detail);
    assert_eq!(report.exit_code(), 1);
}

#[tokio::test]
async fn a_process_that_the_provider_says_is_gone_is_no_proof_whatever_answers() {
    let report = compare(Behaviour::DiesAtTheEnd, |_| {}).await.result.unwrap();
    // The twin comes first, and is looked at in the same way.
    assert_eq!((report.baseline.verdict, report.baseline.rule), (Verdict::Unverified, Rule::AnotherProcessAfter));
    assert_eq!(report.exit_code(), 1);
}

#[tokio::test]
async fn branches_that_share_files_are_unverified() {
    let report = compare(Behaviour::SharedFiles, |_| {}).await.result.unwrap();
    assert!(report.branches.iter().all(|b| b.rule == Rule::NotIsolated), "{report}");
    assert_eq!(report.exit_code(), 1);
}

#[tokio::test]
async fn a_lost_branch_fails_only_itself() {
    let report = compare(Behaviour::LosesABranch, |_| {}).await.result.unwrap();
    let expected = [
        ("none", Verdict::Reproduced, Some(3)),
        ("correct", Verdict::Unverified, None),
        ("misleading", Verdict::Failed, Some(0)),
    ];
    assert_eq!(verdicts(&report), expected);
    assert_eq!(report.exit_code(), 1);
}

#[tokio::test]
async fn without_a_reproduced_fault_no_patch_is_tried() {
    let ran = compare(Behaviour::ForbiddenPorts, |_| {}).await;
    let report = ran.result.unwrap();
    assert_eq!((report.baseline.verdict, report.baseline.rule), (Verdict::Unverified, Rule::ResultsUnreadable));
    assert!(report.branches.is_empty() && report.cold_control.is_none());
    assert_eq!(report.source.pending, Some(5));
    assert_eq!(report.exit_code(), 1);
    assert_eq!((ran.provider.calls("POST /release"), ran.provider.living()), (1, 0));
}

#[tokio::test]
async fn what_was_not_removed_is_told() {
    let ran = compare(Behaviour::NeverRemoves, |_| {}).await;
    let report = ran.result.unwrap();
    assert!(!report.clean && report.exit_code() == 1);
    assert_eq!(record(&report, "cleanup")["still_listed"]["Ok"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn an_interrupted_run_removes_also_what_was_still_being_made() {
    let folder = tempfile::tempdir().unwrap();
    let provider = Local::new(&folder.path().join("machines"), Behaviour::SlowCreations);
    let options = RunOptions::new("worker", folder.path().join("evidence"), Signer::generate().unwrap());
    let cancel = options.cancel.clone();
    let run = tokio::spawn(run_with(provider.clone(), options, None));
    provider.creations_begun().await;
    cancel.cancel();
    // The run goes on waiting for its calls; nothing is there to remove yet.
    tokio::task::yield_now().await;
    assert!(!run.is_finished() && provider.living() == 0);
    while !run.is_finished() {
        provider.release_creations();
        tokio::task::yield_now().await;
    }
    let error = run.await.unwrap().unwrap_err();
    assert!(matches!(&error, RunError::Interrupted { clean: true, .. }), "{error}");
    assert_eq!((error.exit_code(), provider.living()), (1, 0));
    let bundle = std::fs::read_dir(folder.path().join("evidence")).unwrap().next().unwrap().unwrap().path();
    let run: Value = serde_json::from_str(&std::fs::read_to_string(bundle.join("run.json")).unwrap()).unwrap();
    assert_eq!(run["outcome"], "interrupted");
    // What was seen until then is vouched for all the same.
    let (verification, _) = verify(&bundle, &[]).unwrap();
    assert_eq!((verification.problems.as_slice(), verification.as_known), ([].as_slice(), None));
}

#[tokio::test]
async fn wrong_input_is_refused_before_anything_is_made() {
    for change in
        [(|o| o.workload = "no-such".into()) as fn(&mut RunOptions), |o| o.patches = Some(vec!["corect".into()])]
    {
        let ran = compare(Behaviour::Good, change).await;
        assert_eq!(ran.result.unwrap_err().exit_code(), 2);
        assert!(!ran.folder.path().join("evidence").exists());
    }
    let gap = compare(Behaviour::NoMemory, |_| {}).await.result.unwrap_err();
    assert!(gap.to_string().contains("can't fork in mode memory"), "{gap}");
    assert_eq!(gap.exit_code(), 2);
}

#[tokio::test]
async fn a_program_that_does_not_start_fails_the_run_with_its_output_and_cleans_up() {
    let folder = tempfile::tempdir().unwrap();
    let workload = folder.path().join("workload");
    let worker = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads/worker"));
    let copied = std::process::Command::new("cp").arg("-r").arg(worker).arg(&workload).status().unwrap();
    assert!(copied.success());
    let manifest = workload.join("workload.toml");
    let text = std::fs::read_to_string(&manifest)
        .unwrap()
        .replace(r#"["node", "--version"]"#, r#"["node", "--no-such-option"]"#);
    std::fs::write(&manifest, text).unwrap();
    let ran = compare(Behaviour::Good, |o| o.workload = workload.to_str().unwrap().into()).await;
    let error = ran.result.unwrap_err();
    assert!(error.to_string().contains("--no-such-option") && error.to_string().contains("exit code 9"), "{error}");
    assert_eq!((error.exit_code(), ran.provider.living()), (1, 0));
    let bundle = std::fs::read_dir(ran.folder.path().join("evidence")).unwrap().next().unwrap().unwrap().path();
    let (verification, story) = verify(&bundle, &[]).unwrap();
    assert_eq!((verification.problems.as_slice(), verification.as_known), ([].as_slice(), None));
    let text = page::markdown(&verification, &story.unwrap());
    assert!(text.contains("No patch is judged") && text.contains("no-such-option"), "{text}");
}

#[tokio::test]
async fn some_of_the_patches_can_be_chosen() {
    let change = |o: &mut RunOptions| (o.patches, o.seed) = (Some(vec!["correct".into()]), Some(7));
    let report = compare(Behaviour::Good, change).await.result.unwrap();
    assert_eq!(report.seed, 7);
    assert_eq!(verdicts(&report), [("correct", Verdict::Passed, Some(5))]);
    assert_eq!(report.exit_code(), 0);
}

/// Agents that are no agents: what counts is what they leave, not what they say or do beside.
const AGENT: &str = r#"
    echo "$RODEO_ATTEMPT works on $FILES"
    patch="$FILES$RODEO_RELOAD_FILE"
    case $RODEO_ATTEMPT in
        attempt-1) cp "$RIGHT" "$patch" ;;
        attempt-2) echo 'export const receiptsFor = () => []' > "$patch"; exit 3 ;;
        attempt-3) rm "$patch" ;;
    esac
"#;

#[tokio::test]
async fn attempts_are_judged_by_what_they_left_in_copies_that_no_agent_reached() {
    let folder = tempfile::tempdir().unwrap();
    let provider = Local::new(&folder.path().join("machines"), Behaviour::Good);
    let options = RunOptions::new("worker", folder.path().join("evidence"), Signer::generate().unwrap());
    let right = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads/worker/patches/correct/processor.mjs");
    let attempts = Attempts {
        command: format!("RIGHT={right}\n{AGENT}"),
        count: 4,
        time_limit: std::time::Duration::from_secs(60),
    };
    let report = run_with(provider.clone(), options, Some(attempts)).await.unwrap();
    assert_eq!(report.problems(), Vec::<String>::new());
    let verdicts: Vec<_> = report.branches.iter().map(|b| (b.patch.as_str(), b.verdict)).collect();
    let expected = [
        ("none", Verdict::Reproduced),
        ("correct", Verdict::Passed),
        ("misleading", Verdict::Failed),
        ("attempt-1", Verdict::Passed),
        ("attempt-2", Verdict::Failed),
        ("attempt-4", Verdict::Reproduced),
    ];
    assert_eq!(verdicts, expected);
    assert_eq!((report.passed(), report.exit_code()), (vec!["attempt-1"], 0));
    let ends: Vec<_> = report.attempts.iter().map(|a| a.agent.unwrap().exit_code).collect();
    assert_eq!(ends, [Some(0), Some(3), Some(0), Some(0)]);
    assert!(report.attempts[2].error.as_ref().unwrap().contains("can't be read"), "{:?}", report.attempts[2]);
    // Each attempt's access was taken back, and none of its machines is one that was judged.
    assert_eq!((provider.calls("grant"), provider.calls("revoke"), provider.living()), (4, 4, 0));
    let bundle = Path::new(&report.evidence);
    let (verification, story) = verify(bundle, &[]).unwrap();
    assert_eq!((verification.problems.as_slice(), verification.as_known), ([].as_slice(), Some(true)));
    let story = story.unwrap();
    for attempt in &story.run.attempts {
        let worked_on = attempt.machine.as_ref().unwrap().0.as_str();
        assert!(story.branches.iter().all(|branch| branch.attempt.machine.as_deref() != Some(worked_on)));
    }
    assert!(page::markdown(&verification, &story).contains("| branch attempt-1 | passed | attempt |"));
    assert!(page::html(&verification, &story).contains("no agent ever reached"));
    let said = std::fs::read_to_string(format!("{}.attempt-1.log", report.evidence)).unwrap();
    assert!(said.starts_with("attempt-1 works on"), "{said}");
    // What an attempt left can't be exchanged afterwards.
    std::fs::write(bundle.join("attempts/attempt-2"), std::fs::read(right).unwrap()).unwrap();
    let changed = verify(bundle, &[]).unwrap().0;
    assert!(changed.problems.iter().any(|problem| problem.file == "attempts/attempt-2"), "{:?}", changed.problems);
}

#[tokio::test]
async fn no_attempts_are_made_where_access_cannot_be_narrowed() {
    let folder = tempfile::tempdir().unwrap();
    let provider = Local::new(&folder.path().join("machines"), Behaviour::NoMemory);
    let mut options = RunOptions::new("worker", folder.path().join("evidence"), Signer::generate().unwrap());
    options.mode = SnapshotMode::Filesystem;
    let attempts = Attempts { command: "true".into(), count: 1, time_limit: std::time::Duration::from_secs(1) };
    let error = run_with(provider, options, Some(attempts)).await.unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("one branch alone"), "{error}");
}
