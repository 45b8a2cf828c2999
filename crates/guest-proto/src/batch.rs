//! Several changes of files in one call, with a result for each. Plain data.

use serde::{Deserialize, Serialize};

use crate::files::Conditions;

/// Most changes of one call.
pub const CHANGES_MAX: usize = 256;

/// Several changes of files. They are one effect: done once, however often they are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Guest user who makes them.
    pub user: String,
    /// The changes, in their order.
    pub changes: Vec<Change>,
    /// The server's number for this effect.
    pub effect: u64,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// Writes a file whole or not at all.
    Write {
        /// Absolute path.
        path: String,
        /// Its contents in base64.
        base64: String,
        /// Permission bits; of the file that is replaced, else 0644.
        mode: Option<u32>,
        /// Whether missing directories are made.
        parents: bool,
        /// What must hold of the file that is replaced.
        #[serde(default, skip_serializing_if = "Conditions::is_empty")]
        conditions: Conditions,
    },
    /// Makes a directory.
    MakeDirectory {
        /// Absolute path.
        path: String,
        /// Whether missing parents are made and an existing directory is fine.
        parents: bool,
    },
    /// Removes a path.
    Remove {
        /// Absolute path.
        path: String,
        /// Whether a directory goes with all that is in it.
        recursive: bool,
    },
    /// Gives a path another name.
    Move {
        /// Absolute path.
        path: String,
        /// Absolute path of the new name itself.
        to: String,
        /// Whether what is there may be replaced.
        overwrite: bool,
    },
    /// Changes permission bits and owner.
    SetAttributes {
        /// Absolute path; links are followed.
        path: String,
        /// Permission bits; as they are when absent.
        mode: Option<u32>,
        /// Owner by name; as it is when absent.
        owner: Option<String>,
    },
}

/// What is told of a change that was made. Little, since it is remembered with the effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of what was written, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}
