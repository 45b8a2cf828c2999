//! Directory trees as tar archives, both ways: only the way between the archive and the channel is here. An archive that
//! comes in is unpacked in place as it comes, and what breaks off leaves what was unpacked until then, with a word about it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::sync::Arc;

use remuda_guest_proto::{AgentError, AgentErrorKind, Frame, Kind, Reply, encode_credit};
use remuda_tree::{Counts, PackError, Source, Unpack, UnpackCause, UnpackError, pack, unpack};
use rustix::fs::{Mode, OFlags, open};

use super::{entry, named, on_thread, sound};
use crate::agent::Agent;
use crate::dispatch::begin_effect;
use crate::errors::{failed, failed_io, invalid, refusal};
use crate::limits::CHUNK_BYTES;
use crate::outbox::Host;
use crate::transfers::{Next, Transfer};
use crate::user_thread::as_user;

/// Bytes on their way to the host.
pub(super) struct Outward<'a> {
    pub(super) agent: &'a Agent,
    pub(super) transfer: &'a Transfer,
    pub(super) waiting: Vec<u8>,
}

impl Outward<'_> {
    fn send(&mut self) -> io::Result<()> {
        let over = || io::Error::other("the host did not want the rest");
        let mut rest = self.waiting.as_slice();
        while !rest.is_empty() {
            let length = self.transfer.window().ok_or_else(over)?.min(CHUNK_BYTES).min(rest.len());
            if !self.agent.outbox.reserve(self.transfer.host, length) {
                return Err(over());
            }
            let (piece, behind) = rest.split_at(length);
            self.transfer.sent(length);
            let frame = Frame::new(Kind::GuestData, self.transfer.channel, piece.to_vec());
            self.agent.outbox.push_data(self.transfer.host, frame, length);
            rest = behind;
        }
        self.waiting.clear();
        Ok(())
    }
}

impl Write for Outward<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK_BYTES - self.waiting.len();
        let taken = bytes.len().min(room);
        self.waiting.extend_from_slice(&bytes[..taken]);
        if self.waiting.len() >= CHUNK_BYTES {
            self.send()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

/// Takes up a `PackTree`.
pub fn pack_tree(agent: &Arc<Agent>, host: Host, call: u32, path: String, user: String) {
    let transfer = match agent.execution(call) {
        None => agent.transfers.begin(host, call),
        Some(_) => None,
    };
    let Some(transfer) = transfer else {
        agent.reply(host, call, &Err(invalid(format!("channel {call} is in use"))));
        return;
    };
    let for_thread = transfer.clone();
    let started = on_thread(agent, move |agent| {
        let packed = as_user(agent, &user, |_| {
            let named_path = sound(&path)?;
            let source = Source::open(named_path).map_err(|error| cannot_pack(&path, &error))?;
            // What the path leads to, and not a link at its end.
            let meta = fs::metadata(named_path)
                .map_err(|error| failed_io(format!("look at {}", named(named_path)), &error))?;
            let entry = entry::from(named_path, &meta);
            agent.reply(host, call, &Ok(Reply::Opened { entry, first: 0, length: 0 }));
            let mut outward = Outward { agent, transfer: &for_thread, waiting: Vec::with_capacity(CHUNK_BYTES) };
            let packed = pack(source, &mut outward, &mut |_, _| {});
            let sent = packed.and_then(|_| outward.flush().map_err(PackError::Output));
            Ok(sent.map_err(|error| cannot_pack(&path, &error)))
        });
        match packed {
            Err(error) => agent.reply(host, call, &Err(error)),
            Ok(sent) => {
                let payload = match sent {
                    Ok(()) => Vec::new(),
                    Err(error) => serde_json::to_vec(&error).unwrap_or_else(|_| b"null".to_vec()),
                };
                agent.outbox.push(host, Frame::new(Kind::GuestEnd, call, payload));
            }
        }
        agent.transfers.end(&for_thread);
    });
    if let Err(error) = started {
        agent.transfers.end(&transfer);
        agent.reply(host, call, &Err(error));
    }
}

fn cannot_pack(path: &str, error: &PackError) -> AgentError {
    let path = named(std::path::Path::new(path));
    match error {
        PackError::Source(error) => failed_io(format!("pack {path}"), error),
        PackError::Kind => {
            refusal(AgentErrorKind::NotAFile, format!("{path} is neither a directory nor a regular file"))
        }
        PackError::Output(error) => refusal(AgentErrorKind::Failed, format!("cannot pack {path}: {error}")),
    }
}

/// An archive on its way from the host.
struct Inward<'a> {
    agent: &'a Agent,
    transfer: &'a Transfer,
    bytes: Vec<u8>,
    at: usize,
}

