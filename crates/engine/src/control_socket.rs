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
const REPLY_BYTES_MAX: usize = 4 << 20;
/// Longest wait for an answer. A checkpoint of some GiB to a slow disk takes minutes.
const REPLY_WAIT_MAX: Duration = Duration::from_secs(600);
/// Between two looks for a socket that is being made. Its file appears before anybody listens on it, and nothing tells
/// of that but a connection that is taken.
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

    /// Waits until the socket is listened on. Ends never if it never is: the caller watches who was to listen.
    pub async fn served(&self) -> Result<()> {
        loop {
            match tokio::net::UnixStream::connect(&self.path).await {
                Ok(_) => return Ok(()),
                Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                Err(e) => return Err(e).tried(|| format!("connect to {}", self.path.display())),
            }
        }
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
