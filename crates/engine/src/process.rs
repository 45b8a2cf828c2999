//! A process of a sandbox on the host, held so that no stranger can be taken for it.
//!
//! Everything that waits or signals goes through a pidfd. A pid alone is never signalled: it may have been reused.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid};
use tokio::io::unix::AsyncFd;

use crate::error::{EngineError, Result, Tried};
use crate::host_facts::{ProcessFacts, start_ticks};

/// One process, by pidfd.
#[derive(Debug)]
pub struct HostProcess {
    facts: ProcessFacts,
    pidfd: AsyncFd<OwnedFd>,
}

impl HostProcess {
    /// Takes hold of `pid`, which must be running now. Must be called within a tokio runtime.
    pub fn open(pid: i32) -> Result<Self> {
        Self::hold(pid)?.ok_or_else(|| EngineError::Io {
            what: format!("take hold of process {pid}"),
            source: std::io::Error::from(std::io::ErrorKind::NotFound),
        })
    }

    /// Takes hold of the process that these facts were recorded of, if it still runs. A stranger that was given its pid
    /// is left alone. Must be called within a tokio runtime, and in the boot in which they were recorded.
    pub fn find(facts: ProcessFacts) -> Result<Option<Self>> {
        let held = Self::hold(facts.pid)?;
        // What has ended by now may have made room for another one before its start was read.
        Ok(held.filter(|process| process.facts == facts && !process.has_ended()))
    }

    fn hold(pid: i32) -> Result<Option<Self>> {
        let trying = || format!("take hold of process {pid}");
        let raw = Pid::from_raw(pid).ok_or_else(|| EngineError::Io {
            what: trying(),
            source: std::io::Error::from(std::io::ErrorKind::InvalidInput),
        })?;
        let pidfd = match pidfd_open(raw, PidfdFlags::NONBLOCK) {
            Ok(pidfd) => pidfd,
            // Nobody; or a mere thread, which kernels say in one of two ways.
            Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e).tried(trying),
        };
        // Held first and read second: as long as the held one has not ended, this is about it.
        let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { return Ok(None) };
        let Some(start_ticks) = start_ticks(&String::from_utf8_lossy(&stat)) else { return Ok(None) };
        // SAFETY: the descriptor is owned by what registers it and is never replaced while registered.
        let pidfd = unsafe { AsyncFd::register_with_interest(pidfd, tokio::io::Interest::READABLE) }
            .map_err(std::io::Error::from)
            .tried(trying)?;
        Ok(Some(HostProcess { facts: ProcessFacts { pid, start_ticks }, pidfd }))
    }

    /// Its pid, for records and messages.
    pub fn pid(&self) -> i32 {
        self.facts.pid
    }

    /// What a later server can recognise it by.
    pub fn facts(&self) -> ProcessFacts {
        self.facts
    }

    /// Sends SIGKILL. A process that is gone is fine.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)
    }

    /// Sends a signal. A process that is gone is fine.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(self.pidfd.get_ref(), signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(e).tried(|| format!("signal process {}", self.pid())),
        }
    }

    /// Waits until it has ended, and reaps it if it is ours to reap. May be called by many at once.
    pub async fn ended(&self) {
        // An error of `readable` means that the runtime is going away; then nobody waits any more.
        if let Ok(mut guard) = self.pidfd.readable().await {
            guard.retain_ready();
            self.reap();
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(self.pidfd.get_ref(), rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let ended = matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(n) if n > 0);
        if ended {
            self.reap();
        }
        ended
    }

    /// Only this named process is waited for: a wait for any child would steal the runtime's own children.
    fn reap(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        // ECHILD says that it is not our child or was reaped before; both are fine.
        let _ = waitid(rustix::process::WaitId::PidFd(self.pidfd.get_ref().as_fd()), options);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_killed_process_is_seen_to_end() {
        // Not tokio's Command: its own reaper would race for the status.
        #[allow(clippy::zombie_processes)]
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let held = HostProcess::open(child.id() as i32).unwrap();
        assert!(!held.has_ended());
        held.kill().unwrap();
        held.ended().await;
        assert!(held.has_ended());
        held.kill().unwrap();
    }

    #[tokio::test]
    async fn a_pid_that_does_not_run_is_refused() {
        assert!(HostProcess::open(i32::MAX).is_err());
        assert!(HostProcess::open(0).is_err());
    }

    #[tokio::test]
    async fn a_stranger_under_a_recorded_pid_is_not_taken_for_the_recorded_one() {
        #[allow(clippy::zombie_processes)]
        let child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let held = HostProcess::open(child.id() as i32).unwrap();
        let facts = held.facts();
        assert_eq!(HostProcess::find(facts).unwrap().map(|p| p.facts()), Some(facts));
        let earlier = ProcessFacts { start_ticks: facts.start_ticks - 1, ..facts };
        assert!(HostProcess::find(earlier).unwrap().is_none());
        assert!(!held.has_ended());
        held.kill().unwrap();
        held.ended().await;
        assert!(HostProcess::find(facts).unwrap().is_none());
    }

    #[tokio::test]
    async fn a_thread_is_no_process() {
        let (tell, told) = std::sync::mpsc::channel();
        let (stay, go) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            go.recv()
        });
        let tid = told.recv().unwrap();
        assert!(HostProcess::find(ProcessFacts { pid: tid, start_ticks: 1 }).unwrap().is_none());
        drop(stay);
        assert!(thread.join().unwrap().is_err());
    }
}
