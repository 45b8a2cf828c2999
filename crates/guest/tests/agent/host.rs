//! A host for tests: starts the agent, sends frames, keeps what comes back, and checks on the way what must hold for
//! every frame. Never waits without a limit.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use remuda_guest_proto::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What was seen of an execution.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    /// Offset of the next byte.
    pub at: u64,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Both, in order.
    pub all: Vec<u8>,
    pub chunks: usize,
    pub exited: Option<Exited>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Exited {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub produced: u64,
    pub pipes_held: bool,
}

pub struct Host {
    agent: Child,
    to: Option<OwnedFd>,
    from: OwnedFd,
    /// Bytes that were read and not taken as frames yet.
    pending: VecDeque<u8>,
    /// Where the agent writes the identity.
    pub root: tempfile::TempDir,
    log: File,
    pub seen: HashMap<u32, Seen>,
    pub replies: HashMap<u32, ReplyResult>,
    /// Bytes and end of files on their way out.
    pub reads: HashMap<u32, (Vec<u8>, Option<Vec<u8>>)>,
    pub credits: HashMap<u32, u64>,
    pub quiesced: usize,
    /// Nonces of binds that were answered.
    pub synced: Vec<Vec<u8>>,
    /// Whether data is acknowledged as soon as it is read.
    pub credit: bool,
    /// Whether output is kept or only counted.
    pub keep: bool,
    call: u32,
    effect: u64,
}

