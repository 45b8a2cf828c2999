//! What an account may use, under one name each: in settings, in errors, in usage. Must never hold a figure of a
//! running server.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits::{DISK_BYTES_DEFAULT, MEMORY_MIB_DEFAULT, SANDBOXES_MAX};

macro_rules! quotas {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// One thing of which an account may use so much.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Quota {
            $($(#[$doc])* $name,)*
        }

        impl Quota {
            /// Every quota, in the order of the documentation.
            pub const ALL: &'static [Quota] = &[$(Quota::$name),*];

            /// The name, with its unit.
            pub fn as_str(self) -> &'static str {
                match self { $(Quota::$name => $text),* }
            }
        }
    };
}

quotas! {
    /// Sandboxes that hold a machine at the same time.
    Sandboxes = "sandboxes";
    /// Starts of machines in one month of UTC: creations, restores, branches. One that fails counts too.
    StartsPerMonth = "starts_per_month";
    /// Memory that machines may use at the same time, in MiB.
    MemoryMib = "memory_mib";
    /// Disk that sandboxes may fill with their private files, in bytes.
    DiskBytes = "disk_bytes";
    /// Snapshots that are kept.
    Snapshots = "snapshots";
    /// Bytes captured in snapshots that are kept.
    SnapshotBytes = "snapshot_bytes";
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a text must look like to set a quota.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
    /// No such quota.
    #[error("{0:?} is not a quota; there are {known}", known = Quota::ALL.iter().map(|q| q.as_str()).collect::<Vec<_>>().join(", "))]
    Name(String),
    /// No such amount.
    #[error("{0:?} is not an amount: a whole number, also with K, M, G or T for powers of 1024, or `none`")]
    Amount(String),
    /// Not of the form.
    #[error("{0:?} must look like NAME=VALUE, as in sandboxes=20")]
    Form(String),
}

impl FromStr for Quota {
    type Err = QuotaError;
    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let found = Quota::ALL.iter().find(|quota| quota.as_str() == text);
        found.copied().ok_or_else(|| QuotaError::Name(text.chars().take(80).collect()))
    }
}

/// How much of everything an account may use; what is not named is not limited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QuotaLimits(BTreeMap<Quota, u64>);

impl Default for QuotaLimits {
    /// As many sandboxes of the default size as a server may have, and a terabyte of snapshots.
    fn default() -> Self {
        let sandboxes = SANDBOXES_MAX as u64;
        QuotaLimits(BTreeMap::from([
            (Quota::Sandboxes, sandboxes),
            (Quota::StartsPerMonth, 1_000_000),
            (Quota::MemoryMib, sandboxes * u64::from(MEMORY_MIB_DEFAULT)),
            (Quota::DiskBytes, sandboxes * DISK_BYTES_DEFAULT),
            (Quota::Snapshots, 1_000),
            (Quota::SnapshotBytes, 1 << 40),
        ]))
    }
}

impl QuotaLimits {
    /// The maximum; none where there is no limit.
    pub fn of(&self, quota: Quota) -> Option<u64> {
        self.0.get(&quota).copied()
    }

    /// These limits, but for what the changes say.
    #[must_use]
    pub fn with(&self, changes: &QuotaChanges) -> QuotaLimits {
        let mut limits = self.clone();
        for (quota, limit) in &changes.0 {
            match limit {
                Some(limit) => limits.0.insert(*quota, *limit),
                None => limits.0.remove(quota),
            };
        }
        limits
    }
}

/// Limits that differ from those that would hold else; null lifts one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = std::collections::BTreeMap<String, Option<u64>>)]
pub struct QuotaChanges(pub BTreeMap<Quota, Option<u64>>);

/// One quota with its limit, as on a command line: `sandboxes=20`, `disk_bytes=100G`, `starts_per_month=none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaSetting {
    /// Which quota.
    pub quota: Quota,
    /// Its limit; none lifts it.
    pub limit: Option<u64>,
}

impl FromStr for QuotaSetting {
    type Err = QuotaError;
    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let short = || text.chars().take(80).collect();
        let (name, amount) = text.split_once('=').ok_or_else(|| QuotaError::Form(short()))?;
        Ok(QuotaSetting { quota: name.parse()?, limit: parse_amount(amount)? })
    }
}

impl FromIterator<QuotaSetting> for QuotaChanges {
    fn from_iter<I: IntoIterator<Item = QuotaSetting>>(settings: I) -> Self {
        QuotaChanges(settings.into_iter().map(|setting| (setting.quota, setting.limit)).collect())
    }
}

fn parse_amount(text: &str) -> Result<Option<u64>, QuotaError> {
    if text == "none" {
        return Ok(None);
    }
    let bad = || QuotaError::Amount(text.chars().take(80).collect());
    let suffixes = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let (digits, shift) = suffixes
        .into_iter()
        .find_map(|(suffix, shift)| text.strip_suffix(suffix).map(|digits| (digits, shift)))
        .unwrap_or((text, 0));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    // The journal counts in signed numbers.
    let amount = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    amount.filter(|n| i64::try_from(*n).is_ok()).map(Some).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_the_same_word_everywhere_and_has_a_default() {
        for quota in Quota::ALL {
            assert_eq!(serde_json::to_value(quota).unwrap(), quota.as_str());
            assert_eq!(quota.as_str().parse::<Quota>().unwrap(), *quota);
            assert!(QuotaLimits::default().of(*quota).is_some(), "{quota}");
        }
    }

    #[test]
    fn settings_are_read_with_their_units() {
        let read = |text: &str| text.parse::<QuotaSetting>();
        assert_eq!(read("sandboxes=20").unwrap(), QuotaSetting { quota: Quota::Sandboxes, limit: Some(20) });
        assert_eq!(read("disk_bytes=3G").unwrap().limit, Some(3 << 30));
        assert_eq!(read("sandboxes=0").unwrap().limit, Some(0));
        assert_eq!(read("snapshots=none").unwrap().limit, None);
        for wrong in [
            "sandboxes",
            "sandbox=1",
            "sandboxes=",
            "sandboxes=-1",
            "sandboxes=1.5",
            "sandboxes=G",
            "sandboxes=1g",
            "sandboxes= 1",
            "sandboxes=+1",
            "disk_bytes=99999999999T",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn changes_replace_lift_and_leave_the_rest() {
        let changes: QuotaChanges =
            ["sandboxes=3", "snapshots=none"].iter().map(|t| t.parse::<QuotaSetting>().unwrap()).collect();
        let limits = QuotaLimits::default().with(&changes);
        assert_eq!(limits.of(Quota::Sandboxes), Some(3));
        assert_eq!(limits.of(Quota::Snapshots), None);
        assert_eq!(limits.of(Quota::MemoryMib), QuotaLimits::default().of(Quota::MemoryMib));
        let text = serde_json::to_string(&changes).unwrap();
        assert_eq!(text, r#"{"sandboxes":3,"snapshots":null}"#);
        assert_eq!(serde_json::from_str::<QuotaChanges>(&text).unwrap(), changes);
    }
}
