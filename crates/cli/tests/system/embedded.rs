//! `rodeo run` on a server of its own: nothing is left of it, however it ends.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use rustix::process::Signal;

use crate::world::{Answer, end, processes_naming, remuda, set_up, text};

fn entries(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

#[test]
fn an_embedded_server_goes_with_its_run() {
    set_up();
    let temporary = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let (place, out) = (temporary.path().join("tmp"), temporary.path().join("out"));
    fs::create_dir(&place).unwrap();
    let absent = temporary.path().join("no-server");
    let run = |workload: &str| {
        let mut command = remuda();
        command.args(["rodeo", "run", workload, "--json", "--out"]).arg(&out);
        command.arg("--data-dir").arg(&absent).env("TMPDIR", &place);
        command.arg("--key-file").arg(temporary.path().join("key.pem"));
        command
    };
    let answer = Answer::of(run("worker").output().unwrap());
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    let report = answer.json();
    let verdicts: Vec<_> = report["branches"].as_array().unwrap().iter().map(|branch| &branch["verdict"]).collect();
    assert_eq!(verdicts, ["reproduced", "passed", "failed"]);
    let evidence = Path::new(report["evidence"].as_str().unwrap());
    the_evidence_is_checked_and_reported_without_a_server(evidence, &temporary.path().join("key.pem"));
    assert_eq!(entries(&place), 0);

    Answer::of(run("no-such-workload").output().unwrap()).failed(2, "no-such-workload");
    assert_eq!(entries(&place), 0);
    assert!(!absent.exists(), "an embedded server makes no data directory where none was");
}

fn the_evidence_is_checked_and_reported_without_a_server(evidence: &Path, key: &Path) {
    let rodeo = |words: &[&str]| {
        let mut command = remuda();
        // Nobody is there to be asked.
        command.env("REMUDA_URL", "http://127.0.0.1:1").arg("rodeo").args(words);
        command
    };
    let public = text(&Answer::of(rodeo(&["key", "--key-file"]).arg(key).output().unwrap()).stdout);
    let public = public.trim();
    let answer = Answer::of(rodeo(&["verify", "--trusted-key", public]).arg(evidence).output().unwrap());
    assert_eq!(answer.code, 0, "{}", answer.stderr);
    let told = text(&answer.stdout);
    assert!(told.contains("the evidence holds, and every control got its known verdict"), "{told}");
    assert!(told.contains(&format!("signed by {public}, a trusted key")), "{told}");

    let answer = Answer::of(rodeo(&["report", "--json"]).arg(evidence).output().unwrap());
    let page = answer.json()["report"].as_str().unwrap().to_owned();
    assert!(fs::read_to_string(&page).unwrap().contains("every control got its known verdict"));
    let answer = Answer::of(rodeo(&["report", "--markdown", "--out", "-"]).arg(evidence).output().unwrap());
    let told = text(&answer.stdout);
    assert!(told.contains("| branch correct | passed | as known |"), "{told}");

    let other = key.with_file_name("other-key.pem");
    let other = text(&Answer::of(rodeo(&["key", "--key-file"]).arg(other).output().unwrap()).stdout);
    let answer =
        Answer::of(rodeo(&["verify", "--json", "--trusted-key", other.trim()]).arg(evidence).output().unwrap());
    assert_eq!((answer.code, &answer.json()["trusted"]), (1, &false.into()));
    Answer::of(rodeo(&["verify", "--trusted-key", "abc"]).arg(evidence).output().unwrap())
        .failed(2, "is no public key");

    let record = evidence.join("branch-misleading.json");
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replacen("failed", "passed", 1)).unwrap();
    let answer = Answer::of(rodeo(&["verify", "--json"]).arg(evidence).output().unwrap());
    assert_eq!(answer.code, 1);
    assert_eq!(answer.json()["problems"][0]["file"], "branch-misleading.json");
    Answer::of(rodeo(&["verify"]).arg(key.with_file_name("tmp")).output().unwrap()).failed(2, "is no bundle");
}

/// A run in the background that has begun, as its evidence shows.
fn begun(place: &Path, out: &Path) -> Child {
    let mut process = remuda()
        .args(["rodeo", "run", "worker", "--out"])
        .arg(out)
        .arg("--data-dir")
        .arg(place.with_file_name("no-server"))
        .arg("--key-file")
        .arg(place.with_file_name("key.pem"))
        .env("TMPDIR", place)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while fs::read_dir(out).map_or(0, |found| found.count()) == 0 {
        assert!(process.try_wait().unwrap().is_none(), "it ended before it had begun");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    process
}

/// Nothing in the directory of embedded servers, nothing mounted there, no process that knows it.
fn nothing_is_left(place: &Path) {
    assert_eq!(entries(place), 0);
    let place = place.to_str().unwrap();
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(place));
    assert_eq!(processes_naming(place), Vec::<std::path::PathBuf>::new());
}

