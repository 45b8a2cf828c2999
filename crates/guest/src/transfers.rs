//! Files on their way in or out, by channel: the reader's side and the file thread's side of each. No file is touched
//! here.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use remuda_guest_proto::WINDOW_BYTES;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;

use crate::inbox::{Ending, Inbox};
use crate::outbox::Host;
use crate::sync::{lock, wait};

#[derive(Default)]
struct State {
    /// Nobody waits for the outcome any more.
    abandoned: bool,
    /// It can't be undone any more: it is finished and then answered, or not.
    committed: bool,
    inbox: Inbox,
    /// Bytes of the file that were sent, and that the host has consumed.
    sent: u64,
    credited: u64,
}

/// One transfer.
pub struct Transfer {
    /// The call's number and the channel of its data.
    pub channel: u32,
    /// Who asked.
    pub host: Host,
    state: Mutex<State>,
    changed: Condvar,
    /// Written to when it is over, for whoever waits for something else as well.
    over: OnceLock<OwnedFd>,
}

/// What a writing thread is to do next.
pub enum Next {
    /// Write these bytes.
    Write(Vec<u8>),
    /// All is there: put the file in place.
    Finish,
    /// The host broke off or went beyond its window.
    BrokenOff,
    /// A new host is bound.
    Abandoned,
}

impl Transfer {
    /// Waits until the host may be sent more; answers how many bytes at most, `None` if it is over.
    pub fn window(&self) -> Option<usize> {
        let mut state = lock(&self.state);
        loop {
            if state.abandoned || state.inbox.ended().is_some() {
                return None;
            }
            let room = WINDOW_BYTES.saturating_sub(state.sent - state.credited);
            if room > 0 {
                return Some(room as usize);
            }
            state = wait(&self.changed, state);
        }
    }

    /// A descriptor that is readable when it is over.
    pub fn over_fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        if self.over.get().is_none() {
            // Only one thread serves a transfer: nobody else sets it.
            let _ = self.over.set(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        }
        // It may have ended before anybody could be told by it.
        let state = lock(&self.state);
        if state.abandoned || state.inbox.ended().is_some() {
            self.tell_over();
        }
        drop(state);
        self.over.get().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    fn tell_over(&self) {
        if let Some(fd) = self.over.get() {
            // Full means told.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// Counts bytes as sent.
    pub fn sent(&self, bytes: usize) {
        lock(&self.state).sent += bytes as u64;
    }

    /// Waits for data; `buffer` is what was written before and is used again.
    pub fn next(&self, buffer: Vec<u8>) -> Next {
        let mut state = lock(&self.state);
        loop {
            if state.abandoned {
                return Next::Abandoned;
            }
            match state.inbox.ended() {
                Some(Ending::BrokenOff) => return Next::BrokenOff,
                Some(Ending::Whole) => return Next::Finish,
                None if state.inbox.has_waiting() => return Next::Write(state.inbox.take(buffer)),
                None => state = wait(&self.changed, state),
            }
        }
    }

    /// Counts bytes as written; answers the credit to send, if one is due.
    pub fn consumed(&self, bytes: usize) -> Option<u64> {
        let mut state = lock(&self.state);
        state.inbox.consume(bytes);
        state.inbox.credit_due()
    }

    /// From here on it can't be abandoned; `false` if it was.
    #[must_use]
    pub fn commit(&self) -> bool {
        let mut state = lock(&self.state);
        state.committed = !state.abandoned;
        state.committed
    }

    /// Data from the host; `false` if it went beyond its window, which breaks the transfer off.
    #[must_use]
    pub fn receive(&self, bytes: &[u8]) -> bool {
        let mut state = lock(&self.state);
        let fits = state.inbox.receive(bytes) || state.inbox.ended().is_some();
        if !fits {
            state.inbox.discard();
            state.inbox.end(Ending::BrokenOff);
        }
        self.changed.notify_all();
        fits
    }

    /// The host's end of the data. For a file on its way out it means that the host has enough.
    pub fn end(&self, ending: Ending) {
        let mut state = lock(&self.state);
        state.inbox.end(ending);
        self.tell_over();
        self.changed.notify_all();
    }

    /// The host consumed so many bytes.
    pub fn credit(&self, consumed: u64) {
        let mut state = lock(&self.state);
        state.credited = state.credited.max(consumed.min(state.sent));
        self.changed.notify_all();
    }

    fn abandon(&self) {
        let mut state = lock(&self.state);
        state.abandoned = !state.committed;
        self.tell_over();
        self.changed.notify_all();
    }
}

/// All transfers.
#[derive(Default)]
pub struct Transfers {
    by_channel: Mutex<HashMap<u32, Arc<Transfer>>>,
}

impl Transfers {
    /// Begins one; `None` if the channel has one already.
    pub fn begin(&self, host: Host, channel: u32) -> Option<Arc<Transfer>> {
        let mut by_channel = lock(&self.by_channel);
        if by_channel.contains_key(&channel) {
            return None;
        }
        let (state, changed, over) = (Mutex::default(), Condvar::new(), OnceLock::new());
        let transfer = Arc::new(Transfer { channel, host, state, changed, over });
        by_channel.insert(channel, transfer.clone());
        Some(transfer)
    }

    /// The transfer of a channel.
    pub fn get(&self, channel: u32) -> Option<Arc<Transfer>> {
        lock(&self.by_channel).get(&channel).cloned()
    }

    /// A transfer is over.
    pub fn end(&self, transfer: &Arc<Transfer>) {
        let mut by_channel = lock(&self.by_channel);
        if by_channel.get(&transfer.channel).is_some_and(|other| Arc::ptr_eq(other, transfer)) {
            by_channel.remove(&transfer.channel);
        }
    }

    /// Abandons all: their host is gone.
    pub fn abandon_all(&self) {
        for (_, transfer) in lock(&self.by_channel).drain() {
            transfer.abandon();
        }
    }
}
