//! How failures below become errors that a caller understands: the thing, the cause, the remedy.

use remuda_engine::EngineError;
use remuda_guest_proto::AgentErrorKind;
use remuda_journal::{JournalError, OpenError};
use remuda_types::{Error, ErrorCode, SandboxId};

use crate::channel::ChannelError;

/// A failure of the engine in an operation on `id`.
pub(crate) fn engine(id: &SandboxId, e: EngineError) -> Error {
    if e.is_disk_full() {
        return Error::new(ErrorCode::DiskFull, format!("the disk is too full to do this with {id}"))
            .cause(chain(&e))
            .remedy("free space on the data directory's disk (see: remuda ls, remuda snapshot ls), and try again");
    }
    let (code, message) = match &e {
        EngineError::Ended => (ErrorCode::Unreachable, format!("the processes of {id} ended meanwhile")),
        EngineError::Damaged { .. } => {
            (ErrorCode::SnapshotDamaged, "what is on disk is not what was captured; it was not restored".to_owned())
        }
        EngineError::TooLarge { .. } => (ErrorCode::TooLarge, format!("{id} is too large to be captured")),
        EngineError::Refused { call, .. } if call.ends_with("Checkpoint") => {
            (ErrorCode::CheckpointRefused, format!("{id} cannot be checkpointed as it stands; it goes on running"))
        }
        _ => (ErrorCode::EngineFailed, format!("the engine failed on {id}")),
    };
    Error::new(code, message).cause(chain(&e))
}

/// The journal could not be opened; nothing was written.
pub(crate) fn journal_open(e: &OpenError) -> Error {
    let error = Error::new(ErrorCode::JournalFailed, e.to_string()).remedy(e.remedy());
    match e.cause() {
        Some(cause) => error.cause(cause),
        None => error,
    }
}

/// A call of the journal failed.
pub(crate) fn journal(e: &JournalError) -> Error {
    let code = match e {
        JournalError::Full { .. } => ErrorCode::DiskFull,
        JournalError::Closed => ErrorCode::ShuttingDown,
        _ => ErrorCode::JournalFailed,
    };
    let mut error = Error::new(code, e.to_string());
    error.cause = e.cause().map(str::to_owned);
    error.remedy = e.remedy().map(str::to_owned);
    error
}

/// A failure of the control channel of `id`.
pub(crate) fn channel(id: &SandboxId, e: ChannelError) -> Error {
    match e {
        ChannelError::Agent(refusal) => {
            let code = match refusal.kind {
                AgentErrorKind::NotFound => ErrorCode::FileNotFound,
                AgentErrorKind::Denied => ErrorCode::PermissionDenied,
                AgentErrorKind::NotAFile => ErrorCode::NotARegularFile,
                AgentErrorKind::NotADirectory => ErrorCode::NotADirectory,
                AgentErrorKind::Full => ErrorCode::DiskFull,
                AgentErrorKind::Busy => ErrorCode::LimitReached,
                AgentErrorKind::Exists => ErrorCode::FileExists,
                AgentErrorKind::Condition => ErrorCode::PreconditionFailed,
                AgentErrorKind::Archive => ErrorCode::ArchiveRefused,
                AgentErrorKind::OutOfRange => ErrorCode::RangeNotSatisfiable,
                AgentErrorKind::Invalid
                | AgentErrorKind::Unchanged
                | AgentErrorKind::Failed
                | AgentErrorKind::Undone
                | AgentErrorKind::Forgotten => ErrorCode::InvalidRequest,
            };
            Error::new(code, refusal.message)
        }
        ChannelError::Outdated => {
            Error::new(ErrorCode::AgentOutdated, format!("the agent in {id} does not know this call"))
                .cause("it came with a memory snapshot that an earlier version made, and lives as long as that machine")
                .remedy("stop the sandbox and start it: its files stay, and the agent is this server's then")
        }
        ChannelError::Broken(why) => {
            Error::new(ErrorCode::Unreachable, format!("the agent of {id} can no longer be understood")).cause(why)
        }
        e @ (ChannelError::Silent(_) | ChannelError::Closed) => {
            Error::new(ErrorCode::Unreachable, format!("{id} does not answer")).cause(e)
        }
    }
}

/// An error with all its causes, on one line.
pub(crate) fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}
