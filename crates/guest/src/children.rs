//! The processes the agent is parent of, and the one place that reaps them: those it started and, as PID 1, all
//! orphans. Nobody else may wait for a child.
//!
//! Why no child's end is lost and no signal meets a stranger:
//!
//! - Before a child is made, a [`Slot`] without a pid is in the table. The kernel writes the pid into the slot
//!   (`CLONE_PARENT_SETTID`) before the child runs for the first time, so before it can end. The table's lock is not
//!   held meanwhile, so several children can be made at once.
//! - The reaper first *looks* at a dead child (`WNOWAIT`) and so keeps it a zombie, whose pid the kernel gives to
//!   nobody. Holding the lock, it finds the slot with that pid, removes it, and only then reaps. At that moment no other
//!   slot can have the same pid: it would belong to a child made while the zombie still holds the number.
//! - A signal to a leader's group is sent under the same lock while its slot is in the table: it is not reaped yet, so
//!   the number is its own.
//! - Of a group whose leader was reaped the number stays taken as long as a process is in it. The group is forgotten as
//!   soon as it is seen empty (looked at whenever an orphan is reaped), or its number is seen at a new process.
//! - A group that was killed is killed again at each such look, until it is empty: a process that one of them was just
//!   making joins the group behind the signal (gVisor sends it to those that are there). Whoever made it has died of the
//!   signal, and is reaped after that.
//!
//! Without children the reaper sleeps until one was made; nothing polls.

use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use rustix::io::Errno;

use crate::agent::Agent;
use crate::errors::{reason, say};
use crate::execution::{Execution, Exit};
use crate::sync::{lock, wait};

/// A child that was or is being made.
pub struct Slot {
    /// Its pid, written by the kernel; 0 before.
    pub pid: AtomicI32,
    execution: Arc<Execution>,
}

#[derive(Default)]
struct Table {
    slots: Vec<Arc<Slot>>,
    /// Groups whose leader was reaped and that still had a process when last looked at.
    leaderless: Vec<i32>,
    /// Groups that were killed and not seen empty since.
    killed: Vec<i32>,
    /// Counts the children made.
    made: u64,
}

impl Table {
    /// Sends a signal, or kills a group that was killed before; forgets it where nobody is left in it.
    fn signal_group(&mut self, group: i32, signal: i32) -> Result<(), Errno> {
        let killed = self.killed.contains(&group);
        let sent = kill_group(group, if killed { libc::SIGKILL } else { signal });
        match sent {
            Err(Errno::SRCH) => self.forget(group),
            Ok(()) if signal == libc::SIGKILL && !killed => self.killed.push(group),
            _ => {}
        }
        sent
    }

    /// Nobody is left in the group, or its number is somebody else's.
    fn forget(&mut self, group: i32) {
        self.leaderless.retain(|other| *other != group);
        self.killed.retain(|other| *other != group);
    }
}

/// The table of children.
#[derive(Default)]
pub struct Children {
    table: Mutex<Table>,
    born: Condvar,
}

/// Whether a signal found somebody.
#[derive(Debug, PartialEq, Eq)]
pub enum Signalled {
    /// It was sent to the group.
    Sent,
    /// No process of the group is left.
    NobodyLeft,
    /// The system refused.
    Refused(Errno),
}

impl Children {
    /// A slot for a child that will be made now.
    pub fn expect(&self, execution: &Arc<Execution>) -> Arc<Slot> {
        let slot = Arc::new(Slot { pid: AtomicI32::new(0), execution: execution.clone() });
        lock(&self.table).slots.push(slot.clone());
        slot
    }

    /// The child of the slot was made and runs its program: the reaper has somebody to wait for.
    pub fn made(&self, slot: &Slot) {
        let pid = slot.pid.load(Ordering::Acquire);
        let mut table = lock(&self.table);
        // Unless it has been reaped meanwhile, in which case the group that is listed is its own.
        if table.slots.iter().any(|other| std::ptr::eq(&**other, slot)) {
            table.forget(pid);
        }
        table.made += 1;
        self.born.notify_one();
    }

