//! Permission bits and owners. Links are followed: they have neither of their own that would count.

use std::path::Path;

use remuda_guest_proto::{AgentError, Reply};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Uid, chmodat, chownat};

use super::{entry, named, sound};
use crate::agent::Agent;
use crate::errors::{failed, failed_io, invalid};
use crate::user_thread::as_user;

/// Changes permission bits, owner, or both.
pub fn set_attributes(
    agent: &Agent,
    path: &str,
    user: &str,
    mode: Option<u32>,
    owner: Option<&str>,
) -> Result<Reply, AgentError> {
    let path = sound(path)?;
    if let Some(mode) = mode.filter(|mode| *mode > 0o7777) {
        return Err(invalid(format!("{mode:o} is no mode of a file")));
    }
    let owner = owner.map(|name| agent.users.find(name)).transpose()?;
    as_user(agent, user, |_| {
        // The owner first: a change of owners takes set-id bits away.
        if let Some(owner) = owner {
            let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
            chownat(CWD, path, Some(uid), Some(gid), AtFlags::empty())
                .map_err(|errno| failed(format!("give {} to {}", named(path), owner.name), errno))?;
        }
        if let Some(mode) = mode {
            set_mode(path, mode)?;
        }
        let meta = std::fs::metadata(path).map_err(|error| failed_io(format!("look at {}", named(path)), &error))?;
        Ok(Reply::Entry(entry::from(path, &meta)))
    })
}

fn set_mode(path: &Path, mode: u32) -> Result<(), AgentError> {
    chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())
        .map_err(|errno| failed(format!("set the mode of {}", named(path)), errno))
}
