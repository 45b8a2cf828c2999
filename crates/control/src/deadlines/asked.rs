//! What a request says of a new sandbox's deadline, held against the limits.

use remuda_types::limits::{TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MIN};
use remuda_types::wire::OnDeadline;
use remuda_types::{Error, ErrorCode};

use super::Term;
use crate::clock::now_unix_ms;

/// What was asked for; what is absent has its default.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asked {
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) idle_timeout_ms: Option<u64>,
    pub(crate) on_deadline: Option<OnDeadline>,
}

impl Asked {
    /// The term of a sandbox that is made now.
    ///
    /// # Errors
    /// `invalid_request` for a time outside of the limits, naming both.
    pub(crate) fn term(self, timeout_ms_max: u64) -> Result<Term, Error> {
        let timeout_ms = self.timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT.min(timeout_ms_max));
        within("timeout_ms", timeout_ms, timeout_ms_max)?;
        if let Some(idle) = self.idle_timeout_ms {
            within("idle_timeout_ms", idle, timeout_ms_max)?;
        }
        let set_at_ms = now_unix_ms();
        Ok(Term {
            set_at_ms,
            deadline_at_ms: set_at_ms.saturating_add_unsigned(timeout_ms),
            on_deadline: self.on_deadline.unwrap_or_default(),
            idle_timeout_ms: self.idle_timeout_ms,
            round: 0,
            told_soon: false,
            ending: None,
            settled: None,
            kept: false,
        })
    }
}

/// The term of a sandbox that goes on with another one's files: as long as that one's was set to be, from now on.
pub(crate) fn anew(before: &Term, timeout_ms_max: u64) -> Term {
    let whole = u64::try_from(before.deadline_at_ms.saturating_sub(before.set_at_ms)).unwrap_or(0);
    let set_at_ms = now_unix_ms();
    Term {
        set_at_ms,
        deadline_at_ms: set_at_ms.saturating_add_unsigned(whole.min(timeout_ms_max)),
        on_deadline: before.on_deadline,
        idle_timeout_ms: before.idle_timeout_ms,
        round: 0,
        told_soon: false,
        ending: None,
        settled: None,
        kept: false,
    }
}

/// Whether a time is within the limits.
pub(super) fn within(name: &str, value: u64, max: u64) -> Result<(), Error> {
    if (TIMEOUT_MS_MIN..=max).contains(&value) {
        return Ok(());
    }
    let message = format!("{name} is {value}; on this server it must be {TIMEOUT_MS_MIN} to {max}");
    Err(Error::new(ErrorCode::InvalidRequest, message)
        .remedy("ask for a time within the limits; whoever runs the server sets the longest one: remuda serve --timeout-max")
        .detail("limit", "timeout_ms_max")
        .detail("minimum", TIMEOUT_MS_MIN)
        .detail("maximum", max)
        .detail("wanted", value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_of_the_limits_is_refused_with_both_figures() {
        let asked = |timeout_ms, idle_timeout_ms| Asked { timeout_ms, idle_timeout_ms, on_deadline: None };
        for (wrong, name) in
            [(asked(Some(5_001), None), "timeout_ms is 5001"), (asked(None, Some(999)), "idle_timeout_ms is 999")]
        {
            let error = wrong.term(5_000).unwrap_err();
            assert!(error.message.starts_with(name) && error.message.contains("to 5000"), "{error}");
            assert_eq!((error.code, &error.details["maximum"]), (ErrorCode::InvalidRequest, &5_000.into()));
        }
        let term = asked(None, Some(1_000)).term(5_000).unwrap();
        assert_eq!(term.deadline_at_ms - term.set_at_ms, 5_000, "the default is never more than the limit");
        assert_eq!((term.on_deadline, term.idle_timeout_ms), (OnDeadline::Snapshot, Some(1_000)));
        let term = Asked::default().term(86_400_000).unwrap();
        assert_eq!(term.deadline_at_ms - term.set_at_ms, 3_600_000);
    }
}
