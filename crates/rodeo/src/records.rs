//! What the files of a bundle hold, apart from the signed manifest: one type for each, for who writes them and who
//! checks them. Unknown members are refused: nothing stands in a bundle that nobody looked at.

use std::collections::BTreeMap;

use remuda_types::SnapshotMode;
use serde::{Deserialize, Serialize};

use crate::agent::AgentEnd;
use crate::jobs::Ledger;
use crate::observe::{Action, Attempt, SourceWatch};
use crate::provider::{Abilities, Capture, Inventory, Machine, Presence};
use crate::verdict::{Expectation, Judgement, SourceState};
use crate::workload::Digests;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It goes on, or was killed.
    Running,
    /// Every step was taken.
    Finished,
    /// A step could not be taken.
    Failed,
    /// It was ended early.
    Interrupted,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// `run.json`: which run this is and how it ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRecord {
    /// The bundle's form.
    pub schema: u32,
    /// The harness and its version.
    pub harness: String,
    /// The run's name.
    pub run: String,
    /// The workload's name.
    pub workload: String,
    /// Digests of the workload's files.
    pub digests: Digests,
    /// The provider's name.
    pub provider: String,
    /// What it can do.
    pub abilities: Abilities,
    /// What it said of itself.
    pub provider_says: serde_json::Value,
    /// What was forked.
    pub mode: SnapshotMode,
    /// The jobs, with their seed.
    pub ledger: Ledger,
    /// The patches that were tried, those of attempts at the end.
    pub patches: Vec<String>,
    /// The attempts of agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<AttemptRecord>,
    /// When it began, in Unix milliseconds.
    pub started_at_ms: i64,
    /// When it ended.
    pub ended_at_ms: Option<i64>,
    /// How it ended.
    pub outcome: Outcome,
    /// Which step failed, and why.
    pub error: Option<String>,
    /// Where the time went, in milliseconds.
    pub timings_ms: BTreeMap<String, u64>,
}

/// One attempt of an agent. Nothing in it decides a verdict: what is judged is the file it left, in a copy that no agent
/// ever reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptRecord {
    /// Its name, which its patch has too.
    pub name: String,
    /// The branch it worked on; absent where none came up.
    pub machine: Option<Machine>,
    /// BLAKE3 of the agent's command, which may hold credentials.
    pub command: String,
    /// How the agent ended; absent where it was not started.
    pub agent: Option<AgentEnd>,
    /// BLAKE3 of the file that it left at the reload point; absent where it could not be read.
    pub patch: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
}

/// `twin.json`: the unpatched twin.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TwinRecord {
    /// What it was held against.
    pub expectation: Expectation,
    /// What was observed.
    pub attempt: Attempt,
}

/// `branch-PATCH.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BranchRecord {
    /// The patch's name.
    pub patch: String,
    /// What the branch was held against.
    pub expectation: Expectation,
    /// What was observed.
    pub attempt: Attempt,
    /// What was concluded.
    pub judgement: Judgement,
}

/// `fork.json` and `fork-attempts.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForkRecord {
    /// The capture that all branches stand on, where the provider keeps one.
    pub capture: Option<Capture>,
    /// A machine, or why there is none, for each branch.
    pub branches: Vec<Result<Machine, String>>,
    /// The provider's whole answer.
    pub provider: serde_json::Value,
}

/// `cold-control.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColdRecord {
    /// The patch's name.
    pub patch: String,
    /// How the program was ended and launched again.
    pub steps: Vec<Action>,
    /// What it was held against.
    pub expectation: Expectation,
    /// What was observed.
    pub attempt: Attempt,
    /// What was concluded.
    pub judgement: Judgement,
}

/// `source.json`: the source, after all branches.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceRecord {
    /// What it was held against.
    pub expectation: Expectation,
    /// What was observed.
    pub watch: SourceWatch,
    /// What was concluded.
    pub state: SourceState,
}

/// `cleanup.json`: what cleanup did and saw. Each fact was asked by itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CleanupRecord {
    /// How many calls were still making something when cleanup began to remove.
    pub calls_left: usize,
    /// The machines.
    pub machines: Vec<MachineRemoval>,
    /// The captures.
    pub captures: Vec<CaptureRemoval>,
    /// Machines that a listing by the run's label still shows at the end, or why it could not be asked.
    pub still_listed: Option<Result<Vec<Machine>, String>>,
    /// Whether nothing is left.
    pub clean: bool,
}

/// One machine's removal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineRemoval {
    /// Which.
    pub machine: Machine,
    /// The provider's record of it, or why it was not removed.
    pub removal: Result<serde_json::Value, String>,
    /// Whether it is there, asked by itself.
    pub presence: Presence,
}

/// One capture's removal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureRemoval {
    /// Which.
    pub capture: Capture,
    /// The provider's record of it, or why it was not removed.
    pub removal: Result<serde_json::Value, String>,
}

impl CleanupRecord {
    /// Whether all facts together say that nothing is left.
    pub fn says_clean(&self) -> bool {
        self.calls_left == 0
            && self.machines.iter().all(|machine| machine.removal.is_ok() && machine.presence == Presence::Gone)
            && self.captures.iter().all(|capture| capture.removal.is_ok())
            && matches!(&self.still_listed, Some(Ok(left)) if left.is_empty())
    }
}

/// `inventory-after.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AfterRecord {
    /// What is there; absent where it could not be asked.
    pub inventory: Option<Inventory>,
    /// Why it could not be asked.
    pub error: Option<String>,
    /// Not there before. Other users of the provider may have made it meanwhile.
    pub added: Inventory,
}
