//! Deadlines on the command line. Must do nothing but name and check what was given.

use std::time::Duration;

use clap::{Args, ValueEnum};
use remuda_types::limits::TIMEOUT_MS_MIN;
use remuda_types::wire;

use super::values::duration;
use super::{KeyArg, One};

/// How long a new sandbox may live.
#[derive(Debug, Args)]
pub struct DeadlineArgs {
    /// End it after this time whatever happens in it, such as 90s, 30m or 8h; a bare number counts seconds; 1h when not
    /// given
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Duration>,
    /// End it when nothing was done with it for this time
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub idle_timeout: Option<Duration>,
    /// What becomes of it then; `snapshot` when not given
    #[arg(long, value_enum)]
    pub on_deadline: Option<OnDeadline>,
}

impl DeadlineArgs {
    pub fn timeout_ms(&self) -> Option<u64> {
        self.timeout.map(milliseconds)
    }

    pub fn idle_timeout_ms(&self) -> Option<u64> {
        self.idle_timeout.map(milliseconds)
    }

    pub fn on_deadline(&self) -> Option<wire::OnDeadline> {
        self.on_deadline.map(Into::into)
    }
}

#[derive(Debug, Args)]
pub struct Timeout {
    #[command(flatten)]
    pub sandbox: One,
    /// How long it may live from now on, such as 90s, 30m or 8h; a bare number counts seconds
    #[arg(value_name = "TIME", value_parser = duration)]
    pub timeout: Duration,
    /// What becomes of it then; as before when not given
    #[arg(long, value_enum)]
    pub on_deadline: Option<OnDeadline>,
    #[command(flatten)]
    pub key: KeyArg,
}

impl Timeout {
    pub fn request(&self) -> wire::SetDeadline {
        let on_deadline = self.on_deadline.map(Into::into);
        wire::SetDeadline { timeout_ms: milliseconds(self.timeout), on_deadline }
    }
}

/// What becomes of a sandbox at its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnDeadline {
    /// Capture it, then end and remove it
    Snapshot,
    /// End and remove it
    Delete,
}

impl From<OnDeadline> for wire::OnDeadline {
    fn from(what: OnDeadline) -> Self {
        match what {
            OnDeadline::Snapshot => wire::OnDeadline::Snapshot,
            OnDeadline::Delete => wire::OnDeadline::Delete,
        }
    }
}

/// A time in milliseconds, as the API takes it.
pub fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The longest time that the clock can be asked to add.
const TIMEOUT_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

pub(super) fn timeout_max(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match milliseconds(time) >= TIMEOUT_MS_MIN && time <= TIMEOUT_MAX {
        true => Ok(time),
        false => Err("it must be between a second and ten years".to_owned()),
    }
}

/// The shortest time between two comparisons of records and machine, and the longest.
const RECONCILE_EVERY: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);

pub(super) fn reconcile_every(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match RECONCILE_EVERY.contains(&time) {
        true => Ok(time),
        false => Err("it must be between a second and a day".to_owned()),
    }
}

/// The shortest time in which all of what is kept is read once more, and the longest.
const SCRUB_EVERY: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(365 * 86_400);

pub(super) fn scrub_every(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match SCRUB_EVERY.contains(&time) {
        true => Ok(time),
        false => Err("it must be between a second and a year".to_owned()),
    }
}

/// The shortest life of a key, which must outlast the retries of its call, and the longest.
const KEYS_LIVE: std::ops::RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(365 * 86_400);

pub(super) fn keys_live(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match KEYS_LIVE.contains(&time) {
        true => Ok(time),
        false => Err("it must be between a minute and 365 days".to_owned()),
    }
}

/// How long an agent may work: its branch lives a while longer, and servers let none live for more than a day.
const ATTEMPT_TIME: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(22 * 3_600);

pub(super) fn attempt_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if ATTEMPT_TIME.contains(&time) { Ok(time) } else { Err("it must be from 1s to 22h".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_a_longest_time() {
        assert_eq!(timeout_max("24h"), Ok(Duration::from_secs(86_400)));
        assert_eq!(reconcile_every("10m"), Ok(Duration::from_secs(600)));
        assert!(reconcile_every("100ms").is_err() && reconcile_every("25h").is_err());
        assert_eq!(keys_live("48h"), Ok(Duration::from_secs(172_800)));
        assert!(keys_live("59s").is_err() && keys_live("8761h").is_err());
        assert!(timeout_max("0").is_err() && timeout_max("200000h").is_err());
    }
}
