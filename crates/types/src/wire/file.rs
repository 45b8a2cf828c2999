//! Files of a guest on the wire. Contents travel as raw bodies, never as JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe, socket or device.
    Other,
}

impl FileKind {
    /// The word that stands on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            FileKind::File => "file",
            FileKind::Directory => "directory",
            FileKind::Symlink => "symlink",
            FileKind::Other => "other",
        }
    }
}

impl std::fmt::Display for FileKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One path in a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileStat {
    /// Absolute path.
    pub path: String,
    /// What it is; links are not followed.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of its contents, in Unix milliseconds.
    pub modified_at_ms: i64,
    /// Target of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// `sha256:` and the SHA-256 of a regular file's contents in hex: after a write, and where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// `PUT /v1/sandboxes/{id}/files/tar?path=…`: what was unpacked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UnpackedTree {
    /// The directory.
    pub path: String,
    /// Regular files.
    pub files: u64,
    /// Directories, those that were there included.
    pub directories: u64,
    /// Symbolic links, and further names of files.
    pub links: u64,
    /// Bytes of contents, without holes.
    pub bytes: u64,
    /// What the archive says that it lacks, one sentence each.
    pub skipped: Vec<String>,
}

/// `GET /v1/sandboxes/{id}/files/list?path=…`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    /// The directory.
    pub path: String,
    /// Its entries, sorted by path.
    pub entries: Vec<FileStat>,
    /// Whether entries were left out at the limit.
    pub truncated: bool,
}