impl Host {
    /// An agent that is not bound.
    pub fn unbound() -> Host {
        assert!(rustix::process::geteuid().is_root(), "these tests must be run as root: the agent changes users");
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let log = tempfile::tempfile().unwrap();
        let (agent_in, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (from, agent_out) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let agent = Command::new(env!("CARGO_BIN_EXE_remuda-agent"))
            .env_clear()
            .env("REMUDA_AGENT_ROOT", root.path())
            .stdin(Stdio::from(agent_in))
            .stdout(Stdio::from(agent_out))
            .stderr(Stdio::from(log.try_clone().unwrap()))
            .spawn()
            .unwrap();
        Host {
            agent,
            to: Some(to),
            from,
            pending: VecDeque::new(),
            root,
            log,
            seen: HashMap::new(),
            replies: HashMap::new(),
            reads: HashMap::new(),
            credits: HashMap::new(),
            quiesced: 0,
            synced: Vec::new(),
            credit: true,
            keep: true,
            call: 0,
            effect: 0,
        }
    }

    /// An agent that is bound.
    pub fn bound() -> Host {
        let mut host = Host::unbound();
        host.bind(&[]);
        host
    }

    pub fn bind_request(have: &[(u32, u64)]) -> Bind {
        Bind {
            sandbox: "c1@2026-10-08T12:00:00.000Z".to_owned(),
            uid: "abcdefghij0123456789".to_owned(),
            hostname: "c1-host".to_owned(),
            machine_id: "00112233445566778899aabbccddeeff".to_owned(),
            snapshot: None,
            now_unix_ms: 1234,
            executions: have.iter().map(|(channel, have)| ResumeAt { channel: *channel, have: *have }).collect(),
            processes_max: 512,
        }
    }

    /// A bind with this identity and a nonce of its own.
    pub fn call_of(identity: Bind) -> Request {
        static BINDS: AtomicU64 = AtomicU64::new(1);
        let mut nonce = *b"--------ofa bind";
        nonce[..8].copy_from_slice(&BINDS.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        Request::Bind { nonce, identity }
    }

    /// A bind of a new host that has so many bytes of these executions.
    pub fn bind_call(have: &[(u32, u64)]) -> Request {
        Host::call_of(Host::bind_request(have))
    }

    /// Binds as a new host that has so many bytes of these executions.
    pub fn bind(&mut self, have: &[(u32, u64)]) -> Bound {
        let call = self.next_call();
        self.request(call, &Host::bind_call(have));
        match self.reply(call) {
            Ok(Reply::Bound(bound)) => bound,
            other => panic!("not bound: {other:?}"),
        }
    }

    /// Takes so many bytes of what the agent wrote away, as a host did that then died. Fewer if no more come in time.
    pub fn swallow(&mut self, bytes: usize, time: Duration) {
        let mut buffer = vec![0; bytes];
        let mut swallowed = 0;
        let timeout = Timespec::try_from(time).unwrap();
        while swallowed < bytes {
            let mut fds = [PollFd::from_borrowed_fd(self.from.as_fd(), PollFlags::IN)];
            if poll(&mut fds, Some(&timeout)).unwrap() == 0 {
                return;
            }
            swallowed += rustix::io::read(&self.from, &mut buffer[swallowed..]).unwrap();
        }
    }

    /// Takes over from a host that died, wherever it was. Reads while it writes: both ways may be full.
    pub fn take_over(&mut self, have: &[(u32, u64)]) -> Bound {
        self.pending.clear();
        self.forget_seen();
        let call = self.next_call();
        let request = Host::bind_call(have);
        let Request::Bind { nonce, .. } = &request else { unreachable!() };
        let mark = Frame::new(Kind::Synced, 0, nonce.to_vec()).encode();
        let mut bytes = vec![0; PADDING_BYTES];
        bytes.extend(Frame::new(Kind::Request, call, serde_json::to_vec(&request).unwrap()).encode());
        let mut to = File::from(self.writer());
        let writing = std::thread::spawn(move || to.write_all(&bytes).unwrap());
        let until = Instant::now() + PATIENCE;
        let mut heard = Vec::new();
        let at = loop {
            if let Some(at) = heard.windows(mark.len()).position(|window| window == mark) {
                break at + mark.len();
            }
            heard.drain(..heard.len().saturating_sub(mark.len()));
            let left = until.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::from_borrowed_fd(self.from.as_fd(), PollFlags::IN)];
            let ready = poll(&mut fds, Some(&Timespec::try_from(left).unwrap())).unwrap();
            assert!(ready > 0, "the agent never came into step; its log:\n{}", self.log());
            let mut piece = [0; 65536];
            let got = rustix::io::read(&self.from, &mut piece).unwrap();
            assert!(got > 0, "the agent ended; its log:\n{}", self.log());
            heard.extend_from_slice(&piece[..got]);
        };
        self.pending.extend(&heard[at..]);
        writing.join().unwrap();
        // Output of executions may come with the answer; it goes on from what this host has.
        for (channel, have) in have {
            self.seen.insert(*channel, Seen { at: *have, ..Seen::default() });
        }
        match self.reply(call) {
            Ok(Reply::Bound(bound)) => bound,
            other => panic!("not bound: {other:?}"),
        }
    }

    pub fn pid(&self) -> u32 {
        self.agent.id()
    }

    pub fn next_call(&mut self) -> u32 {
        self.call += 1;
        self.call
    }

    pub fn next_effect(&mut self) -> u64 {
        self.effect += 1;
        self.effect
    }

    /// What the agent said on stderr.
    pub fn log(&self) -> String {
        use std::os::unix::fs::FileExt as _;
        let mut text = vec![0; self.log.metadata().unwrap().len() as usize];
        self.log.read_exact_at(&mut text, 0).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Waits until the agent has said something on stderr.
    pub fn wait_for_log(&mut self, text: &str) {
        let until = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < until, "the agent never said {text:?}, only:\n{}", self.log());
            self.read_within(Duration::from_millis(5));
        }
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        File::from(self.to.as_ref().unwrap().try_clone().unwrap()).write_all(bytes).unwrap();
    }

    /// Another descriptor to write to the agent.
    pub fn writer(&self) -> OwnedFd {
        self.to.as_ref().unwrap().try_clone().unwrap()
    }

    pub fn send(&mut self, kind: Kind, channel: u32, payload: impl Into<Vec<u8>>) {
        self.send_bytes(&Frame::new(kind, channel, payload.into()).encode());
    }

    pub fn request(&mut self, call: u32, request: &Request) {
        self.send(Kind::Request, call, serde_json::to_vec(request).unwrap());
    }

    /// Sends a call and waits for its answer.
    pub fn call(&mut self, request: &Request) -> ReplyResult {
        let call = self.next_call();
        self.request(call, request);
        self.reply(call)
    }

    /// Waits for the answer to a call.
    pub fn reply(&mut self, call: u32) -> ReplyResult {
        self.wait_until("an answer", |host| host.replies.contains_key(&call));
        self.replies.remove(&call).unwrap()
    }

