//! The audit: what the server lists, what the machine has, what guests hold and what callers were told must agree. It
//! looks from outside, and never asks the server what only the kernel or the disk can know.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::caller::{Caller, Settled};
use super::load::{Books, Client, Sandbox, Stands};

/// How long what goes on behind an answer, such as the verifying of a fork's layer, may take until it is over.
const QUIET_WAIT_MAX: Duration = Duration::from_secs(60);
/// Private files that a sandbox may hold, as its quota counts it.
const DISK_BYTES_EACH: u64 = 8 << 30;
const MEMORY_MIB_EACH: u64 = 512;

/// Looks at one data directory, again and again.
pub struct Auditor<'a> {
    pub caller: &'a Caller,
    pub data_dir: &'a Path,
    /// How far the outcomes were looked at.
    pub settled: usize,
    /// Events so far, by kind and what they are about.
    pub events: BTreeMap<(String, String), u32>,
    /// The last of them.
    pub last_event: u64,
}

/// What the server lists.
struct Listed {
    /// By uid.
    living: BTreeMap<String, Value>,
    /// Likewise, with those that have ended.
    ever: BTreeMap<String, Value>,
    /// Kept ones by id.
    kept: BTreeMap<String, Value>,
    snapshots_ever: BTreeMap<String, Value>,
}

