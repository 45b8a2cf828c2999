//! Removes a path. A tree is walked by descriptors, without following links and without recursion, so that neither a
//! tree changed meanwhile nor one of any depth leads astray.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use remuda_guest_proto::{AgentError, AgentErrorKind, Reply};
use remuda_tree::open_directory;
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, unlinkat};
use rustix::io::Errno;

use super::{named, sound_name};
use crate::agent::Agent;
use crate::errors::{failed, refusal};
use crate::limits::{REMOVE_DEPTH_MAX, REMOVE_ROUNDS_MAX};
use crate::user_thread::as_user;

/// Removes a path.
pub fn remove(agent: &Agent, path: &str, user: &str, recursive: bool) -> Result<Reply, AgentError> {
    let path = sound_name(path)?;
    as_user(agent, user, |_| {
        let cannot = |errno| failed(format!("remove {}", named(path)), errno);
        match unlinkat(CWD, path, AtFlags::empty()) {
            // What the kernels say of a directory.
            Err(Errno::ISDIR | Errno::PERM) => {}
            other => return other.map(|()| Reply::Done).map_err(cannot),
        }
        match unlinkat(CWD, path, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) if recursive => {}
            Err(Errno::NOTEMPTY) => {
                return Err(refusal(AgentErrorKind::Failed, format!("the directory {} is not empty", named(path))));
            }
            // It was no directory, so the first answer counts.
            Err(Errno::NOTDIR) => return Err(cannot(Errno::PERM)),
            other => return other.map(|()| Reply::Done).map_err(cannot),
        }
        empty(path)?;
        unlinkat(CWD, path, AtFlags::REMOVEDIR).map(|()| Reply::Done).map_err(cannot)
    })
}

/// Removes all that is in a directory.
fn empty(path: &Path) -> Result<(), AgentError> {
    let cannot = |errno| failed(format!("remove what is in {}", named(path)), errno);
    // The directories on the way down, each with its name in the one before.
    let mut way: Vec<(OwnedFd, CString)> =
        vec![(open_directory(CWD, path.as_os_str().as_bytes()).map_err(cannot)?, CString::default())];
    let mut rounds = 0;
    while let Some((fd, _)) = way.last() {
        let mut below = None;
        for found in Dir::read_from(fd).map_err(cannot)? {
            let found = found.map_err(cannot)?;
            let name = found.file_name();
            if [b".".as_slice(), b".."].contains(&name.to_bytes()) {
                continue;
            }
            let removed = match found.file_type() {
                FileType::Directory => unlinkat(fd, name, AtFlags::REMOVEDIR),
                FileType::Unknown => unlinkat(fd, name, AtFlags::empty()).or_else(|errno| match errno {
                    Errno::ISDIR | Errno::PERM => unlinkat(fd, name, AtFlags::REMOVEDIR),
                    errno => Err(errno),
                }),
                _ => unlinkat(fd, name, AtFlags::empty()),
            };
            match removed {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    let fd = open_directory(fd.as_fd(), name.to_bytes()).map_err(cannot)?;
                    below = Some((fd, name.to_owned()));
                    break;
                }
                Err(errno) => return Err(cannot(errno)),
            }
        }
        match below {
            Some(_) if way.len() >= REMOVE_DEPTH_MAX => {
                let message = format!("{} holds directories more than {REMOVE_DEPTH_MAX} deep", named(path));
                return Err(refusal(AgentErrorKind::Failed, message));
            }
            Some(below) => way.push(below),
            None => {
                // Empty now, if nobody adds to it; if somebody does, it is found again from above.
                let name = way.pop().map(|(_, name)| name);
                if let (Some((above, _)), Some(name)) = (way.last(), name) {
                    match unlinkat(above, &name, AtFlags::REMOVEDIR) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(Errno::NOTEMPTY | Errno::EXIST) if rounds < REMOVE_ROUNDS_MAX => rounds += 1,
                        Err(errno) => return Err(cannot(errno)),
                    }
                }
            }
        }
    }
    Ok(())
}
