//! What the harness asks of a provider of sandboxes. Adapters live in `providers`; the steps of a run know only this.
//! Nothing in here repeats a call that changes something.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use remuda_types::SnapshotMode;
use serde::{Deserialize, Serialize};

/// A machine as its provider calls it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Machine(pub String);

/// A capture as its provider calls it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Capture(pub String);

/// A launched process as its provider calls it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Process(pub String);

/// What a provider can do. A gap is told as a gap, never as a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    /// Forks carry processes and their memory.
    pub memory: bool,
    /// Forks carry files.
    pub filesystem: bool,
    /// A capture needs the source stopped.
    pub needs_stopped_source: bool,
    /// A capture takes a key, so that a retry makes no second one.
    pub keyed_capture: bool,
    /// Access can be narrowed to one machine.
    pub narrow_access: bool,
    /// A capture can be named and found by its name.
    pub named_capture: bool,
    /// A fork takes a launch recipe.
    pub launch_recipe: bool,
    /// How the credential of a request to a port travels, in words.
    pub credentials: String,
}

impl Abilities {
    /// Whether it can fork in this mode.
    pub fn can(&self, mode: SnapshotMode) -> bool {
        match mode {
            SnapshotMode::Memory => self.memory,
            SnapshotMode::Filesystem => self.filesystem,
        }
    }
}

/// Why a provider did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// What kind of failure it is.
    pub kind: Failure,
    /// The thing, the cause and the remedy, for people. Holds no credential.
    pub message: String,
}

/// Kinds of failures that the steps tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// There is no provider to talk to.
    NoProvider,
    /// The credential is missing, wrong, or not allowed to do this.
    Refused,
    /// Nothing listens on the port, or the machine does not answer just now.
    NotAnswering,
    /// Anything else.
    Other,
}

/// What to run in a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Working directory.
    pub cwd: Option<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
}

/// How a command or process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// Its exit code.
    pub exit_code: Option<i32>,
    /// The end of its output, both streams.
    pub output: String,
}

/// An HTTP request to a port of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpCall {
    /// Port in the guest.
    pub port: u16,
    /// `GET` or `POST`.
    pub method: &'static str,
    /// Path and query.
    pub path: String,
    /// A JSON body.
    pub body: Option<String>,
}

/// An application's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    /// HTTP status.
    pub status: u16,
    /// Its `Cache-Control`.
    pub cache_control: Option<String>,
    /// Its body.
    pub body: Bytes,
}

/// What a branch of a filesystem fork must launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// What to run.
    pub command: Command,
    /// Port on which it must listen.
    pub port: u16,
    /// Path that must answer.
    pub ready_path: String,
    /// How long that may take.
    pub timeout: Duration,
}

/// Access of an agent to one machine and to nothing else.
#[derive(Clone, PartialEq, Eq)]
pub struct Grant {
    /// How the provider calls it; no secret.
    pub id: String,
    /// What the agent finds in its environment. Holds a credential.
    pub env: BTreeMap<String, String>,
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Grant({})", self.id)
    }
}

/// What a fork made.
#[derive(Debug, Clone, PartialEq)]
pub struct Forked {
    /// The capture that all branches stand on, where the provider keeps one.
    pub capture: Option<Capture>,
    /// A machine or an error for each branch.
    pub branches: Vec<Result<Machine, ProviderError>>,
    /// The provider's whole answer, for the evidence.
    pub raw: serde_json::Value,
}

/// Whether a machine is there, asked by its own name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// It is there, in this state.
    There(String),
    /// It was there and has ended: exactly this one, and the provider says so.
    Gone,
    /// The provider could not tell.
    Unknown(String),
}

/// What is there, for the comparison of before and after.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// Living machines.
    pub machines: Vec<Machine>,
    /// Kept captures.
    pub captures: Vec<Capture>,
}

impl Inventory {
    /// What of this was not there before.
    pub fn beyond(&self, before: &Inventory) -> Inventory {
        Inventory {
            machines: self.machines.iter().filter(|machine| !before.machines.contains(machine)).cloned().collect(),
            captures: self.captures.iter().filter(|capture| !before.captures.contains(capture)).cloned().collect(),
        }
    }
}

