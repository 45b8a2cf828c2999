//! A typed client of a test's server, what tests ask of guests, and how to see that nothing is left. Must assert nothing
//! about timings: whoever waits here waits for an event, with a limit that only a defect reaches.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use remuda_client::wire::{CreateSandbox, CreateSnapshot, Execution, ForkSandbox, Sandbox, Snapshot, StartExecution};
use remuda_client::{Client, ClientError, OutputQuery};
use remuda_types::{Error, ErrorCode, ExecutionId, ExecutionState, SandboxId, SnapshotState};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::world::Server;

/// How long one thing may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server and a client of its unix socket.
pub struct Api {
    pub client: Client,
    pub server: Arc<Server>,
}

impl Api {
    /// On a server that all tests share which run at the same time; it ends with the last of them.
    pub fn shared() -> Api {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let server = shared.upgrade().unwrap_or_else(|| Arc::new(Server::start()));
        *shared = Arc::downgrade(&server);
        Api::of(server)
    }

    /// On a server of its own.
    pub fn own() -> Api {
        Api::of(Arc::new(Server::start()))
    }

    pub fn of(server: Arc<Server>) -> Api {
        Api { client: Client::unix(server.data_dir.join("remuda.sock")).unwrap(), server }
    }

    pub async fn create(&self) -> Sandbox {
        self.create_with(&CreateSandbox { memory_mib: Some(512), ..CreateSandbox::default() }).await
    }

    pub async fn create_with(&self, request: &CreateSandbox) -> Sandbox {
        self.client.create_sandbox(request).await.unwrap()
    }

    pub async fn remove(&self, id: &SandboxId) {
        let removal = self.client.remove_sandbox(id).await.unwrap();
        assert!(removal.processes_gone && removal.files_gone, "{removal:?}");
    }

    /// Waits until a sandbox is gone.
    pub async fn until_gone(&self, id: &SandboxId) {
        let gone = async {
            let mut stream = self.client.follow_events(0).await.unwrap();
            while let Some(told) = stream.next().await.unwrap() {
                let remuda_client::Told::Event(event) = told else { continue };
                if event.kind == "sandbox.gone" && event.about.sandbox.as_ref() == Some(id) {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("{id} does not go"));
    }

    /// Runs a script to its end.
    pub async fn run(&self, id: &SandboxId, script: &str) -> Execution {
        self.client.execute(id, &script_of(script)).await.unwrap()
    }

    /// What a script that must succeed prints, without the last line break.
    #[track_caller]
    pub fn sh<'a>(&'a self, id: &'a SandboxId, script: &'a str) -> impl Future<Output = String> + 'a {
        self.text(id, script_of(script))
    }

