//! Wrong usage and a missing server: the exit codes and sentences that scripts and people rely on.

use std::path::Path;

use crate::world::{Answer, remuda};

const ID: &str = "c1@2026-10-08T12:00:00.000Z";

fn run(args: &[&str]) -> Answer {
    Answer::of(remuda().args(args).output().unwrap())
}

#[test]
fn wrong_usage_is_exit_code_2() {
    run(&["nonsense"]).failed(2, "unrecognized subcommand");
    run(&["show", "c1"]).failed(2, "must name the generation too");
    run(&["create", "--key", "k 1"]).failed(2, "is not an idempotency key");
    run(&["exec", ID]).failed(2, "required arguments");
    run(&["exec", ID, "--timeout", "1x", "ls"]).failed(2, "it must look like 90s, 5m");
    run(&["create", "--memory", "1"]).failed(2, "128M to 64G");
    run(&["logs", "exec-aaaaaaaaaaaaaaaaaaaa"]).failed(2, "whose sandbox stands before it");
    run(&["cancel", ID, "exec-aaaaaaaaaaaaaaaaaaaa", "--signal", "NONE"]).failed(2, "it is no signal");
    run(&["cp", "a", &format!("{ID}:src/a")]).failed(2, &format!("as in {ID}:/workspace/src/a"));
    run(&["fork", ID, "--count", "0"]).failed(2, "not in 1..=100");
    run(&["cp", "a", "b"]).failed(2, "one side as ID:/path");
    run(&["cp", "c1:/a", "b"]).failed(2, "bare slot");
    run(&["--url", "http://127.0.0.1:9", "ls"]).failed(2, "REMUDA_API_KEY");
}

#[test]
fn no_server_is_exit_code_3_and_says_what_to_run() {
    let empty = tempfile::tempdir().unwrap();
    let data_dir = empty.path().to_str().unwrap();
    let local = run(&["--data-dir", data_dir, "ls"]);
    local.failed(3, "remedy: start one with `remuda serve` as root");
    assert!(local.stderr.contains("\ncause: No such file or directory\n"), "{}", local.stderr);
    let mut remote = remuda();
    remote.args(["--url", "http://127.0.0.1:9", "ls"]).env("REMUDA_API_KEY", format!("rmd_{}", "0".repeat(64)));
    let answer = Answer::of(remote.output().unwrap());
    answer.failed(3, "no server answers at http://127.0.0.1:9");
    assert!(!answer.stderr.contains("rmd_0"), "the key is never shown");
    assert!(answer.stderr.contains("\ncause: Connection refused\n"), "{}", answer.stderr);
    run(&["--cache-dir", data_dir, "--data-dir", data_dir, "serve"]).failed(3, "run `remuda setup` as root");
}

#[test]
fn the_environment_is_followed_and_not_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let with =
        |name: &str, value: &str, args: &[&str]| Answer::of(remuda().args(args).env(name, value).output().unwrap());
    with("REMUDA_DATA_DIR", path, &["ls"]).failed(3, &format!("no server answers at {path}/remuda.sock"));
    with("REMUDA_URL", "http://127.0.0.1:9", &["ls"]).failed(2, "REMUDA_API_KEY");
    with("REMUDA_DATA_DIR", "", &["--data-dir", path, "ls"]).failed(3, path);
    let usage = with("REMUDA_DATA_DIR", path, &["exec"]);
    usage.failed(2, "Usage: remuda exec <ID> <ARGV>...");
}

#[test]
fn the_document_is_the_checked_in_one() {
    let answer = run(&["openapi"]);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/remuda.json");
    assert!(answer.stdout == std::fs::read(path).unwrap(), "openapi/remuda.json is out of date");
}

#[test]
fn output_that_nobody_reads_is_no_panic() {
    let mut child = remuda().arg("openapi").stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(1));
}
