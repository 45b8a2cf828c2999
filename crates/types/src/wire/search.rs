//! Looking through files, and several changes of files in one call.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::Error;
use crate::wire::FileStat;

/// `GET /v1/sandboxes/{id}/files/glob?path=…&pattern=…`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FoundFiles {
    /// The directory that was looked through.
    pub path: String,
    /// What was found: a directory before what is in it, names in byte order.
    pub entries: Vec<FileStat>,
    /// Where to go on, as `cursor`; absent if all was looked at. A page may be empty and have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// What could not be looked at, one sentence each; of many the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
}

/// `GET /v1/sandboxes/{id}/files/grep?path=…&pattern=…`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FoundText {
    /// The file or directory that was looked through.
    pub path: String,
    /// Lines with a match: files in the order of [`FoundFiles`], lines in theirs.
    pub matches: Vec<TextMatch>,
    /// Files that were looked into for this page.
    pub files_searched: u64,
    /// Where to go on, as `cursor`; absent if all was looked at. A page may be empty and have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
    /// What could not be looked at, one sentence each; of many the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
}

/// A line with a match.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TextMatch {
    /// Absolute path of the file.
    pub path: String,
    /// Number of the line, from 1.
    pub line: u64,
    /// Place of the line's first byte in the file.
    pub offset: u64,
    /// Place of the match's first byte in the line, in bytes.
    pub column: u64,
    /// The line, or what is around the match of a long one; invalid UTF-8 is replaced. Absent for a file that is no text,
    /// of which only the first match is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Whether the line is longer than the text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// What happened to a file that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileEventKind {
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
    /// This directory can't be watched, as the user may not read it.
    Skipped,
    /// What was watched is there no longer; the stream ends.
    Gone,
}

impl FileEventKind {
    /// The word that stands on the wire, and the name of its event.
    pub fn as_str(self) -> &'static str {
        match self {
            FileEventKind::Created => "created",
            FileEventKind::Changed => "changed",
            FileEventKind::Attributes => "attributes",
            FileEventKind::Removed => "removed",
            FileEventKind::Moved => "moved",
            FileEventKind::Skipped => "skipped",
            FileEventKind::Gone => "gone",
        }
    }
}

/// Data of an event of `GET /v1/sandboxes/{id}/files/watch`, whose name is its `kind`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEvent {
    /// What happened.
    pub kind: FileEventKind,
    /// Absolute path.
    pub path: String,
    /// The name it had before it was moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Whether it is a directory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub directory: bool,
}

/// `POST /v1/sandboxes/{id}/files/batch`: several changes, made one after another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeFiles {
    /// Guest user by name who makes them; `user` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The changes, in their order; at most `batch_changes_max`.
    pub changes: Vec<FileChange>,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum FileChange {
    /// Writes a file whole or not at all.
    Write {
        /// Absolute path in the guest.
        path: String,
        /// Its contents; give this or `base64`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// Its contents in base64.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
        /// Permission bits in octal, as in `0644`; those of the file that is replaced when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<String>,
        /// Whether missing directories are made.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        parents: bool,
        /// The digest that the file must have, `sha256:…`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        if_match: Option<String>,
        /// Whether there must be no such file.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        new: bool,
    },
    /// Makes a directory.
    Mkdir {
        /// Absolute path in the guest.
        path: String,
        /// Whether missing directories above it are made, and one that exists is no error.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        parents: bool,
    },
    /// Gives a path another name.
    Move {
        /// Absolute path in the guest.
        path: String,
        /// Absolute path of the new name itself.
        to: String,
        /// Whether what is there may be replaced.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        overwrite: bool,
    },
    /// Removes a path.
    Remove {
        /// Absolute path in the guest.
        path: String,
        /// Whether a directory is removed with all that is in it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        recursive: bool,
    },
    /// Changes permission bits and owner.
    Attributes {
        /// Absolute path in the guest; links are followed.
        path: String,
        /// Permission bits in octal; as they are when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<String>,
        /// Owner by name; as it is when absent. Only `root` may give a file to another.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
    },
}

impl FileChange {
    /// The path that it is about.
    pub fn path(&self) -> &str {
        match self {
            FileChange::Write { path, .. }
            | FileChange::Mkdir { path, .. }
            | FileChange::Move { path, .. }
            | FileChange::Remove { path, .. }
            | FileChange::Attributes { path, .. } => path,
        }
    }
}

/// What became of several changes: the call is a success also where some of them are not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChangedFiles {
    /// One for each change, in their order.
    pub results: Vec<ChangedFile>,
}

/// What became of one change. It was made if there is no `error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChangedFile {
    /// The path that it was about.
    pub path: String,
    /// Size of what is there now, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// `sha256:` and the SHA-256 of what was written, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Why it was not made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
}
