//! The agent's parts in one place, shared by its threads. Holds them; decides nothing.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use remuda_guest_proto::{Frame, Kind, ReplyResult};

use crate::children::Children;
use crate::effects::Effects;
use crate::errors::say;
use crate::execution::Execution;
use crate::outbox::{Host, Outbox};
use crate::process::{Inherited, release_memory};
use crate::relay::Relays;
use crate::sync::lock;
use crate::transfers::Transfers;
use crate::users::Users;
use crate::workers::Workers;

/// The agent.
pub struct Agent {
    /// What it was started with.
    pub inherited: Inherited,
    /// What waits for the channel.
    pub outbox: Outbox,
    /// Processes it is parent of.
    pub children: Children,
    /// Executions by channel.
    pub executions: Mutex<HashMap<u32, Arc<Execution>>>,
    /// File transfers by channel.
    pub transfers: Transfers,
    /// Effects and their outcomes.
    pub effects: Mutex<Effects>,
    /// Users of the guest.
    pub users: Users,
    /// Threads.
    pub workers: Arc<Workers>,
    /// Held by whoever puts a file under a name, from looking at what is there until the new one is: of two calls that
    /// must find the same contents, one does.
    pub placing: Mutex<()>,
    /// Executions that have a thread.
    pub live_executions: Arc<AtomicUsize>,
    /// File calls that have a thread.
    pub live_file_calls: Arc<AtomicUsize>,
    /// Searches through files, which are file calls too.
    pub live_searches: Arc<AtomicUsize>,
    /// Watches of files, each with a thread that sleeps.
    pub live_watches: Arc<AtomicUsize>,
    /// Connections to loopback, each with two threads.
    pub live_relays: Arc<AtomicUsize>,
    /// What is open of them.
    pub relays: Relays,
    /// Bytes of data that went over the channel since unused memory was given back.
    pub moved_bytes: AtomicUsize,
    /// Largest number of processes of a guest user, from the last bind.
    pub processes_max: AtomicU32,
}

/// Data that must have gone over the channel before it is worth to give memory back, in bytes.
const RELEASE_AFTER_BYTES: usize = 512 << 10;

/// Processes of a guest user before a bind says otherwise.
const PROCESSES_MAX_DEFAULT: u32 = 512;

impl Agent {
    /// An agent that knows nothing yet.
    pub fn new(inherited: Inherited) -> Agent {
        Agent {
            inherited,
            outbox: Outbox::new(),
            children: Children::default(),
            executions: Mutex::default(),
            transfers: Transfers::default(),
            effects: Mutex::default(),
            users: Users::default(),
            workers: Arc::default(),
            placing: Mutex::default(),
            live_executions: Arc::default(),
            live_file_calls: Arc::default(),
            live_searches: Arc::default(),
            live_watches: Arc::default(),
            live_relays: Arc::default(),
            relays: Relays::default(),
            moved_bytes: AtomicUsize::new(0),
            processes_max: AtomicU32::new(PROCESSES_MAX_DEFAULT),
        }
    }

    /// Answers a call of a host.
    pub fn reply(&self, host: Host, call: u32, result: &ReplyResult) {
        self.outbox.push(host, reply_frame(call, result));
    }

    /// Answers every call that waited for an effect.
    pub fn finish_effect(&self, effect: u64, result: ReplyResult, remember: bool) {
        let waiters = lock(&self.effects).finish(effect, &result, remember);
        for (host, call) in waiters {
            self.reply(host, call, &result);
        }
    }

    /// The execution of a channel.
    pub fn execution(&self, channel: u32) -> Option<Arc<Execution>> {
        lock(&self.executions).get(&channel).cloned()
    }

    /// Gives unused memory back, if nothing is at work any more and much was.
    pub fn rest(&self) {
        if self.is_idle() && self.moved_bytes.load(Ordering::Relaxed) >= RELEASE_AFTER_BYTES {
            self.moved_bytes.store(0, Ordering::Relaxed);
            release_memory();
        }
    }

    /// Whether no call and no execution has a thread.
    pub fn is_idle(&self) -> bool {
        self.live_executions.load(Ordering::Relaxed) == 0 && self.live_file_calls.load(Ordering::Relaxed) == 0
    }

    /// Ends the groups of all executions, for an agent that is about to end itself.
    pub fn kill_executions(&self) {
        for execution in lock(&self.executions).values() {
            if let crate::execution::Target::Group(pid) = execution.target(libc::SIGKILL) {
                self.children.signal(pid, libc::SIGKILL);
            }
        }
    }
}

/// The frame of an answer.
pub fn reply_frame(call: u32, result: &ReplyResult) -> Frame {
    let payload = serde_json::to_vec(result).unwrap_or_else(|error| {
        say(format_args!("an answer cannot be written down: {error}"));
        br#"{"Err":{"kind":"failed","message":"the answer cannot be written down"}}"#.to_vec()
    });
    Frame::new(Kind::Reply, call, payload)
}

/// One of a limited number of places; free again when dropped.
pub struct Place(Arc<AtomicUsize>);

impl Place {
    /// Takes one of `most` places.
    pub fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Place> {
        taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < most).then_some(n + 1)).ok()?;
        Some(Place(taken.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
