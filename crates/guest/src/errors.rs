//! Refusals as sentences, and the few diagnostics on stderr. Never fails and never blocks a caller on purpose.

use std::fmt;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};

use remuda_guest_proto::{AgentError, AgentErrorKind};
use rustix::io::Errno;

use crate::limits::DIAGNOSTICS_MAX;

/// Says a sentence on stderr, which ends in the host's log.
pub fn say(sentence: fmt::Arguments<'_>) {
    static SAID: AtomicUsize = AtomicUsize::new(0);
    let said = SAID.fetch_add(1, Ordering::Relaxed);
    if said < DIAGNOSTICS_MAX {
        // One write, so that lines of several threads don't mix; nothing can be done about a failure.
        let _ = io::stderr().write_all(format!("remuda-agent: {sentence}\n").as_bytes());
    }
}

/// A refusal.
pub fn refusal(kind: AgentErrorKind, message: impl Into<String>) -> AgentError {
    AgentError { kind, message: message.into() }
}

/// A call that makes no sense.
pub fn invalid(message: impl Into<String>) -> AgentError {
    refusal(AgentErrorKind::Invalid, message)
}

/// A refusal because the system said no to `doing`, which reads like "open /a/b".
pub fn failed(doing: impl fmt::Display, errno: Errno) -> AgentError {
    let kind = match errno {
        Errno::NOENT => AgentErrorKind::NotFound,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => AgentErrorKind::Denied,
        Errno::ISDIR => AgentErrorKind::NotAFile,
        Errno::NOTDIR => AgentErrorKind::NotADirectory,
        Errno::EXIST => AgentErrorKind::Exists,
        Errno::NOSPC | Errno::DQUOT | Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::FBIG => {
            AgentErrorKind::Full
        }
        Errno::NAMETOOLONG | Errno::INVAL | Errno::LOOP => AgentErrorKind::Invalid,
        _ => AgentErrorKind::Failed,
    };
    refusal(kind, format!("cannot {doing}: {}", reason(errno)))
}

/// The same for an error of the standard library.
pub fn failed_io(doing: impl fmt::Display, error: &io::Error) -> AgentError {
    match Errno::from_io_error(error) {
        Some(errno) => failed(doing, errno),
        None => refusal(AgentErrorKind::Failed, format!("cannot {doing}: {error}")),
    }
}

/// What an error number means, in words.
pub fn reason(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    match text.rfind(" (os error") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}

/// A path or name as it may stand in a sentence.
pub fn shown(text: &str) -> String {
    const SHOWN_CHARS: usize = 256;
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_thing_and_the_cause() {
        let error = failed("open /a/b", Errno::NOENT);
        assert_eq!(error.kind, AgentErrorKind::NotFound);
        assert_eq!(error.message, "cannot open /a/b: no such file or directory");
    }

    #[test]
    fn a_long_path_is_cut_at_a_character() {
        assert_eq!(shown("kurz"), "kurz");
        assert_eq!(shown(&"ä".repeat(300)), format!("{}…", "ä".repeat(256)));
    }
}
