//! Checks a bundle offline: every byte against the signed manifest, and every verdict anew from the raw observations,
//! by the same functions that gave it. Asks no provider and believes no conclusion that stands in the bundle.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::form;
use super::key::PublicKey;
use super::manifest::{MANIFEST, Manifest, Parts, WORKLOAD_FOLDER};
use super::open::Bundle;
pub use super::open::{BUNDLE_FILE_BYTES_MAX, BUNDLE_FILES_MAX, BundleError, Problem};
use crate::jobs::Ledger;
use crate::judging::{Case, Compared, Identity};
use crate::observe::Preparation;
use crate::probe::put_text;
use crate::provider::Inventory;
use crate::records::{
    AfterRecord, BranchRecord, CleanupRecord, ColdRecord, ForkRecord, Outcome, RunRecord, SourceRecord, TwinRecord,
};
use crate::report::RunReport;
use crate::verdict::{Expectation, Judgement, Rule, Verdict};
use crate::workload::{Digests, MANIFEST_FILE, Workload, attempt_file};

/// What checking a bundle found. Serialised, it is what `rodeo verify --json` prints.
#[derive(Debug, Clone, Serialize)]
pub struct Verification {
    /// The bundle's folder.
    pub bundle: String,
    /// The run's name.
    pub run: Option<String>,
    /// What was compared: the workload's name, the mode and the seed.
    pub compared: Option<String>,
    /// Digests of app, patches and checks. Those of the built-in workload of that name are told as such.
    pub digests: Option<Parts>,
    /// Whether they are those of the workload of that name that this program carries; absent where it carries none.
    pub built_in: Option<bool>,
    /// How the run ended.
    pub outcome: Option<Outcome>,
    /// The public key of a good signature.
    pub signer: Option<String>,
    /// Whether that is a key that was given as trusted; absent where none was given.
    pub trusted: Option<bool>,
    /// Files that are what the manifest says.
    pub files: usize,
    /// Every verdict, computed anew.
    pub verdicts: Vec<Conclusion>,
    /// Whether every control got its known verdict, the source was left alone and nothing was left behind; absent where
    /// that can't be told.
    pub as_known: Option<bool>,
    /// What is not as it must be. Empty for a good bundle, also for that of a run that failed.
    pub problems: Vec<Problem>,
}

/// One verdict, computed anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conclusion {
    /// Whose: `twin`, `branch NAME` or `cold control`.
    pub of: String,
    /// The verdict.
    pub verdict: Verdict,
    /// The rule that gave it.
    pub rule: Rule,
    /// What was seen, in words.
    pub detail: String,
    /// The verdict that the workload knows; absent where the patch is an attempt.
    pub known: Option<Verdict>,
}

impl Verification {
    /// 0 if the bundle is whole, signed, and says what its observations say; 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        u8::from(!self.problems.is_empty())
    }
}

/// A bundle's records, as far as they are there as they were sealed.
pub struct Story {
    /// The signed manifest.
    pub manifest: Manifest,
    /// Which run it was.
    pub run: RunRecord,
    /// What it was about.
    pub case: Case,
    /// How the source was prepared.
    pub source_prepared: Option<Preparation>,
    /// How the twin was prepared.
    pub twin_prepared: Option<Preparation>,
    /// The twin.
    pub twin: Option<TwinRecord>,
    /// Branches, in the order of the patches.
    pub branches: Vec<BranchRecord>,
    /// The source at the end.
    pub source: Option<SourceRecord>,
    /// The last control.
    pub cold: Option<ColdRecord>,
    /// What cleanup did and saw.
    pub cleanup: Option<CleanupRecord>,
    /// What was there before.
    pub before: Option<Inventory>,
    /// What was there afterwards.
    pub after: Option<AfterRecord>,
    /// What the fork made that was judged.
    pub fork: Option<ForkRecord>,
    /// What the fork made that agents worked on.
    pub fork_attempts: Option<ForkRecord>,
    /// What is concluded from all that, computed anew, where the run came to its end.
    pub report: Option<RunReport>,
}

