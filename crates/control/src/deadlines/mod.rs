//! Deadlines and idle limits: how long a sandbox may live, and what is done with it then.
//!
//! ```text
//!  deadline passed, or idle for as long as it may be
//!        │
//!  fence: journaled; no new work, and it stands still
//!        │ snapshot                                          │ delete
//!  capture of memory ── can't ─► end its processes,          │
//!        │                       capture of files ── can't ──┼──► kept: stopped, its files stay with it
//!        ▼                              ▼                    ▼
//!  ended and removed; whoever asks for it is told where its work is
//! ```
//!
//! All that is needed for it stands in the sandbox's own record ([`Term`]), so that it is carried out after a restart
//! of the server too. What is due when is decided in [`due`], without a clock; one task for the whole platform sleeps
//! until the next moment at which something is due ([`watch`]). Must never let work of a client move a deadline.

pub(crate) mod asked;
pub(crate) mod change;
mod due;
mod ending;
mod last_capture;
mod life;
mod term;
pub(crate) mod watch;
mod work;

pub(crate) use ending::EndWhenDue;
pub(crate) use life::Life;
pub(crate) use term::{Settled, Term};
pub(crate) use work::{Work, Working};
