//! One thread for each execution moves its pipes: output into the log while there is room, input out of the inbox,
//! and it decides when the execution has ended. Never drops output that belongs to the execution, never polls without
//! something to wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use remuda_guest_proto::Stream;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, ioctl_fionread, read, write};

use crate::errors::{reason, say};
use crate::execution::{Execution, Orders};
use crate::launch::Ends;
use crate::limits::{CHUNK_BYTES, PUMP_BUFFER_BYTES};
use crate::outbox::Outbox;
use crate::terminal;

struct Pump<'a> {
    execution: &'a Arc<Execution>,
    outbox: &'a Outbox,
    /// Standard output and standard error, until their ends.
    outputs: [Option<OwnedFd>; 2],
    stdin: Option<OwnedFd>,
    /// Whether they are a terminal.
    terminal: bool,
    /// Whether the end of its input was typed.
    end_typed: bool,
    /// Input taken and not yet written, from this position on.
    input: (Vec<u8>, usize),
    buffer: Vec<u8>,
}

/// The time after the leader's end.
struct Leaving {
    /// When the grace is over; `None` when it never is.
    deadline: Option<Instant>,
    /// Bytes that were in the pipes when the leader's end was seen. They are the execution's, however long the host
    /// leaves no room for them.
    owed: [u64; 2],
}

/// What a terminal takes for the end of its input at the beginning of a line: Ctrl-D.
const END_OF_INPUT: u8 = 4;

const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

/// Moves an execution's pipes until its end; answers the pipes that others still hold.
pub fn pump(outbox: &Outbox, execution: &Arc<Execution>, ends: Ends, grace: Duration) -> [Option<OwnedFd>; 2] {
    let mut pump = Pump {
        execution,
        outbox,
        outputs: [Some(ends.stdout), ends.stderr],
        stdin: ends.stdin,
        terminal: ends.terminal,
        end_typed: false,
        input: (Vec::new(), 0),
        buffer: Vec::with_capacity(PUMP_BUFFER_BYTES),
    };
    let mut leaving: Option<Leaving> = None;
    loop {
        let orders = execution.orders();
        if orders.exited {
            let leaving = leaving.get_or_insert_with(|| pump.leave(grace));
            let over = leaving.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if pump.outputs.iter().all(Option::is_none) || (over && leaving.owed == [0, 0]) {
                break;
            }
        }
        pump.step(&orders, &mut leaving);
    }
    let held = pump.outputs;
    execution.finish(held.iter().any(Option::is_some));
    outbox.offer(execution);
    // A terminal that is closed hangs up whoever is left on it; nobody is to write into one without end.
    if pump.terminal { [None, None] } else { held }
}

/// Reads and forgets what others write into an ended execution's pipes, so that they are neither stopped nor killed by
/// it. Ends when nobody holds them.
pub fn drain(mut outputs: [Option<OwnedFd>; 2]) {
    let mut buffer = vec![0; PUMP_BUFFER_BYTES];
    while outputs.iter().any(Option::is_some) {
        let mut fds: Vec<PollFd<'_>> = outputs.iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        if poll(&mut fds, None).is_err_and(|errno| errno != Errno::INTR) {
            return;
        }
        for output in &mut outputs {
            let ended = output.as_ref().is_some_and(|fd| match read(fd, &mut buffer[..]) {
                Ok(0) => true,
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => false,
                Err(_) => true,
            });
            if ended {
                *output = None;
            }
        }
    }
}

