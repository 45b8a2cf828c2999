//! Accounts and idempotency keys: the names under which calls are told apart. It must never make one up.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::ids::string_serde;

/// Longest idempotency key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;
/// Longest account name, in bytes.
pub const ACCOUNT_BYTES_MAX: usize = 63;

/// Why a text is no account or key. The message names the text and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not an account's name.
    #[error("{0:?} is not an account: 1 to 63 of a-z, 0-9 and '-', beginning with a letter or digit")]
    Account(String),
    /// Not an idempotency key. The text is cut, since it may be long.
    #[error("{0:?} is not an idempotency key: 1 to 255 of A-Z, a-z, 0-9, '_' and '-'")]
    Key(String),
}

/// Whose things they are. Nothing of one account is visible to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Account(String);

impl Account {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Account {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let good = (1..=ACCOUNT_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed) && !text.starts_with('-');
        if good { Ok(Account(text.to_owned())) } else { Err(NameError::Account(text.chars().take(80).collect())) }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
string_serde!(Account);

/// The idempotency key of a mutating call, chosen by the caller: 1 to 255 of `[A-Za-z0-9_-]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Key {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        let good = (1..=KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed);
        if good { Ok(Key(text.to_owned())) } else { Err(NameError::Key(text.chars().take(80).collect())) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
string_serde!(Key);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_keys_and_accounts_are_refused() {
        for good in ["a", "A_b-9", &"x".repeat(KEY_BYTES_MAX)] {
            assert_eq!(good.parse::<Key>().unwrap().as_str(), good);
        }
        for wrong in ["", "a b", "a.b", "ä", "a\n", "a@b", &"x".repeat(KEY_BYTES_MAX + 1)] {
            assert!(wrong.parse::<Key>().is_err(), "{wrong}");
        }
        for wrong in ["", "A", "-a", "a.b", "a@b", &"x".repeat(ACCOUNT_BYTES_MAX + 1)] {
            assert!(wrong.parse::<Account>().is_err(), "{wrong}");
        }
    }
}
