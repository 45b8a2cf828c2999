//! Whether a machine stands still, remembered so that nobody pauses or resumes it twice.
//!
//! The sentry counts pauses, tells nobody its count, and panics at a resume too many. So the engine keeps the count at
//! one at most, and leaves a mark beside the machine from before a pause until after its resume: a later server asks
//! the sentry (which costs it a stop of all its threads) only where there is one. Lies on tmpfs, as long as the machine.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::control_socket::ControlSocket;
use crate::error::{Result, Tried};

/// The halt of one machine.
#[derive(Debug)]
pub(crate) struct Halt {
    mark: PathBuf,
    halted: Mutex<bool>,
}

impl Halt {
    /// Of a machine that was just given life.
    pub(crate) fn fresh(mark: PathBuf) -> Halt {
        Halt { mark, halted: Mutex::new(false) }
    }

    /// Of a machine that another server left in an unknown state, with no call to it under way any more. Blocks.
    pub(crate) fn found(mark: PathBuf, control: &ControlSocket) -> Result<Halt> {
        let halted = mark.exists() && control.tasks_are_stopped()?;
        let halt = Halt { mark, halted: Mutex::new(halted) };
        if !halted {
            halt.unmark()?;
        }
        Ok(halt)
    }

    /// Whether the machine stands still.
    pub(crate) fn is_halted(&self) -> bool {
        *self.halted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Halts the machine, if it is not halted. Blocks.
    pub(crate) fn begin(&self, control: &ControlSocket) -> Result<()> {
        let mut halted = self.halted.lock().unwrap_or_else(PoisonError::into_inner);
        if *halted {
            return Ok(());
        }
        File::create(&self.mark).tried(|| format!("write {}", self.mark.display()))?;
        // Before the call: one whose answer never came may have been carried out.
        *halted = true;
        control.pause().inspect_err(|_| self.ask(control, &mut halted))
    }

    /// Lets the machine go on, if it is halted. Blocks.
    pub(crate) fn end(&self, control: &ControlSocket) -> Result<()> {
        let mut halted = self.halted.lock().unwrap_or_else(PoisonError::into_inner);
        if !*halted {
            return Ok(());
        }
        control.resume().inspect_err(|_| self.ask(control, &mut halted))?;
        *halted = false;
        self.unmark()
    }

    /// After a call that failed, and may have been carried out: a resume too many would end the machine.
    fn ask(&self, control: &ControlSocket, halted: &mut bool) {
        let Ok(stopped) = control.tasks_are_stopped() else { return };
        *halted = stopped;
        if !stopped && let Err(e) = self.unmark() {
            tracing::warn!("{e}");
        }
    }

    fn unmark(&self) -> Result<()> {
        match fs::remove_file(&self.mark) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e).tried(|| format!("remove {}", self.mark.display())),
            _ => Ok(()),
        }
    }
}