impl Auditor<'_> {
    /// Everything, while no call is under way.
    pub fn look(&mut self, clients: &mut [&mut Client]) {
        let listed = self.listed(clients);
        clients.iter_mut().for_each(|client| ended_when_due(&listed, client));
        self.same_as_the_books(&listed, clients);
        for client in clients.iter_mut() {
            for sandbox in &mut client.sandboxes {
                self.inside(sandbox);
            }
        }
        // Executions have ended meanwhile; nothing of what is looked at now changes by itself.
        self.on_the_machine(&listed);
        self.on_the_disk(&listed);
        self.usage(&listed);
        let doctor = self.caller.read("/v1/doctor");
        assert_eq!(doctor["findings"], serde_json::json!([]), "{doctor:#}");
        self.events(&listed, clients);
        let (settled, next) = self.caller.settled_since(self.settled);
        settled.iter().for_each(|settled| self.outcome(settled, &listed));
        self.settled = next;
    }

    fn listed(&self, clients: &[&mut Client]) -> Listed {
        let begun = Instant::now();
        loop {
            let by = |path: &str, members: &str, name: &str| -> BTreeMap<String, Value> {
                let list = self.caller.read(path)[members].as_array().unwrap().clone();
                list.into_iter().map(|shown| (shown[name].as_str().unwrap().to_owned(), shown)).collect()
            };
            let listed = Listed {
                living: by("/v1/sandboxes", "sandboxes", "uid"),
                ever: by("/v1/sandboxes?all=true", "sandboxes", "uid"),
                kept: by("/v1/snapshots", "snapshots", "id"),
                snapshots_ever: by("/v1/snapshots?all=true", "snapshots", "id"),
            };
            let at_rest = |shown: &Value| matches!(shown["state"].as_str(), Some("running" | "paused" | "stopped"));
            let active = |shown: &Value| shown["state"] == "active";
            let mortal = |shown: &Value| clients.iter().any(|c| c.mortals.iter().any(|m| *m.id == shown["id"]));
            if listed.living.values().all(|shown| at_rest(shown) && !mortal(shown)) && listed.kept.values().all(active)
            {
                return listed;
            }
            let (living, kept) = (&listed.living, &listed.kept);
            assert!(begun.elapsed() < QUIET_WAIT_MAX, "it does not come to rest: {living:#?} {kept:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What callers were told they have is what is listed.
    fn same_as_the_books(&self, listed: &Listed, clients: &[&mut Client]) {
        let sandboxes = clients.iter().flat_map(|client| &client.sandboxes);
        let states: BTreeMap<&str, &str> =
            sandboxes.map(|sandbox| (sandbox.id.as_str(), sandbox.stands.word())).collect();
        let shown: BTreeMap<&str, &str> =
            listed.living.values().map(|s| (s["id"].as_str().unwrap(), s["state"].as_str().unwrap())).collect();
        assert_eq!(shown, states, "sandboxes that are listed, and that callers were told of");
        let known: BTreeSet<&str> =
            clients.iter().flat_map(|client| &client.snapshots).map(|snapshot| snapshot.id.as_str()).collect();
        let standing = listed.layers_of_the_living();
        for (id, snapshot) in &listed.kept {
            // A fork's own goes with the last sandbox that stands on it.
            let wanted = if of_fork(snapshot) { standing.contains(id) } else { known.contains(id.as_str()) };
            assert!(wanted, "nobody was told of this snapshot, or it stands under nothing: {snapshot:#}");
        }
        for id in known {
            let record = listed.snapshots_ever.get(id);
            assert!(listed.kept.contains_key(id), "{id} was captured and is not there: {record:#?}");
        }
    }

    /// What a guest holds.
    fn inside(&self, sandbox: &mut Sandbox) {
        if sandbox.stands != Stands::Running {
            return;
        }
        let (id, ticks) = (sandbox.id.clone(), sandbox.books.ticks);
        let (servers, tickers): (Vec<_>, Vec<_>) =
            self.going_on(&id).into_iter().partition(|e| e["command"][1] == "-m");
        assert_eq!(servers.len(), usize::from(sandbox.books.serves), "{id}: a launch is one: {servers:?}");
        assert_eq!(tickers.len(), usize::from(ticks), "{id}: {tickers:?}");
        if let Some(ticker) = &sandbox.books.ticker {
            assert_eq!(tickers[0]["id"], **ticker, "the same execution goes on");
        }
        tickers.iter().for_each(|ticker| self.counts(&id, ticker["id"].as_str().unwrap()));
        let books = &mut sandbox.books;
        // All have ended by now.
        books.ran.append(&mut books.under_way);
        let script = "cat /workspace/ran 2>/dev/null; echo ==; cd /workspace; for f in f*; do [ ! -f $f ] || \
                      echo $f $(wc -c < $f) $(head -c 12 $f) $(tail -c 12 $f); done; echo ==; ls -A";
        let found = self.caller.run(&id, script);
        let parts: Vec<&str> = found.split("==\n").collect();
        let mut ran: BTreeMap<&str, u32> = BTreeMap::new();
        parts[0].lines().for_each(|line| *ran.entry(line).or_default() += 1);
        judge_runs(&id, books, &ran);
        let mut expected = BTreeSet::new();
        for (path, text) in &books.files {
            let name = path.rsplit('/').next().unwrap();
            expected.insert(name.to_owned());
            let line = parts[1].lines().find(|line| line.split(' ').next() == Some(name));
            let told = text.as_ref().map(|text| {
                let n = text.len();
                format!("{name} {n} {} {}", &text[..n.min(12)], &text[n - n.min(12)..])
            });
            assert_eq!(line, told.as_deref(), "{id}: {path} is there whole, or as it was before");
        }
        for name in parts[2].lines() {
            let known = name == "ran" || expected.contains(name) || name.starts_with('d');
            assert!(known || books.unsure.iter().any(|path| path.ends_with(name)), "{id}: {name} is half of something");
        }
        for directory in &books.directories {
            let name = directory.rsplit('/').next().unwrap();
            assert!(parts[2].lines().any(|line| line == name), "{id}: {directory} was made: {found}");
        }
    }

    /// Waits until everything has ended but what is to go on, which is returned.
    fn going_on(&self, id: &str) -> Vec<Value> {
        let begun = Instant::now();
        loop {
            let all = self.caller.read(&format!("/v1/sandboxes/{id}/executions"))["executions"].clone();
            let running = |e: &&Value| e["state"] == "running";
            let running: Vec<Value> = all.as_array().unwrap().iter().filter(running).cloned().collect();
            if running.iter().all(|e| e["command"][0] == "python3") {
                return running;
            }
            assert!(begun.elapsed() < QUIET_WAIT_MAX, "{id}: something never ends: {running:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its output has no gap and nothing twice.
    fn counts(&self, id: &str, ticker: &str) {
        let (mut text, mut offset) = (String::new(), 0);
        loop {
            // A line and its end need not come at once.
            let wait = if text.contains('\n') { "" } else { "&wait_ms=30000" };
            let path = format!("/v1/sandboxes/{id}/executions/{ticker}/output?offset={offset}{wait}");
            let page = self.caller.read(&path);
            let records = page["records"].as_array().unwrap().clone();
            records.iter().for_each(|record| text.push_str(record["text"].as_str().unwrap()));
            offset = page["next_offset"].as_u64().unwrap();
            if records.is_empty() {
                break;
            }
        }
        let mut lines: Vec<&str> = text.split('\n').collect();
        // Whatever follows the last line break is not a line yet.
        lines.pop();
        assert!(lines.first().is_some_and(|nonce| nonce.len() == 16), "{id} {ticker}: {text:?}");
        for (n, line) in lines[1..].iter().enumerate() {
            assert_eq!(*line, n.to_string(), "{id} {ticker}: a gap, or something twice");
        }
    }

    /// Processes, mounts, cgroups, pinned namespaces: each has an owner, and each sandbox has its own.
    fn on_the_machine(&self, listed: &Listed) {
        let machine = Machine::seen(self.data_dir, &listed.ever);
        for (uid, what) in &machine.of_uid {
            assert!(listed.living.contains_key(uid), "{uid} has ended or was never there, and has: {what:#?}");
        }
        for uid in listed.living.keys() {
            let what = machine.of_uid.get(uid).cloned().unwrap_or_default();
            let count = |kind: &str| what.iter().filter(|line| line.starts_with(kind)).count();
            if listed.living[uid]["state"] == "stopped" {
                assert_eq!(what, Vec::<String>::new(), "{uid} is stopped");
                continue;
            }
            assert_eq!((count("runsc-sandbox"), count("runsc-gofer")), (1, 1), "{uid}: {what:#?}");
            // No capture is under way: what stands still was paused, and only that has a mark.
            let halted = what.iter().any(|line| line.ends_with("/halted"));
            assert_eq!(halted, listed.living[uid]["state"] == "paused", "{uid}: {what:#?}");
        }
        assert_eq!(machine.strangers, Vec::<String>::new(), "nobody owns these");
    }

    /// Directories of sandboxes, layers, memory images, logs.
    fn on_the_disk(&self, listed: &Listed) {
        let living: BTreeSet<String> = listed.living.keys().cloned().collect();
        assert_eq!(names(&self.data_dir.join("sandboxes")), living, "directories of sandboxes");
        let mut layers = listed.layers_of_the_living();
        listed.kept.keys().for_each(|id| layers.extend(listed.layers_of_snapshot(id)));
        assert_eq!(names(&self.data_dir.join("layers")), layers, "layers, and those that something stands on");
        let with_memory = |(_, shown): &(&String, &Value)| shown["memory_kept"] == true;
        let memories: BTreeSet<String> = listed.kept.iter().filter(with_memory).map(|(id, _)| id.clone()).collect();
        assert_eq!(names(&self.data_dir.join("memory")), memories, "memory images");
        for name in names(&self.data_dir.join("executions")) {
            let owned = listed.ever.contains_key(&name) || memories.contains(&name);
            assert!(owned, "logs of {name}, which nobody has: {:?}", listed.snapshots_ever.get(&name));
        }
    }

    fn usage(&self, listed: &Listed) {
        let usage = self.caller.read("/v1/usage");
        let (there, living) = (listed.living.len() as u64, listed.with_machine());
        let bytes: u64 = listed.kept.values().map(|shown| shown["bytes"].as_u64().unwrap()).sum();
        let named = listed.kept.values().filter(|shown| !of_fork(shown)).count() as u64;
        let expected = [
            ("sandboxes", living),
            ("memory_mib", living * MEMORY_MIB_EACH),
            ("disk_bytes", there * DISK_BYTES_EACH),
            ("snapshots", named),
            ("snapshot_bytes", bytes),
        ];
        let amount = |list: &Value, name: &str| {
            list.as_array().unwrap().iter().find(|r| r["quota"] == name).map_or(0, |r| r["amount"].as_u64().unwrap())
        };
        for (name, expected) in expected {
            assert_eq!(amount(&usage["reserved"], name), expected, "{name} of {usage:#}");
        }
        let starts: u64 =
            usage["months"].as_array().unwrap().iter().map(|m| amount(&m["counters"], "starts_per_month")).sum();
        assert_eq!(starts, listed.ever.len() as u64, "each start counts once");
    }

    /// What has happened was told, and once.
    fn events(&mut self, listed: &Listed, clients: &[&mut Client]) {
        loop {
            let page = self.caller.read(&format!("/v1/events?after={}", self.last_event));
            for event in page["events"].as_array().unwrap() {
                let sequence = event["sequence"].as_u64().unwrap();
                assert_eq!(sequence, self.last_event + 1, "{event:#}");
                self.last_event = sequence;
                let kind = event["kind"].as_str().unwrap().to_owned();
                let about = if kind.starts_with("snapshot.") { "snapshot" } else { "sandbox" };
                let about = event[about].as_str().unwrap_or_default().to_owned();
                *self.events.entry((kind, about)).or_default() += 1;
            }
            if page["newest"].as_u64() == Some(self.last_event) {
                break;
            }
        }
        let told = |kind: &str, shown: &Value| {
            let about = (kind.to_owned(), shown["id"].as_str().unwrap().to_owned());
            self.events.get(&about).copied().unwrap_or_default()
        };
        for shown in listed.ever.values() {
            let state = shown["state"].as_str().unwrap();
            let ends = ["sandbox.gone", "sandbox.failed", "sandbox.stopped"].map(|kind| told(kind, shown));
            let stopped = clients.iter().any(|c| c.stopped_ever.contains(shown["id"].as_str().unwrap()));
            let expected = [state == "gone", state == "failed", stopped].map(u32::from);
            assert_eq!(ends, expected, "{shown:#}");
            assert!(state == "failed" || told("sandbox.running", shown) > 0, "{shown:#}");
        }
        for shown in listed.snapshots_ever.values() {
            let state = shown["state"].as_str().unwrap();
            let ends = ["snapshot.deleted", "snapshot.failed"].map(|kind| told(kind, shown));
            assert_eq!(ends, [u32::from(state == "deleted"), u32::from(state == "failed")], "{shown:#}");
            assert_eq!(told("snapshot.active", shown), u32::from(state != "failed"), "{shown:#}");
        }
    }

    /// A key has one outcome, and whoever repeats the call is told it.
    fn outcome(&self, settled: &Settled, listed: &Listed) {
        let Settled { method, path, key, body, told } = settled;
        let list = self.caller.read(&format!("/v1/operations?key={key}"));
        let operations = list["operations"].as_array().unwrap();
        if operations.is_empty() && matches!(told.code(), "generation_gone" | "wrong_state") {
            // It came when its sandbox had ended: what is refused at the door stores nothing.
            let again = self.caller.send(method, path, Some(key), body).expect("the server ended unasked");
            return assert_eq!(again.code(), "generation_gone", "first {settled:?}");
        }
        let state = match (told.status, told.code()) {
            (..300, _) => "done",
            (_, "indeterminate") => "indeterminate",
            _ => "failed",
        };
        assert_eq!(operations.len(), 1, "{settled:?}: {operations:#?}");
        assert_eq!(operations[0]["state"], state, "{settled:?}: {operations:#?}");
        let again = self.caller.send(method, path, Some(key), body).expect("the server ended unasked");
        // An execution is shown as it stands, and its output with it as long as its sandbox is there.
        let same = if path.ends_with("/executions") && told.status < 300 {
            let there = listed.living.values().any(|sandbox| sandbox["id"] == told.body["sandbox"]);
            let members = ["id", "stdout"].into_iter().take(1 + usize::from(there));
            members.into_iter().all(|member| again.body[member] == told.body[member])
        } else {
            again.body == told.body
        };
        assert!(same && again.status == told.status && again.replayed, "first {settled:?}, then {again:?}");
    }
}

/// Whether a fork made it for itself.
fn of_fork(snapshot: &Value) -> bool {
    snapshot["name"].is_null() && snapshot["labels"]["remuda.ended-by"].is_null()
}

/// Sandboxes whose time is over have ended once, and what they held is where it was to be.
fn ended_when_due(listed: &Listed, client: &mut Client) {
    for mortal in std::mem::take(&mut client.mortals) {
        let record = listed.ever.values().find(|shown| *mortal.id == shown["id"]);
        assert_eq!(record.expect("it was made")["state"], "gone", "{record:#?}");
        let of_it = listed.snapshots_ever.values().filter(|s| *mortal.id == s["source"]);
        let kept: Vec<&Value> = of_it.filter(|s| s["state"] != "failed").collect();
        assert_eq!(kept.len(), usize::from(mortal.keeps), "{mortal:?}: {kept:#?}");
        for snapshot in kept {
            client.keep(&mortal, snapshot["id"].as_str().unwrap(), snapshot["mode"] == "memory");
        }
    }
}

fn judge_runs(id: &str, books: &Books, ran: &BTreeMap<&str, u32>) {
    for key in &books.ran {
        assert_eq!(ran.get(key.as_str()), Some(&1), "{id}: {key} was done, and that is once: {ran:?}");
    }
    for key in &books.not_run {
        assert_eq!(ran.get(key.as_str()), None, "{id}: {key} was told as not done");
    }
    for key in &books.open {
        assert!(ran.get(key.as_str()).is_none_or(|times| *times == 1), "{id}: {key} ran twice");
    }
    for key in ran.keys() {
        let known = books.ran.contains(*key) || books.open.contains(*key);
        assert!(known, "{id}: {key} ran and nobody was told: {books:?}");
    }
}

impl Listed {
    fn with_machine(&self) -> u64 {
        self.living.values().filter(|shown| shown["state"] != "stopped").count() as u64
    }

    fn layers_of_the_living(&self) -> BTreeSet<String> {
        self.living.values().flat_map(|shown| self.layers_of_sandbox(shown)).collect()
    }

    fn layers_of_sandbox(&self, shown: &Value) -> BTreeSet<String> {
        match shown["origin"]["snapshot"].as_str() {
            Some(snapshot) => self.layers_of_snapshot(snapshot),
            None => BTreeSet::new(),
        }
    }

    fn layers_of_snapshot(&self, id: &str) -> BTreeSet<String> {
        let shown = self.snapshots_ever.get(id).unwrap_or_else(|| panic!("{id} is not on record"));
        let source = self.ever.values().find(|sandbox| sandbox["id"] == shown["source"]);
        let mut layers = self.layers_of_sandbox(source.expect("its source is on record"));
        layers.insert(id.to_owned());
        layers
    }
}

/// What the kernel and tmpfs have of one server's sandboxes.
struct Machine {
    of_uid: BTreeMap<String, Vec<String>>,
    /// What bears the server's name or place, and no sandbox's that was ever on record.
    strangers: Vec<String>,
}

impl Machine {
    fn seen(data_dir: &Path, ever: &BTreeMap<String, Value>) -> Machine {
        let mut all = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let arguments = String::from_utf8_lossy(&arguments).replace('\0', " ");
            let kind = ["runsc-sandbox", "runsc-gofer"].into_iter().find(|kind| arguments.contains(kind));
            all.extend(kind.map(|kind| format!("{kind} {} {arguments}", entry.path().display())));
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        all.extend(mounts.lines().map(|line| format!("mount {line}")));
        for (place, depth) in [("/sys/fs/cgroup", 4), ("/run", 3), ("/dev/shm", 3)] {
            paths(Path::new(place), depth, &mut all);
        }
        let mut seen = Machine { of_uid: BTreeMap::new(), strangers: Vec::new() };
        let place = data_dir.join("sandboxes").display().to_string();
        // The server's directory on tmpfs and its cgroups have one name, which sandboxes of this directory tell.
        let ours = |line: &str, uid: &str| line.find(uid).map(|at| line[..at].trim_end_matches('/').to_owned());
        let mut homes: BTreeSet<String> = BTreeSet::new();
        let mut unclaimed = Vec::new();
        for line in all {
            match ever.keys().find(|uid| line.contains(uid.as_str())) {
                Some(uid) => {
                    let home = ours(&line, uid).filter(|home| line.starts_with('/') && home.contains("/remuda-"));
                    homes.extend(home);
                    seen.of_uid.entry(uid.clone()).or_default().push(line);
                }
                None => unclaimed.push(line),
            }
        }
        let within = |line: &String| {
            homes.iter().any(|home| line.strip_prefix(home.as_str()).is_some_and(|r| r.starts_with('/')))
        };
        // The kernel's own files of a cgroup are no sandbox's.
        let is_directory = |line: &String| Path::new(line).is_dir();
        let stranger = |line: &String| line.contains(&place) || (within(line) && is_directory(line));
        seen.strangers = unclaimed.into_iter().filter(stranger).collect();
        seen
    }
}

fn paths(directory: &Path, depth: usize, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path: PathBuf = entry.path();
        found.push(path.display().to_string());
        if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            paths(&path, depth - 1, found);
        }
    }
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}
