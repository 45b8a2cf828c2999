//! Looking through files: by name and by text. Plain data; each call is bounded, and goes on where the last one stopped.

use serde::{Deserialize, Serialize};

/// Longest pattern, in bytes.
pub const PATTERN_BYTES_MAX: usize = 4096;

/// Longest place to go on from, in bytes: a path in hex, an offset and a line.
pub const PLACE_BYTES_MAX: usize = 8400;

/// Most finds of one call.
pub const FINDS_MAX: u32 = 10_000;

/// Text of a match that is told, in bytes.
pub const MATCH_TEXT_BYTES_MAX: usize = 1024;

/// Looks for paths by their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Glob {
    /// Absolute path of the directory that is looked through; a link at its end is followed, no link beneath it.
    pub path: String,
    /// Guest user whose permissions count.
    pub user: String,
    /// What the path below it must look like: `*` and `?` within a name, `**` across names, `[a-z]`, `{a,b}`.
    pub pattern: String,
    /// Most finds to answer.
    pub limit: u32,
    /// Where to go on, as the last answer said.
    pub after: Option<String>,
}

/// Looks for lines by their text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grep {
    /// Absolute path of a regular file, or of the directory that is looked through; no link beneath it is followed.
    pub path: String,
    /// Guest user whose permissions count.
    pub user: String,
    /// A regular expression, or the text itself.
    pub pattern: String,
    /// Whether the pattern is the text itself.
    pub literal: bool,
    /// Whether upper and lower case are the same.
    pub ignore_case: bool,
    /// What the path of a file below the directory must look like, as in a [`Glob`].
    pub include: Option<String>,
    /// Most matching lines to answer.
    pub limit: u32,
    /// Where to go on, as the last answer said.
    pub after: Option<String>,
}

/// A line with a match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineMatch {
    /// Absolute path of the file; not UTF-8 is replaced.
    pub path: String,
    /// Number of the line, from 1.
    pub line: u64,
    /// Place of the line's first byte in the file.
    pub offset: u64,
    /// Place of the match's first byte in the line, in bytes.
    pub column: u64,
    /// The line, or what is around the match of a long one; not UTF-8 is replaced. None of a file that is no text, of
    /// which only the first match is told.
    pub text: Option<String>,
    /// Whether the line is longer than the text.
    pub cut: bool,
}
