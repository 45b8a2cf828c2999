//! A trial of a runsc, whole and by itself: two sandboxes, one captured while it runs, the other filled with it.
//! Must leave nothing behind: no process, no mount, no file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use remuda_engine::install::{Capabilities, Probe, ProbeFuture, state_tmpfs};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

/// Longest wait for any answer, in seconds.
const ANSWER_WAIT_MAX_S: u64 = 30;
/// Counts what it is told; the nonce and the count live in its memory only.
const GUEST: &str = "import os,sys\nnonce=os.urandom(8).hex()\nn=0\n\
    for line in sys.stdin:\n n+=1\n print(nonce,n,flush=True)\n";

/// The probe.
pub struct Trial;

impl Probe for Trial {
    fn probe<'a>(&'a self, runsc: &'a Path, base: &'a Path) -> ProbeFuture<'a> {
        let (runsc, base) = (runsc.to_owned(), base.to_owned());
        Box::pin(async move {
            tokio::task::spawn_blocking(move || try_out(&runsc, &base).map_err(|error| error.to_string()))
                .await
                .map_err(|error| error.to_string())?
        })
    }
}

fn try_out(runsc: &Path, base: &Path) -> io::Result<Capabilities> {
    let dir = tempfile::tempdir_in(state_tmpfs().ok_or(io::ErrorKind::NotFound)?)?;
    let mut can = Capabilities { platform: "systrap".to_owned(), ..Capabilities::default() };
    let mut source = Sandbox::create(runsc, base, dir.path(), "trial-a")?;
    source.call("containerManager.StartRoot", &json!(source.id), &[])?;
    let (nonce, count) = source.ask()?;
    can.control_socket = count == 1;
    source.call("containerManager.Pause", &Value::Null, &[])?;
    let files: Vec<File> = ["checkpoint.img", "pages_meta.img", "pages.img"]
        .iter()
        .map(|name| OpenOptions::new().create(true).truncate(true).read(true).write(true).open(dir.path().join(name)))
        .collect::<io::Result<_>>()?;
    let given: Vec<BorrowedFd<'_>> = files.iter().map(File::as_fd).collect();
    let options = json!({ "key": null, "metadata": { "compression": "none" }, "have_pages_file": true, "Resume": true,
        "MemoryFileSaveOpts": { "ExcludeCommittedZeroPages": false } });
    source.call("containerManager.Checkpoint", &options, &given)?;
    source.call("containerManager.Resume", &Value::Null, &[])?;
    can.pause_resume = source.ask()? == (nonce.clone(), 2);
    can.checkpoint = can.pause_resume;
    let mut copy = Sandbox::create(runsc, base, dir.path(), "trial-b")?;
    let files: Vec<File> = ["checkpoint.img", "pages_meta.img", "pages.img"]
        .iter()
        .map(|name| File::open(dir.path().join(name)))
        .collect::<io::Result<_>>()?;
    let given: Vec<BorrowedFd<'_>> = files.iter().map(File::as_fd).collect();
    copy.call("containerManager.Restore", &json!({ "HavePagesFile": true, "HaveDeviceFile": false }), &given)?;
    can.restore = copy.ask()? == (nonce.clone(), 2) && source.ask()? == (nonce, 3);
    Ok(can)
}

struct Sandbox {
    id: &'static str,
    socket: PathBuf,
    process: rustix::fd::OwnedFd,
    to: File,
    from: BufReader<File>,
}

impl Sandbox {
    fn create(runsc: &Path, base: &Path, work: &Path, id: &'static str) -> io::Result<Self> {
        let dir = work.join(id);
        fs::create_dir(&dir)?;
        let fifo = |name: &str| -> io::Result<File> {
            let path = dir.join(name);
            rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
            OpenOptions::new().read(true).write(true).open(path)
        };
        let (to, from) = (fifo("in")?, fifo("out")?);
        let kinds = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
        let spec = json!({
            "ociVersion": "1.0.0",
            "process": { "user": { "uid": 1000, "gid": 1000 }, "args": ["/usr/bin/python3", "-c", GUEST],
                "env": ["PATH=/usr/bin:/bin"], "cwd": "/workspace" },
            "root": { "path": base, "readonly": true },
            "mounts": [{ "destination": "/proc", "type": "proc", "source": "proc" }],
            "linux": { "namespaces": kinds },
        });
        fs::write(dir.join("config.json"), serde_json::to_vec(&spec)?)?;
        let status = Command::new(runsc)
            .arg(format!("--root={}", dir.join("state").display()))
            .args(["--platform=systrap", "--network=none", "--overlay2=none", "--ignore-cgroups", "create"])
            .arg(format!("--bundle={}", dir.display()))
            .arg(format!("--pid-file={}", dir.join("pid").display()))
            .arg(id)
            .stdin(to.try_clone()?)
            .stdout(from.try_clone()?)
            .stderr(File::create(dir.join("err"))?)
            .status()?;
        if !status.success() {
            return Err(io::Error::other(fs::read_to_string(dir.join("err"))?));
        }
        let pid = fs::read_to_string(dir.join("pid"))?.trim().parse().ok().and_then(Pid::from_raw);
        let process = pidfd_open(pid.ok_or(io::ErrorKind::InvalidData)?, PidfdFlags::empty())?;
        let socket = dir.join("state").join(format!("runsc-{id}.sock"));
        Ok(Self { id, socket, process, to, from: BufReader::new(from) })
    }

    fn call(&self, method: &str, argument: &Value, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(ANSWER_WAIT_MAX_S)))?;
        let request = serde_json::to_vec(&json!({ "method": method, "arg": argument }))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)));
        }
        let sent = sendmsg(stream.as_fd(), &[IoSlice::new(&request)], &mut ancillary, SendFlags::NOSIGNAL)?;
        assert_eq!(sent, request.len());
        let mut bytes = Vec::new();
        let mut chunk = [0; 4096];
        loop {
            let read @ 1.. = stream.read(&mut chunk)? else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            bytes.extend_from_slice(&chunk[..read]);
            match serde_json::from_slice::<Value>(&bytes) {
                Ok(answer) if answer["success"] == true => return Ok(()),
                Ok(answer) => return Err(io::Error::other(format!("{method}: {}", answer["err"]))),
                Err(error) if error.is_eof() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The guest's nonce and how often it was asked.
    fn ask(&mut self) -> io::Result<(String, u64)> {
        self.to.write_all(b"?\n")?;
        if !readable(self.from.get_ref().as_fd())? {
            return Err(io::Error::other(format!("{} does not answer", self.id)));
        }
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let (nonce, count) = line.trim().split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
        Ok((nonce.to_owned(), count.parse().map_err(io::Error::other)?))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // By descriptor, never by number: a number may be somebody else's by now.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        let _ = readable(self.process.as_fd());
    }
}

fn readable(file: BorrowedFd<'_>) -> io::Result<bool> {
    let wait = Timespec { tv_sec: ANSWER_WAIT_MAX_S as i64, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::from_borrowed_fd(file, PollFlags::IN)], Some(&wait))? > 0)
}