#[test]
fn an_interrupted_run_leaves_nothing_but_its_evidence() {
    set_up();
    let temporary = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let (place, out) = (temporary.path().join("tmp"), temporary.path().join("out"));
    fs::create_dir(&place).unwrap();
    assert_eq!(end(&mut begun(&place, &out), Signal::TERM), 1);
    nothing_is_left(&place);
}

#[test]
fn what_a_killed_run_left_is_swept_by_the_next_one() {
    set_up();
    let temporary = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let (place, out) = (temporary.path().join("tmp"), temporary.path().join("out"));
    fs::create_dir(&place).unwrap();
    let mut killed = begun(&place, &out);
    // Until a sandbox of it is there to be left.
    while processes_naming(place.to_str().unwrap()).is_empty() {
        assert!(killed.try_wait().unwrap().is_none(), "it ended before it had a sandbox");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(entries(&place), 1, "a killed run leaves its directory");
    fs::remove_dir_all(&out).unwrap();
    assert_eq!(end(&mut begun(&place, &out), Signal::TERM), 1);
    nothing_is_left(&place);
}

/// What an agent does with the command line: it looks at its branch, changes the file that counts, and tries doors that
/// must be closed to it.
const AGENT: &str = r#"
    remuda exec "$REMUDA_SANDBOX" -- hostname
    remuda exec "$REMUDA_SANDBOX" -- curl -s "localhost:$RODEO_PORT/status"; echo
    remuda cp "$PATCH" "$REMUDA_SANDBOX:$RODEO_RELOAD_FILE"
    echo "branches: $(remuda ls | grep -c @)"
    remuda create && echo made
    remuda snapshot create "$REMUDA_SANDBOX" && echo captured
    remuda rm "$REMUDA_SANDBOX" && echo removed
    echo "$REMUDA_API_KEY" > "$KEPT"
    exit 5
"#;

#[test]
fn an_agent_reaches_its_own_branch_and_is_judged_by_what_it_left() {
    set_up();
    let temporary = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let (place, out) = (temporary.path().join("tmp"), temporary.path().join("out"));
    fs::create_dir(&place).unwrap();
    let correct = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads/worker/patches/correct/processor.mjs");
    let programs = Path::new(env!("CARGO_BIN_EXE_remuda")).parent().unwrap();
    let mut command = remuda();
    command.args(["rodeo", "attempt", "worker", "--agent", AGENT, "--count", "2", "--json", "--out"]).arg(&out);
    command.arg("--key-file").arg(temporary.path().join("key.pem")).arg("--data-dir").arg(place.join("no-server"));
    command.env("TMPDIR", &place).env("PATCH", correct).env("KEPT", temporary.path().join("kept"));
    command.env("XDG_STATE_HOME", temporary.path().join("state"));
    command.env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()));
    let answer = Answer::of(command.output().unwrap());
    let report = answer.json();
    let evidence = report["evidence"].as_str().unwrap().to_owned();
    let said = fs::read_to_string(format!("{evidence}.attempt-1.log")).unwrap();
    assert_eq!(answer.code, 0, "{}{said}", answer.stderr);
    let verdicts: Vec<_> = report["branches"].as_array().unwrap().iter().map(|branch| &branch["verdict"]).collect();
    assert_eq!(verdicts, ["reproduced", "passed", "failed", "passed", "passed"], "{said}");
    assert_eq!(report["attempts"][0]["agent"]["exit_code"], 5, "an agent's own word decides nothing");
    // Its branch is the source's process, and nothing but its branch is there for it.
    assert!(said.contains(r#""pending":5"#) && said.contains("branches: 1"), "{said}");
    for door in ["made", "captured", "removed"] {
        assert!(!said.lines().any(|line| line == door), "{said}");
    }
    assert_eq!(said.matches("(forbidden)").count(), 3, "{said}");
    // Nothing of the access is in the evidence, and nothing is left of the rest.
    let key = fs::read_to_string(temporary.path().join("kept")).unwrap();
    let found = std::process::Command::new("grep").args(["-rqF", key.trim()]).arg(&evidence).status().unwrap();
    assert_eq!(found.code(), Some(1), "a bundle holds no credential");
    nothing_is_left(&place);
    assert_eq!(Answer::of(remuda().args(["rodeo", "verify"]).arg(&evidence).output().unwrap()).code, 0);
}
