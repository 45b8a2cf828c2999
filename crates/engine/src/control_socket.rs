//! runsc's control socket: bare JSON objects, one reply each, file descriptors by `SCM_RIGHTS`.
//!
//! It is runsc's inner interface (Go package `urpc`), so it is spoken only to builds of runsc that setup has probed.
//! A call through it takes about a millisecond; the same call through runsc's command line takes twenty, since three
//! quarters of that is starting runsc. Never send a signal or delete anything through it: ends are by pidfd.

use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{EngineError, Result, Tried};

/// Largest answer that is read, in bytes.
const REPLY_BYTES_MAX: usize = 16 << 20;
/// Longest wait for an answer. A checkpoint of some GiB to a slow disk takes minutes.
const REPLY_WAIT_MAX: Duration = Duration::from_secs(600);
/// Between two looks at whether somebody is still connected.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Longest error text that is passed on, in characters.
const ERROR_CHARS_MAX: usize = 500;
/// Most descriptors that one call carries.
const DESCRIPTORS_MAX: usize = 3;

/// Where a sandbox's control socket is.
#[derive(Debug, Clone)]
pub struct ControlSocket {
    path: PathBuf,
}

#[derive(Deserialize)]
struct Answer {
    success: bool,
    #[serde(default)]
    err: String,
    #[serde(default)]
    result: Value,
}

impl ControlSocket {
    /// The socket at `path`; nothing is opened yet.
    pub fn new(path: &Path) -> Self {
        ControlSocket { path: path.to_owned() }
    }

