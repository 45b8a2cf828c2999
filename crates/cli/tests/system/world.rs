//! A server of a test's own, and the commands that talk to it. Must leave nothing when a test ends, also by a panic.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long anything may take before a test gives up on it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The binary, without the settings of whoever runs the tests.
pub fn remuda() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_remuda"));
    for name in ["REMUDA_URL", "REMUDA_API_KEY", "REMUDA_DATA_DIR", "REMUDA_LOG"] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null());
    command
}

/// Engine and base image, installed once for all tests.
pub fn set_up() {
    static READY: OnceLock<()> = OnceLock::new();
    READY.get_or_init(|| {
        let output = remuda().arg("setup").output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    });
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a command answered.
pub struct Answer {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Answer {
    pub fn of(output: Output) -> Answer {
        Answer { code: output.status.code().unwrap_or(-1), stdout: output.stdout, stderr: text(&output.stderr) }
    }

    /// Its output without the last line break, of a command that must succeed.
    pub fn line(&self) -> String {
        assert_eq!(self.code, 0, "{}", self.stderr);
        text(&self.stdout).trim_end().to_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|e| panic!("{e}: {} {}", text(&self.stdout), self.stderr))
    }

    /// Must have failed with this code and said this.
    #[track_caller]
    pub fn failed(&self, code: i32, words: &str) {
        assert_eq!(self.code, code, "{} {}", text(&self.stdout), self.stderr);
        assert!(self.stderr.contains(words), "{words:?} in {}", self.stderr);
    }
}

/// A running `remuda serve`.
pub struct Server {
    process: Child,
    pub lines: Vec<String>,
    pub data_dir: PathBuf,
    _directory: Option<tempfile::TempDir>,
}

impl Server {
    pub fn start() -> Server {
        Server::start_with_own_place(&[])
    }

    /// The same with further arguments of `serve`.
    pub fn start_with_own_place(args: &[&str]) -> Server {
        let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
        let mut server = Server::start_with(&directory.path().join("data"), args);
        server._directory = Some(directory);
        server
    }

    /// Its sandboxes end with it.
    pub fn start_in(data_dir: &Path) -> Server {
        Server::start_with(data_dir, &[])
    }

    /// With further arguments of `serve`; its sandboxes end with it.
    pub fn start_with(data_dir: &Path, args: &[&str]) -> Server {
        Server::start_plain(data_dir, &[&["--ephemeral"], args].concat())
    }

    /// As it is started by whoever wants its sandboxes to outlive it. Whoever tests that starts an ephemeral one last.
    pub fn start_plain(data_dir: &Path, args: &[&str]) -> Server {
        set_up();
        let mut process = remuda()
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data_dir)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let stdout = process.stdout.take().unwrap();
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = tell.send(line);
            }
        });
        let mut server = Server { process, lines: Vec::new(), data_dir: data_dir.to_owned(), _directory: None };
        while !server.lines.iter().any(|line| line.starts_with("listening on http")) {
            match told.recv_timeout(PATIENCE) {
                Ok(line) => server.lines.push(line),
                Err(e) => panic!("the server does not listen ({e}): {:?}", server.lines),
            }
        }
        server
    }

    pub fn url(&self) -> String {
        let line = self.lines.iter().find_map(|line| line.strip_prefix("listening on http"));
        format!("http{}", line.unwrap())
    }

    pub fn key(&self) -> Option<String> {
        self.lines.iter().find_map(|line| line.strip_prefix("access key ")).map(str::to_owned)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = remuda();
        command.arg("--data-dir").arg(&self.data_dir).args(args);
        command
    }

    pub fn run(&self, args: &[&str]) -> Answer {
        Answer::of(self.command(args).output().unwrap())
    }

    /// A new sandbox's id.
    pub fn create(&self) -> String {
        self.run(&["create", "--memory", "512"]).line()
    }

    /// Kills it, as a crash does: nothing of its sandboxes is ended or removed.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Asks it to end and waits for that.
    pub fn end(mut self) -> i32 {
        end(&mut self.process, Signal::TERM)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            end(&mut self.process, Signal::TERM);
        }
    }
}

/// Sends a signal and waits for the end; kills what does not end in time.
pub fn end(process: &mut Child, signal: Signal) -> i32 {
    kill_process(Pid::from_child(process), signal).unwrap();
    let asked = Instant::now();
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status.code().unwrap_or(-1);
        }
        if asked.elapsed() > PATIENCE {
            process.kill().unwrap();
            process.wait().unwrap();
            panic!("it did not end within {PATIENCE:?} of {signal:?}");
        }
        // There is no event to wait for with a limit in std; the end itself is what is tested.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Reads up to and with one line.
pub fn read_line(from: &mut impl Read) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while from.read(&mut byte).unwrap() == 1 {
        line.push(byte[0]);
        if byte[0] == b'\n' {
            break;
        }
    }
    text(&line)
}

/// Processes of sandboxes with that text on their command line; `remuda` itself does not count.
pub fn processes_naming(text: &str) -> Vec<PathBuf> {
    let named = |path: &Path| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.contains(text) && !line.starts_with(env!("CARGO_BIN_EXE_remuda"))
    };
    std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(|path| named(path)).collect()
}

/// Changes the journal of a data directory behind the server's back.
pub fn write_journal(data_dir: &Path, sql: &str) {
    let script = "import sqlite3, sys\nd = sqlite3.connect(sys.argv[1], timeout=30)\nd.executescript(sys.argv[2])\n\
                  d.commit()\nd.close()";
    let output =
        Command::new("python3").args(["-c", script]).arg(data_dir.join("journal.db")).arg(sql).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}
