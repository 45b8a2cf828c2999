//! One execution's state: its output, its input, its end. No thread, no system call beyond waking its pump; whoever
//! holds its lock never takes the outbox's.

use std::collections::VecDeque;
use std::sync::Mutex;

use remuda_guest_proto::{Event, ExecutionReport, Frame, Input, Kind, Reply, Stream, WINDOW_BYTES, encode_credit};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::errors::say;
use crate::inbox::{Ending, Inbox};
use crate::limits::{EARLY_SIGNALS_MAX, INPUT_WRITERS_MAX};
use crate::output_log::OutputLog;
use crate::sync::lock;

/// How a leader ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// Exit code, if it ended by itself.
    pub code: Option<i32>,
    /// Signal number, if one ended it.
    pub signal: Option<i32>,
}

enum Phase {
    /// The program is being started; these signals wait for it.
    Starting(Vec<i32>),
    /// It was started under this pid, and its end may be known.
    Started(u32),
}

struct State {
    phase: Phase,
    log: OutputLog,
    stdin: Inbox,
    /// How many bytes of each writer came, the one that was heard last at the end.
    writers: VecDeque<(String, u64)>,
    /// Its terminal, until its end.
    terminal: Option<OwnedFd>,
    /// The leader's end.
    exit: Option<Exit>,
    /// The execution's end, which comes later: whether others still held its pipes.
    end: Option<bool>,
    end_told: bool,
    /// Whether a host was told of this execution in a `Bound`.
    listed: bool,
    stdin_credit: Option<u64>,
    /// Whether the outbox knows that there is something to say.
    offered: bool,
    /// Whether the pump sleeps because there is no room.
    full: bool,
}

/// An execution.
pub struct Execution {
    /// Its channel: the number of the call that started it.
    pub channel: u32,
    /// Its id with the host.
    pub id: String,
    /// The server's number for the effect that started it.
    pub effect: u64,
    /// Whether its standard input is a pipe.
    pub has_stdin: bool,
    wake: OwnedFd,
    state: Mutex<State>,
}

/// What an execution's pump should do next.
pub struct Orders {
    /// Bytes of output it may read.
    pub room: usize,
    /// Whether the leader has ended.
    pub exited: bool,
    /// Whether there is input to take.
    pub has_input: bool,
    /// Whether the input has ended and all of it was taken.
    pub input_ended: bool,
}

/// What a signal meets.
pub enum Target {
    /// The program is being started: the signal is kept for it.
    Kept,
    /// The group of this pid.
    Group(u32),
    /// Too many signals are being kept.
    TooMany,
}

impl Execution {
    /// An execution whose program is not started yet.
    pub fn new(channel: u32, id: String, effect: u64, has_stdin: bool) -> rustix::io::Result<Execution> {
        Ok(Execution {
            channel,
            id,
            effect,
            has_stdin,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            state: Mutex::new(State {
                phase: Phase::Starting(Vec::new()),
                log: OutputLog::default(),
                stdin: Inbox::default(),
                writers: VecDeque::new(),
                terminal: None,
                exit: None,
                end: None,
                end_told: false,
                listed: false,
                stdin_credit: None,
                offered: false,
                full: false,
            }),
        })
    }

