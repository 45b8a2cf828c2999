//! Gives a path another name. What is there already stays unless the call says otherwise; between file systems, where no
//! rename is, a regular file is copied and its old name removed.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::Path;

use remuda_guest_proto::{AgentError, AgentErrorKind, Reply};
use rustix::fs::{
    CWD, Mode, OFlags, RenameFlags, Timespec, Timestamps, fchmod, futimens, open, renameat, renameat_with,
};
use rustix::io::Errno;

use super::write::{Temporary, create_beside};
use super::{entry, named, sound_name};
use crate::agent::Agent;
use crate::errors::{failed, failed_io, refusal};
use crate::sync::lock;
use crate::user_thread::as_user;

/// Renames a path.
pub fn rename(agent: &Agent, from: &str, to: &str, user: &str, overwrite: bool) -> Result<Reply, AgentError> {
    let (from, to) = (sound_name(from)?, sound_name(to)?);
    as_user(agent, user, |user| {
        let _placing = lock(&agent.placing);
        match place(from, to, overwrite) {
            Err(Errno::XDEV) => across(from, to, overwrite, user.uid == 0)?,
            other => other.map_err(|errno| cannot(from, to, errno))?,
        }
        Ok(Reply::Entry(entry::of(to)?))
    })
}

fn cannot(from: &Path, to: &Path, errno: Errno) -> AgentError {
    match errno {
        Errno::EXIST | Errno::NOTEMPTY => refusal(AgentErrorKind::Exists, format!("{} exists", named(to))),
        Errno::ISDIR => refusal(AgentErrorKind::Exists, format!("{} is a directory", named(to))),
        errno => failed(format!("move {} to {}", named(from), named(to)), errno),
    }
}

/// A rename that replaces nothing unless it may.
pub fn place(from: &Path, to: &Path, overwrite: bool) -> Result<(), Errno> {
    if overwrite {
        return renameat(CWD, from, CWD, to);
    }
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // This file system can't do it in one step; what it would mean is also said of a directory moved into itself.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match fs::symlink_metadata(to) {
            Ok(_) => Err(Errno::EXIST),
            Err(_) => renameat(CWD, from, CWD, to),
        },
        other => other,
    }
}

fn across(from: &Path, to: &Path, overwrite: bool, keep_owner: bool) -> Result<(), AgentError> {
    let meta = fs::symlink_metadata(from).map_err(|error| failed_io(format!("look at {}", named(from)), &error))?;
    if !meta.is_file() {
        let message = format!(
            "{} and {} lie on different file systems, between which only regular files are moved",
            named(from),
            named(to)
        );
        return Err(refusal(AgentErrorKind::Invalid, message));
    }
    if !overwrite && fs::symlink_metadata(to).is_ok() {
        return Err(cannot(from, to, Errno::EXIST));
    }
    let directory = to.parent().ok_or_else(|| refusal(AgentErrorKind::Invalid, "the root is no file"))?;
    let (file, mut temporary) = create_beside(directory, meta.ino())?;
    let copied = copy(from, &file, &meta, keep_owner);
    copied.map_err(|error| failed_io(format!("copy {} to {}", named(from), named(to)), &error))?;
    put(&mut temporary, to, overwrite).map_err(|errno| cannot(from, to, errno))?;
    fs::remove_file(from)
        .map_err(|error| failed_io(format!("remove {}, which is at {} as well by now", named(from), named(to)), &error))
}

/// Puts a finished temporary file under its name.
pub fn put(temporary: &mut Temporary, to: &Path, overwrite: bool) -> Result<(), Errno> {
    place(&temporary.path, to, overwrite)?;
    temporary.placed = true;
    Ok(())
}

fn copy(from: &Path, to: &File, meta: &Metadata, keep_owner: bool) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let source = File::from(open(from, flags, Mode::empty())?);
    io::copy(&mut &source, &mut &*to)?;
    if keep_owner {
        fchown(to, Some(meta.uid()), Some(meta.gid()))?;
    }
    fchmod(to, Mode::from_raw_mode(meta.mode() & 0o7777))?;
    let time = |seconds, nanoseconds: i64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    let times = Timestamps {
        last_access: time(meta.atime(), meta.atime_nsec()),
        last_modification: time(meta.mtime(), meta.mtime_nsec()),
    };
    futimens(to, &times)?;
    Ok(())
}
