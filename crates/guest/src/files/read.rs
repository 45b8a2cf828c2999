//! Sends a file: what it is, its bytes within the window, and how it ended. Reads ahead no further than the channel
//! takes.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use remuda_guest_proto::{AgentError, AgentErrorKind, Entry, Frame, Kind, Reply};
use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::{entry, named, on_thread, sound};
use crate::agent::Agent;
use crate::errors::{failed, failed_io, invalid, refusal};
use crate::limits::CHUNK_BYTES;
use crate::outbox::Host;
use crate::transfers::Transfer;
use crate::user_thread::as_user;

/// Takes up a `ReadFile`.
pub fn read(agent: &Arc<Agent>, host: Host, call: u32, path: String, user: String) {
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
        match as_user(agent, &user, |_| sound(&path).and_then(open_regular)) {
            Err(error) => agent.reply(host, call, &Err(error)),
            Ok((file, entry)) => {
                agent.reply(host, call, &Ok(Reply::Entry(entry)));
                let payload = match send(agent, &for_thread, &file, &path) {
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

/// Opens a regular file, and waits for no other kind.
fn open_regular(path: &Path) -> Result<(File, Entry), AgentError> {
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

fn send(agent: &Agent, transfer: &Transfer, file: &File, path: &str) -> Result<(), AgentError> {
    let over = || refusal(AgentErrorKind::Failed, "the host did not want the rest");
    loop {
        let length = transfer.window().ok_or_else(over)?.min(CHUNK_BYTES);
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
                return Ok(());
            }
            Ok(bytes) => {
                transfer.sent(bytes);
                agent.outbox.push_data(transfer.host, Frame::new(Kind::GuestData, transfer.channel, payload), length);
            }
            Err(errno) => {
                agent.outbox.unreserve(transfer.host, length);
                return Err(failed(format!("read {}", named(Path::new(path))), errno));
            }
        }
    }
}
