//! Raw observations: what was asked, what came back and when, before anybody judged it. Plain data, written to the
//! evidence as it is; never holds a credential and never a conclusion.

use serde::{Deserialize, Serialize};

/// Largest answer of an application that is kept, in bytes. A longer one counts as unreadable.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// One HTTP request to an application, and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// When it was sent first, in Unix milliseconds.
    pub at_ms: i64,
    /// Time to the whole answer, in milliseconds.
    pub took_ms: u64,
    /// How often it was sent; more than once only for reads while nothing listened yet.
    pub attempts: u32,
    /// Method.
    pub method: String,
    /// Path.
    pub path: String,
    /// Body that was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<String>,
    /// What came back.
    pub answer: Answer,
}

/// What came back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The application answered.
    Response {
        /// HTTP status.
        status: u16,
        /// Its `Cache-Control`.
        cache_control: Option<String>,
        /// Its body, as it came.
        body: String,
    },
    /// It did not, or not in a way that can be read.
    Error {
        /// Why.
        message: String,
    },
}

/// Something done to a machine that answers with nothing but success.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// What was done, with the path or command.
    pub what: String,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Names of the files in a folder of a machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listing {
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// Which folder.
    pub folder: String,
    /// Its entries, or why they are not known.
    pub names: Result<Vec<String>, String>,
}

/// The markers that a branch was given: one in its process's memory and one in its files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Markers {
    /// Text of the one in memory.
    pub memory: String,
    /// Name of the one in files.
    pub file: String,
    /// Setting the one in memory.
    pub set: Exchange,
    /// Writing the one in files.
    pub put: Action,
}

/// What a machine shows of all markers, once every branch has set its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sighting {
    /// The status, which tells the marker in memory.
    pub status: Exchange,
    /// The folder in which the branches put their file markers.
    pub files: Listing,
}

/// All that was observed of one attempt at the work: in a branch, in the twin, or in the cold control.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// The machine, as its provider calls it; absent where none came up.
    pub machine: Option<String>,
    /// Why no machine came up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_machine: Option<String>,
    /// The status before anything was done to it.
    pub before: Option<Exchange>,
    /// The markers it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub markers: Option<Markers>,
    /// The markers it showed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sighting: Option<Sighting>,
    /// Putting the patch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub put: Option<Action>,
    /// The release.
    pub release: Option<Exchange>,
    /// The results.
    pub results: Option<Exchange>,
    /// The status at the end.
    pub after: Option<Exchange>,
    /// Whether the process that holds the prepared work was there after all that, asked of the provider and not of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<Liveness>,
}

/// What a provider says of a process, by its pid in the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Liveness {
    /// When it was asked, in Unix milliseconds.
    pub at_ms: i64,
    /// The pid.
    pub pid: u64,
    /// Whether something that was launched runs under it; `None` where the provider can't tell, or why it was not told.
    pub runs: Result<Option<bool>, String>,
}

/// All that was observed of the source beside its preparation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceWatch {
    /// The markers it showed.
    pub sighting: Option<Sighting>,
    /// Its status after all branches were judged.
    pub end: Option<Exchange>,
}

/// How a machine was prepared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preparation {
    /// The machine, as its provider calls it.
    pub machine: String,
    /// The id of this preparation, which its process was given at its launch.
    pub preparation: String,
    /// The steps, in order.
    pub steps: Vec<Action>,
    /// The submission of the jobs: once, and never in a branch.
    pub submitted: Option<Exchange>,
    /// The status after it.
    pub status: Option<Exchange>,
}
