//! What a run ends with: the object that `rodeo run --json` prints, and the exit code.

use std::collections::BTreeMap;

use remuda_types::SnapshotMode;
use serde::Serialize;

use crate::records::AttemptRecord;
use crate::verdict::{Judgement, Rule, SourceState, Verdict};

/// A comparison's outcome. Its serialised form is the one that scripts rely on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunReport {
    /// The workload's name.
    pub workload: String,
    /// The provider's name.
    pub provider: String,
    /// What was forked.
    pub mode: SnapshotMode,
    /// Seed of the jobs.
    pub seed: u64,
    /// What the unpatched twin showed.
    pub baseline: BaselineReport,
    /// One for each patch, in the workload's order; none where the baseline did not show the fault.
    pub branches: Vec<BranchReport>,
    /// How each attempt's agent ended, where there were any; what it left is judged as a branch of the attempt's name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<AttemptRecord>,
    /// The last control.
    pub cold_control: Option<ColdControlReport>,
    /// What became of the source.
    pub source: SourceState,
    /// Where the time went, in milliseconds.
    pub timings_ms: BTreeMap<String, u64>,
    /// The bundle's folder.
    pub evidence: String,
    /// Whether everything the run had made was removed, and seen to be absent.
    #[serde(skip)]
    pub clean: bool,
}

/// See [`RunReport::baseline`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BaselineReport {
    /// The verdict.
    pub verdict: Verdict,
    /// The verdict the workload knows.
    #[serde(skip)]
    pub known: Verdict,
    /// Why it was given.
    #[serde(skip)]
    pub rule: Rule,
    /// What was seen, in words.
    #[serde(skip)]
    pub detail: String,
}

/// See [`RunReport::branches`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BranchReport {
    /// The patch's name.
    pub patch: String,
    /// The verdict.
    pub verdict: Verdict,
    /// What a right repair shows.
    pub expected: Expected,
    /// What was shown.
    pub observed: Observed,
    /// Who answered.
    pub process: ProcessReport,
    /// The verdict the workload knows; absent where the patch is no control.
    #[serde(skip)]
    pub known: Option<Verdict>,
    /// Why it was given.
    #[serde(skip)]
    pub rule: Rule,
    /// What was seen, in words.
    #[serde(skip)]
    pub detail: String,
}

/// See [`BranchReport::expected`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Expected {
    /// Receipts.
    pub receipts: u64,
}

/// See [`BranchReport::observed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Observed {
    /// Receipts; absent where the results could not be read.
    pub receipts: Option<u64>,
}

/// See [`BranchReport::process`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessReport {
    /// Pid in the guest; absent where the status could not be read.
    pub pid: Option<u64>,
    /// Its nonce, likewise.
    pub nonce: Option<String>,
    /// Whether both were the source's, before the release and at the end.
    pub inherited: bool,
}

/// See [`RunReport::cold_control`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ColdControlReport {
    /// The patch's name.
    pub patch: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The verdict the workload knows.
    #[serde(skip)]
    pub known: Verdict,
    /// Why it was given.
    #[serde(skip)]
    pub rule: Rule,
    /// What was seen, in words.
    #[serde(skip)]
    pub detail: String,
}

impl BranchReport {
    /// The report of one judged branch.
    pub(crate) fn new(patch: &str, known: Option<Verdict>, jobs: u64, judgement: Judgement) -> Self {
        BranchReport {
            patch: patch.to_owned(),
            verdict: judgement.verdict,
            expected: Expected { receipts: jobs },
            observed: Observed { receipts: judgement.receipts },
            process: ProcessReport { pid: judgement.pid, nonce: judgement.nonce, inherited: judgement.inherited },
            known,
            rule: judgement.rule,
            detail: judgement.detail,
        }
    }
}

impl RunReport {
    /// What is not as it should be, one sentence each. Empty after a good run.
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |who: &str, verdict: Verdict, known: Verdict, rule: Rule, detail: &str| {
            if verdict != known {
                found.push(format!("{who} is {verdict}, known to be {known} ({rule}: {detail})"));
            }
        };
        let baseline = &self.baseline;
        compare("the unpatched twin", baseline.verdict, baseline.known, baseline.rule, &baseline.detail);
        for branch in &self.branches {
            if let Some(known) = branch.known {
                compare(&format!("the patch {}", branch.patch), branch.verdict, known, branch.rule, &branch.detail);
            }
        }
        if let Some(cold) = &self.cold_control {
            compare("the cold control", cold.verdict, cold.known, cold.rule, &cold.detail);
        }
        if self.branches.is_empty() {
            found.push("no patch was tried".into());
        }
        if !self.source.unchanged {
            found.push("the source is not as it was before the fork".into());
        }
        if !self.clean {
            found
                .push("something that the run made was not seen to be absent: see cleanup.json in the evidence".into());
        }
        found
    }

    /// Whether anything in it has a known verdict beside the twin.
    pub fn has_controls(&self) -> bool {
        self.branches.is_empty() || self.branches.iter().any(|branch| branch.known.is_some())
    }

    /// Names of the attempts that passed.
    pub fn passed(&self) -> Vec<&str> {
        let is_attempt = |name: &str| self.attempts.iter().any(|attempt| attempt.name == name);
        let passed = |branch: &&BranchReport| is_attempt(&branch.patch) && branch.verdict == Verdict::Passed;
        self.branches.iter().filter(passed).map(|branch| branch.patch.as_str()).collect()
    }

    /// 0 if every control got its known verdict, the source was left alone, nothing was left behind, and of attempts at
    /// least one passed; 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        let no_repair = !self.attempts.is_empty() && self.passed().is_empty();
        u8::from(no_repair || !self.problems().is_empty())
    }
}
