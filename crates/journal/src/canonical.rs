//! The canonical form of a request (RFC 8785) and its fingerprint. Two requests are the same if and only if their
//! canonical forms are: it must never equate what differs.

use serde_json::Value;

use crate::error::{JournalError, Refusal};
use crate::limits::REQUEST_BYTES_MAX;

/// Largest integer that the canonical form, whose numbers are doubles, can tell from its neighbours: 2^53 - 1.
const INTEGER_MAX: u64 = (1 << 53) - 1;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Canonical {
    pub(crate) text: String,
    pub(crate) fingerprint: [u8; 32],
}

impl Canonical {
    pub(crate) fn of(request: &Value) -> Result<Canonical, JournalError> {
        if let Some(number) = inexact(request) {
            let message = format!("{number} is beyond 2^53 and has no canonical form; give it as a text");
            return Err(Refusal::Contradiction(message).into());
        }
        let text = serde_json_canonicalizer::to_string(request).map_err(JournalError::internal)?;
        if text.len() > REQUEST_BYTES_MAX {
            let (limit, bytes) = (REQUEST_BYTES_MAX as u64, text.len() as u64);
            return Err(Refusal::TooLarge { what: "the request", name: "request_bytes_max", limit, bytes }.into());
        }
        let fingerprint = *blake3::hash(text.as_bytes()).as_bytes();
        Ok(Canonical { text, fingerprint })
    }
}

/// The first integer that would be rounded.
fn inexact(value: &Value) -> Option<String> {
    match value {
        Value::Number(n) => {
            let magnitude = n.as_u64().or_else(|| n.as_i64().map(i64::unsigned_abs));
            magnitude.is_some_and(|m| m > INTEGER_MAX).then(|| n.to_string())
        }
        Value::Array(items) => items.iter().find_map(inexact),
        Value::Object(members) => members.values().find_map(inexact),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn order_and_spelling_make_no_difference() {
        let one: Value = serde_json::from_str(r#"{"b": [1, 2.50], "a": "\u00e4"}"#).unwrap();
        let two: Value = serde_json::from_str(r#"{"a":"ä","b":[1.0,25e-1]}"#).unwrap();
        assert_eq!(Canonical::of(&one).unwrap(), Canonical::of(&two).unwrap());
        assert_eq!(Canonical::of(&one).unwrap().text, r#"{"a":"ä","b":[1,2.5]}"#);
    }

    #[test]
    fn an_absent_member_and_its_default_are_two_requests() {
        let absent = Canonical::of(&json!({})).unwrap().fingerprint;
        let null = Canonical::of(&json!({ "slot": null })).unwrap().fingerprint;
        assert_ne!(absent, null);
    }

    #[test]
    fn integers_that_would_be_rounded_are_refused() {
        assert!(Canonical::of(&json!({ "n": [9_007_199_254_740_991_i64, -9_007_199_254_740_991_i64] })).is_ok());
        for wrong in [json!([9_007_199_254_740_992_i64]), json!({ "n": -9_007_199_254_740_993_i64 }), json!(u64::MAX)] {
            assert!(matches!(Canonical::of(&wrong), Err(JournalError::Refused(_))), "{wrong}");
        }
    }

    #[test]
    fn a_request_beyond_the_limit_is_refused() {
        let long = json!("x".repeat(REQUEST_BYTES_MAX));
        assert!(matches!(Canonical::of(&long), Err(JournalError::Refused(Refusal::TooLarge { .. }))));
    }
}
