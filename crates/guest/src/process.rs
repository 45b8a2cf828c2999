//! What this process is before it does anything: signals, limits, memory, and who it runs as. Runs once, before there
//! is a second thread.

use std::io;
use std::path::PathBuf;

use remuda_guest_proto::{AgentError, AgentErrorKind};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getpid, getrlimit, set_child_subreaper, setrlimit, umask};

use crate::errors::refusal;
use crate::limits::OPEN_FILES_MAX;
use crate::users::{Identity, User};

/// What the agent was started with.
pub struct Inherited {
    /// Whether it is PID 1.
    pub is_init: bool,
    /// Below which directory the identity is written: `/`, unless `REMUDA_AGENT_ROOT` names another for a test.
    pub root: PathBuf,
    /// User it runs as.
    pub uid: u32,
    /// Soft and hard limit of open files that programs get.
    pub open_files: Option<(u64, u64)>,
}

/// Prepares the process. All signals are blocked from here on, in every thread: the agent wants none, and a child that
/// shares its memory must not run a handler.
pub fn prepare() -> io::Result<Inherited> {
    let is_init = getpid().is_init();
    block_signals(is_init)?;
    limit_memory();
    umask(Mode::WGRP | Mode::WOTH);
    std::env::set_current_dir("/")?;
    if !is_init {
        set_child_subreaper(Some(getpid()))?;
    }
    Ok(Inherited {
        is_init,
        root: std::env::var_os("REMUDA_AGENT_ROOT").map_or_else(|| PathBuf::from("/"), PathBuf::from),
        uid: rustix::process::geteuid().as_raw(),
        open_files: raise_open_files(),
    })
}

impl Inherited {
    /// What a thread or child must take on to be `user`; `None` if it is already.
    pub fn identity_to_take<'a>(&self, user: &'a User) -> Result<Option<Identity<'a>>, AgentError> {
        match self.uid {
            0 => Ok(Some(Identity { uid: user.uid, gid: user.gid, groups: &user.groups })),
            own if own == user.uid => Ok(None),
            own => Err(refusal(
                AgentErrorKind::Denied,
                format!("the agent runs as uid {own} and cannot become user {}", user.name),
            )),
        }
    }
}

/// Every signal a number, and those that the runtime of this program has set something for.
const SIGNALS: [libc::c_int; 64] = {
    let mut all = [0; 64];
    let mut at = 0;
    while at < all.len() {
        all[at] = at as libc::c_int + 1;
        at += 1;
    }
    all
};
const SIGNALS_OF_RUNTIME: [libc::c_int; 3] = [libc::SIGPIPE, libc::SIGSEGV, libc::SIGBUS];

fn block_signals(is_init: bool) -> io::Result<()> {
    // The kernel's `sigaction`: default handler, no flags, no restorer, empty mask. The C library's call leaves out the
    // two signals that it wants for itself.
    let default = [0u64; 4];
    // Only the first process has inherited nothing, and there each call is a twentieth of a millisecond of every start.
    let set: &[libc::c_int] = if is_init { &SIGNALS_OF_RUNTIME } else { &SIGNALS };
    for signal in set {
        // What is ignored here would stay so in a program; the two that can't be changed answer with an error.
        // SAFETY: `default` is as long as the kernel's structure; no handler is involved.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                *signal,
                default.as_ptr(),
                std::ptr::null_mut::<libc::c_void>(),
                8usize,
            )
        };
    }
    let all = u64::MAX;
    // SAFETY: the mask is eight bytes, as the kernel's is; there is only this thread.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            std::ptr::from_ref(&all),
            std::ptr::null_mut::<u64>(),
            8usize,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// One heap for all threads, whose buffers are reused rather than mapped and unmapped each time.
fn limit_memory() {
    const ARENAS: libc::c_int = 1;
    const MAPPED_FROM_BYTES: libc::c_int = 8 << 20;
    const TRIMMED_FROM_BYTES: libc::c_int = 2 << 20;
    // SAFETY: plain settings of the allocator, made before there is a second thread.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIMMED_FROM_BYTES);
    }
}

/// Gives memory that is not used any more back to the system.
pub fn release_memory() {
    // SAFETY: only returns free pages; allocated memory stays where it is.
    unsafe { libc::malloc_trim(0) };
}

/// Raises the agent's own limit; answers the limit it was started with, for programs.
fn raise_open_files() -> Option<(u64, u64)> {
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    let wanted = hard.min(OPEN_FILES_MAX);
    if soft >= wanted {
        return None;
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum }).ok()?;
    Some((soft, hard))
}
