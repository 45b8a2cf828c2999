//! The way to programs that listen on the guest's own loopback address alone. For each connection that the host asks for,
//! the agent connects to the program, listens on a port that the kernel picks, for the host and for one connection, and
//! carries the bytes between the two.
//!
//! The bytes go over TCP and not over the channel: it has flow control, ends and resets of its own, carries as much as any
//! other connection, and nothing of it stands in the way of executions. A listener lives no longer than the host takes to
//! connect, so that none is captured, and takes nobody but the host.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use remuda_guest_proto::{AgentError, AgentErrorKind, Reply};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::agent::{Agent, Place};
use crate::errors::{failed_io, invalid, refusal};
use crate::limits::{RELAY_BUFFER_BYTES, RELAY_WAIT_MS_MAX, RELAYS_MAX};
use crate::outbox::Host;
use crate::sync::lock;

/// What is open, so that it can be closed when the host is another one.
#[derive(Default)]
pub struct Relays {
    next: AtomicU64,
    open: Mutex<Vec<(u64, TcpStream)>>,
}

impl Relays {
    /// Remembers both ends of a connection; forgotten when dropped.
    fn hold<'a>(&'a self, ends: [&TcpStream; 2]) -> io::Result<Held<'a>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let ends = [ends[0].try_clone()?, ends[1].try_clone()?];
        lock(&self.open).extend(ends.map(|end| (number, end)));
        Ok(Held { relays: self, number })
    }

    /// Closes all: the host they were for is gone, or this machine is a copy that it never spoke to.
    pub fn close_all(&self) {
        for (_, end) in lock(&self.open).iter() {
            // One that has ended already is closed.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

struct Held<'a> {
    relays: &'a Relays,
    number: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        lock(&self.relays.open).retain(|(number, _)| *number != self.number);
    }
}

/// Carries out the call: answers it with the port, and then carries what comes.
pub fn connect(agent: &Arc<Agent>, host: Host, call: u32, port: u16, from: Ipv4Addr) {
    let refused = match Place::take(&agent.live_relays, RELAYS_MAX) {
        None => refusal(AgentErrorKind::Busy, format!("{RELAYS_MAX} connections to loopback are open")),
        Some(place) => {
            let for_thread = agent.clone();
            let started = agent.workers.run(move || {
                serve(&for_thread, host, call, port, from);
                drop(place);
            });
            match started {
                Ok(()) => return,
                Err(error) => refusal(AgentErrorKind::Busy, format!("there can't be another thread: {error}")),
            }
        }
    };
    agent.reply(host, call, &Err(refused));
}

fn serve(agent: &Arc<Agent>, host: Host, call: u32, port: u16, from: Ipv4Addr) {
    let (program, listener, at) = match open(port) {
        Ok(opened) => opened,
        Err(error) => return agent.reply(host, call, &Err(error)),
    };
    agent.reply(host, call, &Ok(Reply::Listening { port: at }));
    // Who does not come needs no word: the call was answered, and what it led to ends here.
    if let Ok(Some(outside)) = accept(&listener, from) {
        drop(listener);
        let _ = carry(agent, &outside, &program);
    }
}

/// Connects to the program, and listens for the host.
fn open(port: u16) -> Result<(TcpStream, TcpListener, u16), AgentError> {
    if port == 0 {
        return Err(invalid("there is no port 0"));
    }
    let limit = Duration::from_millis(RELAY_WAIT_MS_MAX);
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let program = TcpStream::connect_timeout(&to, limit).map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => {
            refusal(AgentErrorKind::NotFound, format!("nothing listens on 127.0.0.1:{port} either"))
        }
        _ => failed_io(format!("connect to 127.0.0.1:{port}"), &error),
    })?;
    let listening = || {
        program.set_nodelay(true)?;
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        listener.set_nonblocking(true)?;
        let at = listener.local_addr()?.port();
        io::Result::Ok((listener, at))
    };
    let (listener, at) = listening().map_err(|error| failed_io("listen for the host", &error))?;
    Ok((program, listener, at))
}

/// The host's connection; whoever else connects is turned away. `None` where it does not come in time.
fn accept(listener: &TcpListener, from: Ipv4Addr) -> io::Result<Option<TcpStream>> {
    let until = Instant::now() + Duration::from_millis(RELAY_WAIT_MS_MAX);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        match listener.accept() {
            Ok((stream, peer)) if peer.ip() == from => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                return Ok(Some(stream));
            }
            Ok(_) => {}
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Carries bytes both ways until both have ended.
fn carry(agent: &Arc<Agent>, outside: &TcpStream, program: &TcpStream) -> io::Result<()> {
    let held = agent.relays.hold([outside, program])?;
    let (from, to) = (outside.try_clone()?, program.try_clone()?);
    let (done, other) = std::sync::mpsc::channel::<()>();
    agent.workers.run(move || {
        pump(&from, &to);
        drop(done);
    })?;
    pump(program, outside);
    // Only its end is waited for.
    let _ = other.recv();
    drop(held);
    Ok(())
}

/// Carries bytes one way. Each end is told to the other side; what is cut is cut on both.
fn pump(mut from: &TcpStream, mut to: &TcpStream) {
    let mut buffer = vec![0; RELAY_BUFFER_BYTES];
    loop {
        let carried = match from.read(&mut buffer) {
            Ok(0) => break drop(to.shutdown(Shutdown::Write)),
            Ok(count) => to.write_all(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        if carried.is_err() {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
            break;
        }
    }
}
