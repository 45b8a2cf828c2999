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

/// Ctrl-C and SIGTERM.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes the signals over: from here on they no longer end the program by themselves.
    pub fn take() -> std::io::Result<Self> {
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// The number of the next one.
    pub async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
        }
    }
}
