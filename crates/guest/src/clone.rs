//! The moment between making a child and its program: `clone` with the parent's memory and the parent asleep, as
//! `vfork` does it, since a copied address space costs two to three times as much in gVisor. The child runs on a stack of
//! its own, makes system calls only, and must not allocate, lock, panic or return.

use std::ffi::{CString, c_char, c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fd::{AsRawFd as _, BorrowedFd, RawFd};
use rustix::io::Errno;

use crate::limits::CHILD_STACK_BYTES;
use crate::users::Identity;

/// Descriptor by which a shell gets its script. Its first command closes it. It has one digit, since that is all that
/// the redirections of some shells take.
pub const SCRIPT_FD: RawFd = 9;

/// What a child becomes.
pub struct Plan<'a> {
    /// Paths to try, in order; the first that can be executed is.
    pub candidates: &'a [CString],
    /// Arguments, the first being the program's name.
    pub argv: &'a [CString],
    /// Environment.
    pub env: &'a [CString],
    /// Working directory.
    pub cwd: &'a CString,
    /// Its descriptors 0, 1 and 2.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Whether these are a terminal, which is to be its controlling one.
    pub terminal: bool,
    /// Its script, for [`SCRIPT_FD`].
    pub script: Option<BorrowedFd<'a>>,
    /// Who it becomes; `None` when it stays who the agent is.
    pub identity: Option<Identity<'a>>,
    /// Limit of open files: soft and hard.
    pub open_files: Option<(u64, u64)>,
    /// Limit of the user's processes.
    pub processes_max: Option<u64>,
}

/// What the child was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Step {
    /// Making the child.
    Clone = 1,
    /// Its session, descriptors or limits.
    Prepare = 2,
    /// Taking the user's identity.
    Identity = 3,
    /// Going to the working directory.
    Cwd = 4,
    /// Executing the program.
    Exec = 5,
}

/// The plan as the child reads it: pointers only, made before there is a child.
struct Raw {
    candidates: *const *const c_char,
    argv: *const *const c_char,
    env: *const *const c_char,
    cwd: *const c_char,
    stdio: [RawFd; 3],
    terminal: bool,
    script: RawFd,
    identity: bool,
    uid: u32,
    gid: u32,
    groups: *const u32,
    groups_len: usize,
    open_files: Option<libc::rlimit64>,
    processes: Option<libc::rlimit64>,
    failed_step: AtomicI32,
    failed_errno: AtomicI32,
}

#[repr(C, align(16))]
struct Stack([MaybeUninit<u8>; CHILD_STACK_BYTES]);

/// Makes the child and waits until it runs its program or has failed. The kernel writes its pid into `pid` before it
/// runs. All signals must be blocked in this thread and all dispositions be the default.
pub fn clone_and_exec(plan: &Plan<'_>, pid: &AtomicI32) -> Result<(), (Step, Errno)> {
    let candidates = pointers(plan.candidates);
    let argv = pointers(plan.argv);
    let env = pointers(plan.env);
    let Identity { uid, gid, groups } = plan.identity.unwrap_or(Identity { uid: 0, gid: 0, groups: &[] });
    let raw = Raw {
        candidates: candidates.as_ptr(),
        argv: argv.as_ptr(),
        env: env.as_ptr(),
        cwd: plan.cwd.as_ptr(),
        stdio: plan.stdio.map(|fd| fd.as_raw_fd()),
        terminal: plan.terminal,
        script: plan.script.map_or(-1, |fd| fd.as_raw_fd()),
        identity: plan.identity.is_some(),
        uid,
        gid,
        groups: groups.as_ptr(),
        groups_len: groups.len(),
        open_files: plan.open_files.map(|(soft, hard)| libc::rlimit64 { rlim_cur: soft, rlim_max: hard }),
        processes: plan.processes_max.map(|max| libc::rlimit64 { rlim_cur: max, rlim_max: max }),
        failed_step: AtomicI32::new(0),
        failed_errno: AtomicI32::new(0),
    };
    let mut stack = Stack([MaybeUninit::uninit(); CHILD_STACK_BYTES]);
    // SAFETY: the result points one past the end of `stack`, which is aligned as a stack must be.
    let stack_top = unsafe { stack.0.as_mut_ptr().add(CHILD_STACK_BYTES) }.cast::<c_void>();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
    // SAFETY: with CLONE_VFORK this thread sleeps until the child has executed a program or ended, so `raw`, all it
    // points to, and `stack` outlive the child's use of them, and nobody else uses this thread's errno, the only thing
    // that the child's libc calls write to. Signals are blocked, so no handler runs on the child's stack or in the
    // parent's memory. The other threads run on; the child reads nothing that they may change. `pid` outlives the call.
    let made =
        unsafe { libc::clone(child, stack_top, flags, ptr::from_ref(&raw).cast_mut().cast::<c_void>(), pid.as_ptr()) };
    if made < 0 {
        return Err((Step::Clone, Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN)));
    }
    let step = match raw.failed_step.load(Ordering::Acquire) {
        0 => return Ok(()),
        2 => Step::Prepare,
        3 => Step::Identity,
        4 => Step::Cwd,
        _ => Step::Exec,
    };
    Err((step, Errno::from_raw_os_error(raw.failed_errno.load(Ordering::Acquire))))
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

