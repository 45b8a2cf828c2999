//! The child's half of a start: system calls from its birth to its program, and nothing else. No memory is taken, no
//! lock, nothing that could panic: other threads' locks are copies that nobody will ever open.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

/// The word by which parent and child tell each other to go on.
pub(super) const READY: u8 = 0xff;

/// Capabilities that serve files of every owner: what the gofer needs, and the sentry, which opens files by descriptors
/// that the gofer gave it. Numbers of `linux/capability.h`.
const OF_FILES: u64 =
    1 << CAP_CHOWN | 1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH | 1 << CAP_FOWNER | 1 << CAP_FSETID;
const CAP_CHOWN: u32 = 0;
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_FOWNER: u32 = 3;
const CAP_FSETID: u32 = 4;
const CAP_SYS_CHROOT: u32 = 18;
const CAP_SYS_PTRACE: u32 = 19;
/// The table of descriptors has room up to here: 1,024 is what a process may have by default.
const ROOMY_DESCRIPTOR: c_int = 1023;
/// Capabilities beyond the last are refused by the kernel, and so end the loop over all of them.
const CAPS_MAX: u32 = 64;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Where a child goes before it becomes its program.
pub(super) enum Confinement<'a> {
    /// The sandbox's kernel: in its network, with nothing but `/proc` in its root, and that only until its filters are up.
    Sentry { network: BorrowedFd<'a> },
    /// What serves its files: in the same network, of which it can open nothing, with a view of processes of its own, and
    /// the sandbox's root file system below its root. A network of its own would be one more to make and take away.
    Gofer { network: BorrowedFd<'a>, root: CString },
}

impl Confinement<'_> {
    /// Namespaces that must be chosen at the birth: a process can't move into another view of processes.
    pub(super) fn birth_flags(&self) -> c_int {
        match self {
            // The sentry stops and traces the processes of its guest, which it can only where it sees them.
            Confinement::Sentry { .. } => 0,
            Confinement::Gofer { .. } => libc::CLONE_NEWPID,
        }
    }

    /// The descriptor that it needs to get there.
    pub(super) fn descriptor(&self) -> RawFd {
        match self {
            Confinement::Sentry { network } | Confinement::Gofer { network, .. } => network.as_raw_fd(),
        }
    }
}

/// Everything that the child needs, made before its birth.
pub(super) struct Plan<'a> {
    /// Every descriptor that is named below, in ascending order.
    pub(super) kept: &'a [RawFd],
    pub(super) entrances: &'a [RawFd],
    pub(super) confinement: &'a Confinement<'a>,
    pub(super) unmount_proc: RawFd,
    pub(super) descriptors: &'a [RawFd],
    pub(super) binary: RawFd,
    pub(super) argv: *const *const c_char,
    pub(super) to_parent: RawFd,
    pub(super) from_parent: RawFd,
}

macro_rules! steps {
    ($($name:ident = $told:literal,)*) => {
        /// How far a child came.
        #[derive(Clone, Copy)]
        #[repr(u8)]
        pub(super) enum Step { $($name,)* }

        impl Step {
            /// What it was about to do when it failed.
            pub(super) fn told(step: u8) -> &'static str {
                match step {
                    $(s if s == Step::$name as u8 => $told,)*
                    _ => "the child ended before it was told to go on",
                }
            }
        }
    };
}

steps! {
    Cgroup = "joining its cgroup",
    Session = "leaving the session",
    Network = "entering the network namespace",
    Namespaces = "taking namespaces of its own (is /proc/sys/user/max_user_namespaces too low?)",
    Parent = "waiting for its identities",
    Propagation = "taking its mounts apart from the host's",
    Root = "building an empty root",
    Files = "binding the sandbox's files",
    Pivot = "moving into its root",
    Unmounter = "starting what unmounts /proc",
    Capabilities = "dropping capabilities",
    Descriptors = "arranging its descriptors",
    Exec = "starting runsc",
}

/// A step that failed, and why.
struct Failed(Step, c_int);

type Done = Result<(), Failed>;

/// The child's whole life up to its program.
pub(super) fn run(plan: &Plan<'_>, aside: &mut [RawFd]) -> ! {
    let Failed(step, errno) = match go(plan, aside) {
        Err(failed) => failed,
        Ok(never) => match never {},
    };
    let why = errno.to_ne_bytes();
    let word = [step as u8, why[0], why[1], why[2], why[3]];
    // SAFETY: a write from a local of that size. The last of `aside` is where the pipe was moved to, if it was.
    unsafe {
        let moved = aside.last().copied().unwrap_or(-1);
        let pipe = if moved >= 0 { moved } else { plan.to_parent };
        libc::write(pipe, word.as_ptr().cast(), word.len());
        libc::_exit(1)
    }
}

enum Never {}

