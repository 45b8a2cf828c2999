//! Takes a file: its bytes go to a temporary file beside it, which is renamed into place when all of them are there.
//! Whatever breaks off leaves the old file as it was and nothing beside it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use remuda_guest_proto::{AgentError, AgentErrorKind, Conditions, Entry, Frame, Kind, Reply, encode_credit};
use remuda_tree::next_stretch;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::conditions::Guard;
use super::digest::Digest;
use super::{entry, moving, named, on_thread, sound_name};
use crate::agent::Agent;
use crate::dispatch::begin_effect;
use crate::errors::{failed, failed_io, invalid, refusal};
use crate::limits::LINKS_MAX;
use crate::outbox::Host;
use crate::sync::lock;
use crate::transfers::{Next, Transfer};
use crate::user_thread::as_user;

/// How to write a file.
pub struct Write {
    /// Absolute path.
    pub path: String,
    /// Guest user who writes and owns it.
    pub user: String,
    /// Permission bits; of the file that is replaced, else 0644.
    pub mode: Option<u32>,
    /// Whether missing directories are made.
    pub parents: bool,
    /// What must hold of the file that is replaced.
    pub conditions: Conditions,
    /// The server's number for this effect.
    pub effect: u64,
}

const MODE_DEFAULT: u32 = 0o644;

/// Why a write did not come to its end.
enum Broken {
    /// The outcome of the effect: the same call would be answered the same.
    Refused(AgentError),
    /// A new host is bound: nothing was done, and it may ask again.
    Abandoned,
}

impl From<AgentError> for Broken {
    fn from(error: AgentError) -> Broken {
        Broken::Refused(error)
    }
}

/// Takes up a `WriteFile`.
pub fn write(agent: &Arc<Agent>, host: Host, call: u32, write: Write) {
    let effect = write.effect;
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
        let outcome = as_user(agent, &write.user, |_| Ok(receive(agent, &for_thread, &write)));
        agent.transfers.end(&for_thread);
        match outcome.unwrap_or_else(|error| Err(Broken::Refused(error))) {
            Ok(entry) => agent.finish_effect(effect, Ok(Reply::Entry(entry)), true),
            Err(Broken::Refused(error)) => agent.finish_effect(effect, Err(error), true),
            Err(Broken::Abandoned) => {
                let error = refusal(AgentErrorKind::Undone, "the write was broken off by a new host; nothing was done");
                agent.finish_effect(effect, Err(error), false);
            }
        }
    });
    if let Err(error) = started {
        agent.transfers.end(&transfer);
        agent.finish_effect(effect, Err(error), false);
    }
}

/// A temporary file that is gone unless it was put in place.
pub struct Temporary {
    /// Where it is.
    pub path: PathBuf,
    /// Whether it has its name by now.
    pub placed: bool,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.placed {
            // Nothing can be done if even that fails; the name tells whose it is.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A file on its way to its place.
pub struct Target<'a> {
    file: File,
    temporary: Temporary,
    guard: Guard<'a>,
    mode: u32,
    /// Bytes that came.
    length: u64,
    /// Where the last byte that was written ends.
    written: u64,
}

impl<'a> Target<'a> {
    /// Looks at what is there, and begins a temporary file beside it.
    pub fn begin(write: &'a Write) -> Result<Target<'a>, AgentError> {
        if let Some(mode) = write.mode.filter(|mode| *mode > 0o7777) {
            return Err(invalid(format!("{mode:o} is no mode of a file")));
        }
        let path = behind_links(sound_name(&write.path)?)?;
        let mut guard = Guard::new(&write.conditions, path.clone());
        guard.check()?;
        let directory = path.parent().ok_or_else(|| invalid("the root is no file"))?;
        if write.parents {
            fs::create_dir_all(directory)
                .map_err(|error| failed_io(format!("make the directory {}", named(directory)), &error))?;
        }
        let mode = match fs::symlink_metadata(&path) {
            Ok(meta) if !meta.is_file() => {
                return Err(refusal(AgentErrorKind::NotAFile, format!("{} is no regular file", named(&path))));
            }
            // Without set-id bits, which were for another owner's program.
            Ok(meta) => write.mode.unwrap_or(meta.permissions().mode() & 0o777),
            Err(_) => write.mode.unwrap_or(MODE_DEFAULT),
        };
        let (file, temporary) = create_beside(directory, write.effect)?;
        Ok(Target { file, temporary, guard, mode, length: 0, written: 0 })
    }

    /// Writes what comes next.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), AgentError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (zeros, data) = next_stretch(rest);
            let data_bytes = rest.get(zeros..zeros + data).unwrap_or_default();
            let written = self.file.write_all_at(data_bytes, self.length + zeros as u64);
            written.map_err(|error| self.cannot("write", &error))?;
            self.length += (zeros + data) as u64;
            if data > 0 {
                self.written = self.length;
            }
            rest = rest.get(zeros + data..).unwrap_or_default();
        }
        Ok(())
    }

