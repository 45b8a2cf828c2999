//! What can go wrong in `remuda setup`. Every error names the thing, the cause and the remedy.
//! Must never carry a credential: texts of tools are passed through, addresses with passwords are cut out first.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::machine_check::Check;

/// The command that mends most of it.
pub(super) const RUN_SETUP: &str = "run `remuda setup` as root";

/// The machine lacks something; the command line answers it with exit code 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    /// The checks that failed, never empty.
    pub failed: Vec<Check>,
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the machine is not ready")?;
        for check in &self.failed {
            write!(f, "\n  {}: {}", check.name, check.detail)?;
            if let Some(remedy) = &check.remedy {
                write!(f, "\n    to do: {remedy}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for NotReady {}

/// Why a setup or a check of one did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Checks failed; each says what to do.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    /// A program that does part of the work failed.
    #[error("{doing} failed: {cause}\nto do: {remedy}")]
    Tool {
        /// What was being done, as a phrase.
        doing: String,
        /// Exit status and the last lines the program wrote.
        cause: String,
        /// What to do about it.
        remedy: String,
    },
    /// A file could not be read, written or moved.
    #[error("failed to {doing} {}", path.display())]
    Io {
        /// What was being done, as a verb.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Nothing usable was found; every candidate and its reason is told.
    #[error("no usable runsc: {}\nto do: {remedy}", tried.join("; "))]
    NoRunsc {
        /// One entry for each place looked at.
        tried: Vec<String>,
        /// What to do about it.
        remedy: String,
    },
    /// What was made or fetched is not what was asked for.
    #[error("{what} is not as it must be: {cause}\nto do: {remedy}")]
    Wrong {
        /// The thing.
        what: String,
        /// What is wrong with it.
        cause: String,
        /// What to do about it.
        remedy: String,
    },
    /// A thread that did blocking work panicked; a defect of Remuda.
    #[error("{doing} stopped unexpectedly")]
    Interrupted {
        /// What was being done.
        doing: &'static str,
    },
}

impl SetupError {
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}
