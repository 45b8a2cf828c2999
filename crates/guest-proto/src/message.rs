//! What calls, replies and events say. JSON, so that a newer side can add members an older one ignores.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::batch::{Batch, Changed};
use crate::files::{ByteRange, Conditions};
use crate::frame::{FrameError, Kind};
use crate::input::{Input, PtySize};
use crate::search::{Glob, Grep, LineMatch};
use crate::watch::Watch;
use crate::{CALLS_WITH_CONNECT, CALLS_WITH_INPUT, CALLS_WITH_LEFT_OUT};

/// A call of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Request {
    /// Tells the agent who it is now. Answered by a [`Kind::Synced`] with the nonce, and then by [`Reply::Bound`].
    Bind {
        /// Sixteen fresh random bytes, by which the host recognises where what is meant for it begins.
        nonce: Nonce,
        /// Who it is.
        identity: Bind,
    },
    /// Starts a program. Answered by [`Reply::Spawned`]; its output comes on the call's own channel number.
    Spawn(Spawn),
    /// Sends a signal to an execution's process group. Answered by [`Reply::Done`].
    Signal {
        /// The execution's channel.
        channel: u32,
        /// Signal number.
        signal: i32,
    },
    /// Gives an execution's terminal another size, and tells its programs. Answered by [`Reply::Done`].
    Resize {
        /// The execution's channel.
        channel: u32,
        /// The size.
        size: PtySize,
    },
    /// A piece of an execution's standard input. Answered by [`Reply::Input`].
    Input(Input),
    /// Drops what the agent keeps of an ended execution. Answered by [`Reply::Done`].
    Forget {
        /// The execution's channel.
        channel: u32,
    },
    /// Reads a file. Answered by [`Reply::Entry`], then data and an end on the call's channel.
    ReadFile {
        /// Absolute path.
        path: String,
        /// Guest user whose permissions count.
        user: String,
    },
    /// Reads a file or a part of one. Answered by [`Reply::Opened`], then data and an end on the call's channel.
    OpenFile {
        /// Absolute path.
        path: String,
        /// Guest user whose permissions count.
        user: String,
        /// Which bytes; all of them when absent.
        range: Option<ByteRange>,
        /// What must hold of it.
        conditions: Conditions,
        /// Largest file whose digest is made without being asked for by a condition, in bytes.
        digest_bytes_max: u64,
    },
    /// Writes a file: data and an end follow on the call's channel; it is renamed into place at the end and only then
    /// answered by [`Reply::Entry`], with the digest of what was written.
    WriteFile {
        /// Absolute path.
        path: String,
        /// Guest user who writes and owns it.
        user: String,
        /// Permission bits; of the file that is replaced, else 0644.
        mode: Option<u32>,
        /// Whether missing directories are made.
        parents: bool,
        /// What must hold of the file that is replaced.
        #[serde(default, skip_serializing_if = "Conditions::is_empty")]
        conditions: Conditions,
        /// The server's number for this effect.
        effect: u64,
    },
    /// Lists a directory. Answered by [`Reply::Entries`].
    List {
        /// Absolute path.
        path: String,
        /// Guest user whose permissions count.
        user: String,
        /// Most entries to answer.
        limit: u32,
    },
    /// Tells what a path is, not following a link. Answered by [`Reply::Entry`].
    Stat {
        /// Absolute path.
        path: String,
        /// Guest user whose permissions count.
        user: String,
        /// Whether the digest of a regular file is told too.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        digest: bool,
    },
    /// Makes a directory. Answered by [`Reply::Entry`].
    MakeDirectory {
        /// Absolute path.
        path: String,
        /// Guest user who makes and owns it.
        user: String,
        /// Whether missing parents are made and an existing directory is fine.
        parents: bool,
        /// The server's number for this effect. Agents before [`CALLS`](crate::CALLS) 1 don't look at it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effect: Option<u64>,
    },
    /// Removes a path. Answered by [`Reply::Done`].
    Remove {
        /// Absolute path.
        path: String,
        /// Guest user whose permissions count.
        user: String,
        /// Whether a directory goes with all that is in it.
        recursive: bool,
        /// The server's number for this effect. Agents before [`CALLS`](crate::CALLS) 1 don't look at it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        effect: Option<u64>,
    },
    /// Gives a path another name. Answered by [`Reply::Entry`] of the new one.
    Move {
        /// Absolute path.
        from: String,
        /// Absolute path of the new name itself, not of a directory to put it into.
        to: String,
        /// Guest user whose permissions count.
        user: String,
        /// Whether a file, or an empty directory by a directory, may be replaced.
        overwrite: bool,
        /// The server's number for this effect.
        effect: u64,
    },
    /// Changes permission bits and owner of what a path leads to. Answered by [`Reply::Entry`].
    SetAttributes {
        /// Absolute path; links are followed.
        path: String,
        /// Guest user whose permissions count.
        user: String,
        /// Permission bits; as they are when absent.
        mode: Option<u32>,
        /// Owner by name, with that user's group; as it is when absent.
        owner: Option<String>,
        /// The server's number for this effect.
        effect: u64,
    },
    /// Packs a directory with all that is in it, or a file, as a tar archive. Answered by [`Reply::Opened`] without a
    /// length, then data and an end on the call's channel.
    PackTree {
        /// Absolute path.
        path: String,
        /// Guest user whose permissions count.
        user: String,
    },
    /// Unpacks a tar archive into a directory: data and an end follow on the call's channel, and each entry is put in place
    /// as it comes. Answered by [`Reply::Unpacked`].
    UnpackTree {
        /// Absolute path of the directory, which is made if it is missing.
        path: String,
        /// Guest user who unpacks and owns what is made; root keeps the archive's owners.
        user: String,
        /// Whether missing directories above it are made.
        parents: bool,
        /// The server's number for this effect.
        effect: u64,
    },
    /// Looks for paths by their names. Answered by [`Reply::Found`].
    Glob(Glob),
    /// Looks for lines by their text. Answered by [`Reply::Matched`].
    Grep(Grep),
    /// Watches files. Answered by [`Reply::Opened`] without a length, then lines of JSON, each a `WatchEvent`, on the call's
    /// channel until it ends.
    Watch(Watch),
    /// Several changes of files, one after another; one that fails keeps no other from being done. Answered by
    /// [`Reply::Changed`].
    Batch(Batch),
    /// Names the open files that have no name left, which gVisor cannot checkpoint. Answered by [`Reply::Sentences`].
    DeletedOpenFiles,
    /// Names what a capture of files alone leaves out of what is there now: what lies in memory, and pipes and sockets.
    /// Answered by [`Reply::Sentences`].
    LeftOutOfFiles,
    /// Asks for one connection to a program that listens on the guest's own loopback address. Answered by
    /// [`Reply::Listening`] once the agent is connected to it, with [`AgentErrorKind::NotFound`] where nothing listens.
    Connect {
        /// The program's port.
        port: u16,
        /// The address that the host connects from; whoever comes from another one is turned away.
        from: std::net::Ipv4Addr,
    },
    /// Asks what became of an effect that this or an earlier host asked for. Answered as the effect's own call was or
    /// would have been, once that is known; with [`AgentErrorKind::Undone`] if nothing of it was or will be done; with
    /// [`AgentErrorKind::Forgotten`] if that can't be told any more.
    Outcome {
        /// The server's number for the effect.
        effect: u64,
    },
    /// Asks for a sign of life. Answered by [`Reply::Done`].
    Ping,
}

