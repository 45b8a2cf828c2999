//! Watching files: what is asked for, and what is told. What is told comes as lines of JSON on the call's channel.

use serde::{Deserialize, Serialize};

/// Tells of changes of files as they happen, until the host has enough.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Absolute path of a directory or a file; a link at its end is followed.
    pub path: String,
    /// Guest user whose permissions count.
    pub user: String,
    /// Whether what lies in directories below is told of too.
    pub recursive: bool,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchKind {
    /// It is there now.
    Created,
    /// Its contents changed.
    Changed,
    /// Its permission bits, owner or times changed.
    Attributes,
    /// It is there no longer.
    Removed,
    /// It has another name.
    Moved,
    /// More happened than could be told: whoever must know looks at all of it.
    Missed,
    /// This could not be watched.
    Skipped,
    /// What was watched is there no longer; nothing comes behind this.
    Gone,
}

/// A change of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// What happened.
    pub kind: WatchKind,
    /// Absolute path; not UTF-8 is replaced.
    pub path: String,
    /// The name it had before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Whether it is a directory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub directory: bool,
}