    /// Puts the file in place, if what must hold still does.
    pub fn place(self, agent: &Agent, digest: String) -> Result<Entry, AgentError> {
        // It ends in a hole.
        if self.written < self.length {
            self.file.set_len(self.length).map_err(|error| self.cannot("write", &error))?;
        }
        let mode = fs::Permissions::from_mode(self.mode);
        self.file.set_permissions(mode).map_err(|error| self.cannot("set the mode of", &error))?;
        let Target { file, mut temporary, mut guard, .. } = self;
        drop(file);
        let _placing = lock(&agent.placing);
        guard.check()?;
        let path = guard.path();
        moving::put(&mut temporary, path, !guard.must_be_new()).map_err(|errno| match errno {
            Errno::EXIST => refusal(AgentErrorKind::Condition, format!("{} exists", named(path))),
            errno => failed(format!("replace {}", named(path)), errno),
        })?;
        let mut entry = entry::of(path)?;
        entry.digest = Some(digest);
        Ok(entry)
    }

    fn cannot(&self, doing: &str, error: &io::Error) -> AgentError {
        failed_io(format!("{doing} {}", named(self.guard.path())), error)
    }
}

fn receive(agent: &Agent, transfer: &Transfer, write: &Write) -> Result<Entry, Broken> {
    let mut target = Target::begin(write)?;
    let (mut buffer, mut digest) = (Vec::new(), Digest::default());
    loop {
        match transfer.next(buffer) {
            Next::Write(bytes) => {
                digest.update(&bytes);
                target.write(&bytes)?;
                if let Some(credit) = transfer.consumed(bytes.len()) {
                    let frame = Frame::new(Kind::GuestCredit, transfer.channel, encode_credit(credit));
                    agent.outbox.push(transfer.host, frame);
                }
                buffer = bytes;
            }
            Next::Finish => break,
            Next::BrokenOff => {
                return Err(refusal(AgentErrorKind::Failed, "the host broke the file off; nothing was written").into());
            }
            Next::Abandoned => return Err(Broken::Abandoned),
        }
    }
    if !transfer.commit() {
        return Err(Broken::Abandoned);
    }
    Ok(target.place(agent, digest.finish())?)
}

/// The path that a write means: where links at its end lead.
fn behind_links(path: &Path) -> Result<PathBuf, AgentError> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = fs::read_link(&path) else { return Ok(path) };
        path = match path.parent() {
            Some(directory) => directory.join(target),
            None => target,
        };
    }
    Err(invalid(format!("{} is a link to too many links", named(&path))))
}

pub fn create_beside(directory: &Path, effect: u64) -> Result<(File, Temporary), AgentError> {
    const ATTEMPTS_MAX: u32 = 100;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut attempt = 0;
    loop {
        let path = directory.join(format!(".remuda-{effect:x}-{attempt}.part"));
        match open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => return Ok((File::from(fd), Temporary { path, placed: false })),
            Err(Errno::INTR) => {}
            Err(Errno::EXIST) if attempt < ATTEMPTS_MAX => attempt += 1,
            Err(errno) => return Err(failed(format!("make a file in {}", named(directory)), errno)),
        }
    }
}
