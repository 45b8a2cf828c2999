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
    /// Makes the child, which goes where it is told and then waits for its identities. Several may be on their way at
    /// once. It has copies of all that it is given.
    pub(super) fn bear(&self) -> io::Result<Born> {
        let (from_child, to_parent) = pipe().map(|(r, w)| (File::from(r), w))?;
        let (from_parent, to_child) = pipe().map(|(r, w)| (r, File::from(w)))?;
        let nothing = File::options().read(true).write(true).open("/dev/null")?;
        let mut argv: Vec<*const c_char> = self.argv.iter().map(|a| a.as_ptr()).collect();
        argv.push(ptr::null());
        let entrances: Vec<RawFd> = self.entrances.iter().map(AsRawFd::as_raw_fd).collect();
        // Input and output are nothing; then come those that are handed over.
        let mut descriptors = vec![nothing.as_raw_fd(), nothing.as_raw_fd(), self.complaints.as_raw_fd()];
        descriptors.extend(self.handed.iter().map(AsRawFd::as_raw_fd));
        let mut kept = descriptors.clone();
        kept.extend(&entrances);
        kept.extend([self.confinement.descriptor(), self.unmount_proc.as_raw_fd(), self.binary.as_raw_fd()]);
        kept.extend([to_parent.as_raw_fd(), from_parent.as_raw_fd()]);
        kept.sort_unstable();
        kept.dedup();
        // Room to move them out of each other's way.
        let mut aside = vec![-1; descriptors.len() + 2];
        let plan = Plan {
            kept: &kept,
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
        match unsafe { libc::syscall(libc::SYS_clone, flags as libc::c_ulong, 0, 0, 0, 0) } {
            0 => child::run(&plan, &mut aside),
            -1 => Err(io::Error::last_os_error()),
            pid => Ok(Born { pid: i32::try_from(pid).map_err(io::Error::other)?, from_child, to_child }),
        }
    }
}

/// A child on its way to its program. Whoever drops it ends it.
pub(super) struct Born {
    pid: i32,
    from_child: File,
    to_child: File,
}

impl Born {
    /// Gives it its identities, as soon as it is where they can be given, and with them leave to go on.
    pub(super) fn identify(&mut self) -> io::Result<()> {
        let mut word = [0; WORD_BYTES];
        match self.from_child.read(&mut word)? {
            1 if word[0] == READY => {
                map_identities(self.pid)?;
                self.to_child.write_all(&[READY])
            }
            length => Err(complaint(&word[..length])),
        }
    }

    /// Returns when it has become its program, or could not.
    pub(super) fn become_program(mut self) -> io::Result<HostProcess> {
        let mut word = [0; WORD_BYTES];
        match self.from_child.read(&mut word)? {
            // The pipe was closed by the program's start.
            0 => {}
            length => return Err(complaint(&word[..length])),
        }
        let held = HostProcess::open(self.pid).map_err(io::Error::other)?;
        // From here on it is held by what is returned.
        self.pid = 0;
        Ok(held)
    }
}

/// A step that failed, and why, as a child tells it.
const WORD_BYTES: usize = 1 + size_of::<i32>();

fn complaint(word: &[u8]) -> io::Error {
    let [step, why @ ..] = word else { return io::Error::other(Step::told(READY)) };
    let Ok(why) = why.try_into() else { return io::Error::other(Step::told(READY)) };
    let why = io::Error::from_raw_os_error(i32::from_ne_bytes(why));
    io::Error::new(why.kind(), format!("{}: {why}", Step::told(*step)))
}

impl Drop for Born {
    fn drop(&mut self) {
        end(self.pid);
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
        let named = |path: &str, e: io::Error| io::Error::new(e.kind(), format!("{path}: {e}"));
        let (own, its) = (format!("/proc/self/{map}"), format!("/proc/{pid}/{map}"));
        let ours = fs::read_to_string(&own).map_err(|e| named(&own, e))?;
        let identity: String = ours
            .lines()
            .filter_map(|line| {
                let mut figures = line.split_ascii_whitespace();
                let (inside, _outside, count) = (figures.next()?, figures.next()?, figures.next()?);
                Some(format!("{inside} {inside} {count}\n"))
            })
            .collect();
        fs::write(&its, identity).map_err(|e| named(&its, e))?;
    }
    Ok(())
}

fn pipe() -> io::Result<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;

    /// The server may be killed at any moment: what it was starting then must not stay, with copies of what it had open.
    #[test]
    fn a_child_ends_when_its_server_is_gone_before_it_has_identities() {
        let nothing = File::options().read(true).write(true).open("/dev/null").unwrap();
        let network = File::open("/proc/self/ns/net").unwrap();
        let (unmount, _tell_unmount) = pipe().unwrap();
        let (at_end, held) = pipe().map(|(r, w)| (File::from(r), w)).unwrap();
        let spawn = Spawn {
            binary: &nothing,
            argv: vec![c"nothing".into()],
            entrances: &[],
            complaints: &nothing,
            handed: Vec::new(),
            unmount_proc: unmount.as_fd(),
            confinement: Confinement::Gofer { network: network.as_fd(), root: c"/tmp".into() },
        };
        let mut born = spawn.bear().unwrap();
        // A second one, born while the first one's pipes are open here.
        let other = spawn.bear().unwrap();
        let mut word = [0];
        born.from_child.read_exact(&mut word).unwrap();
        assert_eq!(word, [READY]);
        // It is waited for here, and not ended by being dropped.
        let pid = std::mem::take(&mut born.pid);
        let (tell, told) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            // This process's end goes, as it would with the process; the child's own copies must not count.
            drop((held, born));
            let status = waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap();
            let rest = { &at_end }.read(&mut [0]).unwrap();
            tell.send((status.map(|(_, status)| status.exit_status()), rest)).unwrap();
        });
        let seen = told.recv_timeout(Duration::from_secs(20));
        drop(other);
        if seen.is_err() {
            end(pid);
        }
        assert_eq!(seen.expect("it waits for its server for ever"), (Some(Some(1)), 0));
        waiting.join().unwrap();
    }
}
