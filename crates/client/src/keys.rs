//! Whether a changing call gets a key, and when one that got no answer is sent again. Decides and waits for nothing:
//! what happens on the wire is in `request`.

use std::time::{Duration, Instant};

use http::StatusCode;
use remuda_types::{ErrorCode, Key};
use sha2::{Digest, Sha256};

use crate::{ClientError, Pending};

/// How long a lost server is looked for before its silence is an answer, unless the client says otherwise, in seconds.
pub const LOST_SECONDS_MAX: u64 = 30;
/// How long a call whose first sending is still under way is asked about, in seconds.
pub const IN_PROGRESS_SECONDS_MAX: u64 = 900;
/// How often a call is sent to a sandbox that does not answer.
const UNREACHABLE_ATTEMPTS_MAX: u32 = 3;
/// How much of a part's digest its key has, in bytes.
const PART_DIGEST_BYTES: usize = 10;
/// Pause before the second sending, in milliseconds; each further one is twice as long.
const FIRST_PAUSE_MS: u64 = 25;
/// Longest pause between two sendings, in milliseconds.
const PAUSE_MS_MAX: u64 = 1_000;

/// How a client treats calls that change something.
#[derive(Debug, Clone, Default)]
pub(crate) enum Keys {
    /// Each call is sent once, with a key only where the caller gives one.
    #[default]
    Given,
    /// Each gets a key, and is repeated with it. The key is lost with the process.
    InMemory,
    /// As before, and key and request are on disk before the call is sent.
    Kept(Pending),
}

/// A new key: nobody else has it.
///
/// # Errors
/// [`ClientError::Input`] if the machine gives no randomness.
pub fn new_key() -> Result<Key, ClientError> {
    let text = format!("key-{}", random_hex(16)?);
    text.parse().map_err(|e| ClientError::Input(format!("a key can't be made: {e}")))
}

/// The key of one part of a task that the caller has one key for: the same for the same part.
///
/// # Errors
/// [`ClientError::Input`] if the whole's key leaves no room for it.
pub fn part_key(whole: &Key, part: &str) -> Result<Key, ClientError> {
    let digest = Sha256::digest(part.as_bytes());
    let hex: String = digest.iter().take(PART_DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let long =
        |e| ClientError::Input(format!("a key for several calls needs room for their parts: {e}; give a shorter one"));
    format!("{whole}-{hex}").parse().map_err(long)
}

pub(crate) fn random_hex(bytes: usize) -> Result<String, ClientError> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random)
        .map_err(|e| ClientError::Input(format!("the machine gives no random numbers, which a key needs: {e}")))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What is known of a call that has been sent at least once, and how long it is sent again.
#[derive(Debug)]
pub(crate) struct Patience {
    lost_max: Duration,
    /// Since when nothing has been heard of the server.
    lost_since: Option<Instant>,
    in_progress_since: Option<Instant>,
    unreachable: u32,
    pauses: u32,
    /// Whether a sending got no answer: it may have been acted on, whatever a later refusal says.
    answer_lost: bool,
}

impl Patience {
    pub(crate) fn new(lost_max: Duration) -> Self {
        Patience { lost_max, lost_since: None, in_progress_since: None, unreachable: 0, pauses: 0, answer_lost: false }
    }

    /// How long to wait before the call is sent once more; `None` where that would change nothing. `replayed` says that
    /// the error is the outcome of the call's first sending.
    pub(crate) fn after(&mut self, error: &ClientError, replayed: bool, now: Instant) -> Option<Duration> {
        let again = match error {
            // Nothing was ever there: that is for the caller to know at once.
            ClientError::Transport { sent: false, .. } if !self.answer_lost => false,
            ClientError::Transport { sent, .. } => {
                self.answer_lost |= sent;
                self.is_lost_for_less_than_allowed(now)
            }
            ClientError::Protocol { status, .. } if is_of_a_gateway(*status) => {
                self.answer_lost = true;
                self.is_lost_for_less_than_allowed(now)
            }
            ClientError::Api { error, .. } if !replayed => match error.code {
                ErrorCode::OperationInProgress => {
                    self.lost_since = None;
                    let since = *self.in_progress_since.get_or_insert(now);
                    now.duration_since(since) < Duration::from_secs(IN_PROGRESS_SECONDS_MAX)
                }
                ErrorCode::ShuttingDown => self.is_lost_for_less_than_allowed(now),
                ErrorCode::Unreachable => {
                    self.unreachable += 1;
                    self.unreachable < UNREACHABLE_ATTEMPTS_MAX
                }
                _ => false,
            },
            _ => false,
        };
        again.then(|| self.pause())
    }

    /// Whether an error with which it ended leaves open what became of the call.
    pub(crate) fn leaves_open(&self, error: &ClientError, replayed: bool) -> bool {
        match error {
            ClientError::Transport { sent, .. } => *sent || self.answer_lost,
            ClientError::Protocol { .. } => true,
            ClientError::Api { .. } if replayed => false,
            ClientError::Api { status, error } => match error.code {
                // Said where the server does not know itself.
                ErrorCode::OperationInProgress | ErrorCode::JournalFailed | ErrorCode::Internal => true,
                // Said before the key is looked up, and so nothing about an earlier sending.
                ErrorCode::ShuttingDown => self.answer_lost,
                _ => matches!(status, 401 | 403) && self.answer_lost,
            },
            ClientError::OutcomeUnknown { .. } => true,
            ClientError::NotKept { .. } | ClientError::Input(_) => false,
        }
    }

