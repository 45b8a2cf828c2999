//! What can go wrong below the platform. Messages name the thing; the cause is the source.

use std::io;

/// An error with all its causes, on one line.
pub(crate) fn chain(e: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(e.source(), |cause| cause.source());
    causes.fold(e.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// A failure of the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A system call or a file operation failed.
    #[error("failed to {what}")]
    Io {
        /// What was tried, in words that complete "failed to".
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Its processes could not be started, or ended at once.
    #[error("runsc did not create the sandbox: {why}")]
    Create {
        /// The last lines it wrote.
        why: String,
    },
    /// The sandbox's control socket answered with an error.
    #[error("runsc refused {call}: {why}")]
    Refused {
        /// The method.
        call: &'static str,
        /// What it said.
        why: String,
    },
    /// The sandbox's processes are gone.
    #[error("the sandbox's processes ended")]
    Ended,
    /// Something that an earlier server had asked for is still going on.
    #[error("{what} is still under way after {} s", .waited.as_secs())]
    Busy {
        /// What it is.
        what: String,
        /// How long its end was waited for.
        waited: std::time::Duration,
    },
    /// What is on disk is not what was captured.
    #[error("{what} is damaged: {why}")]
    Damaged {
        /// Which file or layer.
        what: String,
        /// How it differs.
        why: String,
    },
    /// A capture would be larger than a limit allows.
    #[error("the capture needs more than {limit_bytes} bytes ({limit}): {what}")]
    TooLarge {
        /// The limit's name.
        limit: &'static str,
        /// Its value.
        limit_bytes: u64,
        /// What is too large.
        what: String,
    },
    /// The disk is too full.
    #[error("{free_bytes} bytes are free and {needed_bytes} are needed on {place}")]
    DiskFull {
        /// Free now.
        free_bytes: u64,
        /// Needed.
        needed_bytes: u64,
        /// Which file system.
        place: String,
    },
    /// The machine lacks something that every sandbox needs.
    #[error("{what}")]
    NotReady {
        /// What is missing and what to do.
        what: String,
    },
}

impl EngineError {
    /// Whether the disk ran full.
    pub fn is_disk_full(&self) -> bool {
        match self {
            EngineError::DiskFull { .. } => true,
            EngineError::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            EngineError::Refused { why, .. } => why.contains("no space left on device"),
            _ => false,
        }
    }
}

/// The engine's results.
pub type Result<T> = std::result::Result<T, EngineError>;

/// Adds to an I/O error what was tried.
pub(crate) trait Tried<T> {
    /// `what` completes the sentence "failed to …".
    fn tried(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> Tried<T> for std::result::Result<T, E> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|e| EngineError::Io { what: what(), source: e.into() })
    }
}
