//! What calls about files say beside paths: which bytes, and what must hold before anything is done. Plain data; whoever
//! has the file decides.

use serde::{Deserialize, Serialize};

/// Which bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ByteRange {
    /// From an offset on, to and with another one if there is one.
    From {
        /// Offset of the first byte.
        first: u64,
        /// Offset of the last byte; the file's last when absent or beyond it.
        last: Option<u64>,
    },
    /// So many bytes of its end, or all where it has fewer.
    Last(u64),
}

impl ByteRange {
    /// First byte and length within a file of `size` bytes; `None` if it has none of them.
    pub fn within(self, size: u64) -> Option<(u64, u64)> {
        let (first, last) = match self {
            ByteRange::From { first, last } => (first, last.unwrap_or(u64::MAX)),
            ByteRange::Last(bytes) => (size - bytes.min(size), u64::MAX),
        };
        let end = last.saturating_add(1).min(size);
        (first < end).then(|| (first, end - first))
    }
}

/// Which contents a file has, by their SHA-256 in hex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Contents {
    /// Whichever, if there is a file.
    Any,
    /// One of these.
    OneOf(Vec<String>),
}

impl Contents {
    /// Whether a file with this digest, or no file, is meant.
    pub fn is(&self, digest: Option<&str>) -> bool {
        match (self, digest) {
            (_, None) => false,
            (Contents::Any, Some(_)) => true,
            (Contents::OneOf(digests), Some(digest)) => digests.iter().any(|one| one == digest),
        }
    }
}

/// What must hold of a file before anything is done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// It has these contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matches: Option<Contents>,
    /// It has not these contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matches_not: Option<Contents>,
}

impl Conditions {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.matches.is_none() && self.matches_not.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_the_files_end() {
        let from = |first, last| ByteRange::From { first, last };
        for (range, size, expected) in [
            (from(0, None), 5, Some((0, 5))),
            (from(2, Some(3)), 5, Some((2, 2))),
            (from(4, Some(900)), 5, Some((4, 1))),
            (from(5, None), 5, None),
            (from(0, None), 0, None),
            (from(3, Some(2)), 5, None),
            (from(u64::MAX, Some(u64::MAX)), u64::MAX, None),
            (from(1, Some(u64::MAX)), 3, Some((1, 2))),
            (ByteRange::Last(2), 5, Some((3, 2))),
            (ByteRange::Last(9), 5, Some((0, 5))),
            (ByteRange::Last(0), 5, None),
            (ByteRange::Last(3), 0, None),
        ] {
            assert_eq!(range.within(size), expected, "{range:?} of {size}");
        }
    }

    #[test]
    fn no_file_has_no_contents() {
        let one = Contents::OneOf(vec!["aa".into()]);
        assert!(one.is(Some("aa")) && !one.is(Some("bb")) && !one.is(None));
        assert!(Contents::Any.is(Some("bb")) && !Contents::Any.is(None));
    }
}
