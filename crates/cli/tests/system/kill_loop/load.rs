//! The load: several clients, each of which does at random, one call after the other, what callers do, and keeps the
//! books of what must be found by whoever looks. Every choice comes from the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use serde_json::json;

use super::caller::Caller;
use super::chance::Chance;
use crate::keys::Told;

/// Sandboxes that one client has at the same time at most.
const SANDBOXES_MAX: usize = 4;
/// Snapshots, likewise.
const SNAPSHOTS_MAX: usize = 2;
/// Prints who it is and then counts, in memory alone.
const TICKER: &str = "import os,time\nprint(os.urandom(8).hex(),flush=True)\nn=0\nwhile True:\n print(n,flush=True)\n \
                      n+=1\n time.sleep(0.1)";

/// What a launch recipe starts.
const SERVER: [&str; 4] = ["python3", "-m", "http.server", "8080"];

/// What must be found in a sandbox.
#[derive(Debug, Clone, Default)]
pub struct Books {
    /// Commands that ran exactly once.
    pub ran: BTreeSet<String>,
    /// Commands that did not run.
    pub not_run: BTreeSet<String>,
    /// Commands that ran once or not at all, and nobody can say which.
    pub open: BTreeSet<String>,
    /// Commands that nobody waited for and that may still run.
    pub under_way: BTreeSet<String>,
    /// Files by path: what is in them, or that they are not there.
    pub files: BTreeMap<String, Option<String>>,
    /// Files of which nobody can say.
    pub unsure: BTreeSet<String>,
    /// Directories that were made.
    pub directories: BTreeSet<String>,
    /// Its ticker's execution, if it was started in this very sandbox.
    pub ticker: Option<String>,
    /// Whether it has a ticker of its own or a copied one.
    pub ticks: bool,
    /// Whether a start of it launches a server.
    pub recipe: bool,
    /// Whether that server, or a copy of it, runs.
    pub serves: bool,
}

#[derive(Debug, Clone)]
pub struct Sandbox {
    pub id: String,
    pub stands: Stands,
    pub books: Books,
}

/// How a sandbox was left by the last call about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stands {
    Running,
    Paused,
    Stopped,
}