/// Checks the bundle in this folder. `trusted` are the keys whose signature counts; with none, any good one does.
///
/// # Errors
/// [`BundleError`] where there is no bundle; what is wrong in one are [`Verification::problems`].
pub fn verify(folder: &Path, trusted: &[PublicKey]) -> Result<(Verification, Option<Story>), BundleError> {
    let mut bundle = Bundle::open(folder)?;
    if let Some(signer) = bundle.signer
        && !trusted.is_empty()
        && !trusted.contains(&signer)
    {
        bundle
            .problems
            .push(Problem::new(MANIFEST, format!("it is signed by {signer}, which is none of the trusted keys")));
    }
    let mut verdicts = Vec::new();
    let story = read_story(&mut bundle).map(|mut story| {
        bundle.problems.extend(form::check(&story));
        verdicts = conclude(&mut bundle, &mut story);
        story
    });
    let report = story.as_ref().and_then(|story| story.report.as_ref());
    let verification = Verification {
        bundle: bundle.folder.display().to_string(),
        run: bundle.manifest.as_ref().map(|manifest| manifest.run.clone()),
        compared: bundle.manifest.as_ref().map(|manifest| {
            format!("{} in mode {} on {}, seed {}", manifest.workload, manifest.mode, manifest.provider, manifest.seed)
        }),
        digests: bundle.manifest.as_ref().map(|manifest| manifest.digests.clone()),
        built_in: bundle.manifest.as_ref().and_then(|manifest| {
            let carried = Workload::built_in(&manifest.workload)?;
            Some(parts(&carried.digests(), Some(&carried)) == manifest.digests)
        }),
        outcome: bundle.manifest.as_ref().map(|manifest| manifest.outcome),
        signer: bundle.signer.map(|key| key.to_string()),
        trusted: bundle.signer.filter(|_| !trusted.is_empty()).map(|key| trusted.contains(&key)),
        files: bundle.names().count(),
        verdicts,
        as_known: report.filter(|report| report.has_controls()).map(|report| report.problems().is_empty()),
        problems: bundle.problems,
    };
    Ok((verification, story))
}

/// Reads what the comparison was about. Without it nothing can be computed, and the reason is among the problems.
fn read_story(bundle: &mut Bundle) -> Option<Story> {
    let manifest = bundle.manifest.clone()?;
    let run: RunRecord = bundle.record("run.json")?;
    let mut said = |holds: bool, message: &str| {
        if !holds {
            bundle.problems.push(Problem::new("run.json", message));
        }
        holds
    };
    let same =
        said(run.run == manifest.run && run.outcome == manifest.outcome, "it is about another run than the manifest")
            & said(
                run.mode == manifest.mode
                    && run.provider == manifest.provider
                    && run.provider_says == manifest.provider_says,
                "its provider or mode is not the manifest's",
            )
            & said(
                run.workload == manifest.workload && parts(&run.digests, None).workload == manifest.digests.workload,
                "its workload is not the manifest's",
            )
            & said(run.ledger.seed == manifest.seed, "its seed is not the manifest's");
    if !same {
        return None;
    }
    let mut workload = read_workload(bundle, &run)?;
    if parts(&run.digests, Some(&workload)) != manifest.digests {
        bundle
            .problems
            .push(Problem::new(MANIFEST, "its digests of app, patches and checks are not those of the files"));
        return None;
    }
    let check = &workload.manifest.check;
    if run.ledger != Ledger::from_seed(run.ledger.seed, check.jobs, check.free_jobs) {
        bundle.problems.push(Problem::new("run.json", "its jobs are not those that the seed gives"));
        return None;
    }
    for attempt in &run.attempts {
        let Some(digest) = &attempt.patch else { continue };
        let file = attempt_file(&attempt.name);
        let bytes = bundle.bytes(&file).filter(|bytes| blake3::hash(bytes).to_hex().as_str() == digest);
        let Some(bytes) = bytes.map(<[u8]>::to_vec) else {
            bundle.problems.push(Problem::new(file, "it is not what run.json says the attempt left"));
            return None;
        };
        if let Err(error) = workload.add_attempt(&attempt.name, bytes) {
            bundle.problems.push(Problem::new("run.json", error.to_string()));
            return None;
        }
    }
    let chosen = workload.manifest.patches.iter().filter(|patch| run.patches.contains(&patch.name));
    let patches: Vec<_> = chosen.cloned().collect();
    if !patches.iter().map(|patch| &patch.name).eq(&run.patches) {
        bundle.problems.push(Problem::new("run.json", "its patches are not the workload's, in its order"));
        return None;
    }
    let case = Case { workload, patches, mode: run.mode, ledger: run.ledger.clone() };
    let branches: Vec<BranchRecord> =
        case.patches.iter().filter_map(|patch| bundle.record(&format!("branch-{}.json", patch.name))).collect();
    unknown_files(bundle, &case);
    Some(Story {
        source_prepared: bundle.record("source-prepared.json"),
        twin_prepared: bundle.record("twin-prepared.json"),
        twin: bundle.record("twin.json"),
        branches,
        source: bundle.record("source.json"),
        cold: bundle.record("cold-control.json"),
        cleanup: bundle.record("cleanup.json"),
        before: bundle.record("inventory-before.json"),
        after: bundle.record("inventory-after.json"),
        fork: bundle.record("fork.json"),
        fork_attempts: bundle.record("fork-attempts.json"),
        manifest,
        run,
        case,
        report: None,
    })
}