    fn is_lost_for_less_than_allowed(&mut self, now: Instant) -> bool {
        let since = *self.lost_since.get_or_insert(now);
        now.duration_since(since) < self.lost_max
    }

    fn pause(&mut self) -> Duration {
        let pause = FIRST_PAUSE_MS << self.pauses.min(10);
        self.pauses += 1;
        Duration::from_millis(pause.min(PAUSE_MS_MAX))
    }
}

/// Statuses by which something between says that it could not reach the server, or lost it.
fn is_of_a_gateway(status: u16) -> bool {
    [StatusCode::BAD_GATEWAY, StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT]
        .iter()
        .any(|gateway| gateway.as_u16() == status)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: Duration = Duration::from_secs(10);

    fn lost(sent: bool) -> ClientError {
        ClientError::Transport { call: "POST /x".into(), target: "t".into(), sent, cause: "reset".into() }
    }

    fn api(code: ErrorCode) -> ClientError {
        ClientError::Api { status: code.http_status(), error: Box::new(remuda_types::Error::new(code, "m")) }
    }

    #[test]
    fn a_server_that_was_never_there_is_not_waited_for() {
        let mut patience = Patience::new(LOST);
        assert_eq!(patience.after(&lost(false), false, Instant::now()), None);
        assert!(!patience.leaves_open(&lost(false), false));
    }

    #[test]
    fn a_lost_server_is_looked_for_with_growing_pauses_and_not_for_ever() {
        let (mut patience, begun) = (Patience::new(LOST), Instant::now());
        let first = patience.after(&lost(true), false, begun).unwrap();
        let second = patience.after(&lost(false), false, begun + first).unwrap();
        assert!(second > first);
        for _ in 0..70 {
            assert!(patience.after(&lost(false), false, begun).unwrap() <= Duration::from_millis(PAUSE_MS_MAX));
        }
        assert_eq!(patience.after(&lost(false), false, begun + LOST), None);
        assert!(patience.leaves_open(&lost(false), false), "the first sending may have been acted on");
    }

    #[test]
    fn an_answer_that_it_is_under_way_ends_the_search() {
        let (mut patience, begun) = (Patience::new(LOST), Instant::now());
        patience.after(&lost(true), false, begun).unwrap();
        let under_way = api(ErrorCode::OperationInProgress);
        assert!(patience.after(&under_way, false, begun + LOST * 2).is_some());
        assert!(patience.after(&lost(true), false, begun + LOST * 3).is_some(), "lost again, from now on");
        let late = begun + LOST * 2 + Duration::from_secs(IN_PROGRESS_SECONDS_MAX);
        assert_eq!(patience.after(&under_way, false, late), None);
        assert!(patience.leaves_open(&under_way, false));
    }

    #[test]
    fn what_the_first_sending_came_to_is_final() {
        for code in [ErrorCode::Unreachable, ErrorCode::Internal, ErrorCode::JournalFailed] {
            let mut patience = Patience::new(LOST);
            assert_eq!(patience.after(&api(code), true, Instant::now()), None, "{code}");
            assert!(!patience.leaves_open(&api(code), true), "{code}");
        }
    }

    #[test]
    fn a_refusal_is_final_unless_it_was_made_before_the_key_was_looked_at() {
        let mut patience = Patience::new(LOST);
        for code in [ErrorCode::SlotInUse, ErrorCode::LimitReached, ErrorCode::Unauthorized] {
            assert_eq!(patience.after(&api(code), false, Instant::now()), None);
            assert!(!patience.leaves_open(&api(code), false));
        }
        patience.after(&lost(true), false, Instant::now());
        assert!(patience.leaves_open(&api(ErrorCode::Unauthorized), false));
        assert!(!patience.leaves_open(&api(ErrorCode::SlotInUse), false));
    }

    #[test]
    fn a_sandbox_that_does_not_answer_is_asked_a_few_times() {
        let (mut patience, now) = (Patience::new(LOST), Instant::now());
        let mut sendings = 1;
        while patience.after(&api(ErrorCode::Unreachable), false, now).is_some() {
            sendings += 1;
        }
        assert_eq!(sendings, UNREACHABLE_ATTEMPTS_MAX);
    }

    #[test]
    fn keys_are_keys_and_differ() {
        let key = new_key().unwrap();
        assert_ne!(key, new_key().unwrap());
        assert_eq!(part_key(&key, "/a").unwrap(), part_key(&key, "/a").unwrap());
        assert_ne!(part_key(&key, "/a").unwrap(), part_key(&key, "/b").unwrap());
        assert!(part_key(&"x".repeat(255).parse().unwrap(), "/a").is_err());
    }
}
