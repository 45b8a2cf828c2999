//! What can go wrong with a call. Never carries the API key.

use std::path::PathBuf;

use remuda_types::Key;

/// Why a call gave no answer of the expected kind.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server answered with an error of the API.
    #[error("{error}")]
    Api {
        /// HTTP status of the answer.
        status: u16,
        /// The error as the server said it.
        error: Box<remuda_types::Error>,
    },
    /// No complete answer came.
    #[error("{call} at {target} failed: {cause}{}", if *.sent { " (the server may have acted on it)" } else { "" })]
    Transport {
        /// Method and path of the call.
        call: String,
        /// Where it went: a URL or the path of a socket.
        target: String,
        /// Whether the request may have reached the server. If false, nothing was done.
        sent: bool,
        /// Why, in the words of the machine.
        cause: String,
    },
    /// An answer came that is not of the native API: another server, another version, or a proxy between.
    #[error("{call} at {target} was answered with status {status} by something that is no Remuda server: {problem}")]
    Protocol {
        /// Method and path of the call.
        call: String,
        /// Where it went.
        target: String,
        /// HTTP status of the answer.
        status: u16,
        /// What was wrong with it.
        problem: String,
    },
    /// A call with a key was sent, perhaps several times, and what became of it is not known.
    #[error("it is not known what became of {call} at {target}, sent with the key {key}: {cause}")]
    OutcomeUnknown {
        /// The key. `GET /v1/operations?key=…` (`remuda operation KEY`) tells what became of it, and the same call with
        /// the same key does nothing twice.
        key: Key,
        /// Method and path of the call.
        call: String,
        /// Where it went: a URL or the path of a socket.
        target: String,
        /// What the last sending came to.
        cause: Box<ClientError>,
        /// Where key and request are kept, if they are.
        kept: Option<PathBuf>,
    },
    /// The key of a call could not be written down, and so the call was not sent.
    #[error("{call} was not sent, since its key can't be kept in {}: {cause}", .directory.display())]
    NotKept {
        /// Method and path of the call.
        call: String,
        /// Where keys are kept.
        directory: PathBuf,
        /// Why.
        cause: String,
    },
    /// The call could not be made from what was given; nothing was sent.
    #[error("{0}")]
    Input(String),
}

impl ClientError {
    /// The error of the API, where it is one; also where it says that the outcome is not known.
    pub fn api(&self) -> Option<&remuda_types::Error> {
        match self {
            ClientError::Api { error, .. } => Some(error),
            ClientError::OutcomeUnknown { cause, .. } => cause.api(),
            _ => None,
        }
    }

    /// The code of the API's error, where it is one.
    pub fn code(&self) -> Option<remuda_types::ErrorCode> {
        self.api().map(|error| error.code)
    }

    /// Whether it is not known if the server acted on the call.
    pub fn outcome_unknown(&self) -> bool {
        matches!(
            self,
            ClientError::Transport { sent: true, .. }
                | ClientError::Protocol { .. }
                | ClientError::OutcomeUnknown { .. }
        )
    }

    /// Whether there was no server to connect to.
    pub fn no_server(&self) -> bool {
        matches!(self, ClientError::Transport { sent: false, .. })
    }
}

/// Why a request failed, in one line: the innermost cause, which is what the machine or the network said. What stands
/// around it tells only which layers of this client it passed.
pub(crate) fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(next) = innermost.source() {
        innermost = next;
    }
    // Its own text would name the URL; the call names its path.
    let text = if innermost.is::<reqwest::Error>() { "no answer came".to_owned() } else { innermost.to_string() };
    match text.split_once(" (os error ") {
        Some((plain, _)) => plain.to_owned(),
        None => text,
    }
}
