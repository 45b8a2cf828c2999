//! Reconciliation on a real server: what is planted is found, repaired where it is certain, and told; what lives and works
//! is never touched.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::world::{Server, write_journal};

const PATIENCE: Duration = Duration::from_secs(60);
/// How long sandboxes come and go beside comparisons.
const LOAD: Duration = Duration::from_secs(15);

/// Names that no sandbox or snapshot ever has: ids are random.
const NOBODY: [&str; 4] =
    ["aaaaaaaaaaaaaaaaaaa2", "aaaaaaaaaaaaaaaaaaa3", "aaaaaaaaaaaaaaaaaaa4", "aaaaaaaaaaaaaaaaaaa5"];
const NO_SNAPSHOT: [&str; 3] = ["snap-aaaaaaaaaaaaaaaaaaa2", "snap-aaaaaaaaaaaaaaaaaaa3", "snap-aaaaaaaaaaaaaaaaaaa4"];

/// A program of a test's own, which ends with it.
struct Program(Child);

impl Program {
    fn sleep() -> Program {
        Program(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap())
    }

    /// One that says it is a sandbox's.
    fn saying(root: &Path) -> Program {
        let mut command = Command::new("sh");
        // It waits for what nobody says.
        command.arg0("runsc-sandbox").args(["-c", "read nothing"]).stdin(Stdio::piped());
        Program(command.arg(format!("--root={}", root.display())).spawn().unwrap())
    }

    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A mount of a test's own, which goes with it.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(place: PathBuf) -> Mounted {
        fs::create_dir_all(&place).unwrap();
        assert!(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&place).status().unwrap().success());
        Mounted(place)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // It may have been repaired.
        let _ = Command::new("umount").arg(&self.0).stderr(Stdio::null()).status();
    }
}

fn uid_of(server: &Server, id: &str) -> String {
    server.run(&["--json", "show", id]).json()["uid"].as_str().unwrap().to_owned()
}

/// Directories below these with that name.
fn named(places: &[&str], depth: usize, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in places.iter().flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten()) {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        if entry.file_name() == name {
            found.push(path);
        } else if depth > 1 {
            found.extend(named(&[path.to_str().unwrap()], depth - 1, name));
        }
    }
    found
}

fn doctor(server: &Server, args: &[&str], code: i32) -> Value {
    let answer = server.run(&[&["--json", "doctor"], args].concat());
    let said = answer.json();
    assert_eq!(answer.code, code, "{said:#} {}", answer.stderr);
    said
}

