//! Which command a sandbox takes in which state. Pure: no clock, no locks, no I/O.
//!
//! ```text
//!            bound                pause
//!  starting ───────► running ◄────────────► paused
//!     │                 │ ▲       resume      │
//!     │ failed to start │ └── captured ──┐    │        A capture is not a state: while one is
//!     ▼                 │   (capturing)──┘    │        under way, pause, resume and another
//!   failed              │                     │        capture are refused, stop is not.
//!     │                 └───────┬─────────────┘
//!     │                         │ stop                 died unasked (out of memory, crash,
//!     │                         ▼                      broken channel): running, paused ──► stopped,
//!     └────── stop ──────►  stopping ──► gone          files kept; stop takes it from there.
//! ```
//!
//! Whoever stops a sandbox to keep its files (`operations::stop`) fences it the same way and then says `stopped`. A driver
//! ends with its machine: what is done with a stopped sandbox is not its affair.

use remuda_types::SandboxState;

/// What a sandbox is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Halt its processes.
    Pause,
    /// Let them go on.
    Resume,
    /// Be read by a capture, which says when it is over.
    BeginCapture,
    /// The capture is over.
    EndCapture,
    /// End for good.
    Stop,
}

/// Why a command is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Not in this state.
    WrongState(SandboxState),
    /// A capture is under way.
    Capturing,
}

/// A sandbox as far as admission is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission {
    state: SandboxState,
    capturing: bool,
}

impl Admission {
    /// A driver begins when the machine is bound; `starting`, `failed` and `gone` lie before and after its life.
    pub(crate) fn running() -> Self {
        Admission { state: SandboxState::Running, capturing: false }
    }

    /// A machine that stood still when this server took it over.
    pub(crate) fn paused() -> Self {
        Admission { state: SandboxState::Paused, capturing: false }
    }

    /// Where it stands.
    pub(crate) fn state(self) -> SandboxState {
        self.state
    }

    /// Whether a capture reads it.
    #[cfg(test)]
    pub(crate) fn is_capturing(self) -> bool {
        self.capturing
    }

    /// Takes a command, or says why not. A refused command changes nothing.
    pub(crate) fn command(&mut self, command: Command) -> Result<(), Refusal> {
        use SandboxState::{Paused, Running, Stopped, Stopping};
        match (command, self.state) {
            (Command::EndCapture, _) => self.capturing = false,
            (Command::Stop, Running | Paused | Stopped) => self.state = Stopping,
            (Command::Pause | Command::Resume | Command::BeginCapture, Running | Paused) if self.capturing => {
                return Err(Refusal::Capturing);
            }
            // Asking for what is already so is not an error: the caller may be repeating itself.
            (Command::Pause, Running | Paused) => self.state = Paused,
            (Command::Resume, Running | Paused) => self.state = Running,
            (Command::BeginCapture, Running | Paused) => self.capturing = true,
            (_, state) => return Err(Refusal::WrongState(state)),
        }
        Ok(())
    }

    /// Its processes ended unasked. A late word about a sandbox that is stopping changes nothing.
    pub(crate) fn died(&mut self) {
        if matches!(self.state, SandboxState::Running | SandboxState::Paused) {
            self.state = SandboxState::Stopped;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Command(Command),
        Died,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Command(Command::Pause)),
            Just(Step::Command(Command::Resume)),
            Just(Step::Command(Command::BeginCapture)),
            Just(Step::Command(Command::EndCapture)),
            Just(Step::Command(Command::Stop)),
            Just(Step::Died),
        ]
    }

    proptest! {
        #[test]
        fn whatever_comes_the_rules_hold(steps in proptest::collection::vec(any_step(), 0..60)) {
            let mut it = Admission::running();
            for step in steps {
                let before = it;
                let refused = match step {
                    Step::Command(command) => it.command(command).is_err(),
                    Step::Died => { it.died(); false }
                };
                if refused {
                    prop_assert_eq!(it, before, "a refused command changes nothing");
                }
                use SandboxState::*;
                // Nothing comes back from an end.
                match before.state() {
                    Stopping => prop_assert_eq!(it.state(), Stopping),
                    Stopped => prop_assert!(matches!(it.state(), Stopped | Stopping)),
                    _ => {}
                }
                // Two captures never read one sandbox.
                if before.is_capturing() && matches!(step, Step::Command(Command::BeginCapture)) {
                    prop_assert!(refused);
                }
                // A capture finds its source as it left it, or ended.
                if before.is_capturing() && it.is_capturing() && matches!(it.state(), Running | Paused) {
                    prop_assert_eq!(it.state(), before.state());
                }
                // Stop is taken wherever there is something to stop.
                if matches!(step, Step::Command(Command::Stop)) {
                    prop_assert_eq!(refused, before.state() == Stopping);
                }
            }
        }
    }
}
