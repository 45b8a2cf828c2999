//! Places for file calls: as many are asked of an agent at once as it works on, and the next ones wait here for their
//! turn. A call that its caller gave up keeps its place until the agent has said its last word about it, since until
//! then it is work of the agent's.

use std::sync::Arc;
use std::time::Duration;

use remuda_guest_proto::{AgentError, AgentErrorKind, Kind, Request};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// File calls that one agent is asked for at once. It takes twice as many, since it may still be at some of a server's
/// that has died.
pub(super) const FILE_CALLS_MAX: usize = 64;
/// How long a call waits for a place: those who have one may be stalled by slow clients.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(30);

/// The places of one agent.
#[derive(Debug)]
pub(super) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Places {
        Places(Arc::new(Semaphore::new(FILE_CALLS_MAX)))
    }
}

/// A place, held from before a call is sent until the agent's last frame about it.
#[derive(Debug)]
pub(super) struct FileCall {
    last: Kind,
    _place: OwnedSemaphorePermit,
}

impl FileCall {
    /// Whether a frame of this kind is the agent's last about the call. A refusal is, whatever was asked.
    pub(super) fn ends_with(&self, kind: Kind, refused: bool) -> bool {
        kind == self.last || (kind == Kind::Reply && refused)
    }
}

impl Places {
    /// A place for a call of files, waited for in turn; `None` for another call.
    pub(super) async fn wait_for(&self, request: &Request) -> Result<Option<FileCall>, AgentError> {
        let last = match request {
            Request::ReadFile { .. } | Request::OpenFile { .. } | Request::PackTree { .. } => Kind::GuestEnd,
            Request::WriteFile { .. }
            | Request::List { .. }
            | Request::Stat { .. }
            | Request::MakeDirectory { .. }
            | Request::Remove { .. }
            | Request::Move { .. }
            | Request::SetAttributes { .. }
            | Request::Glob(_)
            | Request::Grep(_)
            | Request::Batch(_)
            | Request::UnpackTree { .. } => Kind::Reply,
            Request::Bind { .. }
            | Request::Spawn(_)
            | Request::Signal { .. }
            | Request::Forget { .. }
            | Request::Resize { .. }
            | Request::Input(_)
            | Request::Watch(_)
            | Request::DeletedOpenFiles
            | Request::LeftOutOfFiles
            | Request::Connect { .. }
            | Request::Outcome { .. }
            | Request::Ping => return Ok(None),
        };
        match tokio::time::timeout(PLACE_WAIT_MAX, self.0.clone().acquire_owned()).await {
            Ok(Ok(place)) => Ok(Some(FileCall { last, _place: place })),
            // Nobody closes it; a place that never comes is no place.
            Ok(Err(_)) | Err(_) => Err(AgentError {
                kind: AgentErrorKind::Busy,
                message: format!(
                    "{FILE_CALLS_MAX} file calls are under way in the sandbox, and none ended within {} s",
                    PLACE_WAIT_MAX.as_secs()
                ),
            }),
        }
    }
}
