//! How the load and the audit speak to a server that may be killed at any byte: a call is answered whole or is lost, and
//! one with a key is sent again until it has its outcome. Must speak HTTP by hand, so that nothing repeats a call or
//! hides a torn answer behind its back.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::keys::Told;

/// How long one call may go without an outcome. It spans several deaths of the server.
const OUTCOME_WAIT_MAX: Duration = Duration::from_secs(120);
/// How long a server may leave a call without a byte.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Between two attempts: nothing announces that the next server listens.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// A call with a key, and the outcome that it was told first.
#[derive(Debug, Clone)]
pub struct Settled {
    pub method: &'static str,
    pub path: String,
    pub key: String,
    pub body: String,
    pub told: Told,
}

/// Speaks to whatever server has the data directory.
pub struct Caller {
    socket: PathBuf,
    /// Every call that has its outcome.
    settled: Mutex<Vec<Settled>>,
}

impl Caller {
    pub fn of(data_dir: &std::path::Path) -> Caller {
        Caller { socket: data_dir.join("remuda.sock"), settled: Mutex::default() }
    }

    /// Sends a call with a key until it has an outcome.
    pub fn settle(&self, method: &'static str, path: &str, key: &str, body: &str) -> Told {
        let begun = Instant::now();
        loop {
            let told = self.send(method, path, Some(key), body);
            match told {
                Some(told) if !matches!(told.code(), "operation_in_progress" | "unreachable") => {
                    let settled = Settled { method, path: path.into(), key: key.into(), body: body.into(), told };
                    let told = settled.told.clone();
                    self.settled.lock().unwrap().push(settled);
                    return told;
                }
                told => {
                    assert!(begun.elapsed() < OUTCOME_WAIT_MAX, "{method} {path} with {key} has no outcome: {told:?}");
                    std::thread::sleep(TRY_AGAIN_AFTER);
                }
            }
        }
    }

    /// Sends a call with a key, and does not stay for the answer.
    pub fn abandon(&self, method: &str, path: &str, key: &str, body: &str) {
        drop(self.begin(method, path, Some(key), body));
    }

    /// Asks something that changes nothing, or that may be asked twice, until it is answered.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Told {
        let begun = Instant::now();
        loop {
            match self.send(method, path, None, body) {
                Some(told) if told.code() != "unreachable" => return told,
                told => assert!(begun.elapsed() < OUTCOME_WAIT_MAX, "{method} {path} is not answered: {told:?}"),
            }
            std::thread::sleep(TRY_AGAIN_AFTER);
        }
    }

    /// What must be there to be read.
    pub fn read(&self, path: &str) -> Value {
        let told = self.ask("GET", path, "");
        assert_eq!(told.status, 200, "{path}: {told:?}");
        told.body
    }

    /// Runs a script in a guest to its end. Returns what it printed.
    pub fn run(&self, sandbox: &str, script: &str) -> String {
        let body = serde_json::json!({ "command": script, "wait_ms": 60_000 }).to_string();
        let told = self.ask("POST", &format!("/v1/sandboxes/{sandbox}/executions"), &body);
        assert_eq!((told.status, &told.body["exit_code"]), (201, &0.into()), "{sandbox} answers no command: {told:?}");
        told.body["stdout"].as_str().unwrap().to_owned()
    }

    /// Every call that was settled since the number, and the number to go on with.
    pub fn settled_since(&self, number: usize) -> (Vec<Settled>, usize) {
        let settled = self.settled.lock().unwrap();
        (settled[number.min(settled.len())..].to_vec(), settled.len())
    }

    fn begin(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> Option<UnixStream> {
        let mut socket = UnixStream::connect(&self.socket).ok()?;
        socket.set_read_timeout(Some(SILENCE_MAX)).unwrap();
        let key = key.map(|key| format!("Idempotency-Key: {key}\r\n")).unwrap_or_default();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             {key}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .ok()?;
        Some(socket)
    }

    /// The whole answer, or none.
    pub fn send(&self, method: &str, path: &str, key: Option<&str>, body: &str) -> Option<Told> {
        let (mut socket, mut answer) = (self.begin(method, path, key, body)?, Vec::new());
        if let Err(e) = socket.read_to_end(&mut answer) {
            assert_ne!(e.kind(), std::io::ErrorKind::WouldBlock, "{method} {path} hangs: no byte for {SILENCE_MAX:?}");
            return None;
        }
        let answer = String::from_utf8(answer).expect("an answer is no text");
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        // One that was cut off in its body is as good as none.
        (body.len() == length).then(|| Told {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            replayed: head.contains("\r\nidempotent-replay: true"),
            body: serde_json::from_str(body).unwrap_or(Value::Null),
        })
    }
}
