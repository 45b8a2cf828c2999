//! A real server with real sandboxes under a mixed load is killed again and again, at random moments, also while it
//! starts; after each time everything must be accounted for. `REMUDA_KILLS` says how often (`cargo xtask soak` asks for
//! more than the tests do), `REMUDA_SEED` repeats a run as far as timing allows.

mod audit;
mod caller;
mod chance;
mod load;

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use crate::world::{Server, remuda, set_up};
use audit::Auditor;
use caller::Caller;
use chance::Chance;
use load::Client;

/// Kills in the normal tests.
const KILLS: u32 = 12;
/// Clients at the same time.
const CLIENTS: usize = 3;
/// A server that takes calls is killed within this time, in milliseconds.
const LIFE_MS_MAX: usize = 1_200;
/// One that has just been started, likewise.
const START_MS_MAX: usize = 250;
/// How long a server may take until it takes calls.
const LISTENS_WAIT_MAX: Duration = Duration::from_secs(60);

/// A data directory that has one server after another, of which nothing is left at the end, also by a panic.
struct Place {
    data_dir: PathBuf,
    process: Option<Child>,
    log: PathBuf,
    _directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
        let (data_dir, log) = (directory.path().join("d"), directory.path().join("log"));
        Place { data_dir, process: None, log, _directory: directory }
    }

    /// Starts a server and does not wait for it.
    fn start(&mut self) {
        let log = File::options().append(true).create(true).open(&self.log).unwrap();
        let mut command = remuda();
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&self.data_dir);
        self.process = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    /// Waits until it takes calls.
    fn listens(&mut self, caller: &Caller) {
        let begun = Instant::now();
        while caller.send("GET", "/v1/health", None, "").is_none() {
            let process = self.process.as_mut().unwrap();
            assert!(process.try_wait().unwrap().is_none(), "the server ended by itself");
            assert!(begun.elapsed() < LISTENS_WAIT_MAX, "the server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&mut self) {
        let mut process = self.process.take().unwrap();
        assert!(process.try_wait().unwrap().is_none(), "the server ended by itself");
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("the servers said at last:\n{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
        // The last server of the directory takes everything away.
        assert_eq!(Server::start_in(&self.data_dir).end(), 0);
    }
}

#[test]
fn a_server_that_is_killed_again_and_again_under_load_loses_nothing_and_does_nothing_twice() {
    set_up();
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect(name));
    let kills = number("REMUDA_KILLS").unwrap_or(u64::from(KILLS));
    let seed = number("REMUDA_SEED").unwrap_or_else(|| u64::from(std::process::id()) ^ now_ms());
    println!("to repeat: REMUDA_KILLS={kills} REMUDA_SEED={seed}");
    let mut place = Place::new();
    let mut chance = Chance::of(seed);
    let caller = Arc::new(Caller::of(&place.data_dir));
    let clients: Vec<Mutex<Client>> =
        (0..CLIENTS).map(|n| Mutex::new(Client::new(&format!("c{n}"), caller.clone(), chance.split()))).collect();
    let data_dir = place.data_dir.clone();
    let mut auditor =
        Auditor { caller: &caller, data_dir: &data_dir, settled: 0, events: Default::default(), last_event: 0 };
    let (gate, stop) = (RwLock::new(()), AtomicBool::new(false));
    place.start();
    place.listens(&caller);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        // Also when the audit fails: nobody is to wait for clients that go on.
        let _stop = Stop(&stop);
        for client in &clients {
            scope.spawn(|| Client::go_on(client, &gate, &stop));
        }
        let mut killed = 0;
        while killed < kills {
            std::thread::sleep(Duration::from_millis(chance.below(LIFE_MS_MAX) as u64));
            place.kill();
            killed += 1;
            place.start();
            // While it takes up what its predecessor left, too.
            while killed < kills && chance.one_in(3) {
                std::thread::sleep(Duration::from_millis(chance.below(START_MS_MAX) as u64));
                place.kill();
                killed += 1;
                place.start();
            }
            place.listens(&caller);
            let closed = gate.write().unwrap();
            audit(&mut auditor, &clients, killed);
            drop(closed);
        }
    });
    finish(&mut auditor, &clients, begun.elapsed());
    place.kill();
    place.start();
    place.listens(&caller);
    auditor.settled = 0;
    let mut held: Vec<_> = clients.iter().map(|client| client.lock().unwrap()).collect();
    auditor.look(&mut held.iter_mut().map(|client| &mut **client).collect::<Vec<_>>());
    println!("{kills} kills in {:?}, {} calls with a key", begun.elapsed(), auditor.settled);
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn audit(auditor: &mut Auditor, clients: &[Mutex<Client>], killed: u64) {
    let mut held: Vec<_> = clients.iter().map(|client| client.lock().unwrap()).collect();
    let mut clients: Vec<&mut Client> = held.iter_mut().map(|client| &mut **client).collect();
    let sandboxes: usize = clients.iter().map(|client| client.sandboxes.len()).sum();
    let snapshots: usize = clients.iter().map(|client| client.snapshots.len()).sum();
    let begun = Instant::now();
    auditor.look(&mut clients);
    println!("kill {killed}: {sandboxes} sandboxes, {snapshots} snapshots, looked at in {:?}", begun.elapsed());
}

/// Everything is let go on and looked into, every outcome is asked for once more, and then everything is removed.
fn finish(auditor: &mut Auditor, clients: &[Mutex<Client>], taken: Duration) {
    let mut held: Vec<_> = clients.iter().map(|client| client.lock().unwrap()).collect();
    let mut clients: Vec<&mut Client> = held.iter_mut().map(|client| &mut **client).collect();
    clients.iter_mut().for_each(|client| client.resume_all());
    auditor.settled = 0;
    auditor.look(&mut clients);
    clients.iter_mut().for_each(|client| client.remove_all());
    auditor.look(&mut clients);
    let mut outcomes = std::collections::BTreeMap::<&String, u32>::new();
    clients.iter().flat_map(|client| &client.outcomes).for_each(|(what, n)| *outcomes.entry(what).or_default() += n);
    println!("load and kills took {taken:?}; outcomes: {outcomes:?}");
}

fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_millis() as u64
}
