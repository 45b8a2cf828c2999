//! The drills, each as a user runs it: it passes, says what it counted, and leaves its observations and nothing else.

use std::path::Path;

use serde_json::{Value, json};

use crate::world::{Answer, processes_naming, remuda, set_up};

struct Drilled {
    report: Value,
    _directory: tempfile::TempDir,
}

impl Drilled {
    /// Its requests as sent, succeeded, refused and lost.
    fn requests(&self) -> [u64; 4] {
        ["sent", "succeeded", "refused", "lost"].map(|name| self.report["requests"][name].as_u64().unwrap())
    }

    fn found(&self, what: &str) -> &Value {
        let facts = self.report["facts"].as_array().unwrap();
        let fact = facts.iter().find(|fact| fact["what"] == what);
        &fact.unwrap_or_else(|| panic!("{what} in {}", self.report))["found"]
    }
}

fn drill(name: &str) -> Drilled {
    set_up();
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let (out, scratch) = (directory.path().join("out"), directory.path().join("tmp"));
    std::fs::create_dir(&scratch).unwrap();
    let mut command = remuda();
    command.args(["rodeo", "drill", name, "--json", "--out"]).arg(&out).env("TMPDIR", &scratch);
    let answer = Answer::of(command.output().unwrap());
    let report = answer.json();
    assert_eq!((answer.code, &report["passed"]), (0, &json!(true)), "{report:#}\n{}", answer.stderr);
    let observations = Path::new(report["observations"].as_str().unwrap());
    assert!(observations.join("report.json").is_file());
    for entry in std::fs::read_dir(observations).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(!text.contains("rmd_"), "observations hold no credential");
    }
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0, "the server's directory is gone");
    assert_eq!(processes_naming(scratch.to_str().unwrap()), Vec::<std::path::PathBuf>::new());
    Drilled { report, _directory: directory }
}

#[test]
fn lost_create_makes_one_sandbox_of_three_requests() {
    let drilled = drill("lost-create");
    assert_eq!(drilled.requests(), [3, 1, 0, 2]);
    assert_eq!(drilled.found("sandboxes ever made"), 1);
}

#[test]
fn lost_capture_makes_one_snapshot_and_one_reservation_of_three_requests() {
    let drilled = drill("lost-capture");
    assert_eq!(drilled.requests(), [3, 1, 0, 2]);
    assert_eq!((drilled.found("snapshots ever taken"), drilled.found("snapshots reserved")), (&json!(1), &json!(1)));
}

#[test]
fn stale_stop_never_reaches_the_newer_generation() {
    assert_eq!(drill("stale-stop").requests(), [4, 1, 3, 0]);
}

#[test]
fn quota_refuses_what_is_too_much_and_gives_back_what_ends() {
    assert_eq!(drill("quota").requests(), [4, 3, 1, 0]);
}

#[test]
fn permissions_are_refused_by_name_and_do_nothing() {
    assert_eq!(drill("permissions").requests(), [8, 2, 6, 0]);
}

#[test]
fn reconnect_finds_the_same_job_and_the_rest_of_its_output() {
    let drilled = drill("reconnect");
    assert_eq!((drilled.found("its exit code"), drilled.found("connections that broke")), (&json!(7), &json!(true)));
}

#[test]
fn named_recovery_finds_the_one_capture_by_its_name() {
    let drilled = drill("named-recovery");
    assert_eq!(drilled.requests(), [2, 0, 1, 1]);
    assert_eq!(drilled.found("snapshots ever taken"), 1);
}

#[test]
fn isolation_keeps_four_copies_apart() {
    assert_eq!(drill("isolation").found("marks that are seen anywhere else"), 0);
}

#[test]
fn clock_counts_running_time_and_is_right_afterwards() {
    assert_eq!(drill("clock").found("the job, whose time stood still with it"), "exited");
}

#[test]
fn rotation_cuts_off_what_came_by_the_old_credential() {
    let drilled = drill("rotation");
    assert_eq!(drilled.requests(), [3, 3, 0, 0]);
    assert_eq!(drilled.found("who comes with the first credential afterwards"), 410);
}

#[test]
fn cleanup_takes_one_of_two_and_proves_it() {
    let drilled = drill("cleanup");
    assert_eq!(drilled.requests(), [2, 2, 0, 0]);
    assert_eq!(drilled.found("the four facts of its deletion"), &json!([true, true, true, true]));
}

#[test]
fn history_limit_keeps_every_end_and_what_runs() {
    let drilled = drill("history-limit");
    assert_eq!(drilled.found("the one that waits, older than all"), "running");
}

#[test]
fn server_killed_leaves_each_call_its_one_outcome() {
    let drilled = drill("server-killed");
    let [sent, succeeded, refused, lost] = drilled.requests();
    assert_eq!((sent, succeeded + refused + lost), (9, 9));
    assert!(lost > 0, "{:#}", drilled.report);
    assert_eq!(drilled.found("sandboxes ever made"), 2);
}

#[test]
fn interrupted_capture_leaves_its_source_running_and_nothing_half_made() {
    let drilled = drill("interrupted-capture");
    let [sent, _, _, lost] = drilled.requests();
    assert_eq!((sent, lost), (4, 1));
}

#[test]
fn a_drill_is_never_held_on_another_server() {
    let mut command = remuda();
    command.args(["rodeo", "drill", "quota", "--url", "http://127.0.0.1:1"]);
    Answer::of(command.output().unwrap()).failed(2, "only ever one of its own");
    Answer::of(remuda().args(["rodeo", "drill", "lost"]).output().unwrap()).failed(2, "lost-create");
}