    /// What the pump polls to be woken.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Wakes the pump.
    fn wake(&self) {
        // A full counter wakes as well as one more would.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The program runs under `pid`; answers the signals that came too early.
    pub fn started(&self, pid: u32) -> Vec<i32> {
        match std::mem::replace(&mut lock(&self.state).phase, Phase::Started(pid)) {
            Phase::Starting(signals) => signals,
            Phase::Started(_) => Vec::new(),
        }
    }

    /// The program could not be started. If a host has been told of the execution meanwhile, it must also be told of
    /// its end, and `true` says that the execution stays until it is forgotten.
    pub fn never_started(&self) -> bool {
        let mut state = lock(&self.state);
        state.exit = Some(Exit { code: Some(127), signal: None });
        state.end = Some(false);
        state.listed
    }

    /// Where a signal goes.
    pub fn target(&self, signal: i32) -> Target {
        match &mut lock(&self.state).phase {
            Phase::Started(pid) => Target::Group(*pid),
            Phase::Starting(kept) if kept.len() < EARLY_SIGNALS_MAX => {
                kept.push(signal);
                Target::Kept
            }
            Phase::Starting(_) => Target::TooMany,
        }
    }

    /// The leader ended.
    pub fn exited(&self, exit: Exit) {
        lock(&self.state).exit = Some(exit);
        self.wake();
    }

    /// What the pump should do. With no room it is woken as soon as there is some.
    pub fn orders(&self) -> Orders {
        let mut state = lock(&self.state);
        let room = state.log.room();
        state.full = room == 0;
        Orders {
            room,
            exited: state.exit.is_some(),
            has_input: state.stdin.has_waiting(),
            input_ended: state.stdin.ended().is_some(),
        }
    }

    /// Takes what was read, at most the room there was. `true`: the outbox must be offered this execution.
    #[must_use]
    pub fn append(&self, stream: Stream, bytes: &[u8]) -> bool {
        let mut state = lock(&self.state);
        state.log.append(stream, bytes);
        !std::mem::replace(&mut state.offered, true)
    }

    /// Takes the input that waits.
    pub fn take_input(&self, buffer: Vec<u8>) -> Vec<u8> {
        lock(&self.state).stdin.take(buffer)
    }

    /// Counts input as consumed. `true`: the outbox must be offered this execution.
    #[must_use]
    pub fn input_consumed(&self, bytes: usize) -> bool {
        let mut state = lock(&self.state);
        state.stdin.consume(bytes);
        state.credit_stdin()
    }

    /// Nobody reads the input any more. `true`: the outbox must be offered this execution.
    #[must_use]
    pub fn input_unwanted(&self) -> bool {
        let mut state = lock(&self.state);
        state.stdin.discard();
        state.credit_stdin()
    }

    /// The execution's end: nothing more is read for it. The outbox must be offered it.
    pub fn finish(&self, pipes_held: bool) {
        let mut state = lock(&self.state);
        state.end = Some(pipes_held);
        state.log.close();
        state.stdin.discard();
        state.terminal = None;
        state.credit_stdin();
        state.offered = true;
    }

    /// Input from the host. `true`: the outbox must be offered this execution. An error is a sentence for the log.
    pub fn receive(&self, bytes: &[u8]) -> Result<bool, String> {
        if !self.has_stdin {
            return Err(format!("data for execution {}, whose standard input is no pipe", self.channel));
        }
        let mut state = lock(&self.state);
        if !state.stdin.receive(bytes) {
            if state.stdin.ended().is_none() {
                state.stdin.discard();
                state.stdin.end(Ending::BrokenOff);
                self.wake();
                return Err(format!("more than the window on channel {}: its input is closed", self.channel));
            }
            return Ok(false);
        }
        if state.end.is_some() {
            state.stdin.discard();
            return Ok(state.credit_stdin());
        }
        self.wake();
        Ok(false)
    }

    /// A piece of input: what is new of it and has room is taken. Answers what this writer has sent by now.
    pub fn input(&self, input: &Input) -> Reply {
        let mut state = lock(&self.state);
        let known = state.writers.iter().position(|(writer, _)| *writer == input.writer);
        let before = known.and_then(|at| state.writers.remove(at)).map_or(0, |(_, taken)| taken);
        let closed = state.end.is_some() || state.stdin.is_closed();
        let known = before.checked_sub(input.offset).and_then(|known| usize::try_from(known).ok());
        // What comes behind a gap is not taken, and the answer tells where it begins.
        let fresh = known.and_then(|known| input.bytes.get(known..)).filter(|_| !closed).unwrap_or_default();
        let (taken, rest) = fresh.split_at(fresh.len().min(state.stdin.room()));
        // There is room for it: see above.
        let _ = state.stdin.receive(taken);
        let is_all = known.is_some_and(|known| known <= input.bytes.len()) && rest.is_empty();
        if input.end && is_all && !closed {
            state.stdin.end(Ending::Whole);
        }
        let taken = before + taken.len() as u64;
        state.writers.push_back((input.writer.clone(), taken));
        if state.writers.len() > INPUT_WRITERS_MAX {
            state.writers.pop_front();
        }
        let closed = closed || state.stdin.is_closed();
        drop(state);
        self.wake();
        Reply::Input { taken, closed }
    }

    /// It has this terminal.
    pub fn has_terminal(&self, terminal: OwnedFd) {
        lock(&self.state).terminal = Some(terminal);
    }

    /// Does something with its terminal; `None` where it has none, or not any more.
    pub fn with_terminal<T>(&self, what: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        lock(&self.state).terminal.as_ref().map(|terminal| what(terminal.as_fd()))
    }

    /// The leader's pid, once it has one.
    pub fn pid(&self) -> Option<u32> {
        match lock(&self.state).phase {
            Phase::Starting(_) => None,
            Phase::Started(pid) => Some(pid),
        }
    }

    /// No more input will come.
    pub fn end_input(&self) {
        lock(&self.state).stdin.end(Ending::Whole);
        self.wake();
    }

    /// The host consumed so many bytes of output.
    pub fn acknowledge(&self, consumed: u64) {
        let mut state = lock(&self.state);
        state.log.acknowledge(consumed);
        if state.full && state.log.room() as u64 >= WINDOW_BYTES / 4 {
            state.full = false;
            self.wake();
        }
    }

    /// Whether the execution has ended.
    pub fn has_ended(&self) -> bool {
        lock(&self.state).end.is_some()
    }

    /// A new host: what it has is acknowledged, all the rest is said again, the end too.
    pub fn rebind(&self, have: Option<u64>) -> ExecutionReport {
        let mut state = lock(&self.state);
        if let Some(have) = have.filter(|have| *have > state.log.produced()) {
            say(format_args!(
                "the host has {have} bytes of execution {}, which wrote {}",
                self.channel,
                state.log.produced()
            ));
        }
        state.log.resume(have);
        if state.full {
            state.full = false;
            self.wake();
        }
        state.end_told = false;
        state.listed = true;
        state.offered = true;
        if self.has_stdin && state.stdin.consumed() > 0 {
            state.stdin_credit = Some(state.stdin.consumed());
        }
        ExecutionReport {
            channel: self.channel,
            execution: self.id.clone(),
            effect: self.effect,
            pid: match state.phase {
                Phase::Starting(_) => 0,
                Phase::Started(pid) => pid,
            },
            produced: state.log.produced(),
            input: state.stdin.received(),
            input_ended: !self.has_stdin || state.stdin.is_closed(),
            running: state.end.is_none(),
        }
    }

    /// The next frame this execution has for the host, built in `buffer`, and whether there is more.
    pub fn next_frame(&self, buffer: &mut Vec<u8>) -> (Option<Frame>, bool) {
        let mut state = lock(&self.state);
        let frame = if let Some(credit) = state.stdin_credit.take() {
            Some(Frame::new(Kind::GuestCredit, self.channel, encode_credit(credit)))
        } else if state.log.has_unsent() {
            state.log.take(std::mem::take(buffer)).map(|payload| Frame::new(Kind::GuestData, self.channel, payload))
        } else {
            self.end_event(&mut state)
        };
        state.offered = state.stdin_credit.is_some() || state.log.has_unsent() || state.end_untold();
        (frame, state.offered)
    }

    fn end_event(&self, state: &mut State) -> Option<Frame> {
        let (Some(pipes_held), Some(exit), false) = (state.end, state.exit, state.end_told) else { return None };
        state.end_told = true;
        let event = Event::Exited {
            channel: self.channel,
            code: exit.code,
            signal: exit.signal,
            produced: state.log.produced(),
            pipes_held,
        };
        match serde_json::to_vec(&event) {
            Ok(payload) => Some(Frame::new(Kind::Event, 0, payload)),
            Err(error) => {
                say(format_args!("an event cannot be written down: {error}"));
                None
            }
        }
    }
}

impl State {
    fn credit_stdin(&mut self) -> bool {
        let Some(credit) = self.stdin.credit_due() else { return false };
        self.stdin_credit = Some(credit);
        !std::mem::replace(&mut self.offered, true)
    }

    fn end_untold(&self) -> bool {
        self.end.is_some() && !self.end_told
    }
}