/// Nothing stands in a bundle that nobody looks at.
fn unknown_files(bundle: &mut Bundle, case: &Case) {
    const KNOWN: [&str; 13] = [
        "run.json",
        "inventory-before.json",
        "inventory-after.json",
        "source-prepared.json",
        "twin-prepared.json",
        "twin.json",
        "fork.json",
        "fork-attempts.json",
        "source.json",
        "cold-control.json",
        "cleanup.json",
        "verdicts.json",
        "report.json",
    ];
    let is_known = |name: &str| {
        KNOWN.contains(&name)
            || name.starts_with("workload/")
            || case.patches.iter().any(|patch| name == patch.file && patch.file == attempt_file(&patch.name))
            || case.patches.iter().any(|patch| name == format!("branch-{}.json", patch.name))
    };
    let odd: Vec<String> = bundle.names().filter(|name| !is_known(name)).map(str::to_owned).collect();
    for name in odd {
        bundle.problems.push(Problem::new(name, "it is no file that a run writes"));
    }
}

fn read_workload(bundle: &mut Bundle, run: &RunRecord) -> Option<Workload> {
    let mut files = BTreeMap::new();
    let mut problems = Vec::new();
    for name in bundle.names() {
        let Some(path) = name.strip_prefix("workload/") else { continue };
        let bytes = bundle.bytes(name).unwrap_or_default();
        if run.digests.files.get(path).map(String::as_str) != Some(blake3::hash(bytes).to_hex().as_str()) {
            problems.push(Problem::new(name, "it is not the file that run.json says the workload had"));
        }
        files.insert(path.to_owned(), bytes.to_vec());
    }
    let good = problems.is_empty();
    bundle.problems.extend(problems);
    match Workload::from_verdict_files(files) {
        Ok(workload) => Some(workload).filter(|_| good),
        Err(error) => {
            bundle.problems.push(Problem::new(format!("{WORKLOAD_FOLDER}/{MANIFEST_FILE}"), error.to_string()));
            None
        }
    }
}

/// The digests of a workload by what they are of. Without the workload, only the whole.
pub(crate) fn parts(digests: &Digests, workload: Option<&Workload>) -> Parts {
    let over = |of: &dyn Fn(&str) -> bool| Digests::over(digests.files.iter().filter(|(path, _)| of(path)));
    let patches = workload.map(|workload| workload.manifest.patches.as_slice()).unwrap_or_default();
    let is_patch = |path: &str| patches.iter().any(|patch| patch.file == path);
    Parts {
        workload: over(&|_| true),
        app: over(&|path| workload.is_some_and(|workload| workload.is_put(path))),
        patches: over(&is_patch),
        checks: over(&|path| path == MANIFEST_FILE),
    }
}

