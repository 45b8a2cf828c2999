//! The one error that crosses the API: `{error: {code, message, cause, remedy, details}}`.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::IdError;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal;)*) => {
        /// What went wrong, as a stable word. Each has a page in `docs/errors/`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
        }

        impl ErrorCode {
            /// Every code, in the order of the documentation.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name),*];

            /// The word that stands on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$name => $text),* }
            }

            /// The HTTP status that goes with it in the native API.
            pub fn http_status(self) -> u16 {
                match self { $(ErrorCode::$name => $status),* }
            }
        }
    };
}

codes! {
    /// The request is malformed; nothing was done.
    InvalidRequest = "invalid_request", 400;
    /// A slot was given where `slot@generation` is needed.
    BareSlot = "bare_slot", 400;
    /// The text is not an id of the kind that is needed here.
    InvalidId = "invalid_id", 400;
    /// This call takes no idempotency key, and none is ever ignored.
    IdempotencyKeyUnsupported = "idempotency_key_unsupported", 400;
    /// No credential, or a wrong one.
    Unauthorized = "unauthorized", 401;
    /// The access key does not allow this; what it lacks is named.
    Forbidden = "forbidden", 403;
    /// The guest's user may not do this to this path.
    PermissionDenied = "permission_denied", 403;
    /// No such route.
    RouteNotFound = "route_not_found", 404;
    /// This id was never given out here.
    SandboxNotFound = "sandbox_not_found", 404;
    /// No such snapshot.
    SnapshotNotFound = "snapshot_not_found", 404;
    /// No such execution in this sandbox.
    ExecutionNotFound = "execution_not_found", 404;
    /// No such operation, or it is no longer on record.
    OperationNotFound = "operation_not_found", 404;
    /// No such access key in this account.
    AccessKeyNotFound = "access_key_not_found", 404;
    /// No such receipt.
    ReceiptNotFound = "receipt_not_found", 404;
    /// No such webhook in this account.
    WebhookNotFound = "webhook_not_found", 404;
    /// No account of this name was made.
    AccountNotFound = "account_not_found", 404;
    /// No such preview, or a host name that was never given out.
    PreviewNotFound = "preview_not_found", 404;
    /// No such path in the guest.
    FileNotFound = "file_not_found", 404;
    /// The route exists, the method does not.
    MethodNotAllowed = "method_not_allowed", 405;
    /// The slot holds a living generation.
    SlotInUse = "slot_in_use", 409;
    /// The sandbox is in a state in which this cannot be done.
    WrongState = "wrong_state", 409;
    /// Another capture of this sandbox is under way.
    SnapshotInProgress = "snapshot_in_progress", 409;
    /// The name belongs to another active snapshot.
    SnapshotNameTaken = "snapshot_name_taken", 409;
    /// The snapshot is not `active`.
    SnapshotNotActive = "snapshot_not_active", 409;
    /// What is on disk is not what was captured; it is not restored.
    SnapshotDamaged = "snapshot_damaged", 409;
    /// The snapshot was made with another engine than this machine has.
    EngineMismatch = "engine_mismatch", 409;
    /// The engine cannot checkpoint this machine as it stands; the source goes on.
    CheckpointRefused = "checkpoint_refused", 409;
    /// The execution has already ended.
    ExecutionNotRunning = "execution_not_running", 409;
    /// Input was given at a place before which bytes are missing; nothing was taken.
    InputGap = "input_gap", 409;
    /// The call with this key is under way.
    OperationInProgress = "operation_in_progress", 409;
    /// The key was cancelled before its call came.
    OperationCancelled = "operation_cancelled", 409;
    /// The server ended in the middle of the call; what it had begun is undone.
    Interrupted = "interrupted", 409;
    /// The effect was handed over, and nobody can say whether it took place.
    Indeterminate = "indeterminate", 409;
    /// Something is there already, and the call may not replace it.
    FileExists = "file_exists", 409;
    /// The agent in this sandbox is from an older snapshot and does not know this call.
    AgentOutdated = "agent_outdated", 409;
    /// The path is no regular file.
    NotARegularFile = "not_a_regular_file", 409;
    /// The path is no directory.
    NotADirectory = "not_a_directory", 409;
    /// This generation has ended.
    GenerationGone = "generation_gone", 410;
    /// The preview's credential was right, and is none any more.
    PreviewGone = "preview_gone", 410;
    /// The call with this key was done, and what came of it is no longer kept.
    OutcomeEvicted = "outcome_evicted", 410;
    /// A condition of the call does not hold; nothing was done.
    PreconditionFailed = "precondition_failed", 412;
    /// Larger than the named limit.
    TooLarge = "too_large", 413;
    /// The file has none of the bytes that were asked for.
    RangeNotSatisfiable = "range_not_satisfiable", 416;
    /// The place to go on from lies ahead of all there is.
    CursorAhead = "cursor_ahead", 416;
    /// The named limit is reached.
    LimitReached = "limit_reached", 429;
    /// All executions that a sandbox keeps on record run; none can be let go of.
    ExecutionHistoryLimit = "execution_history_limit", 429;
    /// The head of the request is longer than the named limit.
    HeadTooLarge = "head_too_large", 431;
    /// The key was used for another request.
    IdempotencyKeyConflict = "idempotency_key_conflict", 422;
    /// An archive is none, breaks off, or has what is not unpacked.
    ArchiveRefused = "archive_refused", 422;
    /// What the launch recipe started did not come up.
    LaunchFailed = "launch_failed", 422;
    /// The program could not be started; nothing ran.
    SpawnFailed = "spawn_failed", 422;
    /// Something unexpected; the server's log has more.
    Internal = "internal", 500;
    /// The journal failed: records can't be written or read.
    JournalFailed = "journal_failed", 500;
    /// The engine failed.
    EngineFailed = "engine_failed", 500;
    /// Nothing listens on the port, or it hung up.
    PortUnreachable = "port_unreachable", 502;
    /// The machine exists and does not answer; nothing is known about it.
    Unreachable = "unreachable", 503;
    /// The sandbox behind the preview is paused or starting.
    PreviewNotReady = "preview_not_ready", 503;
    /// The server is ending.
    ShuttingDown = "shutting_down", 503;
    /// The disk is too full for this; nothing was left behind.
    DiskFull = "disk_full", 507;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error as the caller sees it. What only the operator may see goes to the log instead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The stable word.
    pub code: ErrorCode,
    /// What went wrong, naming the thing.
    pub message: String,
    /// Why, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Facts for programs; its members depend on the code.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    #[schema(value_type = Object)]
    pub details: serde_json::Map<String, serde_json::Value>,
}

impl Error {
    /// An error with its message; add cause, remedy and details with the methods below.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Error { code, message: message.into(), cause: None, remedy: None, details: serde_json::Map::new() }
    }

    /// Says why.
    #[must_use]
    pub fn cause(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds one fact for programs.
    #[must_use]
    pub fn detail(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// A limit that was reached: its name, its value and where the caller stands.
    pub fn limit(name: &str, limit: u64, current: u64) -> Self {
        Error::new(ErrorCode::LimitReached, format!("the limit {name} is reached: {current} of {limit}"))
            .detail("limit", name)
            .detail("maximum", limit)
            .detail("current", current)
    }
}

impl From<IdError> for Error {
    fn from(e: IdError) -> Self {
        let code = match e {
            IdError::BareSlot(_) => ErrorCode::BareSlot,
            _ => ErrorCode::InvalidId,
        };
        Error::new(code, e.to_string())
    }
}

/// The body of every answer that is an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: Error,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_a_code_is_the_one_on_the_wire() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.as_str());
        }
    }
}
