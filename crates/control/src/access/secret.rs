//! The secret of an access key. It is shown once, when it is made; must never be logged, printed or kept: what stays of
//! it is its digest.

use std::str::FromStr;

use crate::clock::entropy;
use remuda_types::{ACCESS_KEY_PREFIXES, Error};

/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// A secret that opens the API. It has no `Debug` or `Display`.
pub struct AccessSecret([u8; SECRET_BYTES]);

impl AccessSecret {
    /// A fresh one.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn generate() -> Result<Self, Error> {
        entropy().map(AccessSecret)
    }

    /// The secret as its owner writes it: `rmd_` and 64 hex digits.
    pub fn reveal(&self) -> String {
        format!("{}{}", ACCESS_KEY_PREFIXES[0], hex(&self.0))
    }

    /// What may be stored of it.
    pub fn digest(&self) -> [u8; 32] {
        // A plain digest is enough: 256 random bits can't be guessed, so there is nothing for a slow one to slow down.
        *blake3::hash(&self.0).as_bytes()
    }
}

impl FromStr for AccessSecret {
    type Err = SecretError;
    fn from_str(text: &str) -> Result<Self, SecretError> {
        let digits = ACCESS_KEY_PREFIXES.iter().find_map(|prefix| text.strip_prefix(prefix)).ok_or(SecretError)?;
        unhex(digits).map(AccessSecret).ok_or(SecretError)
    }
}

/// The text is no secret of a key. Never carries the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an access key: it looks like rmd_ followed by 64 hex digits")]
pub struct SecretError;

/// A digest from a server that kept the one of its only key in a file: `blake3:` and 64 hex digits.
pub(crate) fn stored_digest(text: &str) -> Option<[u8; 32]> {
    text.strip_prefix("blake3:").and_then(unhex)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; SECRET_BYTES]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * SECRET_BYTES {
        return None;
    }
    let mut bytes = [0; SECRET_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_under_either_prefix_and_nothing_else_is() {
        let secret = AccessSecret::generate().unwrap();
        let text = secret.reveal();
        assert_eq!(text.len(), 4 + 64);
        for same in [text.clone(), format!("mb_{}", &text[4..]), format!("rmd_{}", text[4..].to_uppercase())] {
            assert!(same.parse::<AccessSecret>().is_ok_and(|read| read.digest() == secret.digest()));
        }
        for wrong in ["", "rmd_", &text[..67], &format!("{text}0"), &text[4..], &format!("rmd_{}", "é".repeat(32))] {
            assert!(wrong.parse::<AccessSecret>().is_err(), "{wrong}");
        }
        let error = format!("rmd_{}x", &text[4..67]).parse::<AccessSecret>().err().unwrap();
        assert!(!format!("{error} {error:?}").contains(&text[4..20]));
    }

    #[test]
    fn a_stored_digest_is_read_again() {
        let secret = AccessSecret::generate().unwrap();
        let stored = format!("blake3:{}", hex(&secret.digest()));
        assert_eq!(stored_digest(&stored), Some(secret.digest()));
        assert!(!stored.contains(&secret.reveal()[4..]));
        for wrong in ["", "blake3:00", &stored[7..], &format!("blake3:{}", "é".repeat(32))] {
            assert_eq!(stored_digest(wrong), None, "{wrong}");
        }
    }
}