impl Request {
    /// Which [`Bound::calls`] an agent must have to carry this out as it is meant. An older one would refuse a call that
    /// it does not know, and not see a member that it does not know.
    pub fn needs(&self) -> u32 {
        match self {
            Request::OpenFile { .. } | Request::Move { .. } | Request::SetAttributes { .. } => 1,
            Request::WriteFile { conditions, .. } if !conditions.is_empty() => 1,
            Request::Stat { digest: true, .. } => 1,
            Request::PackTree { .. } | Request::UnpackTree { .. } => 2,
            Request::Glob(_) | Request::Grep(_) | Request::Batch(_) | Request::Watch(_) => 4,
            Request::Resize { .. } | Request::Input(_) => CALLS_WITH_INPUT,
            Request::Spawn(spawn) if spawn.pty.is_some() => CALLS_WITH_INPUT,
            Request::LeftOutOfFiles => CALLS_WITH_LEFT_OUT,
            Request::Connect { .. } => CALLS_WITH_CONNECT,
            _ => 0,
        }
    }
}

/// What a host recognises the beginning of its own conversation by. Bytes that a guest can't know before.
pub type Nonce = [u8; 16];

/// Who the sandbox is from now on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bind {
    /// `slot@generation`.
    pub sandbox: String,
    /// Its uid.
    pub uid: String,
    /// Host name to take.
    pub hostname: String,
    /// Sixteen fresh random bytes in hex, for `/etc/machine-id`.
    pub machine_id: String,
    /// The snapshot this machine woke up from, if any.
    pub snapshot: Option<String>,
    /// The host's clock, in Unix milliseconds; a guest's clocks may be behind.
    pub now_unix_ms: i64,
    /// Executions whose output the host already has up to an offset.
    pub executions: Vec<ResumeAt>,
    /// Largest number of processes of a guest user.
    pub processes_max: u32,
}

