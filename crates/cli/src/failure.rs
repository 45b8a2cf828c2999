//! How a command that failed says so: `error:`, `cause:` and `remedy:` on standard error, and the exit code.
//! Must never print a credential; the errors it gets carry none.

use std::fmt;

use remuda_client::ClientError;
use remuda_engine::install::{NotReady, SetupError};
use remuda_types::{Error, ErrorCode};

use crate::connection::KEY_VARIABLE;
use crate::print;

/// A negative result.
pub const NEGATIVE: u8 = 1;
/// Wrong usage or input.
pub const USAGE: u8 = 2;
/// The machine is not ready.
pub const NOT_READY: u8 = 3;

/// A failure of the command line's own.
#[derive(Debug, Clone)]
pub struct Failure {
    exit: u8,
    message: String,
    cause: Option<String>,
    remedy: Option<String>,
}

impl Failure {
    /// A failure with its exit code.
    pub fn new(exit: u8, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into(), cause: None, remedy: None }
    }

    /// With another exit code.
    pub fn exit(self, exit: u8) -> Self {
        Failure { exit, ..self }
    }

    /// Says why.
    pub fn cause(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    /// What it says to do.
    #[cfg(test)]
    pub fn remedy_text(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// Says what to do.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let exit = match error.code {
            ErrorCode::InvalidRequest
            | ErrorCode::BareSlot
            | ErrorCode::InvalidId
            | ErrorCode::Unauthorized
            | ErrorCode::TooLarge => USAGE,
            _ => NEGATIVE,
        };
        let code = error.code;
        let (cause, mut remedy) = (error.cause.clone(), error.remedy.clone());
        if code == ErrorCode::Unauthorized {
            // What the server says is for whoever speaks HTTP.
            remedy = Some(format!(
                "set {KEY_VARIABLE} to a key that `remuda key create` or the first start of `remuda serve` printed there"
            ));
        }
        Failure { exit, message: format!("{} ({code})", error.message), cause, remedy }
    }
}

impl From<&ClientError> for Failure {
    fn from(error: &ClientError) -> Self {
        match error {
            ClientError::Api { error, .. } => Failure::from(&**error),
            ClientError::Transport { sent: false, target, cause, .. } => {
                let failure = Failure::new(NOT_READY, format!("no server answers at {target}")).cause(cause);
                if target.starts_with("http") {
                    failure.remedy("start one there with `remuda serve`, or name another with --url or REMUDA_URL")
                } else {
                    failure.remedy(
                        "start one with `remuda serve` as root, or name another with --data-dir, or a remote one with \
                         --url and REMUDA_API_KEY",
                    )
                }
            }
            ClientError::Transport { call, target, cause, .. } => {
                Failure::new(NEGATIVE, format!("the connection to {target} broke during {call}"))
                    .cause(cause)
                    .remedy("the server may have acted on it: look with `remuda ls` before you try again")
            }
            ClientError::OutcomeUnknown { key, call, target, cause, kept } => {
                let message = format!("what became of {call} at {target} is not known; its key is {key}");
                let again = match kept {
                    Some(_) => format!("send it again with `remuda operation retry {key}`"),
                    None => "make the same call again with that --key".to_owned(),
                };
                let remedy = format!("ask with `remuda operation {key}`, or {again}: it is not done twice");
                Failure::new(NEGATIVE, message).cause(cause).remedy(remedy)
            }
            ClientError::NotKept { call, directory, cause } => {
                let message = format!("{call} was not sent: its key can't be kept in {}", directory.display());
                Failure::new(NEGATIVE, message)
                    .cause(cause)
                    .remedy("make room or give the directory to this user, or name another place in XDG_STATE_HOME")
            }
            ClientError::Protocol { .. } => Failure::new(NEGATIVE, error.to_string()),
            ClientError::Input(problem) => Failure::new(USAGE, problem.clone()),
        }
    }
}

impl From<&NotReady> for Failure {
    fn from(not_ready: &NotReady) -> Self {
        let mut failure = Failure::new(NOT_READY, "the machine is not ready");
        let told = not_ready.failed.iter().map(|check| format!("{}: {}", check.name, check.detail));
        failure.cause = Some(told.collect::<Vec<_>>().join("\n"));
        let remedies: Vec<&str> = not_ready.failed.iter().filter_map(|check| check.remedy.as_deref()).collect();
        failure.remedy = (!remedies.is_empty()).then(|| remedies.join("\n"));
        failure
    }
}

impl From<&SetupError> for Failure {
    fn from(error: &SetupError) -> Self {
        if let SetupError::NotReady(not_ready) = error {
            return Failure::from(not_ready);
        }
        // These say what to do at the end of their text.
        let text = error.to_string();
        let (message, remedy) = match text.split_once("\nto do: ") {
            Some((message, remedy)) => (message.to_owned(), Some(remedy.to_owned())),
            None => (text, None),
        };
        let cause = std::error::Error::source(error).map(ToString::to_string);
        Failure { exit: NOT_READY, message, cause, remedy }
    }
}

/// Prints an error and gives the exit code that goes with it.
pub fn report(error: &anyhow::Error) -> u8 {
    let broken_pipe = |e: &std::io::Error| e.kind() == std::io::ErrorKind::BrokenPipe;
    if error.chain().any(|e| e.downcast_ref().is_some_and(broken_pipe)) {
        // Whoever read our output has what it wanted.
        return NEGATIVE;
    }
    let failure = explain(error);
    eprintln!("error: {}", print::plain(&failure.message));
    for (name, text) in [("cause", &failure.cause), ("remedy", &failure.remedy)] {
        for line in text.iter().flat_map(|text| text.lines()) {
            eprintln!("{name}: {}", print::plain(line));
        }
    }
    failure.exit
}

fn explain(error: &anyhow::Error) -> Failure {
    // The first that is of a known kind; what stands before it tells where it happened.
    let known = error.chain().enumerate().find_map(|(depth, e)| {
        let failure = e
            .downcast_ref::<Failure>()
            .cloned()
            .or_else(|| e.downcast_ref().map(|e: &ClientError| Failure::from(e)))
            .or_else(|| e.downcast_ref().map(|e: &SetupError| Failure::from(e)))
            .or_else(|| e.downcast_ref().map(|e: &NotReady| Failure::from(e)))
            .or_else(|| e.downcast_ref().map(|e: &Error| Failure::from(e)))?;
        let mut words: Vec<String> = error.chain().take(depth).map(ToString::to_string).collect();
        words.push(failure.message.clone());
        Some(Failure { message: words.join(": "), ..failure })
    });
    known.unwrap_or_else(|| {
        let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
        let failure = Failure::new(NEGATIVE, error.to_string());
        if causes.is_empty() { failure } else { failure.cause(causes.join(": ")) }
    })
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn an_error_of_the_api_keeps_its_cause_and_remedy_under_a_context() {
        let error = Error::new(ErrorCode::SlotInUse, "c1 is taken").cause("it lives").remedy("remove it");
        let outcome = Err::<(), _>(ClientError::Api { status: 409, error: Box::new(error) }).context("branch 2");
        let failure = explain(&outcome.unwrap_err());
        assert_eq!(failure.message, "branch 2: c1 is taken (slot_in_use)");
        assert_eq!(failure.cause.as_deref(), Some("it lives"));
        assert_eq!(failure.remedy.as_deref(), Some("remove it"));
        assert_eq!(failure.exit, NEGATIVE);
    }
}