/// Computes everything anew that the bundle concludes.
fn conclude(bundle: &mut Bundle, story: &mut Story) -> Vec<Conclusion> {
    let case = story.case.clone();
    let mut verdicts = Vec::new();
    let mut checks = Checks { bundle, case: &case, run: &story.run };
    let twin = checks.prepared("twin", story.twin_prepared.as_ref());
    let baseline = checks.twin(twin.as_ref(), story.twin.as_ref());
    verdicts.extend(baseline.as_ref().map(|judgement| conclusion("twin", judgement, Some(case.known_baseline()))));

    let source = checks.prepared("source", story.source_prepared.as_ref());
    let branches = checks.branches(source.as_ref(), story);
    for (patch, (_, judgement)) in case.patches.iter().zip(&branches) {
        verdicts.push(conclusion(&format!("branch {}", patch.name), judgement, patch.known_in(case.mode)));
    }
    let state = source.as_ref().zip(story.source.as_ref()).map(|(source, record)| {
        let state = case.judge_source(source, &record.watch);
        checks.agrees("source.json", "expectation", &record.expectation, &case.expect_unpatched(source));
        checks.agrees("source.json", "state", &record.state, &state);
        state
    });
    let cold = checks.cold(source.as_ref(), story.cold.as_ref());
    if let (Some(judgement), Some(control)) = (&cold, &case.workload.manifest.cold_control) {
        verdicts.push(conclusion("cold control", judgement, Some(control.verdict)));
    }
    checks.cleanup(story.cleanup.as_ref());
    if story.run.outcome == Outcome::Finished {
        checks.complete(story, baseline.as_ref());
        if let (Some(baseline), Some(source)) = (baseline, state) {
            let compared = Compared { baseline, branches, cold_control: cold, source };
            story.report = Some(checks.report(story.cleanup.as_ref(), &compared));
        }
    }
    verdicts
}

fn conclusion(of: &str, judgement: &Judgement, known: Option<Verdict>) -> Conclusion {
    Conclusion {
        of: of.to_owned(),
        verdict: judgement.verdict,
        rule: judgement.rule,
        detail: judgement.detail.clone(),
        known,
    }
}

/// Holds what the records say against what follows from the observations.
struct Checks<'a> {
    bundle: &'a mut Bundle,
    case: &'a Case,
    run: &'a RunRecord,
}