    /// Runs blocking calls off the runtime's own threads.
    pub async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ControlSocket) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let control = self.clone();
        let result = tokio::task::spawn_blocking(move || work(&control)).await;
        result.map_err(io::Error::other).tried(|| "run a call to runsc".into())?
    }

    /// Halts every process of the guest. They keep their memory.
    pub fn pause(&self) -> Result<()> {
        self.call("containerManager.Pause", &Value::Null, &[]).map(drop)
    }

    /// Lets the guest's processes go on.
    pub fn resume(&self) -> Result<()> {
        self.call("containerManager.Resume", &Value::Null, &[]).map(drop)
    }

    /// Waits until no call is under way, whoever made it: the calls of a server that was killed are carried out all the
    /// same, and their connections are open until they are. Gives up when `ended` says that nobody serves the socket.
    pub async fn idle(&self, ended: impl Fn() -> bool) -> Result<()> {
        let patience = tokio::time::Instant::now() + REPLY_WAIT_MAX;
        while !ended() && self.has_connections()? {
            if tokio::time::Instant::now() >= patience {
                let what = format!("a call that an earlier server made through {}", self.path.display());
                return Err(EngineError::Busy { what, waited: REPLY_WAIT_MAX });
            }
            // The kernel tells nobody when a stranger's connection is closed.
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Whether somebody is connected, or was until he was killed and the sentry has not closed its end yet.
    fn has_connections(&self) -> Result<bool> {
        const TABLE: &str = "/proc/net/unix";
        let table = std::fs::read(TABLE).tried(|| format!("read {TABLE}"))?;
        Ok(is_connected(&table, self.path.as_os_str().as_encoded_bytes()))
    }

    /// Whether every task of the guest is stopped, as they are from a pause to its resume. No other call tells that:
    /// the state that runsc's own commands show is what they themselves last wrote down. Stops the sentry's threads for
    /// some milliseconds. Call it only while no other call is under way.
    pub fn tasks_are_stopped(&self) -> Result<bool> {
        let stacks = self.call("debug.Stacks", &Value::Null, &[])?;
        Ok(are_stopped(stacks.as_str().unwrap_or_default()))
    }

    /// Starts the container's first process in a sandbox that was only created.
    pub fn start(&self, id: &str) -> Result<()> {
        self.call("containerManager.StartRoot", &json!(id), &[]).map(drop)
    }

    /// Configures the sandbox's network stack; `socket` is a packet socket bound to the interface.
    pub fn create_links(&self, links: &Value, socket: BorrowedFd<'_>) -> Result<()> {
        self.call("Network.CreateLinksAndRoutes", links, &[socket]).map(drop)
    }

    /// Writes the running machine into three empty files: state, page metadata, pages. The sandbox goes on existing
    /// and stays paused if it was.
    pub fn checkpoint(&self, files: [BorrowedFd<'_>; 3]) -> Result<()> {
        let options = json!({
            "key": null,
            "metadata": { "compression": "none" },
            "MemoryFileSaveOpts": { "ExcludeCommittedZeroPages": false },
            "have_pages_file": true,
            "Resume": true,
        });
        self.call("containerManager.Checkpoint", &options, &files).map(drop)
    }

    /// Fills a sandbox that was only created with a captured machine.
    pub fn restore(&self, files: [BorrowedFd<'_>; 3]) -> Result<()> {
        let options = json!({ "HavePagesFile": true, "HaveDeviceFile": false });
        self.call("containerManager.Restore", &options, &files).map(drop)
    }

    /// One call on a connection of its own: a restore replaces the server's handlers, and an old connection would
    /// still speak to the kernel that was thrown away.
    fn call(&self, method: &'static str, argument: &Value, descriptors: &[BorrowedFd<'_>]) -> Result<Value> {
        let trying = || format!("speak to runsc's control socket for {method}");
        let mut stream = UnixStream::connect(&self.path).tried(trying)?;
        stream.set_read_timeout(Some(REPLY_WAIT_MAX)).tried(trying)?;
        let request = serde_json::to_vec(&json!({ "method": method, "arg": argument })).map_err(io::Error::from);
        send(&stream, &request.tried(trying)?, descriptors).tried(trying)?;
        let answer = receive(&mut stream).map_err(|e| match e.kind() {
            // The sentry died in the middle of the call.
            // Nobody serves the socket any more: in whichever step of the call that shows.
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::BrokenPipe => EngineError::Ended,
            _ => EngineError::Io { what: trying(), source: e },
        })?;
        if answer.success {
            Ok(answer.result)
        } else {
            Err(EngineError::Refused { call: method, why: gist(&answer.err) })
        }
    }
}

/// Whether the kernel's table of unix sockets has one at `path` that does not listen: num, reference count, protocol,
/// flags, type, state, inode, path.
fn is_connected(table: &[u8], path: &[u8]) -> bool {
    const LISTENS: &[u8] = b"00010000";
    table.split(|b| *b == b'\n').any(|line| {
        let mut fields = line.split(|b| *b == b' ').filter(|f| !f.is_empty());
        let flags = fields.nth(3);
        fields.nth(3) == Some(path) && flags != Some(LISTENS)
    })
}

/// Whether, of goroutines by their stacks, all that carry a task of the guest wait for its stop to end. The agent
/// alone has several tasks, which are never stopped but by a pause.
fn are_stopped(stacks: &str) -> bool {
    let mut tasks = stacks.split("\n\n").filter(|stack| stack.contains("kernel.(*Task).run(")).peekable();
    tasks.peek().is_some() && tasks.all(|stack| stack.contains("kernel.(*Task).doStop("))
}

/// What is worth telling of an error: the sentry adds the stacks of its goroutines, line after line.
fn gist(err: &str) -> String {
    let told = err.lines().next().unwrap_or_default().trim_end_matches(':');
    told.chars().take(ERROR_CHARS_MAX).collect()
}

/// Sends all of `bytes`, the descriptors with the first of them.
fn send(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one call"));
    }
    let mut sent = sendmsg(stream.as_fd(), &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    while sent < bytes.len() {
        let rest = [IoSlice::new(&bytes[sent..])];
        sent += sendmsg(stream.as_fd(), &rest, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

/// Reads one JSON object; nothing marks its end but its own closing brace.
fn receive(stream: &mut UnixStream) -> io::Result<Answer> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 8192];
    loop {
        let n = stream.read(&mut chunk)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.extend_from_slice(&chunk[..n]);
        match serde_json::from_slice(&bytes) {
            Ok(answer) => return Ok(answer),
            Err(e) if e.is_eof() && bytes.len() < REPLY_BYTES_MAX => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    /// A server that answers one call with `answer` in two pieces and hands back what it was sent.
    fn answering(answer: &'static str) -> (tempfile::TempDir, ControlSocket, std::thread::JoinHandle<Value>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 65536];
            let n = stream.read(&mut bytes).unwrap();
            let (a, b) = answer.split_at(answer.len() / 2);
            stream.write_all(a.as_bytes()).unwrap();
            // A client that had enough of the first half may have hung up.
            let _ = stream.write_all(b.as_bytes());
            serde_json::from_slice(&bytes[..n]).unwrap()
        });
        let socket = ControlSocket::new(&path);
        (dir, socket, server)
    }

    #[test]
    fn a_call_is_one_object_each_way() {
        let (_dir, socket, server) = answering(r#"{"success":true,"err":"","result":null}"#);
        socket.pause().unwrap();
        assert_eq!(server.join().unwrap(), json!({ "method": "containerManager.Pause", "arg": null }));
    }

    #[test]
    fn a_refusal_carries_what_runsc_said() {
        let (_dir, socket, server) = answering(r#"{"success":false,"err":"no space left on device","result":null}"#);
        let error = socket.resume().unwrap_err();
        assert!(error.is_disk_full());
        assert_eq!(error.to_string(), "runsc refused containerManager.Resume: no space left on device");
        server.join().unwrap();
    }

    #[test]
    fn only_connections_to_the_very_path_count() {
        let listener = "ffff8881: 00000002 00000000 00010000 0001 01 4711 /run/s.sock\n";
        let accepted = "ffff8882: 00000003 00000000 00000000 0001 03 4712 /run/s.sock\n";
        let other = "ffff8883: 00000003 00000000 00000000 0001 03 4713 /run/s.sock2\nffff8884: 00000002 00000000 00000000 0002 01 4714\n";
        let connected = |rows: &[&str]| is_connected(rows.concat().as_bytes(), b"/run/s.sock");
        assert!(!connected(&[]));
        assert!(!connected(&[listener, other]));
        assert!(connected(&[listener, other, accepted]));
    }

    #[tokio::test]
    async fn a_call_under_way_is_seen_until_its_connection_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = ControlSocket::new(&dir.path().join("s"));
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        socket.idle(|| false).await.unwrap();
        let caller = UnixStream::connect(dir.path().join("s")).unwrap();
        assert!(socket.has_connections().unwrap(), "not accepted yet");
        let (serving, _) = listener.accept().unwrap();
        drop(caller);
        assert!(socket.has_connections().unwrap(), "the caller is gone, the call is not");
        drop(serving);
        socket.idle(|| false).await.unwrap();
    }

    #[test]
    fn a_task_that_runs_is_told_from_stopped_ones() {
        let stack = |frames: &[&str]| {
            let frames: String =
                frames.iter().map(|f| format!("gvisor.dev/gvisor/pkg/sentry/kernel.{f}(0xc0)\n\t/f.go:1\n")).collect();
            format!("goroutine 7 [select]:\n{frames}")
        };
        let stopped = stack(&["(*Task).doStop", "(*Task).run"]);
        let reading = stack(&["(*Task).block", "(*Task).doSyscall", "(*Task).run"]);
        let other = stack(&["(*Kernel).runCPUClockTicker"]);
        assert!(are_stopped(&[stopped.as_str(), &other, &stopped].join("\n")));
        assert!(!are_stopped(&[stopped.as_str(), &reading].join("\n")));
        assert!(!are_stopped(&other));
        assert!(!are_stopped(""));
    }

    #[test]
    fn stacks_of_goroutines_are_left_out() {
        assert_eq!(
            gist("encoding error: it is connected:\ngoroutine 105 [running]:\nmain()"),
            "encoding error: it is connected"
        );
    }

    #[test]
    fn a_hang_up_in_the_middle_means_that_the_sandbox_ended() {
        let (_dir, socket, server) = answering(r#"{"success":tr"#);
        assert!(matches!(socket.start("x"), Err(EngineError::Ended)));
        server.join().unwrap();
    }

    #[test]
    fn nonsense_is_an_error() {
        let (_dir, socket, server) = answering("]]]]");
        assert!(matches!(socket.pause(), Err(EngineError::Io { .. })));
        server.join().unwrap();
    }
}
