//! `remuda serve`: its key, its socket, its one owner, and its end.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use rustix::process::Signal;

use crate::world::{Answer, Server, end, processes_naming, read_line, remuda, set_up};

#[test]
fn the_key_is_shown_once_and_opens_tcp() {
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let data_dir = directory.path().join("data");
    let server = Server::start_in(&data_dir);
    let key = server.key().expect("the first start prints a key");
    let mode = |name: &str| fs::metadata(data_dir.join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode(""), mode("remuda.sock")), (0o700, 0o600));
    assert_eq!(["journal.db", "journal.db-wal", "journal.db-shm"].map(mode), [0o600; 3], "it holds webhooks' secrets");
    for entry in ["journal.db", "journal.db-wal", "server.lock"] {
        let bytes = fs::read(data_dir.join(entry)).unwrap();
        let holds = bytes.windows(64).any(|window| window == &key.as_bytes()[4..]);
        assert!(!holds, "{entry} holds the key");
    }

    let remote = |key: &str| {
        let mut command = remuda();
        command.args(["--url", &server.url(), "ls", "--json"]).env("REMUDA_API_KEY", key);
        Answer::of(command.output().unwrap())
    };
    assert_eq!(remote(&key).json()["sandboxes"], serde_json::json!([]));
    assert_eq!(remote(&format!("mb_{}", &key[4..])).code, 0);
    let wrong = remote(&format!("rmd_{}", "0".repeat(64)));
    wrong.failed(2, "unauthorized");
    assert!(wrong.stderr.contains("remedy: set REMUDA_API_KEY"), "{}", wrong.stderr);
    assert_eq!(server.run(&["ls"]).code, 0, "the socket needs none");
    assert_eq!(server.end(), 0);
    assert!(!data_dir.join("remuda.sock").exists());

    let again = Server::start_in(&data_dir);
    assert_eq!(again.key(), None);
    let mut command = remuda();
    command.args(["--url", &again.url(), "ls"]).env("REMUDA_API_KEY", &key);
    assert_eq!(Answer::of(command.output().unwrap()).code, 0, "the key outlives a restart");
}

#[test]
fn a_second_server_on_the_same_directory_is_refused() {
    let first = Server::start();
    let data_dir = first.data_dir.to_str().unwrap();
    let second =
        Answer::of(remuda().args(["serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir]).output().unwrap());
    second.failed(3, "another server uses the data directory");
    assert_eq!(first.run(&["ls"]).code, 0, "the first goes on");
}

#[test]
fn a_server_that_ends_takes_its_sandboxes_with_it() {
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let server = Server::start_in(&directory.path().join("data"));
    let id = server.create();
    assert_eq!(server.run(&["exec", &id, "--", "true"]).code, 0);
    let waiting = server.command(&["exec", &id, "--", "sleep", "600"]).stderr(std::process::Stdio::null()).spawn();
    let data_dir = server.data_dir.to_str().unwrap().to_owned();
    assert!(!processes_naming(&data_dir).is_empty(), "the sandbox's processes are found where it lives");
    assert_eq!(server.end(), 0);
    assert_ne!(waiting.unwrap().wait().unwrap().code(), Some(0), "whoever waited is told");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&data_dir), "mounts are left");
    let left = processes_naming(&data_dir);
    assert!(left.is_empty(), "processes are left: {left:?}");
}

#[test]
fn a_parent_that_ignores_the_ends_of_its_children_is_no_trouble() {
    set_up();
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let data_dir = directory.path().join("data");
    let serve = remuda();
    let mut process = std::process::Command::new("sh")
        .args(["-c", "trap '' CHLD; exec \"$0\" serve --ephemeral --listen 127.0.0.1:0 --data-dir \"$1\""])
        .arg(serve.get_program())
        .arg(&data_dir)
        .env_remove("REMUDA_URL")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = process.stdout.take().unwrap();
    let mut line = read_line(&mut stdout);
    while !line.is_empty() && !line.starts_with("listening on http") {
        line = read_line(&mut stdout);
    }
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
    let run = |args: &[&str]| Answer::of(remuda().arg("--data-dir").arg(&data_dir).args(args).output().unwrap());
    let told = if line.is_empty() { None } else { Some(run(&["create", "--memory", "512"])) };
    let code = end(&mut process, Signal::TERM);
    assert!(told.is_some(), "it did not come up");
    told.unwrap().line();
    assert_eq!(code, 0);
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    assert_eq!(u64::from_str_radix(ignored.trim(), 16).unwrap() & (1 << 16), 0, "SIGCHLD is ignored: {ignored}");
}
