//! Commands whose answers are lost on the way: each is done once, and what is not known here can be found out. The way
//! is a proxy on a unix socket that passes requests on and keeps answers back.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use crate::world::{Answer, Server, remuda};

/// A directory in which commands find a socket, as they would a server's, that leads to the server.
struct Way {
    directory: tempfile::TempDir,
    /// How many answers are still kept back; their connections are cut when the server has begun to answer.
    to_lose: Arc<AtomicUsize>,
    /// Told of each answer that was kept back.
    lost: mpsc::Receiver<()>,
}

impl Way {
    fn to(server: &Server) -> Way {
        let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
        let listener = UnixListener::bind(directory.path().join("remuda.sock")).unwrap();
        let (target, to_lose) = (server.data_dir.join("remuda.sock"), Arc::new(AtomicUsize::new(0)));
        let (tell, lost) = mpsc::channel();
        let counter = to_lose.clone();
        std::thread::spawn(move || {
            for inward in listener.incoming().map_while(Result::ok) {
                let (target, counter, tell) = (target.clone(), counter.clone(), tell.clone());
                std::thread::spawn(move || pass(inward, &target, &counter, &tell));
            }
        });
        Way { directory, to_lose, lost }
    }

    fn lose(&self, answers: usize) {
        self.to_lose.store(answers, Ordering::SeqCst);
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = remuda();
        command.env_remove("XDG_STATE_HOME").arg("--data-dir").arg(self.directory.path()).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Answer {
        Answer::of(self.command(args).output().unwrap())
    }

    fn kept(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.directory.path().join("pending"));
        entries.map(|entries| entries.map(|entry| entry.unwrap().path()).collect()).unwrap_or_default()
    }
}

fn pass(inward: UnixStream, target: &Path, to_lose: &AtomicUsize, tell: &mpsc::Sender<()>) {
    let Ok(outward) = UnixStream::connect(target) else { return };
    let (mut from, mut to) = (inward.try_clone().unwrap(), outward.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    });
    let (mut from, mut to, mut piece) = (outward, inward, [0; 1 << 16]);
    while let Ok(count @ 1..) = from.read(&mut piece) {
        let loses = to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if loses {
            let _ = tell.send(());
        }
        if loses || to.write_all(&piece[..count]).is_err() {
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn living(server: &Server) -> usize {
    server.run(&["ls", "--json"]).json()["sandboxes"].as_array().unwrap().len()
}

#[test]
fn what_is_made_while_answers_are_lost_is_made_once() {
    let server = Server::start();
    let way = Way::to(&server);
    way.lose(3);
    let id = way.run(&["create", "--memory", "512"]).line();
    assert_eq!((living(&server), way.lost.try_iter().count()), (1, 3));
    way.lose(2);
    let snapshot = way.run(&["snapshot", "create", &id]).line();
    let snapshots = server.run(&["snapshot", "ls", "--all", "--json"]).json();
    assert_eq!(snapshots["snapshots"].as_array().unwrap().len(), 1, "{snapshots}");
    assert_eq!(snapshots["snapshots"][0]["id"], snapshot);
    way.lose(2);
    assert!(way.run(&["rm", &id]).line().contains("removed"), "a repeated removal is the one that removed");
    assert_eq!(way.kept(), Vec::<PathBuf>::new());
}

#[test]
fn a_command_whose_answers_are_lost_runs_once_and_its_output_is_whole() {
    let server = Server::start();
    let (way, id) = (Way::to(&server), server.create());
    way.lose(4);
    let script = "echo run >> /workspace/runs; echo out; echo err >&2; exit 7";
    let ran = way.run(&["exec", &id, "-c", script]);
    assert_eq!((ran.code, ran.stdout.as_slice(), ran.stderr.as_str()), (7, &b"out\n"[..], "err\n"));
    assert_eq!(way.lost.try_iter().count(), 4);
    assert_eq!(server.run(&["exec", &id, "--", "cat", "/workspace/runs"]).line(), "run");
    let file = way.directory.path().join("file");
    std::fs::write(&file, vec![b'x'; 3 << 20]).unwrap();
    way.lose(3);
    way.run(&["cp", file.to_str().unwrap(), &format!("{id}:/workspace/file")]).line();
    assert_eq!(server.run(&["exec", &id, "--", "wc", "-c", "/workspace/file"]).line(), "3145728 /workspace/file");
    assert_eq!(way.kept(), Vec::<PathBuf>::new());
}

#[test]
fn a_killed_command_leaves_its_call_on_disk_and_its_outcome_is_found() {
    let server = Server::start();
    let way = Way::to(&server);
    way.lose(usize::MAX);
    let mut create = way.command(&["create", "--memory", "512"]);
    let mut create = create.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    way.lost.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    create.kill().unwrap();
    create.wait().unwrap();
    way.lose(0);
    let kept = way.kept();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(std::fs::metadata(&kept[0]).unwrap().mode() & 0o777, 0o600);
    let listed = way.run(&["operation", "ls", "--json"]).json();
    let call = &listed["kept"][0]["call"];
    assert_eq!((&call["kind"], call["body"]["text"].is_string()), (&"create".into(), true), "{listed}");
    let key = call["key"].as_str().unwrap();
    // Sent again as it was, it is answered with the sandbox that there is.
    let again = way.run(&["operation", "retry", key]).json();
    assert_eq!(living(&server), 1);
    assert_eq!(way.kept(), Vec::<PathBuf>::new());
    let known = way.run(&["operation", key, "--json"]).json();
    assert_eq!(known["operations"][0]["state"], "done");
    assert_eq!(known["operations"][0]["made"]["sandbox"], again["id"]);
    way.run(&["operation", "retry", key]).failed(1, "is kept here");
    way.run(&["operation", "never-used"]).failed(1, "no call with the key never-used");
}

#[test]
fn a_key_of_the_users_own_has_one_outcome() {
    let server = Server::start();
    let first = server.run(&["create", "--memory", "512", "--key", "mine"]).line();
    assert_eq!(server.run(&["create", "--memory", "512", "--key", "mine"]).line(), first);
    server.run(&["create", "--memory", "513", "--key", "mine"]).failed(1, "idempotency_key_conflict");
    let run = ["exec", &first, "--key", "once", "-c", "echo run >> /workspace/runs; echo said"];
    assert_eq!((server.run(&run).line(), server.run(&run).line()), ("said".into(), "said".into()));
    assert_eq!(server.run(&["exec", &first, "--", "cat", "/workspace/runs"]).line(), "run");
    assert_eq!(living(&server), 1);
}
