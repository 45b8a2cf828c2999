//! What waits for the channel, and who may hear it. One thread takes frames out and writes them; everyone else only
//! puts in. Nothing leaves while the agent is silent, and nothing that was meant for an earlier host leaves at all.
//!
//! ```text
//!             Bind answered          Quiesce             Quiesced taken
//!   Silent ─────────────────▶ Speaking ──────▶ Quiescing ─────────────▶ Silent
//!     ▲ Bind arrives, channel broken │ ▲ ▲          │ Proceed              │ Proceed
//!     └──────────────────────────────┘ │ └──────────┘                      │
//!                                      └───────────────────────────────────┘
//! ```
//!
//! Locks: this one is taken before an execution's, never the other way round.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

use remuda_guest_proto::{Frame, Kind};

use crate::execution::Execution;
use crate::limits::{OUTBOX_DATA_BYTES_MAX, OUTBOX_FRAMES_MAX};
use crate::sync::{lock, wait};

/// Which host a call came from: counts the binds. What is queued for one is never told to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host(u64);

/// The host before the first bind, whom nothing is told.
pub const NOBODY: Host = Host(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Silent,
    Speaking,
    Quiescing,
}

enum Item {
    Frame(Frame),
    /// Data of a file, which counts against [`OUTBOX_DATA_BYTES_MAX`].
    Data(Frame, usize),
    /// The execution has something to say; what it is, is decided when its turn comes, so that small output written
    /// meanwhile travels in one frame.
    Execution(Arc<Execution>),
}

struct State {
    mode: Mode,
    host: Host,
    bound: bool,
    items: VecDeque<Item>,
    data_bytes: usize,
    /// Threads that wait for room: waking nobody would cost a system call for every frame.
    waiting: usize,
}

/// The queue to the channel.
pub struct Outbox {
    state: Mutex<State>,
    /// There may be something to write.
    work: Condvar,
    /// There may be room again, or the host has changed.
    room: Condvar,
}

impl Outbox {
    /// An empty queue that nothing leaves.
    pub fn new() -> Outbox {
        Outbox {
            state: Mutex::new(State {
                mode: Mode::Silent,
                host: NOBODY,
                bound: false,
                items: VecDeque::new(),
                data_bytes: 0,
                waiting: 0,
            }),
            work: Condvar::new(),
            room: Condvar::new(),
        }
    }

    /// The host that is bound now; `None` before the first bind and after the channel broke.
    pub fn host(&self) -> Option<Host> {
        let state = lock(&self.state);
        state.bound.then_some(state.host)
    }

    /// Queues a frame for a host; drops it if another one is bound by now.
    pub fn push(&self, host: Host, frame: Frame) {
        let mut state = lock(&self.state);
        if state.host == host {
            state.items.push_back(Item::Frame(frame));
            self.work.notify_one();
        }
    }

    /// Waits for room for so many bytes of file data; `false` if the host has changed.
    pub fn reserve(&self, host: Host, bytes: usize) -> bool {
        let mut state = lock(&self.state);
        while state.host == host && state.data_bytes + bytes > OUTBOX_DATA_BYTES_MAX {
            state.waiting += 1;
            state = wait(&self.room, state);
            state.waiting -= 1;
        }
        if state.host != host {
            return false;
        }
        state.data_bytes += bytes;
        true
    }

    /// Queues file data for which `reserved` bytes were reserved; gives them back if the host has changed.
    pub fn push_data(&self, host: Host, frame: Frame, reserved: usize) {
        let mut state = lock(&self.state);
        if state.host == host {
            state.items.push_back(Item::Data(frame, reserved));
            self.work.notify_one();
        }
        // A new host began with nothing reserved, so there is nothing to give back to it.
    }

    /// Gives back a reservation that was not needed.
    pub fn unreserve(&self, host: Host, bytes: usize) {
        let mut state = lock(&self.state);
        if state.host == host {
            state.data_bytes = state.data_bytes.saturating_sub(bytes);
            self.room.notify_all();
        }
    }

    /// Tells the writer that an execution has something to say. Whoever calls this must not hold its lock.
    pub fn offer(&self, execution: &Arc<Execution>) {
        lock(&self.state).items.push_back(Item::Execution(execution.clone()));
        self.work.notify_one();
    }

    /// Waits while a host that doesn't read has too much waiting for it; it can't be answered anyway. Doesn't wait
    /// while the agent is silent, since only the reader's next frame can end that: then `false` says that there is no
    /// room for another answer.
    #[must_use]
    pub fn wait_for_room(&self) -> bool {
        let mut state = lock(&self.state);
        while state.mode == Mode::Speaking && state.items.len() >= OUTBOX_FRAMES_MAX {
            state.waiting += 1;
            state = wait(&self.room, state);
            state.waiting -= 1;
        }
        state.items.len() < OUTBOX_FRAMES_MAX
    }

    /// A new host begins: silence, and what was queued for the old one is gone.
    pub fn begin(&self) -> Host {
        let mut state = lock(&self.state);
        state.mode = Mode::Silent;
        state.bound = false;
        state.host = Host(state.host.0 + 1);
        state.items.clear();
        state.data_bytes = 0;
        self.room.notify_all();
        state.host
    }

