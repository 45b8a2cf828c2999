//! Makes a child that goes where it is told and then becomes a program: the parent's half.
//!
//! Between its birth and its new program a child of a process with many threads may do nothing but system calls: any
//! lock may have been held by a thread that it doesn't have. Everything that needs memory is therefore made here, ahead.

use std::ffi::{CString, c_char};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::child::{self, Confinement, Plan, READY, Step};
use crate::process::HostProcess;

/// A program to be started.
pub(super) struct Spawn<'a> {
    /// The program, open; it need not be reachable by name where the child will be.
    pub(super) binary: &'a File,
    /// Its name and arguments. Its environment is empty.
    pub(super) argv: Vec<CString>,
    /// Files of cgroups to join first.
    pub(super) entrances: &'a [File],
    /// Where it complains: its standard error.
    pub(super) complaints: &'a File,
    /// What it is given from number 3 on, and nothing else.
    pub(super) handed: Vec<BorrowedFd<'a>>,
    /// When a byte can be read here, `/proc` is unmounted from the child's root, by a child of its own.
    pub(super) unmount_proc: BorrowedFd<'a>,
    /// Where it goes first.
    pub(super) confinement: Confinement<'a>,
}

impl Spawn<'_> {
    /// Starts it, and returns when it has become its program, or could not.
    pub(super) fn run(&self) -> io::Result<HostProcess> {
        let (mut from_child, to_parent) = pipe().map(|(r, w)| (File::from(r), w))?;
        let (from_parent, mut to_child) = pipe().map(|(r, w)| (r, File::from(w)))?;
        let nothing = File::options().read(true).write(true).open("/dev/null")?;
        let mut argv: Vec<*const c_char> = self.argv.iter().map(|a| a.as_ptr()).collect();
        argv.push(ptr::null());
        let entrances: Vec<RawFd> = self.entrances.iter().map(AsRawFd::as_raw_fd).collect();
        // Input and output are nothing; then come those that are handed over.
        let mut descriptors = vec![nothing.as_raw_fd(), nothing.as_raw_fd(), self.complaints.as_raw_fd()];
        descriptors.extend(self.handed.iter().map(AsRawFd::as_raw_fd));
        // Room to move them out of each other's way.
        let mut aside = vec![-1; descriptors.len() + 2];
        let plan = Plan {
            entrances: &entrances,
            confinement: &self.confinement,
            unmount_proc: self.unmount_proc.as_raw_fd(),
            descriptors: &descriptors,
            binary: self.binary.as_raw_fd(),
            argv: argv.as_ptr(),
            to_parent: to_parent.as_raw_fd(),
            from_parent: from_parent.as_raw_fd(),
        };
        let flags = self.confinement.birth_flags() | libc::SIGCHLD;
        // SAFETY: as `fork` does, this makes a child with a copy of the memory, which goes on here with the one thread
        // that called. The child calls nothing but `child::run`, which only makes system calls and never returns.
        let born = unsafe { libc::syscall(libc::SYS_clone, flags as libc::c_ulong, 0, 0, 0, 0) };
        match born {
            0 => child::run(&plan, &mut aside),
            -1 => return Err(io::Error::last_os_error()),
            _ => {}
        }
        let pid = i32::try_from(born).map_err(io::Error::other)?;
        drop((to_parent, from_parent));
        let started = (|| {
            let mut word = [0; 1 + size_of::<i32>()];
            let mut length = from_child.read(&mut word)?;
            if length == 1 && word[0] == READY {
                map_identities(pid)?;
                to_child.write_all(&[READY])?;
                length = from_child.read(&mut word)?;
                if length == 0 {
                    // The pipe was closed by the program's start.
                    return Ok(());
                }
            }
            if length < word.len() {
                return Err(io::Error::other("the child ended before it had become its program"));
            }
            let why = io::Error::from_raw_os_error(i32::from_ne_bytes([word[1], word[2], word[3], word[4]]));
            Err(io::Error::new(why.kind(), format!("{}: {why}", Step::told(word[0]))))
        })();
        let held = started.and_then(|()| HostProcess::open(pid).map_err(io::Error::other));
        if held.is_err() {
            end(pid);
        }
        held
    }
}

/// Ends a child that never became what it was to be. It is ours and was not waited for, so that its pid is nobody else's.
fn end(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        let _ = waitpid(Some(pid), WaitOptions::empty());
    }
}

/// Gives a new user namespace the users and groups of this one, each under its own number: files keep their owners, and
/// root in it is root of nothing outside.
fn map_identities(pid: i32) -> io::Result<()> {
    for map in ["uid_map", "gid_map"] {
        let ours = fs::read_to_string(format!("/proc/self/{map}"))?;
        let identity: String = ours
            .lines()
            .filter_map(|line| {
                let mut figures = line.split_ascii_whitespace();
                let (inside, _outside, count) = (figures.next()?, figures.next()?, figures.next()?);
                Some(format!("{inside} {inside} {count}\n"))
            })
            .collect();
        fs::write(format!("/proc/{pid}/{map}"), identity)?;
    }
    Ok(())
}

fn pipe() -> io::Result<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}