    /// The same as the guest's root.
    #[track_caller]
    pub fn root<'a>(&'a self, id: &'a SandboxId, script: &'a str) -> impl Future<Output = String> + 'a {
        self.text(id, StartExecution { user: Some("root".into()), ..script_of(script) })
    }

    #[track_caller]
    fn text<'a>(&'a self, id: &'a SandboxId, request: StartExecution) -> impl Future<Output = String> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let ended = self.client.execute(id, &request).await.unwrap_or_else(|e| panic!("{caller}: {e:?}"));
            assert_eq!(ended.exit_code, Some(0), "{caller}: {ended:?}");
            ended.stdout.unwrap().trim_end().to_owned()
        }
    }

    /// Starts something that goes on, and waits for the first line it prints.
    pub async fn background(&self, id: &SandboxId, request: StartExecution) -> (ExecutionId, String) {
        let started = self.client.execute(id, &request).await.unwrap();
        let (mut text, mut offset) = (String::new(), 0);
        while !text.contains('\n') {
            let query = OutputQuery { offset, wait: PATIENCE, ..OutputQuery::default() };
            let page = self.client.output(id, &started.id, &query).await.unwrap();
            assert!(!page.records.is_empty(), "it said {text:?} and is {}", page.state);
            text.extend(page.records.iter().map(|record| record.text.as_str()));
            offset = page.next_offset;
        }
        (started.id, text)
    }

    /// Starts the program that [`Api::count`] asks.
    pub async fn start_counter(&self, id: &SandboxId) -> ExecutionId {
        self.background(id, python(COUNTER)).await.0
    }

    /// Asks the counter once.
    pub async fn count(&self, id: &SandboxId) -> Count {
        let line = self.sh(id, "echo > /tmp/ask; cat /tmp/answer").await;
        let words: Vec<&str> = line.split(' ').collect();
        Count { pid: words[0].parse().unwrap(), nonce: words[1].to_owned(), asked: words[2].parse().unwrap() }
    }

    /// Begins a capture that takes long enough to be seen while it is under way, and waits until it is. The sandbox
    /// needs 1 GiB.
    pub async fn begin_long_capture(&self, id: &SandboxId) -> JoinHandle<Result<Snapshot, ClientError>> {
        let heap = "import os,time\nheap = os.urandom(300 << 20)\nprint('ready', flush=True)\ntime.sleep(600)";
        self.background(id, python(heap)).await;
        self.begin_capture(id).await
    }

    /// Begins a capture and waits until it is under way.
    pub async fn begin_capture(&self, id: &SandboxId) -> JoinHandle<Result<Snapshot, ClientError>> {
        let (client, source) = (self.client.clone(), id.clone());
        let capture = tokio::spawn(async move { client.snapshot(&source, &CreateSnapshot::default()).await });
        let begun = async {
            let under_way = |s: &Snapshot| s.source == *id && s.state == SnapshotState::Capturing;
            while !self.client.snapshots(true).await.unwrap().iter().any(under_way) {
                assert!(!capture.is_finished(), "it was over before it was seen");
            }
        };
        tokio::time::timeout(PATIENCE, begun).await.unwrap();
        capture
    }

    /// Waits until an execution has ended.
    pub async fn ended(&self, id: &SandboxId, execution: &ExecutionId) -> Execution {
        let ended = self.client.execution(id, execution, PATIENCE).await.unwrap();
        assert!(ended.state.is_final(), "{ended:?}");
        ended
    }

    /// Waits until a sandbox is in a state that nothing announces.
    pub async fn until(&self, id: &SandboxId, what: &str, reached: impl Fn(&Sandbox) -> bool) -> Sandbox {
        let waiting = async {
            loop {
                let seen = self.client.sandbox(id).await.unwrap();
                if reached(&seen) {
                    return seen;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("{id} never was {what}"))
    }

    /// The directories that captures publish into are as these snapshots left them.
    pub fn captured(&self) -> Vec<String> {
        let names = |place: &str| {
            let entries = fs::read_dir(self.server.data_dir.join(place)).unwrap();
            entries.map(move |entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        let mut all = names("layers");
        all.extend(names("memory"));
        all.sort();
        all
    }

    /// One HTTP exchange written by hand, for what the typed client refuses to say. Returns status and JSON body.
    pub fn raw(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, Value) {
        let mut socket = UnixStream::connect(self.server.data_dir.join("remuda.sock")).unwrap();
        exchange(&mut socket, method, path, headers, body)
    }
}

/// One HTTP exchange on a connection of its own.
pub fn exchange(stream: &mut (impl Read + Write), method: &str, path: &str, headers: &str, body: &str) -> (u16, Value) {
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"));
    let json = answer.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok());
    (status, json.unwrap_or(Value::Null))
}

/// Counts the questions it is asked, in memory alone: an answer tells which process it is and how far it has come.
const COUNTER: &str = r#"
import os
nonce, asked = os.urandom(8).hex(), 0
os.mkfifo("/tmp/ask")
os.mkfifo("/tmp/answer")
print("ready", flush=True)
while True:
    open("/tmp/ask").read()
    asked += 1
    with open("/tmp/answer", "w") as out:
        out.write(f"{os.getpid()} {nonce} {asked}\n")
"#;

/// What the counter said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    pub pid: u32,
    pub nonce: String,
    pub asked: u64,
}

impl Count {
    /// The answer that the same process gives when it is asked so many times more.
    pub fn after(&self, times: u64) -> Count {
        Count { asked: self.asked + times, ..self.clone() }
    }
}

/// A script that the call waits for.
pub fn script_of(script: &str) -> StartExecution {
    let wait_ms = PATIENCE.as_millis() as u64;
    StartExecution { command: Some(script.into()), wait_ms: Some(wait_ms), ..StartExecution::default() }
}

/// A script that the call does not wait for.
pub fn detached(script: &str) -> StartExecution {
    StartExecution { wait_ms: None, ..script_of(script) }
}

/// A Python program that the call does not wait for.
pub fn python(program: &str) -> StartExecution {
    let argv = ["python3", "-u", "-c", program].map(String::from).to_vec();
    StartExecution { argv: Some(argv), ..StartExecution::default() }
}

/// A memory fork.
pub fn fork_of(count: u32) -> ForkSandbox {
    ForkSandbox { count, ..ForkSandbox::default() }
}

/// The error of a call that must be refused with this code.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>, code: ErrorCode) -> Error {
    match result {
        Err(ClientError::Api { status, error }) if error.code == code => {
            assert_eq!(status, code.http_status());
            *error
        }
        other => panic!("not refused with {code}: {other:?}"),
    }
}

/// The execution ended by itself with this code.
#[track_caller]
pub fn exited(execution: &Execution, code: i32) {
    assert_eq!((execution.state, execution.exit_code), (ExecutionState::Exited, Some(code)), "{execution:?}");
}

/// Everything on the machine that has this word in its name: processes by their arguments, mounts, cgroups, and
/// directories on tmpfs.
pub fn traces(word: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&arguments).contains(word) {
            found.push(format!("process {}", entry.path().display()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    found.extend(mounts.lines().filter(|line| line.contains(word)).map(|line| format!("mount {line}")));
    for (place, depth) in [("/sys/fs/cgroup", 4), ("/run", 2), ("/dev/shm", 2)] {
        names(Path::new(place), depth, word, &mut found);
    }
    found
}

fn names(directory: &Path, depth: usize, word: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().contains(word) {
            found.push(entry.path().display().to_string());
        } else if depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names(&entry.path(), depth - 1, word, found);
        }
    }
}

/// Pids of a sandbox's host processes of one kind, `runsc-sandbox` or `runsc-gofer`.
pub fn host_processes(uid: &str, kind: &str) -> Vec<i32> {
    let of_kind = |pid: &i32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).into_owned();
        arguments.contains(uid) && arguments.split('\0').any(|argument| argument == kind)
    };
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(of_kind).collect()
}
