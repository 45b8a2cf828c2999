//! The signals by which a program is asked to end. Must be made before what they should end.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Lets the ends of children be waited for, as they can be by default. Whoever started this program may have ignored
/// SIGCHLD, which is inherited: then the kernel forgets a child at its end, and every tool that is run seems to fail.
/// Must be called before there is any child or thread.
pub fn keep_ends_of_children() {
    // SAFETY: this sets the default action, so that no handler of ours exists which could run at a bad time, and nothing
    // else in this process has set one yet. It can fail for an invalid number alone.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Ctrl-C, SIGTERM, and the end of the terminal.
pub struct Signals {
    hangup: Option<Signal>,
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes the signals over: from here on they no longer end the program by themselves.
    pub fn take() -> std::io::Result<Self> {
        Ok(Signals {
            hangup: None,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// As [`Signals::take`], for what must end in order when its terminal is closed as well.
    pub fn take_with_hangup() -> std::io::Result<Self> {
        Ok(Signals { hangup: Some(signal(SignalKind::hangup())?), ..Signals::take()? })
    }

    /// The number of the next one.
    pub async fn next(&mut self) -> i32 {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = hangup => SignalKind::hangup().as_raw_value(),
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
        }
    }
}
