//! Everything that a comparison concludes, as a pure function of what was observed. The one way for a run that has just
//! made its observations and for whoever checks a bundle years later: neither can come to a verdict by itself.

use remuda_types::SnapshotMode;
use serde::Serialize;

use crate::jobs::Ledger;
use crate::observe::{Attempt, Preparation, SourceWatch};
use crate::reading::Status;
use crate::report::{BaselineReport, BranchReport, ColdControlReport};
use crate::verdict::{self, Expectation, Judgement, Others, SourceState, Verdict};
use crate::workload::{Patch, Workload, sha256_hex};

/// What a comparison is about; all of it is fixed before anything is observed.
#[derive(Debug, Clone)]
pub struct Case {
    /// The workload: its rules, its patches and the file that they replace.
    pub workload: Workload,
    /// The patches that are tried, in the workload's order.
    pub patches: Vec<Patch>,
    /// What is forked.
    pub mode: SnapshotMode,
    /// The jobs.
    pub ledger: Ledger,
}

/// The process that holds the prepared work, as its machine's preparation showed it.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// The id of its preparation.
    pub preparation: String,
    /// What it said of itself.
    pub status: Status,
}

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// The unpatched twin.
    pub baseline: Judgement,
    /// Each branch, in the order of the patches; none where the twin did not show the fault.
    pub branches: Vec<(String, Judgement)>,
    /// The last control.
    pub cold_control: Option<Judgement>,
    /// What became of the source.
    pub source: SourceState,
}

impl Case {
    /// The id that the preparation of `role` has in this run.
    pub fn preparation(run: &str, role: &str) -> String {
        format!("{run}-{role}")
    }

    /// Who holds the prepared work after this preparation.
    ///
    /// # Errors
    /// Why nobody does, in words.
    pub fn prepared(&self, record: &Preparation) -> Result<Identity, String> {
        let status = verdict::prepared(&record.preparation, &self.ledger, record.status.as_ref())?;
        Ok(Identity { preparation: record.preparation.clone(), status })
    }

    fn expectation(&self, of: &Identity, processor: String, patched: bool) -> Expectation {
        Expectation {
            pid: of.status.pid,
            nonce: of.status.nonce.clone(),
            preparation: of.preparation.clone(),
            processor,
            patched,
            ledger: self.ledger.clone(),
        }
    }

    /// What a machine is held against that was prepared and not patched.
    pub fn expect_unpatched(&self, of: &Identity) -> Expectation {
        self.expectation(of, sha256_hex(self.workload.unpatched().unwrap_or_default()), false)
    }

    /// What a branch with this patch is held against.
    pub fn expect_patched(&self, of: &Identity, patch: &Patch) -> Expectation {
        self.expectation(of, sha256_hex(self.patch_bytes(patch)), true)
    }

    /// The file that takes the place of the one at the reload point.
    pub fn patch_bytes(&self, patch: &Patch) -> &[u8] {
        // That the file is there was checked when the workload was read.
        self.workload.file(&patch.file).map(|file| file.bytes.as_slice()).unwrap_or_default()
    }

    /// The verdict that the baseline is known to get.
    pub fn known_baseline(&self) -> Verdict {
        // A workload without baseline is refused when it is read.
        self.workload.manifest.baseline.as_ref().map_or(Verdict::Reproduced, |baseline| baseline.verdict)
    }

    /// Judges the unpatched twin.
    pub fn judge_baseline(&self, twin: &Identity, attempt: &Attempt) -> Judgement {
        verdict::judge(&self.expect_unpatched(twin), attempt, None)
    }

    /// Judges each branch, beside what the source and the other branches showed. `attempts` are in the patches' order.
    pub fn judge_branches(&self, source: &Identity, attempts: &[Attempt], watch: &SourceWatch) -> Vec<Judgement> {
        let source_shown = verdict::shown(watch.sighting.as_ref());
        let shown: Vec<_> = attempts.iter().map(|attempt| verdict::shown(attempt.sighting.as_ref())).collect();
        let judge = |(index, (patch, attempt)): (usize, (&Patch, &Attempt))| {
            let mut sightings = vec![("the source", &source_shown)];
            // A branch that never came up has no files and no memory in which a marker could show.
            let others = self.patches.iter().zip(attempts).zip(&shown).enumerate();
            let others = others.filter(|(other, ((_, attempt), _))| *other != index && attempt.machine.is_some());
            sightings.extend(others.map(|(_, ((patch, _), shown))| (patch.name.as_str(), shown)));
            let isolation = Others { sightings: &sightings };
            verdict::judge(&self.expect_patched(source, patch), attempt, Some(isolation))
        };
        self.patches.iter().zip(attempts).enumerate().map(judge).collect()
    }

    /// Judges the source after all branches.
    pub fn judge_source(&self, source: &Identity, watch: &SourceWatch) -> SourceState {
        verdict::source_state(&self.expect_unpatched(source), watch)
    }

    /// The patch of the last control, where there is one.
    pub fn cold_patch(&self) -> Option<&Patch> {
        let cold = self.workload.manifest.cold_control.as_ref()?;
        // That the patch is there was checked when the workload was read.
        self.workload.manifest.patch(&cold.patch).ok()
    }

    /// Judges the last control.
    pub fn judge_cold(&self, source: &Identity, patch: &Patch, attempt: &Attempt) -> Judgement {
        verdict::judge(&self.expect_patched(source, patch), attempt, None)
    }

    /// The parts of a report that come from judgements.
    pub fn reports(&self, compared: &Compared) -> (BaselineReport, Vec<BranchReport>, Option<ColdControlReport>) {
        let baseline = BaselineReport {
            verdict: compared.baseline.verdict,
            known: self.known_baseline(),
            rule: compared.baseline.rule,
            detail: compared.baseline.detail.clone(),
        };
        let jobs = self.ledger.jobs.len() as u64;
        let branches = self.patches.iter().zip(&compared.branches).map(|(patch, (name, judgement))| {
            BranchReport::new(name, patch.known_in(self.mode), jobs, judgement.clone())
        });
        let cold = self.workload.manifest.cold_control.as_ref().zip(compared.cold_control.as_ref());
        let cold = cold.map(|(cold, judgement)| ColdControlReport {
            patch: cold.patch.clone(),
            verdict: judgement.verdict,
            known: cold.verdict,
            rule: judgement.rule,
            detail: judgement.detail.clone(),
        });
        (baseline, branches.collect(), cold)
    }
}
