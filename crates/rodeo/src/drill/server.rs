//! A server process that a drill starts, and ends with all that it made. Never signals any other process.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use remuda_client::{Client, SandboxFilter};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use super::{DrillError, DrillOptions};

/// How long a server may take to listen or to end, in seconds.
const SERVER_SECONDS_MAX: u64 = 60;
/// Longest line that a server says at its start, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// What `serve --json` says when it listens. The access key stands in it and is not kept.
#[derive(Debug, Deserialize)]
struct Listening {
    url: String,
    socket: PathBuf,
}

/// A running server.
pub(super) struct Server {
    process: Child,
    /// Held open: a server whose standard output is gone could not say anything.
    _stdout: BufReader<ChildStdout>,
    pub(super) url: String,
    pub(super) socket: PathBuf,
    directory: TempDir,
    program: PathBuf,
    arguments: Vec<OsString>,
    log: PathBuf,
}

/// A process that listens.
struct Started {
    process: Child,
    stdout: BufReader<ChildStdout>,
    listening: Listening,
}

impl Server {
    /// Starts one on a private data directory; its log goes to the observations.
    pub(super) async fn start(options: &DrillOptions, log: &Path) -> Result<Server, DrillError> {
        let directory = tempfile::Builder::new().prefix("remuda-drill-").tempdir_in(&options.scratch)?;
        let (program, arguments, log) = (options.program.clone(), options.arguments.clone(), log.join("server.log"));
        let started = spawn(&program, &arguments, &directory.path().join("data"), &log).await?;
        let Started { process, stdout, listening: Listening { url, socket } } = started;
        Ok(Server { process, _stdout: stdout, url, socket, directory, program, arguments, log })
    }

    /// Kills it, as a crash does: nothing is ended, told or removed.
    pub(super) async fn kill(&mut self) -> Result<(), DrillError> {
        Ok(self.process.kill().await?)
    }

    /// Starts the next one after a kill, on the same data directory.
    pub(super) async fn start_next(&mut self) -> Result<(), DrillError> {
        let started = spawn(&self.program, &self.arguments, &self.data_dir(), &self.log).await?;
        let Started { process, stdout, listening: Listening { url, socket } } = started;
        (self.process, self._stdout, self.url, self.socket) = (process, stdout, url, socket);
        Ok(())
    }

    fn data_dir(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// What lies where captures lie, whole or half-made.
    pub(super) fn captured(&self) -> Result<Vec<PathBuf>, DrillError> {
        let mut found = Vec::new();
        for place in ["layers", "memory"] {
            for entry in std::fs::read_dir(self.data_dir().join(place))? {
                found.push(entry?.path());
            }
        }
        Ok(found)
    }

    /// The operator's client. It sends each call once.
    pub(super) fn client(&self) -> Result<Client, DrillError> {
        Ok(Client::unix(&self.socket)?)
    }

    /// A directory that goes with it, for sockets.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Removes its sandboxes, ends it, and removes its directory.
    pub(super) async fn end(mut self) -> Result<(), DrillError> {
        let client = self.client()?;
        let emptied = async {
            for sandbox in client.list_sandboxes(&SandboxFilter::default()).await? {
                client.remove_sandbox(&sandbox.id).await?;
            }
            Ok::<_, DrillError>(())
        };
        let emptied = emptied.await;
        if let Some(pid) = self.process.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).map_err(std::io::Error::from)?;
        }
        let ended = tokio::time::timeout(Duration::from_secs(SERVER_SECONDS_MAX), self.process.wait()).await;
        match ended {
            Ok(status) => drop(status?),
            Err(_) => {
                self.process.kill().await?;
                return Err(DrillError::Server(format!("it did not end in {SERVER_SECONDS_MAX} s and was killed")));
            }
        }
        emptied?;
        Ok(self.directory.close()?)
    }
}

/// Starts a server that takes everything away when it is asked to end, and waits until it listens.
async fn spawn(program: &Path, arguments: &[OsString], data_dir: &Path, log: &Path) -> Result<Started, DrillError> {
    let mut process = Command::new(program)
        .args(arguments)
        .args(["serve", "--ephemeral", "--json", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::options().append(true).create(true).open(log)?)
        .kill_on_drop(true)
        .spawn()?;
    let stdout = process.stdout.take().ok_or_else(|| DrillError::Server("it has no standard output".into()))?;
    let mut stdout = BufReader::new(stdout);
    let mut line = String::new();
    let said = tokio::time::timeout(Duration::from_secs(SERVER_SECONDS_MAX), async {
        use tokio::io::AsyncReadExt as _;
        (&mut stdout).take(LINE_BYTES_MAX).read_line(&mut line).await
    });
    said.await.map_err(|_| DrillError::Server(format!("it said nothing in {SERVER_SECONDS_MAX} s")))??;
    match serde_json::from_str(&line) {
        Ok(listening) => Ok(Started { process, stdout, listening }),
        // What it said is not repeated: an access key may stand in it.
        Err(_) => {
            let told = std::fs::read_to_string(log).unwrap_or_default();
            Err(DrillError::Server(format!("it ended: {}", told.trim_end())))
        }
    }
}
