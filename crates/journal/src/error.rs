//! What can go wrong: at opening, and in a call. Messages name the thing, causes the reason, remedies what to do; none
//! of them may hold a document, a key's secret or anything else that only an account may see.

use std::path::PathBuf;

use remuda_types::{Key, OperationId, SandboxId, Slot, SnapshotId};

/// The journal could not be opened. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Another server has it.
    #[error("failed to open {}: another server uses it{}", .path.display(), .holder.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
    InUse {
        /// The lock.
        path: PathBuf,
        /// Who holds it, as far as it has said.
        holder: Option<u32>,
    },
    /// Written by a newer build.
    #[error("failed to open {}: its layout is {found}, and this build knows layouts up to {known}", .path.display())]
    Newer {
        /// The database.
        path: PathBuf,
        /// The layout it has.
        found: i64,
        /// The newest layout that this build knows.
        known: i64,
    },
    /// Not a database, or somebody else's.
    #[error("failed to open {}: it is no journal of this program", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        cause: String,
    },
    /// A journal, and damaged.
    #[error("failed to open {}: it is damaged", .path.display())]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What the check found first.
        cause: String,
    },
    /// The directory or the file can't be used.
    #[error("failed to open {}", .path.display())]
    Io {
        /// What could not be used.
        path: PathBuf,
        /// Why.
        cause: String,
        /// Whether the disk is full.
        full: bool,
        /// Whether it can't be written to.
        read_only: bool,
    },
}

impl OpenError {
    /// Why, where the message doesn't say it.
    pub fn cause(&self) -> Option<&str> {
        match self {
            OpenError::InUse { .. } | OpenError::Newer { .. } => None,
            OpenError::Foreign { cause, .. } | OpenError::Damaged { cause, .. } | OpenError::Io { cause, .. } => {
                Some(cause)
            }
        }
    }

    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            OpenError::InUse { .. } => "end that server first, or choose another data directory".to_owned(),
            OpenError::Newer { .. } => "use the newer build, or choose another data directory".to_owned(),
            OpenError::Foreign { path, .. } => {
                format!("choose another data directory, or move {} away", path.display())
            }
            OpenError::Damaged { path, .. } => format!(
                "look at the disk first; then restore {0} and {0}-wal from one backup, or move both away to begin \
                 with an empty journal: sandboxes that run would then no longer be known",
                path.display()
            ),
            OpenError::Io { full: true, .. } => "free space on that disk".to_owned(),
            OpenError::Io { read_only: true, .. } => {
                "make the directory writable for this user, or choose another data directory".to_owned()
            }
            OpenError::Io { path, .. } => format!("see that {} can be read and written", path.display()),
        }
    }
}

/// A call did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// It makes no sense as things stand. Nothing was written; the journal is well.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The disk is full, or the database is as large as it may be. Nothing was written. Outcomes are still taken as
    /// long as the reserve lasts.
    #[error("the disk of {} is full, or the file has reached its largest size", .path.display())]
    Full {
        /// The database.
        path: PathBuf,
    },
    /// Another program holds a lock on the database. Nothing was written.
    #[error("{} is locked by another program", .path.display())]
    Locked {
        /// The database.
        path: PathBuf,
    },
    /// A record can't be read as what it should be. The rest can still be used.
    #[error("{} is damaged", .path.display())]
    Damaged {
        /// The database.
        path: PathBuf,
        /// What is wrong.
        cause: String,
    },
    /// Writing failed in a way that leaves open what is on the disk. Whether this call's change is kept shows only
    /// at the next opening; no further change is taken until then.
    #[error("writing to {} failed, and it is not known what was written", .path.display())]
    Stopped {
        /// The database.
        path: PathBuf,
        /// What failed first.
        cause: String,
    },
    /// Reading failed.
    #[error("failed to read {}", .path.display())]
    Read {
        /// The database.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// The journal has been closed.
    #[error("the journal is closed")]
    Closed,
    /// A fault of this program. Nothing was written.
    #[error("the journal failed unexpectedly: {0}")]
    Internal(String),
}

impl JournalError {
    /// Why, where the message doesn't say it.
    pub fn cause(&self) -> Option<&str> {
        match self {
            JournalError::Damaged { cause, .. }
            | JournalError::Stopped { cause, .. }
            | JournalError::Read { cause, .. } => Some(cause),
            _ => None,
        }
    }

    /// What to do about it, as far as the journal can tell.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            JournalError::Refused(_) | JournalError::Internal(_) | JournalError::Closed => None,
            JournalError::Full { .. } => Some("free space on that disk, and try again"),
            JournalError::Locked { .. } => Some("end whatever else has the database open, and try again"),
            JournalError::Damaged { .. } | JournalError::Read { .. } => {
                Some("look at the disk and the server's log; restore a backup if it is damaged")
            }
            JournalError::Stopped { .. } => Some("look at the disk, then restart the server: it reads what was kept"),
        }
    }

    pub(crate) fn internal(what: impl std::fmt::Display) -> Self {
        JournalError::Internal(what.to_string())
    }
}

/// Why a call makes no sense as things stand. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The slot holds a generation that has not ended.
    #[error("the slot {slot} holds {occupant}, which has not ended")]
    SlotInUse {
        /// The slot.
        slot: Slot,
        /// Who holds it.
        occupant: SandboxId,
    },
    /// What is to be continued is not there, has ended, or is continued already.
    #[error("{0} can't be continued: it has ended or was never there")]
    NotContinuable(SandboxId),
    /// The name belongs to another snapshot that is or will be active.
    #[error("the name {name:?} belongs to {owner}")]
    NameTaken {
        /// The name.
        name: String,
        /// Whose it is.
        owner: SnapshotId,
    },
    /// A quota or limit is reached.
    #[error("the limit {name} is reached: {current} of {limit} are taken, {wanted} more were asked for")]
    Limit {
        /// Its name.
        name: String,
        /// Its value.
        limit: u64,
        /// What is taken.
        current: u64,
        /// What was asked for.
        wanted: u64,
    },
    /// The key was cancelled before it was admitted.
    #[error("the key {0} was cancelled before its call was admitted")]
    Cancelled(Key),
    /// Longer than the named limit.
    #[error("{what} is larger than {name}: {bytes} of {limit} bytes")]
    TooLarge {
        /// What is.
        what: &'static str,
        /// The limit's name.
        name: &'static str,
        /// Its value, in bytes.
        limit: u64,
        /// How large it is, in bytes.
        bytes: u64,
    },
    /// No such operation, or one that is a tombstone by now.
    #[error("there is no operation {0} under way")]
    UnknownOperation(OperationId),
    /// The operation has its outcome already, and takes no more steps.
    #[error("the operation {0} has ended")]
    OperationEnded(OperationId),
    /// A record that is to be changed is not there.
    #[error("there is no {0}")]
    UnknownRecord(String),
    /// A change that would contradict what is recorded.
    #[error("{0}")]
    Contradiction(String),
    /// The clock is outside the years 1970 to 9999.
    #[error("the clock is outside the years 1970 to 9999")]
    Clock,
}