fn go(plan: &Plan<'_>, aside: &mut [RawFd]) -> Result<Never, Failed> {
    forget_others(plan.kept)?;
    for entrance in plan.entrances {
        // SAFETY: writes one byte of a constant to an open descriptor.
        let written = unsafe { libc::write(*entrance, b"0".as_ptr().cast(), 1) };
        check(Step::Cgroup, written as c_int)?;
    }
    // SAFETY: changes this process alone. What the server ignores or blocks is not for its children to inherit.
    unsafe {
        check(Step::Session, libc::setsid())?;
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        // The sentry locks pages for moments; its cgroup is what limits it.
        let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        libc::setrlimit(libc::RLIMIT_MEMLOCK, &unlimited);
    }
    let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    // SAFETY: moves this single-threaded process. The network first: from its user namespace it would have no right to.
    unsafe {
        check(Step::Network, libc::setns(plan.confinement.descriptor(), libc::CLONE_NEWNET))?;
        check(Step::Namespaces, libc::unshare(namespaces))?;
    }
    await_identities(plan)?;
    mount(Step::Propagation, None, c"/", None, libc::MS_SLAVE | libc::MS_REC)?;
    match plan.confinement {
        Confinement::Sentry { .. } => empty_root()?,
        Confinement::Gofer { root, .. } => root_with_files(root)?,
    }
    unmounter(plan.unmount_proc)?;
    let kept = match plan.confinement {
        Confinement::Sentry { .. } => OF_FILES | 1 << CAP_SYS_PTRACE,
        Confinement::Gofer { .. } => OF_FILES | 1 << CAP_SYS_CHROOT,
    };
    keep_capabilities(kept)?;
    let binary = arrange(plan, aside)?;
    let nothing: [*const c_char; 1] = [ptr::null()];
    // SAFETY: the argument vector is null-terminated and lives in the parent's memory, of which this has a copy.
    unsafe {
        libc::syscall(libc::SYS_execveat, binary, c"".as_ptr(), plan.argv, nothing.as_ptr(), libc::AT_EMPTY_PATH);
    }
    Err(failed(Step::Exec))
}

/// Closes whatever else the server has open, before anything can make this child wait: a server that is killed must not
/// be survived by its listening sockets, its lock, or the other ends of the pipes that such children wait at.
fn forget_others(kept: &[RawFd]) -> Done {
    let close = |from: RawFd, to: c_uint| {
        if from as c_uint > to {
            return Ok(());
        }
        // SAFETY: closes descriptors that nothing below names.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, from as c_uint, to, 0 as c_uint) };
        check(Step::Descriptors, closed as c_int)
    };
    let mut next = 0;
    for descriptor in kept {
        if *descriptor > next {
            close(next, *descriptor as c_uint - 1)?;
        }
        next = *descriptor + 1;
    }
    close(next, c_uint::MAX)
}

/// Says that the user namespace is there, and waits until it has its users.
fn await_identities(plan: &Plan<'_>) -> Done {
    let mut word = [READY];
    // SAFETY: one byte each way, from and into a local.
    unsafe {
        if libc::write(plan.to_parent, word.as_ptr().cast(), 1) != 1 {
            return Err(failed(Step::Parent));
        }
        match libc::read(plan.from_parent, word.as_mut_ptr().cast(), 1) {
            1 => Ok(()),
            0 => Err(Failed(Step::Parent, libc::EPIPE)),
            _ => Err(failed(Step::Parent)),
        }
    }
}

/// The sentry's root: read-only, with `/proc` in it.
fn empty_root() -> Done {
    const NEW: &CStr = c"/tmp";
    let closed = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount(Step::Root, Some(c"runsc-root"), NEW, Some(c"tmpfs"), closed)?;
    make_directory(c"/tmp/proc")?;
    mount(Step::Root, Some(c"/proc"), c"/tmp/proc", None, libc::MS_BIND | libc::MS_REC)?;
    mount(Step::Root, None, NEW, None, libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | closed)?;
    pivot(NEW)
}

/// The gofer's root: `/root` with the sandbox's files, `/proc`, and `/proc/fs` with its own descriptors alone, out of
/// which no path leads. It is built over `/proc/fs`, the one directory that is there on every machine and in nobody's way.
fn root_with_files(files: &CStr) -> Done {
    const NEW: &CStr = c"/proc/fs";
    let closed = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount(Step::Root, Some(c"runsc-root"), NEW, Some(c"tmpfs"), closed)?;
    // Else the bind of `/proc` below would bring this along into itself.
    mount(Step::Root, None, NEW, None, libc::MS_UNBINDABLE)?;
    for directory in [c"/proc/fs/proc", c"/proc/fs/root", c"/proc/fs/etc"] {
        make_directory(directory)?;
    }
    mount(Step::Root, Some(c"/proc"), c"/proc/fs/proc", None, libc::MS_BIND | libc::MS_REC)?;
    mount(Step::Root, Some(c"/proc/fs/proc/self/fd"), c"/proc/fs/proc/fs", None, libc::MS_BIND)?;
    mount(Step::Files, Some(files), c"/proc/fs/root", None, libc::MS_BIND | libc::MS_REC)?;
    mount(Step::Files, None, c"/proc/fs/root", None, libc::MS_SLAVE | libc::MS_REC)?;
    pivot(NEW)
}

