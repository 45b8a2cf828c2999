//! Which kinds of events a webhook is for. Pure.

use remuda_types::limits::WEBHOOK_EVENTS_MAX;
use remuda_types::{Error, ErrorCode};

/// Longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 64;

/// Whether each pattern is one: `sandbox.gone` or `sandbox.*`.
///
/// # Errors
/// `invalid_request`, `limit_reached`.
pub(super) fn check(patterns: &[String]) -> Result<(), Error> {
    if patterns.len() > WEBHOOK_EVENTS_MAX {
        return Err(Error::limit("webhook_events_max", WEBHOOK_EVENTS_MAX as u64, patterns.len() as u64));
    }
    let word = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let good = |pattern: &String| match pattern.split_once('.') {
        Some((thing, what)) => pattern.len() <= PATTERN_BYTES_MAX && word(thing) && (what == "*" || word(what)),
        None => false,
    };
    match patterns.iter().find(|pattern| !good(pattern)) {
        None => Ok(()),
        Some(wrong) => {
            let shown: String = wrong.chars().take(80).collect();
            Err(Error::new(ErrorCode::InvalidRequest, format!("{shown:?} is no kind of events"))
                .remedy("write whole kinds such as snapshot.active, or all of a thing such as sandbox.*")
                .detail("member", "events"))
        }
    }
}

/// Whether an event of this kind is delivered.
pub(super) fn takes(patterns: &[String], kind: &str) -> bool {
    let matches = |pattern: &String| match pattern.strip_suffix('*') {
        Some(thing) => kind.starts_with(thing),
        None => pattern == kind,
    };
    patterns.is_empty() || patterns.iter().any(matches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_whole_or_all_of_a_thing() {
        let patterns = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert!(check(&patterns(&["sandbox.*", "snapshot.active", "access_key.made"])).is_ok());
        for wrong in ["", "*", "sandbox", "sandbox.", ".gone", "sandbox.g*", "Sandbox.gone", "sandbox.gone.x", "a b.c"]
        {
            assert!(check(&patterns(&[wrong])).is_err(), "{wrong}");
        }
        let some = patterns(&["sandbox.*", "snapshot.active"]);
        assert!(takes(&some, "sandbox.gone") && takes(&some, "snapshot.active"));
        assert!(!takes(&some, "snapshot.failed") && !takes(&some, "sandboxes.gone"));
        assert!(takes(&[], "whatever.it_is"));
    }
}