    /// The host that began is bound: its answer goes out first, then what the executions have to say.
    pub fn speak(&self, answer: [Frame; 2], executions: &[Arc<Execution>]) {
        let mut state = lock(&self.state);
        for frame in answer.into_iter().rev() {
            state.items.push_front(Item::Frame(frame));
        }
        state.items.extend(executions.iter().cloned().map(Item::Execution));
        state.mode = Mode::Speaking;
        state.bound = true;
        self.work.notify_one();
    }

    /// Asks for a frame boundary and silence. Means nothing before the first bind.
    pub fn quiesce(&self) {
        let mut state = lock(&self.state);
        if state.bound {
            state.mode = Mode::Quiescing;
            self.work.notify_one();
            self.room.notify_all();
        }
    }

    /// Goes on after a quiesce; one that was not answered yet is never answered.
    pub fn proceed(&self) {
        let mut state = lock(&self.state);
        if state.bound {
            state.mode = Mode::Speaking;
            self.work.notify_one();
        }
    }

    /// The next frame to write, if there is one now. `buffer` may be used for it.
    pub fn next_now(&self, buffer: &mut Vec<u8>) -> Option<Frame> {
        self.next_of(&mut lock(&self.state), buffer)
    }

    /// The next frame to write, however long it takes.
    pub fn next(&self, buffer: &mut Vec<u8>) -> Frame {
        let mut state = lock(&self.state);
        loop {
            if let Some(frame) = self.next_of(&mut state, buffer) {
                return frame;
            }
            state = wait(&self.work, state);
        }
    }

    fn next_of(&self, state: &mut State, buffer: &mut Vec<u8>) -> Option<Frame> {
        match state.mode {
            Mode::Silent => None,
            Mode::Quiescing => {
                state.mode = Mode::Silent;
                Some(Frame::new(Kind::Quiesced, 0, Vec::new()))
            }
            Mode::Speaking => {
                // Only what is queued now: an execution that goes to the back again had its turn.
                while let Some(item) = state.items.pop_front() {
                    if state.waiting > 0 {
                        self.room.notify_all();
                    }
                    match item {
                        Item::Frame(frame) => return Some(frame),
                        Item::Data(frame, reserved) => {
                            state.data_bytes = state.data_bytes.saturating_sub(reserved);
                            return Some(frame);
                        }
                        Item::Execution(execution) => {
                            // Built under this lock: a bind in between would see its output go to nobody.
                            let (frame, more) = execution.next_frame(buffer);
                            if more {
                                state.items.push_back(Item::Execution(execution));
                            }
                            if frame.is_some() {
                                return frame;
                            }
                        }
                    }
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(channel: u32) -> Frame {
        Frame::new(Kind::Reply, channel, Vec::new())
    }

    fn answer(channel: u32) -> [Frame; 2] {
        [Frame::new(Kind::Synced, 0, Vec::new()), reply(channel)]
    }

    fn channels(outbox: &Outbox) -> Vec<(Kind, u32)> {
        std::iter::from_fn(|| outbox.next_now(&mut Vec::new())).map(|f| (f.kind, f.channel)).collect()
    }

    #[test]
    fn nothing_leaves_before_the_bind_is_answered() {
        let outbox = Outbox::new();
        outbox.push(NOBODY, reply(1));
        outbox.quiesce();
        outbox.proceed();
        assert_eq!(channels(&outbox), []);
        let host = outbox.begin();
        outbox.push(host, reply(2));
        assert_eq!(channels(&outbox), []);
        outbox.speak(answer(3), &[]);
        assert_eq!(channels(&outbox), [(Kind::Synced, 0), (Kind::Reply, 3), (Kind::Reply, 2)]);
    }

    #[test]
    fn a_quiesce_is_a_boundary_until_proceed() {
        let outbox = Outbox::new();
        let host = outbox.begin();
        outbox.speak(answer(1), &[]);
        outbox.push(host, reply(2));
        outbox.quiesce();
        assert_eq!(channels(&outbox), [(Kind::Quiesced, 0)]);
        outbox.push(host, reply(3));
        assert_eq!(channels(&outbox), []);
        outbox.proceed();
        let after = [(Kind::Synced, 0), (Kind::Reply, 1), (Kind::Reply, 2), (Kind::Reply, 3)];
        assert_eq!(channels(&outbox), after);
    }

    #[test]
    fn a_copy_never_answers_for_its_source() {
        let outbox = Outbox::new();
        let source = outbox.begin();
        outbox.speak(answer(1), &[]);
        outbox.push(source, reply(2));
        assert!(outbox.reserve(source, OUTBOX_DATA_BYTES_MAX));
        outbox.quiesce();
        assert_eq!(channels(&outbox), [(Kind::Quiesced, 0)]);
        let copy = outbox.begin();
        outbox.push(source, reply(4));
        outbox.push_data(source, reply(5), OUTBOX_DATA_BYTES_MAX);
        outbox.speak(answer(1), &[]);
        outbox.push(source, reply(6));
        assert_eq!(channels(&outbox), [(Kind::Synced, 0), (Kind::Reply, 1)]);
        assert!(!outbox.reserve(source, 1));
        assert!(outbox.reserve(copy, OUTBOX_DATA_BYTES_MAX), "the source's reservation does not count");
    }
}