fn pivot(new: &CStr) -> Done {
    // SAFETY: system calls with constants. The old root comes to lie over the new one and is then taken off.
    unsafe {
        check(Step::Pivot, libc::chdir(new.as_ptr()))?;
        check(Step::Pivot, libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) as c_int)?;
        check(Step::Pivot, libc::umount2(c".".as_ptr(), libc::MNT_DETACH))?;
        check(Step::Pivot, libc::chdir(c"/".as_ptr()))
    }
}

/// A child that unmounts `/proc` when it is told to. Its parent will have lost the right by then.
fn unmounter(order: RawFd) -> Done {
    // SAFETY: as for the child itself: the grandchild makes system calls only and ends.
    unsafe {
        match libc::syscall(libc::SYS_clone, libc::SIGCHLD as libc::c_ulong, 0, 0, 0, 0) {
            -1 => Err(failed(Step::Unmounter)),
            0 => {
                libc::dup2(order, 0);
                libc::prctl(libc::PR_SET_NAME, c"remuda-unmount".as_ptr());
                // Nothing else may stay open here: whoever waits for an end of it would wait for this child.
                libc::syscall(libc::SYS_close_range, 1 as c_uint, c_uint::MAX, 0 as c_uint);
                let mut word = [0u8];
                let told = libc::read(0, word.as_mut_ptr().cast(), 1);
                let done = told == 1 && libc::umount2(c"/proc".as_ptr(), libc::MNT_DETACH) == 0;
                libc::_exit(c_int::from(!done))
            }
            _ => Ok(()),
        }
    }
}

/// Keeps these capabilities and no others, now and after any exec.
fn keep_capabilities(kept: u64) -> Done {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: c_int,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Sets {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    // SAFETY: system calls with constants and with locals of the layout that version 3 has.
    unsafe {
        for cap in 0..CAPS_MAX {
            if kept & (1 << cap) == 0 && libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(cap), 0, 0, 0) != 0 {
                match *libc::__errno_location() {
                    // Beyond the last that this kernel knows.
                    libc::EINVAL => break,
                    errno => return Err(Failed(Step::Capabilities, errno)),
                }
            }
        }
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0, 0, 0);
        let header = Header { version: CAPABILITY_VERSION_3, pid: 0 };
        let of = |bits: u64| Sets { effective: bits as u32, permitted: bits as u32, inheritable: 0 };
        let sets = [of(kept & 0xffff_ffff), of(kept >> 32)];
        check(Step::Capabilities, libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) as c_int)
    }
}

/// Puts the descriptors at their numbers, from 0 on, and closes all others but the program and the way back, which go
/// with the exec. Returns the program's number.
fn arrange(plan: &Plan<'_>, aside: &mut [RawFd]) -> Result<RawFd, Failed> {
    let count = plan.descriptors.len() as c_int;
    let (of_binary, of_parent) = (count, count + 1);
    // SAFETY: descriptors are copied and closed; none that is used later is.
    unsafe {
        // First out of each other's way, above all numbers that will be taken.
        let sources = plan.descriptors.iter().chain([&plan.binary, &plan.to_parent]);
        for (place, source) in aside.iter_mut().zip(sources) {
            *place = libc::fcntl(*source, libc::F_DUPFD_CLOEXEC, count + 2);
            check(Step::Descriptors, *place)?;
        }
        for (place, number) in aside.iter_mut().zip(0..) {
            // The program and the way back go with the exec, the others stay.
            let flags = if number < of_binary { 0 } else { libc::O_CLOEXEC };
            *place = libc::dup3(*place, number, flags);
            check(Step::Descriptors, *place)?;
        }
        // Makes room in the table of descriptors, which goes along into the program. There it would be made with other
        // threads about, and that waits for all readers in the kernel, some 12 ms; the sentry puts its stdio at 256. Where
        // so many aren't allowed, it is only slower.
        libc::fcntl(of_parent, libc::F_DUPFD_CLOEXEC, ROOMY_DESCRIPTOR);
        let closed = libc::syscall(libc::SYS_close_range, (of_parent + 1) as c_uint, c_uint::MAX, 0 as c_uint);
        check(Step::Descriptors, closed as c_int)?;
    }
    Ok(of_binary)
}

fn mount(step: Step, source: Option<&CStr>, target: &CStr, kind: Option<&CStr>, flags: libc::c_ulong) -> Done {
    let pointer = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: every pointer is null or to a terminated string.
    check(step, unsafe { libc::mount(pointer(source), target.as_ptr(), pointer(kind), flags, ptr::null()) })
}

fn make_directory(path: &CStr) -> Done {
    // SAFETY: a terminated string.
    check(Step::Root, unsafe { libc::mkdir(path.as_ptr(), 0o755) })
}

fn check(step: Step, result: c_int) -> Done {
    if result < 0 { Err(failed(step)) } else { Ok(()) }
}

fn failed(step: Step) -> Failed {
    // SAFETY: the thread's own error number.
    Failed(step, unsafe { *libc::__errno_location() })
}
