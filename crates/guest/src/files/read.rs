//! Sends a file: what it is, its bytes within the window, and how it ended. Reads ahead no further than the channel
//! takes.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use remuda_guest_proto::{AgentError, AgentErrorKind, ByteRange, Conditions, Entry, Frame, Kind, Reply};
use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags, SeekFrom, open};
use rustix::io::Errno;

use super::{conditions, digest, entry, named, on_thread, sound};
use crate::agent::Agent;
use crate::errors::{failed, failed_io, invalid, refusal, shown};
use crate::limits::CHUNK_BYTES;
use crate::outbox::Host;
use crate::transfers::Transfer;
use crate::user_thread::as_user;

/// What to read.
pub struct Read {
    /// Absolute path.
    pub path: String,
    /// Guest user whose permissions count.
    pub user: String,
    /// Which part and when; none for a whole file whatever it holds, as hosts ask that know of nothing else.
    pub part: Option<Part>,
}

/// Which part of a file, and when.
pub struct Part {
    /// Which bytes; all of them when absent.
    pub range: Option<ByteRange>,
    /// What must hold of the file.
    pub conditions: Conditions,
    /// Largest file whose digest is made without being asked for by a condition, in bytes.
    pub digest_bytes_max: u64,
}

impl Read {
    /// All of a file.
    pub fn whole(path: String, user: String) -> Read {
        Read { path, user, part: None }
    }
}

/// A file that is ready to be sent.
struct Opened {
    file: File,
    reply: Reply,
    /// Bytes to send; up to its end when absent.
    left: Option<u64>,
}

/// Takes up a `ReadFile` or an `OpenFile`.
pub fn read(agent: &Arc<Agent>, host: Host, call: u32, read: Read) {
    let Some(transfer) = (match agent.execution(call) {
        None => agent.transfers.begin(host, call),
        Some(_) => None,
    }) else {
        agent.reply(host, call, &Err(invalid(format!("channel {call} is in use"))));
        return;
    };
    let for_thread = transfer.clone();
    let started = on_thread(agent, move |agent| {
        // The identity counts when the file is opened; reading needs none.
        match as_user(agent, &read.user, |_| sound(&read.path).and_then(|path| prepare(path, read.part.as_ref()))) {
            Err(error) => agent.reply(host, call, &Err(error)),
            Ok(Opened { file, reply, left }) => {
                agent.reply(host, call, &Ok(reply));
                let payload = match send(agent, &for_thread, &file, left, &read.path) {
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

fn prepare(path: &Path, part: Option<&Part>) -> Result<Opened, AgentError> {
    let (file, mut entry) = open_regular(path)?;
    let Some(Part { range, conditions, digest_bytes_max }) = part else {
        return Ok(Opened { file, reply: Reply::Entry(entry), left: None });
    };
    let cannot = |error| failed_io(format!("read {}", named(path)), &error);
    if !conditions.is_empty() || entry.size <= *digest_bytes_max {
        entry.digest = digest::of(&file).map_err(cannot)?;
    }
    let found = Some(entry.digest.as_deref());
    let of_match = Conditions { matches_not: None, ..conditions.clone() };
    conditions::judge(&of_match, path, found)?;
    conditions::judge(&Conditions { matches: None, ..conditions.clone() }, path, found).map_err(|_| AgentError {
        kind: AgentErrorKind::Unchanged,
        message: entry.digest.clone().unwrap_or_default(),
    })?;
    let (first, length) = match range {
        None => (0, entry.size),
        Some(range) => range.within(entry.size).ok_or_else(|| {
            refusal(
                AgentErrorKind::OutOfRange,
                format!("{} has {} bytes, none of them in the range", named(path), entry.size),
            )
        })?,
    };
    if first > 0 {
        rustix::fs::seek(&file, SeekFrom::Start(first)).map_err(|errno| cannot(errno.into()))?;
    }
    Ok(Opened { file, reply: Reply::Opened { entry, first, length }, left: range.map(|_| length) })
}

/// Opens a regular file, and waits for no other kind.
pub fn open_regular(path: &Path) -> Result<(File, Entry), AgentError> {
    let cannot = |error| failed_io(format!("read {}", named(path)), &error);
    let regular = |meta: &std::fs::Metadata| match meta.is_file() {
        true => Ok(()),
        false => Err(refusal(AgentErrorKind::NotAFile, format!("{} is no regular file", named(path)))),
    };
    // Looked at first, since opening a FIFO or a device may do something; and again, since it may have been replaced.
    regular(&std::fs::metadata(path).map_err(cannot)?)?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open(path, flags, Mode::empty()).map_err(|errno| cannot(errno.into()))?);
    let meta = file.metadata().map_err(cannot)?;
    regular(&meta)?;
    Ok((file, entry::from(path, &meta)))
}

fn send(agent: &Agent, transfer: &Transfer, file: &File, mut left: Option<u64>, path: &str) -> Result<(), AgentError> {
    let over = || refusal(AgentErrorKind::Failed, "the host did not want the rest");
    while left != Some(0) {
        let most = left.map_or(CHUNK_BYTES, |left| usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES));
        let length = transfer.window().ok_or_else(over)?.min(most);
        if !agent.outbox.reserve(transfer.host, length) {
            return Err(over());
        }
        let mut payload = Vec::with_capacity(length);
        let got = loop {
            match rustix::io::read(file, spare_capacity(&mut payload)) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        match got {
            Ok(0) => {
                agent.outbox.unreserve(transfer.host, length);
                return match left {
                    // A part is told by its length beforehand: a shorter one is none.
                    Some(_) => Err(refusal(AgentErrorKind::Failed, format!("{} became shorter", shown(path)))),
                    None => Ok(()),
                };
            }
            Ok(bytes) => {
                transfer.sent(bytes);
                left = left.map(|left| left.saturating_sub(bytes as u64));
                agent.outbox.push_data(transfer.host, Frame::new(Kind::GuestData, transfer.channel, payload), length);
            }
            Err(errno) => {
                agent.outbox.unreserve(transfer.host, length);
                return Err(failed(format!("read {}", named(Path::new(path))), errno));
            }
        }
    }
    Ok(())
}