/// The names of what was found or repaired of a kind.
fn names(list: &Value, thing: &str) -> Vec<String> {
    let list = list.as_array().unwrap().iter().filter(|one| one["thing"] == thing);
    let mut names: Vec<String> = list.map(|one| one["name"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn repaired_events(server: &Server) -> Vec<Value> {
    let events = server.run(&["--json", "events"]).json()["events"].as_array().unwrap().clone();
    events.into_iter().filter(|event| event["kind"] == "server.repaired").collect()
}

#[test]
fn what_is_planted_is_found_repaired_where_it_is_certain_and_told() {
    let server = Server::start_with_own_place(&["--reconcile-every", "1h"]);
    let id = server.create();
    let uid = uid_of(&server, &id);
    let kept = server.run(&["snapshot", "create", &id, "--mode", "filesystem"]).line();
    let stopped = server.create();
    server.run(&["stop", &stopped]).line();
    doctor(&server, &[], 0);

    let data = &server.data_dir;
    let groups = named(&["/sys/fs/cgroup"], 4, &uid);
    let state = named(&["/run", "/dev/shm"], 2, &uid).remove(0).parent().unwrap().to_owned();
    assert!(!groups.is_empty());
    // A directory with a mount in it; processes in a control group of nobody's and in one of a stopped sandbox.
    fs::create_dir_all(data.join("sandboxes").join(NOBODY[0]).join("upper")).unwrap();
    let _root = Mounted::tmpfs(data.join("sandboxes").join(NOBODY[0]).join("root"));
    let (mut of_nobody, mut of_stopped, mut bystander) = (Program::sleep(), Program::sleep(), Program::sleep());
    let uid_of_stopped = uid_of(&server, &stopped);
    for (name, program) in [(NOBODY[1], &of_nobody), (uid_of_stopped.as_str(), &of_stopped)] {
        for group in groups.iter().map(|group| group.with_file_name(name)) {
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("cgroup.procs"), program.0.id().to_string()).unwrap();
        }
    }
    fs::create_dir_all(state.join(NOBODY[2])).unwrap();
    // Bytes of snapshots, output.
    fs::create_dir(data.join("layers").join(NO_SNAPSHOT[0])).unwrap();
    fs::create_dir(data.join("memory").join(format!("{}.tmp", NO_SNAPSHOT[1]))).unwrap();
    fs::create_dir(data.join("layers").join(format!("{kept}.tmp"))).unwrap();
    fs::create_dir_all(data.join("executions").join(NOBODY[3])).unwrap();
    // Shares and a sum.
    write_journal(
        &server.data_dir,
        &format!(
            "INSERT INTO holds (holder, name, account, amount) VALUES ('{}', 'sandboxes', 'default', 1);
             UPDATE used SET amount = amount + 1 WHERE account = 'default' AND name = 'sandboxes' AND period = '';
             UPDATE used SET amount = amount + 40 WHERE account = 'default' AND name = 'snapshots' AND period = '';
             UPDATE holds SET amount = 700 WHERE holder = '{uid}' AND name = 'memory_mib';
             UPDATE used SET amount = amount + 188 WHERE account = 'default' AND name = 'memory_mib' AND period = ''",
            NOBODY[3]
        ),
    );
    // What is not certain: something by no name of ours, a mount, and a process that only says what it is.
    let stranger = data.join("layers").join("notes");
    fs::write(&stranger, "mine").unwrap();
    let mine = Mounted::tmpfs(data.join("layers").join(&kept).join("mine"));
    let mut pretender = Program::saying(&state.join(&uid).join("runsc"));

    let expected = [
        ("machine", vec![NOBODY[0], NOBODY[1], NOBODY[2], &stopped]),
        ("capture", vec![NO_SNAPSHOT[0], NO_SNAPSHOT[1], &kept]),
        ("output", vec![NOBODY[3]]),
        ("hold", vec![NOBODY[3], &uid]),
        ("sum", vec!["snapshots"]),
    ];
    let sorted = |names: &[&str]| {
        let mut names: Vec<String> = names.iter().map(ToString::to_string).collect();
        names.sort();
        names
    };
    // Looking changes nothing.
    for _ in 0..2 {
        let found = doctor(&server, &[], 1);
        for (thing, names_of) in &expected {
            assert_eq!(names(&found["findings"], thing), sorted(names_of), "{found:#}");
        }
        assert_eq!(names(&found["findings"], "path").len(), 2, "{found:#}");
        assert_eq!(names(&found["findings"], "process"), [pretender.0.id().to_string()], "{found:#}");
        assert!(of_nobody.lives() && of_stopped.lives());
        assert_eq!(found["repairs"], serde_json::json!([]));
    }
    assert_eq!(repaired_events(&server), Vec::<Value>::new());

    let done = doctor(&server, &["--repair"], 1);
    let events = repaired_events(&server);
    for (thing, names_of) in &expected {
        assert_eq!(names(&done["repairs"], thing), sorted(names_of), "{done:#}");
        assert_eq!(names(&done["findings"], thing), Vec::<String>::new(), "{done:#}");
        let told: Vec<Value> = events.iter().map(|event| event["repair"].clone()).collect();
        assert_eq!(names(&Value::Array(told), thing), sorted(names_of), "{events:#?}");
    }
    assert!(!of_nobody.lives() && !of_stopped.lives(), "they are ended");
    assert!(bystander.lives() && pretender.lives(), "what is not certain is never signalled");
    for path in [
        data.join("sandboxes").join(NOBODY[0]),
        state.join(NOBODY[2]),
        data.join("layers").join(NO_SNAPSHOT[0]),
        data.join("memory").join(format!("{}.tmp", NO_SNAPSHOT[1])),
        data.join("layers").join(format!("{kept}.tmp")),
        data.join("executions").join(NOBODY[3]),
    ] {
        assert!(!path.exists(), "{}", path.display());
    }
    assert!(groups.iter().all(|group| !group.with_file_name(NOBODY[1]).exists()));
    assert!(stranger.exists() && mine.0.exists());
    // What lives is as it was, and what was stopped has its files.
    assert_eq!(server.run(&["exec", &id, "--", "echo", "here"]).line(), "here");
    server.run(&["start", &stopped]).line();
    let usage = server.run(&["--json", "usage"]).json();
    let amount = |name: &str| {
        let reserved = usage["reserved"].as_array().unwrap().iter().find(|r| r["quota"] == name).unwrap();
        reserved["amount"].as_u64().unwrap()
    };
    assert_eq!((amount("sandboxes"), amount("memory_mib"), amount("snapshots")), (2, 1024, 1), "{usage:#}");

    fs::remove_file(&stranger).unwrap();
    let place = mine.0.clone();
    drop(mine);
    fs::remove_dir(place).unwrap();
    drop(pretender);
    let well = server.run(&["doctor"]);
    let said = well.line();
    assert!(said.contains("0 findings; 11 repairs since the server started"), "{said}");
    assert!(
        said.contains("ok   journal: ") && said.contains("ok   cgroups: ") && said.contains("ok   probe: "),
        "{said}"
    );
}

#[test]
fn it_is_compared_by_itself_and_told_to_whose_it_is() {
    let server = Server::start_with_own_place(&["--reconcile-every", "1s"]);
    let id = server.create();
    let uid = uid_of(&server, &id);
    server.run(&["rm", &id]).line();
    let left = server.data_dir.join("sandboxes").join(&uid);
    fs::create_dir_all(left.join("upper")).unwrap();
    let begun = Instant::now();
    let told = loop {
        if let Some(event) = repaired_events(&server).pop() {
            break event;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing is repaired");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(!left.exists());
    assert_eq!((&told["sandbox"], &told["repair"]["name"]), (&Value::from(id), &Value::from(uid)), "{told:#}");
}

#[test]
fn what_a_killed_server_left_behind_is_told() {
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let data_dir = directory.path().join("data");
    let server = Server::start_plain(&data_dir, &[]);
    server.kill();
    fs::create_dir(data_dir.join("layers").join(NO_SNAPSHOT[2])).unwrap();
    let server = Server::start_in(&data_dir);
    let event = repaired_events(&server).remove(0);
    assert_eq!(event["repair"]["name"], NO_SNAPSHOT[2], "{event:#}");
    assert_eq!(doctor(&server, &[], 0)["repaired"], 1);
}

#[test]
fn only_whoever_runs_the_server_has_it_repaired() {
    let server = Server::start();
    let key = server.run(&["key", "create", "--scope", "admin"]).line();
    let remote = |args: &[&str]| {
        let mut command = crate::world::remuda();
        command.env("REMUDA_API_KEY", &key).args(["--url", &server.url()]).args(args);
        crate::world::Answer::of(command.output().unwrap())
    };
    assert!(remote(&["doctor"]).line().contains("0 findings"));
    remote(&["doctor", "--repair"]).failed(1, "only whoever runs the server may have it repaired now");
}

/// Ends the others also where one of them fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn what_lives_and_works_is_never_touched() {
    let server = Server::start_with_own_place(&["--reconcile-every", "1s"]);
    let stop = AtomicBool::new(false);
    let long = server.create();
    let marker = server.run(&["exec", &long, "--detach", "--", "sleep", "1000"]).line();
    let looks = std::thread::scope(|scope| {
        for n in 0..2 {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                let _stop = Stop(stop);
                while !stop.load(Ordering::SeqCst) {
                    life(server, n == 0);
                }
            });
        }
        let _stop = Stop(&stop);
        let (begun, mut looks) = (Instant::now(), 0);
        while begun.elapsed() < LOAD && !stop.load(Ordering::SeqCst) {
            doctor(&server, &["--repair"], 0);
            looks += 1;
        }
        looks
    });
    let told = doctor(&server, &[], 0);
    assert_eq!((&told["findings"], &told["repaired"]), (&serde_json::json!([]), &Value::from(0)), "{told:#}");
    assert!(looks > 2, "{looks}");
    let executions = server.run(&["--json", "ps", &long]).json();
    let running = executions.as_array().or(executions["executions"].as_array()).unwrap().clone();
    assert!(running.iter().any(|e| e["id"] == *marker && e["state"] == "running"), "{executions:#}");
}

/// A sandbox comes, is worked with, copied, stopped and gone on with, and goes.
fn life(server: &Server, memory: bool) {
    let id = server.create();
    assert_eq!(server.run(&["exec", &id, "--", "sh", "-c", "echo x > /workspace/x; echo done"]).line(), "done");
    let mode = if memory { "memory" } else { "filesystem" };
    let snapshot = server.run(&["snapshot", "create", &id, "--mode", mode]).line();
    let branches = server.run(&["fork", &id, "--count", "2", "--mode", mode]).line();
    server.run(&["pause", &id]).line();
    server.run(&["resume", &id]).line();
    server.run(&["stop", &id]).line();
    let next = server.run(&["start", &id]).line();
    assert_eq!(server.run(&["exec", &next, "--", "cat", "/workspace/x"]).line(), "x");
    for branch in branches.lines() {
        server.run(&["rm", branch]).line();
    }
    server.run(&["snapshot", "rm", &snapshot]).line();
    server.run(&["rm", &next]).line();
}