/// Where to go on with an execution's output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResumeAt {
    /// The execution's channel.
    pub channel: u32,
    /// Bytes of its output that the host has.
    pub have: u64,
}

/// A program to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spawn {
    /// The execution's id, for the agent's own listing.
    pub execution: String,
    /// The server's number for this effect: a repeated call with the same number starts nothing and is answered as
    /// the first one was.
    pub effect: u64,
    /// What to run.
    pub program: Program,
    /// Working directory.
    pub cwd: String,
    /// Environment beside PATH, HOME, USER, LOGNAME, SHELL and LANG, which it may replace.
    pub env: BTreeMap<String, String>,
    /// Guest user by name.
    pub user: String,
    /// Whether standard input is a pipe fed by the call's channel; `/dev/null` otherwise.
    pub stdin: bool,
    /// How long to go on reading inherited pipes after the leader's end, in milliseconds.
    pub grace_ms: u64,
    /// A terminal of this size instead of pipes: it is the program's controlling terminal, its output is one stream, and
    /// it takes input whatever `stdin` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<PtySize>,
}

/// What to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// A script for `/bin/sh`. It reaches the shell by a file descriptor, never by an argument.
    Script(String),
    /// Program and arguments.
    Argv(Vec<String>),
}

/// The answer to a call: what it asked for, or why not.
pub type ReplyResult = Result<Reply, AgentError>;

/// What a call was answered with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// The agent took its identity.
    Bound(Bound),
    /// The program runs.
    Spawned {
        /// The leader's pid.
        pid: u32,
    },
    /// How much of an execution's standard input the agent has.
    Input {
        /// Bytes of this writer that it has.
        taken: u64,
        /// Whether no more is wanted: the input was ended, or the execution has.
        closed: bool,
    },
    /// A path.
    Entry(Entry),
    /// A file of which data follows.
    Opened {
        /// What it is.
        entry: Entry,
        /// Offset of the first byte that follows.
        first: u64,
        /// Bytes that follow: exactly so many where a range was asked for, else as the size says.
        length: u64,
    },
    /// An archive was unpacked.
    Unpacked {
        /// Regular files.
        files: u64,
        /// Directories, those that were there included.
        directories: u64,
        /// Links, and further names of files.
        links: u64,
        /// Bytes of contents.
        bytes: u64,
        /// What the archive says that it lacks.
        skipped: Vec<String>,
    },
    /// A directory.
    Entries {
        /// Its entries.
        entries: Vec<Entry>,
        /// Whether some were left out at the limit.
        truncated: bool,
    },
    /// Paths that were looked for.
    Found {
        /// What they are, in the order of the walk: a directory before what is in it, names in byte order.
        entries: Vec<Entry>,
        /// Where to go on; none if all was looked at.
        next: Option<String>,
        /// What was not looked at, one sentence each, at most as many as are told.
        skipped: Vec<String>,
    },
    /// Lines that were looked for.
    Matched {
        /// The lines, files in the order of the walk.
        matches: Vec<LineMatch>,
        /// Files that were looked into.
        files: u64,
        /// Where to go on; none if all was looked at.
        next: Option<String>,
        /// What was not looked at, one sentence each, at most as many as are told.
        skipped: Vec<String>,
    },
    /// What became of each change of a [`Batch`], in its order.
    Changed {
        /// One each.
        results: Vec<Result<Option<Changed>, AgentError>>,
    },
    /// Sentences for a person.
    Sentences {
        /// One each.
        sentences: Vec<String>,
    },
    /// The agent is connected to a program, and waits a while for the host to connect to itself.
    Listening {
        /// The agent's port, for one connection.
        port: u16,
    },
    /// It was done and there is nothing to tell.
    Done,
}

/// What an agent says of itself when it is bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    /// Version of the agent.
    pub agent: String,
    /// Executions it knows, running or ended and not forgotten.
    pub executions: Vec<ExecutionReport>,
    /// Which calls it knows: see [`CALLS`](crate::CALLS).
    #[serde(default)]
    pub calls: u32,
}

