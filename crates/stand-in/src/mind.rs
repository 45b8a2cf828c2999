//! What an agent knows: executions and the effects that were asked of it. This is what a memory image carries.

use std::collections::BTreeMap;

use remuda_guest_proto::{
    AgentError, AgentErrorKind, Bound, CALLS, Entry, EntryKind, Event, ExecutionReport, Frame, Glob, Grep, Kind,
    OutputChunk, Program, Reply, ReplyResult, Request, Spawn, Stream, Watch,
};
use serde::{Deserialize, Serialize};

/// The first process that is no part of the agent.
const FIRST_PID: u32 = 2;

/// One program.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Run {
    report: ExecutionReport,
    output: String,
    /// Exit code, or the number of the signal.
    ended: Option<(Option<i32>, Option<i32>)>,
}

/// An agent's memory.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Mind {
    runs: BTreeMap<u32, Run>,
    effects: BTreeMap<u64, ReplyResult>,
    pids: u32,
}

impl Mind {
    /// Programs that have not ended.
    pub(crate) fn running(&self) -> usize {
        self.runs.values().filter(|run| run.report.running).count()
    }

    /// The effects that started a program here, or in the machine that this one is a copy of.
    pub(crate) fn spawned(&self) -> Vec<u64> {
        let started = self.effects.iter().filter(|(_, reply)| matches!(reply, Ok(Reply::Spawned { .. })));
        started.map(|(effect, _)| *effect).collect()
    }

    /// Carries a call out; the frames that answer it.
    pub(crate) fn obey(&mut self, call: u32, request: Request) -> Vec<Frame> {
        match request {
            Request::Bind { nonce, identity } => {
                let reports = self.runs.values().map(|run| run.report.clone()).collect();
                let bound = Bound { agent: "stand-in".to_owned(), executions: reports, calls: CALLS };
                let mut frames =
                    vec![Frame::new(Kind::Synced, 0, nonce.to_vec()), reply(call, &Ok(Reply::Bound(bound)))];
                for run in self.runs.values() {
                    let channel = run.report.channel;
                    let have = identity.executions.iter().find(|at| at.channel == channel).map_or(0, |at| at.have);
                    frames.extend(run.said_from(usize::try_from(have).unwrap_or(usize::MAX)));
                    frames.extend(run.end());
                }
                frames
            }
            Request::Spawn(spawn) => self.spawn(call, spawn),
            Request::Signal { channel, signal } => {
                let mut frames = vec![reply(call, &Ok(Reply::Done))];
                if let Some(run) = self.runs.get_mut(&channel).filter(|run| run.report.running) {
                    run.report.running = false;
                    run.ended = Some((None, Some(signal)));
                    frames.extend(run.end());
                }
                frames
            }
            Request::Forget { channel } => {
                self.runs.remove(&channel);
                vec![reply(call, &Ok(Reply::Done))]
            }
            Request::Outcome { effect } => {
                let undone = Err(refusal(AgentErrorKind::Undone, "it never arrived"));
                vec![reply(call, self.effects.get(&effect).unwrap_or(&undone))]
            }
            Request::Input(input) => {
                let taken = input.offset + input.bytes.len() as u64;
                vec![reply(call, &Ok(Reply::Input { taken, closed: input.end }))]
            }
            Request::Ping | Request::Resize { .. } | Request::Remove { .. } => vec![reply(call, &Ok(Reply::Done))],
            Request::MakeDirectory { path, .. } => vec![reply(call, &Ok(Reply::Entry(directory(path))))],
            Request::List { .. } => vec![reply(call, &Ok(Reply::Entries { entries: Vec::new(), truncated: false }))],
            Request::LeftOutOfFiles | Request::DeletedOpenFiles => {
                vec![reply(call, &Ok(Reply::Sentences { sentences: Vec::new() }))]
            }
            Request::Connect { port, .. } => {
                vec![reply(call, &Err(refusal(AgentErrorKind::NotFound, &format!("nothing listens on port {port}"))))]
            }
            Request::Batch(batch) => {
                let results =
                    batch.changes.iter().map(|_| Err(refusal(AgentErrorKind::NotFound, "there are no files")));
                vec![reply(call, &Ok(Reply::Changed { results: results.collect() }))]
            }
            Request::Glob(Glob { path, .. })
            | Request::Grep(Grep { path, .. })
            | Request::Watch(Watch { path, .. })
            | Request::ReadFile { path, .. }
            | Request::OpenFile { path, .. }
            | Request::WriteFile { path, .. }
            | Request::Stat { path, .. }
            | Request::Move { from: path, .. }
            | Request::PackTree { path, .. }
            | Request::UnpackTree { path, .. }
            | Request::SetAttributes { path, .. } => {
                vec![reply(call, &Err(refusal(AgentErrorKind::NotFound, &path)))]
            }
        }
    }

    /// `true`, `echo WORD` and `sleep` are all the programs there are; the last one runs until it gets a signal.
    fn spawn(&mut self, channel: u32, spawn: Spawn) -> Vec<Frame> {
        if let Some(known) = self.effects.get(&spawn.effect) {
            return vec![reply(channel, known)];
        }
        let words = match spawn.program {
            Program::Script(text) => text.split_ascii_whitespace().map(str::to_owned).collect(),
            Program::Argv(words) => words,
        };
        let (output, ended) = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["true"] => (String::new(), Some((Some(0), None))),
            ["echo", word] => (format!("{word}\n"), Some((Some(0), None))),
            ["sleep", ..] => (String::new(), None),
            _ => {
                let refused = Err(refusal(AgentErrorKind::NotFound, "there is no such program"));
                let frame = reply(channel, &refused);
                self.effects.insert(spawn.effect, refused);
                return vec![frame];
            }
        };
        self.pids += 1;
        let pid = FIRST_PID + self.pids;
        let report = ExecutionReport {
            channel,
            execution: spawn.execution,
            effect: spawn.effect,
            pid,
            produced: output.len() as u64,
            input: 0,
            input_ended: true,
            running: ended.is_none(),
        };
        let run = Run { report, output, ended };
        let spawned = Ok(Reply::Spawned { pid });
        let mut frames = vec![reply(channel, &spawned)];
        frames.extend(run.said_from(0));
        frames.extend(run.end());
        self.effects.insert(spawn.effect, spawned);
        self.runs.insert(channel, run);
        frames
    }
}

impl Run {
    fn said_from(&self, offset: usize) -> Option<Frame> {
        let bytes = self.output.as_bytes().get(offset..).filter(|bytes| !bytes.is_empty())?;
        let chunk = OutputChunk { offset: offset as u64, stream: Stream::Stdout, bytes };
        Some(Frame::new(Kind::GuestData, self.report.channel, chunk.encode()))
    }

    fn end(&self) -> Option<Frame> {
        let (code, signal) = self.ended?;
        let ExecutionReport { channel, produced, .. } = self.report;
        let event = Event::Exited { channel, code, signal, produced, pipes_held: false };
        Some(Frame::new(Kind::Event, 0, serde_json::to_vec(&event).unwrap_or_default()))
    }
}

fn reply(call: u32, result: &ReplyResult) -> Frame {
    Frame::new(Kind::Reply, call, serde_json::to_vec(result).unwrap_or_default())
}

fn refusal(kind: AgentErrorKind, message: &str) -> AgentError {
    AgentError { kind, message: message.to_owned() }
}

fn directory(path: String) -> Entry {
    let (size, mode, uid, gid, modified_ms) = (0, 0o755, 0, 0, 0);
    Entry { path, kind: EntryKind::Directory, size, mode, uid, gid, modified_ms, target: None, digest: None }
}