/// An adapter. Clones share one connection.
pub trait Provider: Clone + Send + Sync + 'static {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn abilities(&self) -> Abilities;

    /// Sees whether it is there and the credential is good for a run; answers with its version and limits.
    fn check(&self) -> impl Future<Output = Result<serde_json::Value, ProviderError>> + Send;

    /// What is there now.
    fn inventory(&self) -> impl Future<Output = Result<Inventory, ProviderError>> + Send;

    /// A fresh machine, labelled with the run and its role in it.
    fn create(&self, run: &str, role: &str) -> impl Future<Output = Result<Machine, ProviderError>> + Send;

    /// Writes a file whole or not at all; makes missing folders.
    fn put(
        &self,
        machine: &Machine,
        path: &str,
        bytes: Bytes,
        executable: bool,
    ) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Reads a file whole; one that is longer than `bytes_max` is an error.
    fn get(
        &self,
        machine: &Machine,
        path: &str,
        bytes_max: usize,
    ) -> impl Future<Output = Result<Bytes, ProviderError>> + Send;

    /// Lets an agent reach this machine and nothing else, for a time.
    fn grant(
        &self,
        machine: &Machine,
        label: &str,
        time: Duration,
    ) -> impl Future<Output = Result<Grant, ProviderError>> + Send;

    /// Takes an access back: it opens nothing from the answer on.
    fn revoke(&self, grant: &Grant) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Names of the entries of a folder.
    fn names(&self, machine: &Machine, folder: &str)
    -> impl Future<Output = Result<Vec<String>, ProviderError>> + Send;

    /// Runs a command to its end.
    fn command(
        &self,
        machine: &Machine,
        command: &Command,
        time_limit: Duration,
    ) -> impl Future<Output = Result<Ended, ProviderError>> + Send;

    /// Starts a process that goes on.
    fn launch(
        &self,
        machine: &Machine,
        command: &Command,
    ) -> impl Future<Output = Result<Process, ProviderError>> + Send;

    /// Waits for a process to end; `None` when it still runs after `wait`.
    fn wait_end(
        &self,
        machine: &Machine,
        process: &Process,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Ended>, ProviderError>> + Send;

    /// Kills a process.
    fn kill(&self, machine: &Machine, process: &Process) -> impl Future<Output = Result<(), ProviderError>> + Send;

    /// Whether something that was launched runs under this pid of the guest; `None` where the provider can't tell.
    fn runs(&self, machine: &Machine, pid: u64) -> impl Future<Output = Result<Option<bool>, ProviderError>> + Send;

    /// Asks the application on a port, as its users would. Any status is an answer.
    fn http(
        &self,
        machine: &Machine,
        call: &HttpCall,
    ) -> impl Future<Output = Result<HttpAnswer, ProviderError>> + Send;

    /// One capture, `count` branches from it.
    fn fork(
        &self,
        source: &Machine,
        run: &str,
        count: u32,
        mode: SnapshotMode,
        launch: Option<&Launch>,
    ) -> impl Future<Output = Result<Forked, ProviderError>> + Send;

    /// Living machines that carry this run's label: also those whose creation was never answered.
    fn machines_of(&self, run: &str) -> impl Future<Output = Result<Vec<Machine>, ProviderError>> + Send;

    /// Kept captures whose source is one of these machines.
    fn captures_of(&self, sources: &[Machine]) -> impl Future<Output = Result<Vec<Capture>, ProviderError>> + Send;

    /// Ends and removes a machine; answers with the provider's record.
    fn remove(&self, machine: &Machine) -> impl Future<Output = Result<serde_json::Value, ProviderError>> + Send;

    /// Removes a capture; answers with the provider's record.
    fn remove_capture(
        &self,
        capture: &Capture,
    ) -> impl Future<Output = Result<serde_json::Value, ProviderError>> + Send;

    /// Whether a machine is there.
    fn presence(&self, machine: &Machine) -> impl Future<Output = Presence> + Send;
}