impl Read for Inward<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.bytes.len() {
            if !self.bytes.is_empty()
                && let Some(credit) = self.transfer.consumed(self.bytes.len())
            {
                let frame = Frame::new(Kind::GuestCredit, self.transfer.channel, encode_credit(credit));
                self.agent.outbox.push(self.transfer.host, frame);
            }
            self.at = 0;
            match self.transfer.next(std::mem::take(&mut self.bytes)) {
                Next::Write(bytes) => self.bytes = bytes,
                Next::Finish => return Ok(0),
                Next::BrokenOff => return Err(io::Error::other("the host broke the archive off")),
                Next::Abandoned => return Err(io::Error::other("the server that sent it has ended")),
            }
        }
        let length = buffer.len().min(self.bytes.len() - self.at);
        buffer[..length].copy_from_slice(&self.bytes[self.at..self.at + length]);
        self.at += length;
        Ok(length)
    }
}

/// Takes up an `UnpackTree`.
pub fn unpack_tree(agent: &Arc<Agent>, host: Host, call: u32, path: String, user: String, parents: bool, effect: u64) {
    if !begin_effect(agent, effect, host, call) {
        return;
    }
    let transfer = match agent.execution(call) {
        None => agent.transfers.begin(host, call),
        Some(_) => None,
    };
    let Some(transfer) = transfer else {
        agent.finish_effect(effect, Err(invalid(format!("channel {call} is in use"))), false);
        return;
    };
    let for_thread = transfer.clone();
    let started = on_thread(agent, move |agent| {
        let outcome = as_user(agent, &user, |user| receive(agent, &for_thread, &path, parents, user.uid == 0));
        agent.transfers.end(&for_thread);
        // Whatever it is, it is the outcome: what was unpacked stays.
        agent.finish_effect(effect, outcome, true);
    });
    if let Err(error) = started {
        agent.transfers.end(&transfer);
        agent.finish_effect(effect, Err(error), false);
    }
}

fn receive(agent: &Agent, transfer: &Transfer, path: &str, parents: bool, owners: bool) -> Result<Reply, AgentError> {
    let path = sound(path)?;
    let itself = !path.exists();
    if itself {
        let made = if parents { fs::create_dir_all(path) } else { fs::create_dir(path) };
        made.map_err(|error| failed_io(format!("make the directory {}", named(path)), &error))?;
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(path, flags, Mode::empty()).map_err(|errno| failed(format!("open {}", named(path)), errno))?;
    let inward = Inward { agent, transfer, bytes: Vec::new(), at: 0 };
    let unpacked = unpack(inward, File::from(directory).into(), Unpack { owners, itself }, &mut |_, _| {});
    let unpacked = unpacked.map_err(|error| cannot_unpack(&named(path), error))?;
    let Counts { files, directories, links, bytes } = unpacked.counts;
    Ok(Reply::Unpacked { files, directories, links, bytes, skipped: unpacked.skipped })
}

fn cannot_unpack(path: &str, error: UnpackError) -> AgentError {
    let UnpackError { entry, cause, done } = error;
    let what = entry.map_or_else(|| format!("the archive for {path}"), |entry| format!("{entry} in {path}"));
    let mut error = match cause {
        UnpackCause::Archive(why) => refusal(AgentErrorKind::Archive, format!("cannot unpack {what}: {why}")),
        UnpackCause::System(errno) => failed(format!("unpack {what}"), errno),
        UnpackCause::Input(why) => refusal(AgentErrorKind::Failed, format!("cannot unpack {what}: {why}")),
    };
    error.message.push_str(&format!("; {} entries before it were unpacked and stay", done.entries()));
    error
}