/// An execution as the agent knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecutionReport {
    /// Its channel.
    pub channel: u32,
    /// The id it was started under (in a copy: the source's).
    pub execution: String,
    /// The server's number for the effect that started it.
    pub effect: u64,
    /// The leader's pid; 0 while it is being started.
    pub pid: u32,
    /// Bytes of output read so far.
    pub produced: u64,
    /// Bytes of standard input that arrived.
    pub input: u64,
    /// Whether the end of its standard input arrived, or it has none.
    pub input_ended: bool,
    /// Whether it has not ended. The end of one that has is told (again) after this, by an event, until it is forgotten.
    pub running: bool,
}

/// Something that happened by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// An execution's leader ended and all its output up to the end (or the grace) was sent before this.
    Exited {
        /// The execution's channel.
        channel: u32,
        /// Exit code, if it ended by itself.
        code: Option<i32>,
        /// Signal number, if one ended it.
        signal: Option<i32>,
        /// Bytes of output in all.
        produced: u64,
        /// Whether others still hold its pipes.
        pipes_held: bool,
    },
}

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// Anything else.
    Other,
}

/// One path of the guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Absolute path; not UTF-8 is replaced.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of its contents, in Unix milliseconds.
    pub modified_ms: i64,
    /// Target of a link.
    pub target: Option<String>,
    /// SHA-256 of a regular file's contents in hex, where it was asked for or known anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// Why the agent did not do what was asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentError {
    /// What sort of refusal.
    pub kind: AgentErrorKind,
    /// A sentence that names the thing.
    pub message: String,
}

/// Sorts of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentErrorKind {
    /// No such path, program, user, working directory or channel.
    NotFound,
    /// The user may not.
    Denied,
    /// A directory or something else where a regular file is needed.
    NotAFile,
    /// Something else where a directory is needed.
    NotADirectory,
    /// It exists already.
    Exists,
    /// The disk is full.
    Full,
    /// As much is under way in the agent as it takes; nothing was done, and it may be asked again.
    Busy,
    /// A condition of the call does not hold; nothing was done.
    Condition,
    /// The caller has it already, as a condition of the call says.
    Unchanged,
    /// The file has none of the bytes that were asked for.
    OutOfRange,
    /// An archive is none, breaks off, or has what is not unpacked. What came before in it was unpacked.
    Archive,
    /// The call makes no sense.
    Invalid,
    /// Nothing of it was done: it never arrived whole, or was broken off before it had any effect.
    Undone,
    /// Whether it was done is not known any more.
    Forgotten,
    /// Anything else.
    Failed,
}

/// Which of its two outputs an execution wrote to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stream {
    /// Standard output.
    Stdout = 1,
    /// Standard error.
    Stderr = 2,
}

/// Bytes before the text of an output frame: offset (8, little endian) and stream (1).
pub const OUTPUT_PREFIX_BYTES: usize = 9;

/// A piece of output: where it stands in the execution's one log, which stream, and the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputChunk<'a> {
    /// Offset of the first byte.
    pub offset: u64,
    /// Which stream.
    pub stream: Stream,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl<'a> OutputChunk<'a> {
    /// The payload that carries it.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::with_capacity(OUTPUT_PREFIX_BYTES + self.bytes.len());
        payload.extend_from_slice(&self.offset.to_le_bytes());
        payload.push(self.stream as u8);
        payload.extend_from_slice(self.bytes);
        payload
    }

    /// Reads a payload, believing nothing.
    pub fn decode(payload: &'a [u8]) -> Result<OutputChunk<'a>, FrameError> {
        let bad = |why: &str| FrameError::Payload { kind: Kind::GuestData, why: why.to_owned() };
        let (offset, rest) = payload.split_first_chunk::<8>().ok_or_else(|| bad("no offset"))?;
        let (stream, bytes) = rest.split_first().ok_or_else(|| bad("no stream"))?;
        let stream = match stream {
            1 => Stream::Stdout,
            2 => Stream::Stderr,
            _ => return Err(bad("no such stream")),
        };
        Ok(OutputChunk { offset: u64::from_le_bytes(*offset), stream, bytes })
    }
}

/// The payload of a credit frame.
pub fn encode_credit(consumed: u64) -> Vec<u8> {
    consumed.to_le_bytes().to_vec()
}

/// Reads a credit's payload.
pub fn decode_credit(kind: Kind, payload: &[u8]) -> Result<u64, FrameError> {
    let bytes: [u8; 8] =
        payload.try_into().map_err(|_| FrameError::Payload { kind, why: format!("{} bytes, not 8", payload.len()) })?;
    Ok(u64::from_le_bytes(bytes))
}
