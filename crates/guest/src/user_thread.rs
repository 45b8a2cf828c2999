//! Touching paths as a guest user: the calling thread takes on the user's effective identity for a while, so that the
//! kernel decides what the user may. The real and saved uid stay root's, so that no process of the user may signal or
//! trace the thread. Never the C library's calls, which would change all threads.

use remuda_guest_proto::AgentError;
use rustix::io::Errno;
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::agent::Agent;
use crate::errors::{failed, reason, say};
use crate::users::{Identity, User};

/// Does something as the named user.
pub fn as_user<T>(
    agent: &Agent,
    user: &str,
    act: impl FnOnce(&User) -> Result<T, AgentError>,
) -> Result<T, AgentError> {
    let user = agent.users.find(user)?;
    let Some(identity) = agent.inherited.identity_to_take(&user)? else { return act(&user) };
    let taken = take(identity).map_err(|errno| failed(format!("become user {}", user.name), errno));
    let result = taken.and_then(|()| act(&user));
    if let Err(errno) = take(Identity { uid: 0, gid: 0, groups: &[0] }) {
        // The thread would go on with too few rights, which is safe but useless: it must not take other calls.
        say(format_args!("a thread cannot become root again: {}", reason(errno)));
        loop {
            std::thread::park();
        }
    }
    result
}

fn take(identity: Identity<'_>) -> Result<(), Errno> {
    let groups: Vec<Gid> = identity.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    // Becoming root comes before what only root may, becoming another user after it.
    if uid.is_root() {
        set_thread_res_uid(None, uid, None)?;
    }
    set_thread_groups(&groups)?;
    set_thread_res_gid(None, gid, None)?;
    if !uid.is_root() {
        set_thread_res_uid(None, uid, None)?;
    }
    Ok(())
}