    /// Reads until something holds.
    pub fn wait_until(&mut self, what: &str, mut holds: impl FnMut(&Host) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !holds(self) {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited in vain for {what}; the agent's log:\n{}", self.log());
            self.read_within(left);
        }
    }

    /// Reads one frame if one comes in time.
    pub fn read_within(&mut self, time: Duration) -> bool {
        let frame = self.frame_within(time);
        if let Some(frame) = &frame {
            self.take(frame);
        }
        frame.is_some()
    }

    /// One frame as it is, if one comes in time.
    pub fn frame_within(&mut self, time: Duration) -> Option<Frame> {
        let timeout = Timespec::try_from(time).unwrap();
        let mut fds = [PollFd::from_borrowed_fd(self.from.as_fd(), PollFlags::IN)];
        if self.pending.is_empty() && poll(&mut fds, Some(&timeout)).unwrap() == 0 {
            return None;
        }
        struct Source<'a>(&'a mut VecDeque<u8>, &'a OwnedFd);
        impl Read for Source<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                if self.0.is_empty() { Ok(rustix::io::read(self.1, buffer)?) } else { self.0.read(buffer) }
            }
        }
        match read_frame(&mut Source(&mut self.pending, &self.from)) {
            Ok(Some(frame)) => {
                assert!(frame.kind.is_from_guest(), "{frame:?}");
                Some(frame)
            }
            other => panic!("the agent ended or wrote nonsense: {other:?}; its log:\n{}", self.log()),
        }
    }

    fn take(&mut self, frame: &Frame) {
        let channel = frame.channel;
        match frame.kind {
            Kind::Reply => {
                let reply: ReplyResult = serde_json::from_slice(&frame.payload).unwrap();
                if let Ok(Reply::Spawned { .. }) = reply {
                    self.seen.entry(channel).or_default();
                }
                if let Ok(Reply::Entry(_) | Reply::Opened { .. }) = reply {
                    self.reads.entry(channel).or_default();
                }
                assert!(self.replies.insert(channel, reply).is_none(), "call {channel} was answered twice");
            }
            Kind::GuestData if self.seen.contains_key(&channel) => {
                let chunk = OutputChunk::decode(&frame.payload).unwrap();
                let seen = self.seen.get_mut(&channel).unwrap();
                assert_eq!(chunk.offset, seen.at, "output of {channel} has a gap or comes twice");
                assert!(!chunk.bytes.is_empty() && seen.exited.is_none());
                seen.at += chunk.bytes.len() as u64;
                seen.chunks += 1;
                if self.keep {
                    seen.all.extend_from_slice(chunk.bytes);
                    match chunk.stream {
                        Stream::Stdout => seen.stdout.extend_from_slice(chunk.bytes),
                        Stream::Stderr => seen.stderr.extend_from_slice(chunk.bytes),
                    }
                }
                let at = seen.at;
                if self.credit {
                    self.send(Kind::HostCredit, channel, encode_credit(at));
                }
            }
            Kind::GuestData => {
                let (bytes, end) = self.reads.get_mut(&channel).expect("data of a channel nobody opened");
                assert!(end.is_none() && !frame.payload.is_empty());
                bytes.extend_from_slice(&frame.payload);
                let at = bytes.len() as u64;
                if self.credit {
                    self.send(Kind::HostCredit, channel, encode_credit(at));
                }
            }
            Kind::GuestEnd => {
                let (_, end) = self.reads.get_mut(&channel).unwrap();
                assert!(end.replace(frame.payload.clone()).is_none());
            }
            Kind::GuestCredit => {
                let credit = decode_credit(frame.kind, &frame.payload).unwrap();
                let before = self.credits.insert(channel, credit).unwrap_or(0);
                assert!(credit >= before, "the credit of {channel} goes back");
            }
            Kind::Event => {
                let Event::Exited { channel, code, signal, produced, pipes_held } =
                    serde_json::from_slice(&frame.payload).unwrap();
                let seen = self.seen.entry(channel).or_default();
                let exited = Exited { code, signal, produced, pipes_held };
                assert!(seen.exited.replace(exited).is_none(), "execution {channel} ended twice");
                assert_eq!(seen.at, produced, "output of {channel} is missing at its end");
            }
            Kind::Quiesced => self.quiesced += 1,
            Kind::Synced => self.synced.push(frame.payload.clone()),
            other => panic!("an agent doesn't send {other:?}"),
        }
    }

    /// A call that starts a script as a user.
    pub fn script(&mut self, user: &str, script: &str) -> Spawn {
        self.spawn_of(user, Program::Script(script.to_owned()))
    }

    /// A call that starts a program as root.
    pub fn argv(&mut self, argv: &[&str]) -> Spawn {
        self.spawn_of("root", Program::Argv(argv.iter().map(|s| (*s).to_owned()).collect()))
    }

    fn spawn_of(&mut self, user: &str, program: Program) -> Spawn {
        let effect = self.next_effect();
        Spawn {
            execution: format!("x{effect}"),
            effect,
            program,
            cwd: "/".to_owned(),
            env: BTreeMap::new(),
            user: user.to_owned(),
            stdin: false,
            grace_ms: 200,
            pty: None,
        }
    }

    /// Starts a program; answers its channel and pid.
    pub fn start(&mut self, spawn: Spawn) -> (u32, u32) {
        let call = self.next_call();
        self.request(call, &Request::Spawn(spawn));
        match self.reply(call) {
            Ok(Reply::Spawned { pid }) => (call, pid),
            other => panic!("not started: {other:?}; the agent's log:\n{}", self.log()),
        }
    }

    /// Waits for an execution's end.
    pub fn finish(&mut self, channel: u32) -> Seen {
        self.wait_until("an execution's end", |host| host.seen.get(&channel).is_some_and(|s| s.exited.is_some()));
        self.seen[&channel].clone()
    }

    /// Runs a program to its end.
    pub fn run(&mut self, spawn: Spawn) -> Seen {
        let (channel, _) = self.start(spawn);
        self.finish(channel)
    }

    /// Runs a script as a user; answers its standard output.
    pub fn sh(&mut self, user: &str, script: &str) -> String {
        let spawn = self.script(user, script);
        let seen = self.run(spawn);
        assert_eq!(seen.exited.as_ref().unwrap().code, Some(0), "{}", String::from_utf8_lossy(&seen.stderr));
        String::from_utf8(seen.stdout).unwrap()
    }

    /// Waits until an execution has written so much.
    pub fn wait_for_output(&mut self, channel: u32, text: &str) {
        self.wait_until(text, |host| {
            host.seen.get(&channel).is_some_and(|seen| String::from_utf8_lossy(&seen.all).contains(text))
        });
    }

    /// Forgets what was seen, as a new host does.
    pub fn forget_seen(&mut self) {
        self.seen.clear();
        self.replies.clear();
        self.reads.clear();
        self.credits.clear();
    }

    /// Waits, reading nothing, until the channel is full, or nearly.
    pub fn wait_until_full(&self) {
        let until = Instant::now() + PATIENCE;
        let capacity = rustix::pipe::fcntl_getpipe_size(&self.from).unwrap() as u64;
        // A pipe is full when it has no page left; some may hold little.
        while rustix::io::ioctl_fionread(&self.from).unwrap() < capacity / 2 {
            assert!(Instant::now() < until, "the channel never filled");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// How often the agent's threads have been put to sleep or taken off their processor.
    pub fn switches(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().flatten();
        tasks
            .flat_map(|task| {
                let status = fs::read_to_string(task.path().join("status")).unwrap();
                let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
                lines.map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).collect::<Vec<_>>()
            })
            .sum()
    }

    /// Resident memory of the agent, in bytes.
    pub fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Pids of all processes below the agent.
    pub fn descendants(&self) -> Vec<u32> {
        let mut parents = HashMap::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
            let parent = stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse::<u32>().unwrap();
            parents.insert(pid, parent);
        }
        let below = |pid: &u32| {
            std::iter::successors(parents.get(pid), |parent| parents.get(parent)).any(|parent| *parent == self.pid())
        };
        parents.keys().copied().filter(below).collect()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let below = self.descendants();
        // The agent ends with its channel, and ends the groups of its executions; the rest is done here.
        drop(self.to.take());
        let until = Instant::now() + Duration::from_secs(5);
        while self.agent.try_wait().unwrap().is_none() {
            if Instant::now() > until {
                self.agent.kill().unwrap();
                self.agent.wait().unwrap();
                assert!(std::thread::panicking(), "the agent did not end with its channel");
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        for pid in below {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}
