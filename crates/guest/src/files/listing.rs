//! Lists a directory: the first names in byte order, however many there are. Never holds more than it will answer.

use std::collections::BinaryHeap;
use std::ffi::OsString;
use std::fs;

use remuda_guest_proto::{AgentError, Reply};

use super::{entry, named, sound};
use crate::agent::Agent;
use crate::errors::{failed_io, invalid};
use crate::limits::{ENTRIES_MAX, LISTING_BYTES_MAX};
use crate::user_thread::as_user;

/// Lists a directory, at most `limit` entries.
pub fn list(agent: &Agent, path: &str, user: &str, limit: u32) -> Result<Reply, AgentError> {
    let path = sound(path)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(ENTRIES_MAX);
    if limit == 0 {
        return Err(invalid("a listing of no entries"));
    }
    as_user(agent, user, |_| {
        let cannot = |error| failed_io(format!("list {}", named(path)), &error);
        let mut names: BinaryHeap<OsString> = BinaryHeap::new();
        let mut truncated = false;
        for found in fs::read_dir(path).map_err(cannot)? {
            names.push(found.map_err(cannot)?.file_name());
            if names.len() > limit {
                names.pop();
                truncated = true;
            }
        }
        let mut entries = Vec::with_capacity(names.len());
        let mut bytes = 0;
        for name in names.into_sorted_vec() {
            // One that is gone by now was there a moment ago; one that can't be looked at is not left out in silence.
            let entry = match entry::of(&path.join(name)) {
                Ok(entry) => entry,
                Err(error) if error.kind == remuda_guest_proto::AgentErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            bytes += serde_json::to_vec(&entry).map_or(0, |json| json.len() + 1);
            if bytes > LISTING_BYTES_MAX {
                truncated = true;
                break;
            }
            entries.push(entry);
        }
        Ok(Reply::Entries { entries, truncated })
    })
}