impl Checks<'_> {
    fn problem(&mut self, file: &str, message: impl Into<String>) {
        self.bundle.problems.push(Problem::new(file, message));
    }

    fn agrees<T: Serialize + PartialEq>(&mut self, file: &str, what: &str, recorded: &T, computed: &T) {
        if recorded != computed {
            let text = |value: &T| serde_json::to_string(value).unwrap_or_default();
            self.problem(
                file,
                format!("its {what} is {}, and the observations give {}", text(recorded), text(computed)),
            );
        }
    }

    /// Who holds the prepared work; `None` also where the run itself found nobody.
    fn prepared(&mut self, role: &str, record: Option<&Preparation>) -> Option<Identity> {
        let record = record?;
        let file = format!("{role}-prepared.json");
        if record.preparation != Case::preparation(&self.run.run, role) {
            self.problem(&file, "the preparation is not this run's");
        }
        match self.case.prepared(record) {
            Ok(identity) => Some(identity),
            Err(_) if self.run.outcome != Outcome::Finished => None,
            Err(why) => {
                self.problem(&file, format!("the {role} did not hold the submitted jobs: {why}"));
                None
            }
        }
    }

    fn twin(&mut self, twin: Option<&Identity>, record: Option<&TwinRecord>) -> Option<Judgement> {
        let (twin, record) = twin.zip(record)?;
        self.agrees("twin.json", "expectation", &record.expectation, &self.case.expect_unpatched(twin));
        Some(self.case.judge_baseline(twin, &record.attempt))
    }

    fn branches(&mut self, source: Option<&Identity>, story: &Story) -> Vec<(String, Judgement)> {
        let Some(source) = source else { return Vec::new() };
        // All or none: each is judged beside what the others showed.
        if story.branches.len() != self.case.patches.len() {
            return Vec::new();
        }
        let Some(watch) = story.source.as_ref().map(|record| &record.watch) else {
            self.problem("source.json", "without what the source showed, no branch can be judged");
            return Vec::new();
        };
        let attempts: Vec<_> = story.branches.iter().map(|branch| branch.attempt.clone()).collect();
        let judgements = self.case.judge_branches(source, &attempts, watch);
        let mut judged = Vec::new();
        for ((patch, record), judgement) in self.case.patches.iter().zip(&story.branches).zip(judgements) {
            let file = format!("branch-{}.json", patch.name);
            let expectation: Expectation = self.case.expect_patched(source, patch);
            self.agrees(&file, "patch", &record.patch, &patch.name);
            self.agrees(&file, "expectation", &record.expectation, &expectation);
            self.agrees(&file, "judgement", &record.judgement, &judgement);
            self.put(&file, patch, record.attempt.put.as_ref());
            judged.push((patch.name.clone(), judgement));
        }
        judged
    }

    /// What was put must be the patch.
    fn put(&mut self, file: &str, patch: &crate::workload::Patch, put: Option<&crate::observe::Action>) {
        let Some(put) = put else { return };
        let said = put_text(&self.case.workload.manifest.reload.file, self.case.patch_bytes(patch));
        if put.what != said {
            self.problem(file, format!("it tells of {:?}, and the patch is {said:?}", put.what));
        }
    }

    fn cold(&mut self, source: Option<&Identity>, record: Option<&ColdRecord>) -> Option<Judgement> {
        let ((source, record), patch) = source.zip(record).zip(self.case.cold_patch())?;
        const FILE: &str = "cold-control.json";
        let judgement = self.case.judge_cold(source, patch, &record.attempt);
        self.agrees(FILE, "patch", &record.patch, &patch.name);
        self.agrees(FILE, "expectation", &record.expectation, &self.case.expect_patched(source, patch));
        self.agrees(FILE, "judgement", &record.judgement, &judgement);
        self.put(FILE, patch, record.attempt.put.as_ref());
        Some(judgement)
    }

    fn cleanup(&mut self, record: Option<&CleanupRecord>) {
        if let Some(record) = record {
            self.agrees("cleanup.json", "conclusion `clean`", &record.clean, &record.says_clean());
        }
    }

    /// A run that came to its end has left all its records.
    fn complete(&mut self, story: &Story, baseline: Option<&Judgement>) {
        let mut wanted: Vec<String> =
            ["source-prepared", "twin-prepared", "twin", "source", "cleanup", "inventory-before", "inventory-after"]
                .map(|name| format!("{name}.json"))
                .into();
        wanted.extend(["verdicts.json".to_owned(), "report.json".to_owned()]);
        if baseline.is_some_and(|baseline| baseline.verdict == self.case.known_baseline()) {
            wanted.push("fork.json".into());
            wanted.extend(self.case.patches.iter().map(|patch| format!("branch-{}.json", patch.name)));
            wanted.extend(self.case.cold_patch().map(|_| "cold-control.json".to_owned()));
        } else if !story.branches.is_empty() {
            self.problem("twin.json", "the twin did not show the fault, and patches were tried all the same");
        }
        for name in wanted {
            // One that was changed is a problem already.
            let changed = self.bundle.problems.iter().any(|problem| problem.file == name);
            if !self.bundle.has(&name) && !changed {
                self.problem(&name, "the run came to its end, and this record is not there");
            }
        }
    }

    /// The report, computed anew; the recorded ones must say the same.
    fn report(&mut self, cleanup: Option<&CleanupRecord>, compared: &Compared) -> RunReport {
        let (baseline, branches, cold_control) = self.case.reports(compared);
        let report = RunReport {
            workload: self.run.workload.clone(),
            provider: self.run.provider.clone(),
            mode: self.run.mode,
            seed: self.run.ledger.seed,
            baseline,
            branches,
            attempts: self.run.attempts.clone(),
            cold_control,
            source: compared.source.clone(),
            timings_ms: self.run.timings_ms.clone(),
            evidence: self.run.run.clone(),
            clean: cleanup.is_some_and(CleanupRecord::says_clean),
        };
        let computed =
            [("verdicts.json", serde_json::to_value(compared)), ("report.json", serde_json::to_value(&report))];
        for (file, value) in computed {
            let recorded: Option<Value> = self.bundle.record(file);
            if let (Some(recorded), Ok(value)) = (recorded, value)
                && recorded != value
            {
                self.problem(file, "it does not say what the observations give");
            }
        }
        report
    }
}