impl Pump<'_> {
    fn leave(&self, grace: Duration) -> Leaving {
        let owed = self.outputs.each_ref().map(|fd| fd.as_ref().and_then(|fd| ioctl_fionread(fd).ok()).unwrap_or(0));
        Leaving { deadline: Instant::now().checked_add(grace), owed }
    }

    /// Waits for one thing to happen and does what it asks for.
    fn step(&mut self, orders: &Orders, leaving: &mut Option<Leaving>) {
        self.take_input(orders);
        let mut fds = vec![PollFd::from_borrowed_fd(self.execution.wake_fd(), PollFlags::IN)];
        let reads = orders.room > 0;
        let [stdout, stderr] = self.outputs.each_ref().map(|fd| {
            let fd = fd.as_ref().filter(|_| reads)?;
            fds.push(PollFd::new(fd, PollFlags::IN));
            Some(fds.len() - 1)
        });
        let input = self.stdin.as_ref().filter(|_| self.has_input()).map(|fd| {
            fds.push(PollFd::new(fd, PollFlags::OUT));
            fds.len() - 1
        });
        // Past the deadline only owed bytes are waited for, and these are there or wait for room.
        let timeout = leaving
            .as_ref()
            .and_then(|leaving| leaving.deadline)
            .map(|deadline| deadline.saturating_duration_since(Instant::now()))
            .filter(|left| !left.is_zero())
            .and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                say(format_args!(
                    "cannot wait for the pipes of execution {}: {}",
                    self.execution.channel,
                    reason(errno)
                ));
                self.outputs = [None, None];
                return;
            }
        }
        let happened = |at: Option<usize>| at.and_then(|at| fds.get(at)).is_some_and(|fd| !fd.revents().is_empty());
        let (woken, readable, writable) = (happened(Some(0)), [happened(stdout), happened(stderr)], happened(input));
        if woken {
            let _ = read(self.execution.wake_fd(), &mut [0u8; 8]);
        }
        let mut room = orders.room;
        for which in [0, 1] {
            if readable[which] {
                let bytes = self.read(which, room);
                room -= bytes;
                if let Some(leaving) = leaving {
                    leaving.owed[which] = if self.outputs[which].is_none() {
                        0
                    } else {
                        leaving.owed[which].saturating_sub(bytes as u64)
                    };
                }
            }
        }
        if writable {
            self.write_input();
        }
    }

    /// Reads one output once, into at most so much room; answers the bytes read.
    fn read(&mut self, which: usize, room: usize) -> usize {
        let Some(fd) = &self.outputs[which] else { return 0 };
        if room == 0 {
            return 0;
        }
        self.buffer.clear();
        let room_here = room.min(self.buffer.capacity());
        let got = if room_here < self.buffer.capacity() {
            self.buffer.resize(room_here, 0);
            let got = read(fd, &mut self.buffer[..]);
            self.buffer.truncate(*got.as_ref().unwrap_or(&0));
            got
        } else {
            read(fd, spare_capacity(&mut self.buffer))
        };
        match got {
            Ok(0) => {
                self.outputs[which] = None;
                0
            }
            Ok(bytes) => {
                if self.execution.append(STREAMS[which], &self.buffer) {
                    self.outbox.offer(self.execution);
                }
                if bytes == self.buffer.capacity() && bytes < CHUNK_BYTES {
                    self.buffer = Vec::with_capacity(CHUNK_BYTES);
                }
                bytes
            }
            Err(Errno::AGAIN | Errno::INTR) => 0,
            // Nobody has the terminal any more.
            Err(Errno::IO) if self.terminal => {
                self.outputs[which] = None;
                0
            }
            Err(errno) => {
                say(format_args!("cannot read from execution {}: {}", self.execution.channel, reason(errno)));
                self.outputs[which] = None;
                0
            }
        }
    }

    fn has_input(&self) -> bool {
        self.input.1 < self.input.0.len()
    }

    /// Takes input that waits, and closes the pipe behind the last of it.
    fn take_input(&mut self, orders: &Orders) {
        if self.stdin.is_none() {
            if orders.has_input && self.execution.input_unwanted() {
                self.outbox.offer(self.execution);
            }
            return;
        }
        if orders.has_input && !self.has_input() {
            let taken = self.execution.take_input(std::mem::take(&mut self.input.0));
            let taken = match &self.stdin {
                Some(terminal) if self.terminal => terminal::typed(terminal, taken),
                _ => taken,
            };
            self.input = (taken, 0);
        } else if orders.input_ended && !self.has_input() {
            // A terminal has no end of its input but the character that says so to a program which reads lines.
            let end = if self.terminal && !std::mem::replace(&mut self.end_typed, true) {
                vec![END_OF_INPUT]
            } else {
                Vec::new()
            };
            if end.is_empty() {
                self.stdin = None;
            }
            self.input = (end, 0);
        }
    }

    fn write_input(&mut self) {
        let (Some(fd), Some(bytes)) = (&self.stdin, self.input.0.get(self.input.1..)) else { return };
        match write(fd, bytes) {
            Ok(written) => {
                self.input.1 += written;
                if self.execution.input_consumed(written) {
                    self.outbox.offer(self.execution);
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Nobody reads it any more: the program's own business.
            Err(_) => {
                self.stdin = None;
                self.input = (Vec::new(), 0);
                if self.execution.input_unwanted() {
                    self.outbox.offer(self.execution);
                }
            }
        }
    }
}
