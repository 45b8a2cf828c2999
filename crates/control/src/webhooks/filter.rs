//! Which kinds of events a webhook is for. Pure.

use remuda_types::limits::WEBHOOK_EVENTS_MAX;
use remuda_types::{Error, ErrorCode};

use crate::events::KINDS;

/// Whether each pattern takes something: `sandbox.gone` or `sandbox.*`. One that is misspelt would be for nothing, ever, and
/// nobody would hear of it.
///
/// # Errors
/// `invalid_request`, `limit_reached`.
pub(super) fn check(patterns: &[String]) -> Result<(), Error> {
    if patterns.len() > WEBHOOK_EVENTS_MAX {
        return Err(Error::limit("webhook_events_max", WEBHOOK_EVENTS_MAX as u64, patterns.len() as u64));
    }
    let good = |pattern: &String| match pattern.strip_suffix('*') {
        Some(thing) => thing.ends_with('.') && KINDS.iter().any(|kind| kind.starts_with(thing)),
        None => KINDS.contains(&pattern.as_str()),
    };
    match patterns.iter().find(|pattern| !good(pattern)) {
        None => Ok(()),
        Some(wrong) => {
            let shown: String = wrong.chars().take(80).collect();
            Err(Error::new(ErrorCode::InvalidRequest, format!("{shown:?} is no kind of events"))
                .remedy(format!("write whole kinds, or all of a thing as in sandbox.*; there are {}", KINDS.join(", ")))
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
            .into_iter()
            .chain(["sandboxes.*", "snapshot.made", ".*", "sandbox.gon", "sandbox*"])
        {
            assert!(check(&patterns(&[wrong])).is_err(), "{wrong}");
        }
        let some = patterns(&["sandbox.*", "snapshot.active"]);
        assert!(takes(&some, "sandbox.gone") && takes(&some, "snapshot.active"));
        assert!(!takes(&some, "snapshot.failed") && !takes(&some, "sandboxes.gone"));
        assert!(takes(&[], "whatever.it_is"));
    }
}