/// The child's whole life before its program.
extern "C" fn child(raw: *mut c_void) -> c_int {
    // SAFETY: `raw` is the parent's plan, alive and unchanged until this process has executed a program or ended.
    let raw = unsafe { &*raw.cast::<Raw>() };
    // SAFETY: as above, and every pointer in it was made from a live value of the right type.
    let (step, errno) = unsafe { become_program(raw) };
    raw.failed_errno.store(errno, Ordering::Release);
    raw.failed_step.store(step as i32, Ordering::Release);
    // SAFETY: ends this process only, without running anything of the parent's.
    unsafe { libc::_exit(127) }
}

/// # Safety
/// Only for the child: changes the process it runs in. The pointers of `raw` must be what they are named.
unsafe fn become_program(raw: &Raw) -> (Step, c_int) {
    macro_rules! must {
        ($step:expr, $call:expr) => {
            // SAFETY: system calls on integers and on the plan's pointers, whose targets are alive.
            if unsafe { $call } < 0 {
                return ($step, errno());
            }
        };
    }
    must!(Step::Prepare, libc::setsid());
    for (target, source) in raw.stdio.iter().enumerate() {
        // The sources are above 2: the agent's own 0, 1 and 2 are always open.
        must!(Step::Prepare, libc::dup2(*source, target as c_int));
    }
    if raw.terminal {
        must!(Step::Prepare, libc::ioctl(0, libc::TIOCSCTTY, 0));
    }
    // All others are made with close-on-exec; this is for one that somebody handed to the agent when it was started.
    // Kernels that don't know the call lack only that.
    // SAFETY: integers only; this process has its own table of descriptors.
    unsafe { libc::syscall(libc::SYS_close_range, 3 as c_long, c_long::from(u32::MAX), 4 as c_long) };
    if raw.script == SCRIPT_FD {
        must!(Step::Prepare, libc::fcntl(SCRIPT_FD, libc::F_SETFD, 0));
    } else if raw.script >= 0 {
        must!(Step::Prepare, libc::dup2(raw.script, SCRIPT_FD));
    }
    if let Some(limit) = &raw.open_files {
        must!(Step::Prepare, libc::setrlimit64(libc::RLIMIT_NOFILE, limit));
    }
    if let Some(limit) = &raw.processes {
        must!(Step::Prepare, libc::setrlimit64(libc::RLIMIT_NPROC, limit));
    }
    if raw.identity {
        // The raw calls: libc's would change all threads of the parent, whose memory this is.
        must!(Step::Identity, libc::syscall(libc::SYS_setgroups, raw.groups_len, raw.groups));
        let (uid, gid) = (c_long::from(raw.uid), c_long::from(raw.gid));
        must!(Step::Identity, libc::syscall(libc::SYS_setresgid, gid, gid, gid));
        must!(Step::Identity, libc::syscall(libc::SYS_setresuid, uid, uid, uid));
    }
    must!(Step::Cwd, libc::chdir(raw.cwd));
    let none: u64 = 0;
    // SAFETY: the mask is eight bytes, as the kernel's is.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, ptr::from_ref(&none), ptr::null_mut::<u64>(), 8usize)
    };
    let mut result = libc::ENOENT;
    let mut candidate = raw.candidates;
    // SAFETY: the array ends with a null pointer, and so do argv and env.
    unsafe {
        while !(*candidate).is_null() {
            libc::execve(*candidate, raw.argv, raw.env);
            match errno() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => result = libc::EACCES,
                other => return (Step::Exec, other),
            }
            candidate = candidate.add(1);
        }
    }
    (Step::Exec, result)
}

fn errno() -> c_int {
    // SAFETY: points to this thread's errno; in the child that is the sleeping parent's, which it may use meanwhile.
    unsafe { *libc::__errno_location() }
}
