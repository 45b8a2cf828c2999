//! Typed ids. A sandbox is addressed as `slot@generation` and never by its slot alone.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Longest slot name, in bytes; a slot must fit into one DNS label.
pub const SLOT_LEN_MAX: usize = 63;

/// Characters in a [`Uid`]: 20 of 32 possible ones are 100 bits.
pub const UID_LEN: usize = 20;

const UID_ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Why a text is not an id. The message names the text, the cause and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// A slot without a generation was given where a sandbox id is needed.
    #[error(
        "{0:?} is a bare slot, not a sandbox id: a slot is reused by later machines, so an id must name the \
         generation too, as in {0}@2026-10-08T12:00:00.000Z (see `remuda ls`)"
    )]
    BareSlot(String),
    /// The slot has characters or a length that slots don't have.
    #[error("{} is not a slot: 1 to 63 of a-z, 0-9 and '-', beginning with a letter or digit", told(.0))]
    Slot(String),
    /// The generation is not a UTC time in milliseconds in its one canonical form.
    #[error("{} is not a generation: a UTC time with milliseconds, as in 2026-10-08T12:00:00.000Z", told(.0))]
    Generation(String),
    /// A prefixed id (`snap-…`, `exec-…`) or uid is malformed.
    #[error("{} is not {what}: it looks like {prefix}{}", told(text), "x".repeat(UID_LEN))]
    Tagged {
        /// What was expected, with its article.
        what: &'static str,
        /// The prefix such ids have; empty for a uid.
        prefix: &'static str,
        /// What was given.
        text: String,
    },
}

/// How access keys begin: as ours do, or as clients made for another service want it; both name the same one.
pub const ACCESS_KEY_PREFIXES: [&str; 2] = ["rmd_", "mb_"];

/// What was given, as an error may repeat it: an access key in the place of an id is a secret all the same, and nobody
/// wants to read kilobytes.
fn told(text: &str) -> String {
    const CHARS_MAX: usize = 100;
    let secrets = ACCESS_KEY_PREFIXES.iter().filter_map(|prefix| Some(text.find(prefix)? + prefix.len())).min();
    let (open, secret) = (&text[..secrets.unwrap_or(text.len())], secrets.is_some());
    let cut: String = open.chars().take(CHARS_MAX).collect();
    let rest = if secret || cut.len() < open.len() { "…" } else { "" };
    format!("{cut:?}{rest}")
}

macro_rules! string_serde {
    ($t:ty) => {
        impl Serialize for $t {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $t {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                text.parse().map_err(de::Error::custom)
            }
        }
        impl utoipa::PartialSchema for $t {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                String::schema()
            }
        }
        impl utoipa::ToSchema for $t {}
    };
}
pub(crate) use string_serde;

/// A reusable name in an account: `small`, `c1`, or the caller's own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(String);

impl Slot {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Slot {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let good = (1..=SLOT_LEN_MAX).contains(&text.len())
            && text.bytes().all(allowed)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if good { Ok(Slot(text.to_owned())) } else { Err(IdError::Slot(text.to_owned())) }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
string_serde!(Slot);

/// One incarnation of a slot: its creation time in UTC milliseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(i64);

impl Generation {
    /// The generation made at `unix_ms`; `None` outside the years that have a four-digit form.
    pub fn from_unix_ms(unix_ms: i64) -> Option<Self> {
        // 9999-12-31T23:59:59.999Z: beyond it the text form would get longer and no longer sort.
        const UNIX_MS_MAX: i64 = 253_402_300_799_999;
        (0..=UNIX_MS_MAX).contains(&unix_ms).then_some(Generation(unix_ms))
    }

    /// The generation to give a new machine: now, but later than `previous` also when the clock steps back.
    pub fn next(now_unix_ms: i64, previous: Option<Generation>) -> Option<Self> {
        let floor = previous.map_or(0, |p| p.0 + 1);
        Self::from_unix_ms(now_unix_ms.max(floor))
    }

    /// Milliseconds since the epoch.
    pub fn unix_ms(self) -> i64 {
        self.0
    }
}

impl FromStr for Generation {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let bad = || IdError::Generation(text.to_owned());
        let time: Timestamp = text.parse().map_err(|_| bad())?;
        let generation = Self::from_unix_ms(time.as_millisecond()).ok_or_else(bad)?;
        // One text form only: two spellings of one id would be two keys in somebody's table.
        if generation.to_string() == text { Ok(generation) } else { Err(bad()) }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_millisecond(self.0) {
            Ok(time) => write!(f, "{time:.3}"),
            Err(_) => Err(fmt::Error),
        }
    }
}
string_serde!(Generation);

/// The address of one generation of a slot: `c1@2026-10-08T12:00:00.000Z`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId {
    /// The reusable name.
    pub slot: Slot,
    /// Which incarnation of it.
    pub generation: Generation,
}

impl FromStr for SandboxId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        match text.split_once('@') {
            Some((slot, generation)) => Ok(SandboxId { slot: slot.parse()?, generation: generation.parse()? }),
            None => match text.parse::<Slot>() {
                Ok(_) => Err(IdError::BareSlot(text.to_owned())),
                Err(e) => Err(e),
            },
        }
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.slot, self.generation)
    }
}
string_serde!(SandboxId);