    /// No program came of the slot. If there was a child it has ended and is reaped as any orphan.
    pub fn abandon(&self, slot: &Arc<Slot>) {
        let mut table = lock(&self.table);
        table.slots.retain(|other| !Arc::ptr_eq(other, slot));
        table.made += 1;
        self.born.notify_one();
    }

    /// Sends a signal to the process group of the leader with this pid.
    pub fn signal(&self, leader: u32, signal: i32) -> Signalled {
        let Ok(pid @ 2..) = i32::try_from(leader) else { return Signalled::NobodyLeft };
        let mut table = lock(&self.table);
        let lives = table.slots.iter().any(|slot| slot.pid.load(Ordering::Acquire) == pid);
        if !lives {
            if !table.leaderless.contains(&pid) {
                return Signalled::NobodyLeft;
            }
            // The leader was reaped, so a process of its number is somebody else.
            if Path::new(&format!("/proc/{pid}")).exists() {
                table.forget(pid);
                return Signalled::NobodyLeft;
            }
        }
        match table.signal_group(pid, signal) {
            Ok(()) => Signalled::Sent,
            Err(Errno::SRCH) => Signalled::NobodyLeft,
            Err(errno) => Signalled::Refused(errno),
        }
    }

    /// Reaps one child, or sleeps until there is one.
    fn reap_one(&self) {
        let made = lock(&self.table).made;
        match wait_id(libc::P_ALL, 0, libc::WEXITED | libc::WNOWAIT) {
            Ok((pid, _)) => self.reap(pid),
            Err(Errno::CHILD) => {
                let mut table = lock(&self.table);
                while table.made == made {
                    table = wait(&self.born, table);
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => say(format_args!("cannot wait for children: {}", reason(errno))),
        }
    }

    fn reap(&self, pid: i32) {
        let mut table = lock(&self.table);
        let at = table.slots.iter().position(|slot| slot.pid.load(Ordering::Acquire) == pid);
        let slot = at.map(|at| table.slots.swap_remove(at));
        let exit = wait_id(libc::P_PID, pid as libc::id_t, libc::WEXITED | libc::WNOHANG);
        if slot.is_some() {
            if table.signal_group(pid, 0).is_ok() {
                table.leaderless.push(pid);
            }
        } else {
            for group in table.leaderless.clone() {
                let _ = table.signal_group(group, 0);
            }
        }
        drop(table);
        if let Some(slot) = slot {
            match exit {
                Ok((_, exit)) => slot.execution.exited(exit),
                Err(errno) => {
                    say(format_args!("cannot reap process {pid}: {}", reason(errno)));
                    slot.execution.exited(Exit { code: None, signal: None });
                }
            }
        }
    }
}

/// The reaper's life.
pub fn reap_all(agent: Arc<Agent>) {
    loop {
        agent.children.reap_one();
    }
}

fn kill_group(group: i32, signal: i32) -> Result<(), Errno> {
    // SAFETY: kill takes two integers and touches no memory. `group` is at least 2: the caller's check, or a pid that
    // the kernel gave to a child of ours.
    match unsafe { libc::kill(-group, signal) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

fn wait_id(which: libc::idtype_t, id: libc::id_t, options: libc::c_int) -> Result<(i32, Exit), Errno> {
    // SAFETY: siginfo_t is plain data for which zero bytes are a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is writable for the length of the call.
    if unsafe { libc::waitid(which, id, &mut info, options) } != 0 {
        return Err(last_error());
    }
    // SAFETY: waitid filled in the members for a child.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return Err(Errno::CHILD);
    }
    Ok((
        pid,
        match info.si_code {
            libc::CLD_EXITED => Exit { code: Some(status), signal: None },
            _ => Exit { code: None, signal: Some(status) },
        },
    ))
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
