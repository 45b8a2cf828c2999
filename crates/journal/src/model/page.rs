//! Listing in pages that stay stable: what is there all the time is listed exactly once, whatever comes and goes
//! meanwhile. A cursor names the last record that was seen and tells nothing about others.

use std::fmt;
use std::str::FromStr;

use remuda_types::Account;

/// Whose records are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose<'a> {
    /// Those of one account: for everything that a caller asks.
    Of(&'a Account),
    /// All: for recovery and reconciliation of the server itself, never for a caller.
    Everyones,
}

/// Which page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paging {
    /// Where the last page ended; from the beginning when absent.
    pub after: Option<Cursor>,
    /// How many records; 0 and everything above [`PAGE_MAX`](crate::limits::PAGE_MAX) stand for that limit.
    pub limit: usize,
}

impl Paging {
    /// The first page, as long as it may be.
    pub fn first() -> Paging {
        Paging::default()
    }

    /// The page after this cursor, as long as it may be.
    pub fn after(cursor: Cursor) -> Paging {
        Paging { after: Some(cursor), limit: 0 }
    }

    pub(crate) fn limit(&self) -> usize {
        match self.limit {
            0 => crate::limits::PAGE_MAX,
            n => n.min(crate::limits::PAGE_MAX),
        }
    }
}

/// Records, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct PageOf<T> {
    /// They.
    pub items: Vec<T>,
    /// Where the next page begins, if there may be one.
    pub next: Option<Cursor>,
}

/// A place in a listing: the record that came last, by its time and id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    pub(crate) at_ms: i64,
    pub(crate) id: String,
}

/// The text is no cursor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a cursor: take the one that came with the last page as it is")]
pub struct CursorError(String);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.at_ms, self.id)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;
    fn from_str(text: &str) -> Result<Self, CursorError> {
        let bad = || CursorError(text.chars().take(80).collect());
        let (at, id) = text.split_once('.').ok_or_else(bad)?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        if id.is_empty() || id.len() > 128 || !id.bytes().all(plain) {
            return Err(bad());
        }
        Ok(Cursor { at_ms: at.parse().map_err(|_| bad())?, id: id.to_owned() })
    }
}