impl Stands {
    /// The word that listings have for it.
    pub fn word(self) -> &'static str {
        match self {
            Stands::Running => "running",
            Stands::Paused => "paused",
            Stands::Stopped => "stopped",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Snapshot {
    pub id: String,
    memory: bool,
    books: Books,
}

/// A sandbox with a deadline that comes soon.
#[derive(Debug, Clone)]
pub struct Mortal {
    pub id: String,
    /// Whether what it held is to be kept.
    pub keeps: bool,
    books: Books,
}

/// One client, with all that is its own.
pub struct Client {
    name: String,
    caller: Arc<Caller>,
    chance: Chance,
    keys: u32,
    pub sandboxes: Vec<Sandbox>,
    pub snapshots: Vec<Snapshot>,
    /// Sandboxes that end by themselves soon.
    pub mortals: Vec<Mortal>,
    /// Sandboxes that were stopped, also those that have ended since.
    pub stopped_ever: BTreeSet<String>,
    /// How often a kind of call came to what.
    pub outcomes: BTreeMap<String, u32>,
}

impl Client {
    pub fn new(name: &str, caller: Arc<Caller>, chance: Chance) -> Client {
        let (sandboxes, snapshots, mortals, stopped_ever, outcomes) = Default::default();
        Client { name: name.into(), caller, chance, keys: 0, sandboxes, snapshots, mortals, stopped_ever, outcomes }
    }

    /// Goes on until it is told to stop. Whoever holds the gate for writing finds it between two calls.
    pub fn go_on(client: &std::sync::Mutex<Client>, gate: &RwLock<()>, stop: &AtomicBool) {
        while !stop.load(Ordering::SeqCst) {
            // Where the audit or another client has failed, that is what is told.
            let Ok(_open) = gate.read() else { return };
            client.lock().unwrap().step();
        }
    }

    /// One thing at random.
    pub fn step(&mut self) {
        if self.sandboxes.is_empty() || (self.sandboxes.len() < SANDBOXES_MAX && self.chance.one_in(8)) {
            return self.create();
        }
        if self.chance.one_in(20) {
            return self.create_mortal();
        }
        let n = self.chance.below(self.sandboxes.len());
        let paused = match self.sandboxes[n].stands {
            Stands::Stopped if self.chance.one_in(3) => return self.remove(n),
            Stands::Stopped => return self.start(n),
            Stands::Paused if self.chance.one_in(2) => return self.halt(n, false),
            stands => stands == Stands::Paused,
        };
        if self.chance.one_in(12) {
            return self.stop(n);
        }
        // Where there is no room for more, something goes.
        let (room, kept) = (self.sandboxes.len() < SANDBOXES_MAX, self.snapshots.len());
        match self.chance.below(20) {
            0..=4 if !paused => self.execute(n),
            5..=6 if !paused => self.write(n),
            7 if !paused => self.make_or_remove(n),
            8..=9 => self.halt(n, !paused),
            10..=12 if kept < SNAPSHOTS_MAX => self.capture(n),
            10..=12 => self.remove_snapshot(),
            13..=15 if room => self.fork(n),
            16..=17 if room && kept > 0 => self.restore(),
            13..=18 => self.remove(n),
            19 if kept > 0 => self.remove_snapshot(),
            _ if !paused => self.execute(n),
            _ => self.halt(n, false),
        }
    }

    /// Calls with the next key until there is an outcome; sometimes a first answer is not waited for.
    fn call(&mut self, kind: &str, method: &'static str, path: &str, body: &str) -> (String, Told) {
        self.keys += 1;
        let key = format!("{}-{}", self.name, self.keys);
        if self.chance.one_in(8) {
            self.caller.abandon(method, path, &key, body);
        }
        let told = self.caller.settle(method, path, &key, body);
        let word = if told.status < 300 { "done" } else { told.code() };
        *self.outcomes.entry(format!("{kind} {word}")).or_default() += 1;
        (key, told)
    }

    fn create(&mut self) {
        let (key, told) = self.call("create", "POST", "/v1/sandboxes", r#"{"memory_mib":512}"#);
        assert_eq!(told.status, 201, "a creation is finished, whatever happens: {key}: {told:?}");
        self.add(&told.body, Books::default());
        let n = self.sandboxes.len() - 1;
        if self.chance.one_in(2) {
            self.start_ticker(n);
        }
    }

    fn create_mortal(&mut self) {
        let (keeps, timeout_ms) = (self.chance.one_in(2), 1_000 + self.chance.below(1_000));
        let on_deadline = if keeps { "snapshot" } else { "delete" };
        let body = json!({ "memory_mib": 512, "timeout_ms": timeout_ms, "on_deadline": on_deadline });
        let (key, told) = self.call("mortal", "POST", "/v1/sandboxes", &body.to_string());
        assert_eq!(told.status, 201, "a creation is finished, whatever happens: {key}: {told:?}");
        let id = told.body["id"].as_str().unwrap().to_owned();
        let next = format!("{}-{}", self.name, self.keys + 1);
        let body = json!({ "command": format!("echo {next} >> /workspace/ran"), "wait_ms": 60_000 }).to_string();
        let (key, told) = self.call("last", "POST", &format!("/v1/sandboxes/{id}/executions"), &body);
        let mut books = Books::default();
        match (told.status, told.code()) {
            (201, _) if told.body["exit_code"] == 0 => drop(books.ran.insert(key)),
            // Its end came in between.
            (201, _) | (_, "indeterminate") => drop(books.open.insert(key)),
            (_, "interrupted" | "wrong_state" | "generation_gone") => drop(books.not_run.insert(key)),
            _ => panic!("{key}: {told:?}"),
        }
        self.mortals.push(Mortal { id, keeps, books });
    }

    /// What a sandbox held whose time is over is in this snapshot.
    pub fn keep(&mut self, mortal: &Mortal, snapshot: &str, memory: bool) {
        self.snapshots.push(Snapshot { id: snapshot.to_owned(), memory, books: mortal.books.clone() });
    }

    fn add(&mut self, shown: &serde_json::Value, books: Books) {
        let id = shown["id"].as_str().unwrap().to_owned();
        self.sandboxes.push(Sandbox { id, stands: Stands::Running, books });
    }

    fn start_ticker(&mut self, n: usize) {
        let path = format!("/v1/sandboxes/{}/executions", self.sandboxes[n].id);
        let body = json!({ "argv": ["python3", "-u", "-c", TICKER] }).to_string();
        let (key, told) = self.call("tick", "POST", &path, &body);
        match told.status {
            201 => {
                let books = &mut self.sandboxes[n].books;
                books.ticker = Some(told.body["id"].as_str().unwrap().to_owned());
                books.ticks = true;
            }
            _ => assert_eq!(told.code(), "interrupted", "{key}: {told:?}"),
        }
    }

    fn execute(&mut self, n: usize) {
        let path = format!("/v1/sandboxes/{}/executions", self.sandboxes[n].id);
        let next = format!("{}-{}", self.name, self.keys + 1);
        let detached = self.chance.one_in(4);
        let body = match detached {
            true => json!({ "command": format!("sleep 0.3; echo {next} >> /workspace/ran") }),
            false => json!({ "command": format!("echo {next} >> /workspace/ran; echo {next}"), "wait_ms": 60_000 }),
        };
        let (key, told) = self.call("execute", "POST", &path, &body.to_string());
        let books = &mut self.sandboxes[n].books;
        match (told.status, told.code()) {
            (201, _) if detached => drop(books.under_way.insert(key)),
            (201, _) => {
                assert_eq!(told.body["stdout"], format!("{key}\n"), "{told:?}");
                books.ran.insert(key);
            }
            (_, "interrupted") => drop(books.not_run.insert(key)),
            _ => panic!("{} lives, so that a command ran or did not: {key}: {told:?}", self.sandboxes[n].id),
        }
    }

    fn write(&mut self, n: usize) {
        let file = format!("/workspace/f{}", self.chance.below(4));
        let path = format!("/v1/sandboxes/{}/files?path={file}", self.sandboxes[n].id);
        let text = format!("{}-{}", self.name, self.keys + 1);
        let body = text.repeat(1 + self.chance.below(8 << 10));
        let (key, told) = self.call("write", "PUT", &path, &body);
        match (told.status, told.code()) {
            (200 | 201, _) => {
                let books = &mut self.sandboxes[n].books;
                books.unsure.remove(&file);
                books.files.insert(file, Some(body));
            }
            // What was there before is there still.
            (_, "interrupted") => {
                let books = &mut self.sandboxes[n].books;
                if !books.unsure.contains(&file) {
                    books.files.entry(file).or_default();
                }
            }
            _ => panic!("a file is written or is not: {key}: {told:?}"),
        }
    }

    fn make_or_remove(&mut self, n: usize) {
        let id = self.sandboxes[n].id.clone();
        if self.chance.one_in(2) {
            let directory = format!("/workspace/d{}", self.keys + 1);
            let path = format!("/v1/sandboxes/{id}/files/mkdir?path={directory}");
            let (key, told) = self.call("mkdir", "POST", &path, "");
            match (told.status, told.code()) {
                (201, _) => drop(self.sandboxes[n].books.directories.insert(directory)),
                _ => assert_eq!(told.code(), "indeterminate", "{key}: {told:?}"),
            }
        } else if let Some(file) = self.sandboxes[n].books.files.keys().next().cloned() {
            let path = format!("/v1/sandboxes/{id}/files?path={file}");
            let (key, told) = self.call("rm", "DELETE", &path, "");
            let books = &mut self.sandboxes[n].books;
            match (told.status, told.code()) {
                (204, _) => drop(books.files.insert(file, None)),
                (404, _) => assert_eq!(books.files[&file], None, "{key}: {told:?}"),
                (_, "indeterminate") => {
                    books.files.remove(&file);
                    books.unsure.insert(file);
                }
                _ => panic!("{key}: {told:?}"),
            }
        }
    }

    fn halt(&mut self, n: usize, pause: bool) {
        let call = if pause { "pause" } else { "resume" };
        let path = format!("/v1/sandboxes/{}/{call}", self.sandboxes[n].id);
        let (key, told) = self.call(call, "POST", &path, "");
        match told.status {
            200 => self.sandboxes[n].stands = if pause { Stands::Paused } else { Stands::Running },
            _ => assert_eq!(told.code(), "interrupted", "{key}: {told:?}"),
        }
    }

    fn stop(&mut self, n: usize) {
        let (key, told) = self.call("stop", "POST", &format!("/v1/sandboxes/{}/stop", self.sandboxes[n].id), "");
        assert_eq!((told.status, &told.body["result"]), (200, &json!("stopped")), "{key}: {told:?}");
        // Whether its files were flushed is not told where a server was killed in between; that they are there is seen
        // when they are gone on with.
        let sandbox = &mut self.sandboxes[n];
        sandbox.stands = Stands::Stopped;
        // Whatever had not ended by then has written, or has not.
        sandbox.books = Books { recipe: sandbox.books.recipe, ..sandbox.books.copied(false) };
        self.stopped_ever.insert(sandbox.id.clone());
    }

    fn start(&mut self, n: usize) {
        let path = format!("/v1/sandboxes/{}/start", self.sandboxes[n].id);
        let (key, told) = self.call("start", "POST", &path, "{}");
        assert_eq!(told.status, 201, "a start is finished, whatever happens: {key}: {told:?}");
        let before = self.sandboxes.swap_remove(n);
        self.add(&told.body, Books { serves: before.books.recipe, ..before.books });
    }

    fn capture(&mut self, n: usize) {
        let memory = !self.chance.one_in(3);
        let path = format!("/v1/sandboxes/{}/snapshots", self.sandboxes[n].id);
        let name = format!("{}-{}", self.name, self.keys + 1);
        let body = json!({ "name": name, "mode": if memory { "memory" } else { "filesystem" } }).to_string();
        let before = self.sandboxes[n].books.clone();
        let (key, told) = self.call("capture", "POST", &path, &body);
        match told.status {
            201 => {
                let id = told.body["id"].as_str().unwrap().to_owned();
                self.snapshots.push(Snapshot { id, memory, books: before });
            }
            _ => assert_eq!(told.code(), "interrupted", "{key}: {told:?}"),
        }
    }

    fn fork(&mut self, n: usize) {
        let memory = !self.chance.one_in(3);
        let count = 1 + self.chance.below(SANDBOXES_MAX - self.sandboxes.len());
        let path = format!("/v1/sandboxes/{}/forks", self.sandboxes[n].id);
        let body = json!({ "count": count, "mode": if memory { "memory" } else { "filesystem" } }).to_string();
        let before = self.sandboxes[n].books.clone();
        let (key, told) = self.call("fork", "POST", &path, &body);
        if told.status != 201 {
            return assert_eq!(told.code(), "interrupted", "{key}: {told:?}");
        }
        let branches = told.body["branches"].as_array().unwrap().clone();
        assert_eq!(branches.len(), count, "{key}: {told:?}");
        for branch in &branches {
            // Where the capture is whole, so is every branch.
            assert!(branch["sandbox"].is_object(), "{key}: {told:?}");
            self.add(&branch["sandbox"], before.copied(memory));
        }
    }

    fn restore(&mut self) {
        let n = self.chance.below(self.snapshots.len());
        let Snapshot { id, memory, books } = self.snapshots[n].clone();
        let recipe = !memory && self.chance.one_in(2);
        let body = if recipe { json!({ "launch": { "argv": SERVER, "port": 8080 } }) } else { json!({}) };
        let (key, told) = self.call("restore", "POST", &format!("/v1/snapshots/{id}/restore"), &body.to_string());
        assert_eq!(told.status, 201, "a restore of what is kept is finished: {key}: {told:?}");
        let copy = books.copied(memory);
        let serves = copy.serves || recipe;
        self.add(&told.body, Books { recipe, serves, ..copy });
    }

    fn remove(&mut self, n: usize) {
        let sandbox = self.sandboxes.swap_remove(n);
        let (key, told) = self.call("remove", "DELETE", &format!("/v1/sandboxes/{}", sandbox.id), "");
        assert_eq!((told.status, &told.body["result"]), (200, &json!("removed")), "{key}: {told:?}");
    }

    fn remove_snapshot(&mut self) {
        let n = self.chance.below(self.snapshots.len());
        let snapshot = self.snapshots.swap_remove(n);
        let (key, told) = self.call("rmsnap", "DELETE", &format!("/v1/snapshots/{}", snapshot.id), "");
        assert_eq!((told.status, &told.body["result"]), (200, &json!("removed")), "{key}: {told:?}");
    }

    /// Lets everything go on, so that it can be looked into.
    pub fn resume_all(&mut self) {
        for n in 0..self.sandboxes.len() {
            while self.sandboxes[n].stands == Stands::Paused {
                self.halt(n, false);
            }
        }
        while let Some(n) = self.sandboxes.iter().position(|sandbox| sandbox.stands == Stands::Stopped) {
            self.start(n);
        }
    }

    /// Removes all that it has.
    pub fn remove_all(&mut self) {
        while !self.sandboxes.is_empty() {
            self.remove(0);
        }
        while !self.snapshots.is_empty() {
            self.remove_snapshot();
        }
    }
}

impl Books {
    /// Those of a copy. What had not ended goes on in a copy of the memory; in one of files alone it has written, or
    /// has not.
    fn copied(&self, memory: bool) -> Books {
        let mut copy = Books { ticker: None, recipe: false, ..self.clone() };
        if !memory {
            copy.open.append(&mut copy.under_way);
            (copy.ticks, copy.serves) = (false, false);
        }
        copy
    }
}
