//! Our side: a real `remuda serve` (release build, private data directory) reached over its unix socket by the typed
//! client. It must use nothing that a user could not use.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use remuda_client::Client;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::harness::Side;

/// How long the server may take to listen.
const START_WITHIN: Duration = Duration::from_secs(30);
/// How long it may take to end its sandboxes and itself.
const END_WITHIN_SECONDS: i64 = 30;

/// The server's version and settings, for the report.
pub(crate) fn side(remuda: &Path) -> Side {
    let output = Command::new(remuda).arg("--version").stdin(Stdio::null()).output();
    let version = match output {
        Ok(o) if o.status.success() => String::from_utf8_lossy(&o.stdout).trim().to_owned(),
        _ => "does not tell its version".to_owned(),
    };
    let flags = vec!["native API, unix socket, kept connection".to_owned()];
    Side { name: "remuda".to_owned(), version, flags }
}

/// A running server; ended when dropped, with all of its sandboxes.
pub(crate) struct Server {
    process: Child,
    client: Client,
    /// Where it listens on TCP.
    address: SocketAddr,
}

impl Server {
    /// Starts it and waits until it says that it listens.
    pub(crate) fn start(remuda: &Path, scratch: &Path) -> anyhow::Result<Server> {
        Server::start_with(remuda, scratch, &["--ephemeral"])
    }

    /// One whose sandboxes outlive it. Whoever starts it starts another one last that they end with.
    pub(crate) fn start_to_keep(remuda: &Path, scratch: &Path) -> anyhow::Result<Server> {
        Server::start_with(remuda, scratch, &[])
    }

    fn start_with(remuda: &Path, scratch: &Path, arguments: &[&str]) -> anyhow::Result<Server> {
        let data = scratch.join("data");
        let log = scratch.join("serve.log");
        let mut process = Command::new(remuda)
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&data)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log)?)
            .spawn()
            .with_context(|| format!("cannot start {}", remuda.display()))?;
        let stdout = process.stdout.take().context("the server has no stdout")?;
        let (tell, told) = mpsc::channel();
        // Reads on to the end, so that the server never meets a closed or full pipe. What it prints may hold a key.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(address) = line.strip_prefix("listening on http://") {
                    let _ = tell.send(address.trim_end_matches('/').parse());
                }
            }
        });
        let client = Client::unix(data.join("remuda.sock"))?;
        let mut server = Server { process, client, address: (Ipv4Addr::LOCALHOST, 0).into() };
        match told.recv_timeout(START_WITHIN) {
            Ok(Ok(address)) => server.address = address,
            _ => anyhow::bail!("`remuda serve` does not listen; its last words: {}", last_lines(&log)),
        }
        Ok(server)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Where it listens on TCP.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// A client of it.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(e) = end(&mut self.process) {
            eprintln!("bench: the server did not end by itself: {e:#}");
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

fn end(process: &mut Child) -> anyhow::Result<()> {
    if process.try_wait()?.is_some() {
        return Ok(());
    }
    let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw).context("it has no pid")?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_send_signal(&handle, Signal::TERM)?;
    let limit = Timespec { tv_sec: END_WITHIN_SECONDS, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN)], Some(&limit))?;
    anyhow::ensure!(ended == 1, "it still runs {END_WITHIN_SECONDS} s after SIGTERM");
    process.wait()?;
    Ok(())
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
}
