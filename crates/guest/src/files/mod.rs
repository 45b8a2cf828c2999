//! File calls: each on a thread of its own, as the guest user who counts. Paths are believed to be nothing but bytes
//! from elsewhere; nothing here blocks on what a path turns out to be.

mod attributes;
mod batch;
mod conditions;
mod digest;
mod entry;
mod listing;
mod moving;
mod read;
mod remove;
mod search;
mod tree;
mod walk;
mod watch;
mod write;

use std::path::{Component, Path};
use std::sync::Arc;

use remuda_guest_proto::{AgentError, AgentErrorKind, EntryKind, Reply};

use crate::agent::{Agent, Place};
use crate::dispatch::begin_effect;
use crate::errors::{failed_io, invalid, refusal, shown};
use crate::limits::{FILE_CALLS_MAX, PATH_BYTES_MAX};
use crate::outbox::Host;
use crate::user_thread::as_user;

pub use attributes::set_attributes;
pub use batch::batch;
pub use listing::list;
pub use moving::rename;
pub use read::{Part, Read, read};
pub use remove::remove;
pub use search::{glob, grep};
pub use tree::{pack_tree, unpack_tree};
pub use watch::watch;
pub use write::{Write, write};

/// A place for one more file call.
fn place(agent: &Agent) -> Result<Place, AgentError> {
    Place::take(&agent.live_file_calls, FILE_CALLS_MAX)
        .ok_or_else(|| refusal(AgentErrorKind::Busy, format!("{FILE_CALLS_MAX} file calls are at work")))
}

/// Runs a job on a thread, which keeps the place until it is done.
fn on_thread(agent: &Arc<Agent>, job: impl FnOnce(&Agent) + Send + 'static) -> Result<(), AgentError> {
    let place = place(agent)?;
    let for_thread = agent.clone();
    let started = agent.workers.run(move || {
        job(&for_thread);
        drop(place);
        for_thread.rest();
    });
    started.map_err(|error| refusal(AgentErrorKind::Busy, format!("there can't be another thread: {error}")))
}

/// Carries out a call that is answered once and has no data.
pub fn call(
    agent: &Arc<Agent>,
    host: Host,
    call: u32,
    act: impl FnOnce(&Agent) -> Result<Reply, AgentError> + Send + 'static,
) {
    let started = on_thread(agent, move |agent| agent.reply(host, call, &act(agent)));
    if let Err(error) = started {
        agent.reply(host, call, &Err(error));
    }
}

/// The same for a call that changes something: once, however often the host asks for the effect. Only hosts from before
/// effects of such calls give none.
pub fn change(
    agent: &Arc<Agent>,
    host: Host,
    call: u32,
    effect: Option<u64>,
    act: impl FnOnce(&Agent) -> Result<Reply, AgentError> + Send + 'static,
) {
    let Some(effect) = effect else { return self::call(agent, host, call, act) };
    if !begin_effect(agent, effect, host, call) {
        return;
    }
    let started = on_thread(agent, move |agent| agent.finish_effect(effect, act(agent), true));
    if let Err(error) = started {
        agent.finish_effect(effect, Err(error), false);
    }
}

/// Tells what a path is.
pub fn stat(agent: &Agent, path: &str, user: &str, digest: bool) -> Result<Reply, AgentError> {
    let path = sound(path)?;
    as_user(agent, user, |_| {
        let entry = entry::of(path)?;
        if !digest || entry.kind != EntryKind::File {
            return Ok(Reply::Entry(entry));
        }
        let (file, mut entry) = read::open_regular(path)?;
        entry.digest = digest::of(&file).map_err(|error| failed_io(format!("read {}", named(path)), &error))?;
        Ok(Reply::Entry(entry))
    })
}

/// Makes a directory.
pub fn make_directory(agent: &Agent, path: &str, user: &str, parents: bool) -> Result<Reply, AgentError> {
    let path = sound(path)?;
    as_user(agent, user, |_| {
        let made = if parents { std::fs::create_dir_all(path) } else { std::fs::create_dir(path) };
        made.map_err(|error| failed_io(format!("make the directory {}", named(path)), &error))?;
        Ok(Reply::Entry(entry::of(path)?))
    })
}

/// A path that may be used: absolute, without NUL, not too long.
fn sound(path: &str) -> Result<&Path, AgentError> {
    if !path.starts_with('/') {
        return Err(invalid(format!("{:?} is no absolute path", shown(path))));
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(invalid(format!("a path has at most {PATH_BYTES_MAX} bytes")));
    }
    if path.contains('\0') {
        return Err(invalid("a path holds no NUL byte"));
    }
    Ok(Path::new(path))
}

/// The same, for what can't be the root or end in `..`.
fn sound_name(path: &str) -> Result<&Path, AgentError> {
    let path = sound(path)?;
    match path.components().next_back() {
        Some(Component::Normal(_)) => Ok(path),
        _ => Err(invalid(format!("{} names no entry of a directory", named(path)))),
    }
}

/// A path as it may stand in a sentence.
fn named(path: &Path) -> String {
    shown(&path.to_string_lossy())
}