macro_rules! tagged_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// What every such id begins with.
            pub const PREFIX: &'static str = $prefix;

            /// The id that these random bytes stand for; five bits of each are used.
            pub fn from_entropy(entropy: [u8; UID_LEN]) -> Self {
                let mut text = String::with_capacity($prefix.len() + UID_LEN);
                text.push_str($prefix);
                text.extend(entropy.iter().map(|b| UID_ALPHABET[usize::from(b & 31)] as char));
                $name(text)
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let good = text.strip_prefix($prefix).is_some_and(|rest| {
                    rest.len() == UID_LEN && rest.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
                });
                if good {
                    Ok($name(text.to_owned()))
                } else {
                    Err(IdError::Tagged { what: $what, prefix: $prefix, text: text.to_owned() })
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        string_serde!($name);
    };
}

tagged_id!(
    /// The name of a generation in host names, directories and foreign APIs: 20 of `[a-z0-9]`.
    Uid, "", "a uid"
);
tagged_id!(
    /// A snapshot's id: `snap-` and 20 of `[a-z0-9]`.
    SnapshotId, "snap-", "a snapshot id"
);
tagged_id!(
    /// An execution's id: `exec-` and 20 of `[a-z0-9]`.
    ExecutionId, "exec-", "an execution id"
);
tagged_id!(
    /// An operation's id: `op-` and 20 of `[a-z0-9]`.
    OperationId, "op-", "an operation id"
);
tagged_id!(
    /// A preview's id: `prev-` and 20 of `[a-z0-9]`.
    PreviewId, "prev-", "a preview id"
);
tagged_id!(
    /// An access key's id: `key-` and 20 of `[a-z0-9]`. It is no secret.
    AccessKeyId, "key-", "an access key id"
);
tagged_id!(
    /// A webhook's id: `hook-` and 20 of `[a-z0-9]`. It is no secret.
    WebhookId, "hook-", "a webhook id"
);
tagged_id!(
    /// A receipt's id: `rcpt-` and 20 of `[a-z0-9]`.
    ReceiptId, "rcpt-", "a receipt id"
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bare_slot_is_no_id_and_says_why() {
        let error = "c1".parse::<SandboxId>().unwrap_err();
        assert_eq!(error, IdError::BareSlot("c1".into()));
        assert!(error.to_string().contains("must name the generation too"));
    }

    #[test]
    fn only_the_canonical_generation_is_read() {
        assert!("2026-10-08T12:00:00.000Z".parse::<Generation>().is_ok());
        for wrong in [
            "2026-10-08T12:00:00Z",
            "2026-10-08T12:00:00.0Z",
            "2026-10-08T12:00:00.0001Z",
            "2026-10-08T12:00:00.000+00:00",
            "2026-10-08t12:00:00.000z",
            "2026-10-08 12:00:00.000Z",
            "2026-13-08T12:00:00.000Z",
            "",
        ] {
            assert!(wrong.parse::<Generation>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn odd_slots_are_refused() {
        for wrong in ["", "-a", "a-", "A", "a b", "a/b", "ä", &"x".repeat(64)] {
            assert!(wrong.parse::<Slot>().is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn ids_survive_the_round_trip(slot in "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", ms in 0i64..253_402_300_799_999) {
            let id = SandboxId { slot: slot.parse().unwrap(), generation: Generation::from_unix_ms(ms).unwrap() };
            prop_assert_eq!(id.to_string().parse::<SandboxId>().unwrap(), id);
        }

        #[test]
        fn parsing_never_panics(text in "\\PC{0,80}") {
            let _ = text.parse::<SandboxId>();
            let _ = text.parse::<SnapshotId>();
        }

        #[test]
        fn generations_only_grow(clock in proptest::collection::vec(0i64..2_000_000_000_000, 1..50)) {
            let mut last = None;
            for now in clock {
                let next = Generation::next(now, last).unwrap();
                prop_assert!(last.is_none_or(|l| next > l));
                last = Some(next);
            }
        }

        #[test]
        fn entropy_gives_wellformed_ids(entropy: [u8; UID_LEN]) {
            let id = SnapshotId::from_entropy(entropy);
            prop_assert_eq!(id.as_str().parse::<SnapshotId>().unwrap(), id);
        }
    }

    #[test]
    fn a_secret_in_the_place_of_an_id_is_not_told_again() {
        let secret = format!("{}0123456789abcdef", ACCESS_KEY_PREFIXES[0]);
        let errors = [
            secret.parse::<AccessKeyId>().unwrap_err(),
            secret.parse::<SnapshotId>().unwrap_err(),
            secret.parse::<Slot>().unwrap_err(),
            secret.parse::<SandboxId>().unwrap_err(),
            format!("c1@{secret}").parse::<SandboxId>().unwrap_err(),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("rmd_") && !text.contains("0123"), "{text}");
        }
        assert!("x".repeat(5000).parse::<SnapshotId>().unwrap_err().to_string().len() < 300);
    }
}
