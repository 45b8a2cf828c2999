//! One comparison from its beginning to its report. Cleans up whatever happens, and keeps the evidence of a failed or
//! interrupted run.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use remuda_client::Client;
use remuda_types::SnapshotMode;
use tokio_util::sync::CancellationToken;

use crate::evidence::key::Signer;
use crate::evidence::manifest::{Manifest, WORKLOAD_FOLDER};
use crate::evidence::verify::parts;
use crate::evidence::{BUNDLE_SCHEMA, Evidence, EvidenceError};
use crate::jobs::Ledger;
use crate::judging::Case;
use crate::probe::now_ms;
use crate::progress::Progress;
use crate::provider::{Abilities, Failure, Inventory, Provider};
use crate::providers::Remuda;
use crate::records::{AfterRecord, CleanupRecord, Outcome, RunRecord};
use crate::report::RunReport;
use crate::steps::{self, Context, StepError};
use crate::workload::{Digests, Patch, Workload, WorkloadError, attempt_file, attempt_name};

/// The harness, as bundles name it.
const HARNESS: &str = concat!("remuda-rodeo ", env!("CARGO_PKG_VERSION"));

/// Told what a run is doing.
pub type ProgressFn = Arc<dyn Fn(Progress) + Send + Sync>;

/// What is compared, and how.
#[derive(Clone)]
pub struct RunOptions {
    /// Name of a built-in workload or path of a workload's folder.
    pub workload: String,
    /// What is forked.
    pub mode: SnapshotMode,
    /// Seed of the jobs; the workload's when absent.
    pub seed: Option<u64>,
    /// Only these patches; all when absent.
    pub patches: Option<Vec<String>>,
    /// Folder in which the run makes the folder of its bundle.
    pub out: PathBuf,
    /// Who vouches for the evidence.
    pub signer: Signer,
    /// Ends the run early; it still cleans up.
    pub cancel: CancellationToken,
    /// Told what the run is doing.
    pub progress: ProgressFn,
}

impl RunOptions {
    /// A memory comparison of this workload with everything else by default.
    pub fn new(workload: impl Into<String>, out: impl Into<PathBuf>, signer: Signer) -> Self {
        RunOptions {
            workload: workload.into(),
            mode: SnapshotMode::Memory,
            seed: None,
            patches: None,
            out: out.into(),
            signer,
            cancel: CancellationToken::new(),
            progress: Arc::new(|_| {}),
        }
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The workload or the choice of patches can't be used.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The provider can't fork in this mode: a gap, not a failure.
    #[error("the provider {provider} can't fork in mode {mode}: choose another mode or provider")]
    Gap {
        /// Which provider.
        provider: &'static str,
        /// Which mode.
        mode: SnapshotMode,
    },
    /// The provider can't give agents access to one machine alone: a gap, not a failure.
    #[error("the provider {provider} can't give an agent access to one branch alone, so no attempts are made on it")]
    NoAccess {
        /// Which provider.
        provider: &'static str,
    },
    /// The evidence can't be written.
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
    /// The provider is not there or refuses the credential; nothing was done.
    #[error("the provider can't be used: {message}")]
    Provider {
        /// What kind of failure it is.
        kind: Failure,
        /// The thing, the cause and the remedy.
        message: String,
    },
    /// A step failed, so that there is nothing to judge.
    #[error("{message}{}; what was observed is in {evidence}", if *.clean { "" } else { " (and not everything was removed: see cleanup.json)" })]
    Step {
        /// Which step and why.
        message: String,
        /// Whether everything the run had made was removed.
        clean: bool,
        /// The bundle's folder.
        evidence: String,
    },
    /// The run was ended early.
    #[error("the run was interrupted{}; what was observed is in {evidence}", if *.clean { " and everything it had made was removed" } else { ", and not everything was removed: see cleanup.json" })]
    Interrupted {
        /// Whether everything the run had made was removed.
        clean: bool,
        /// The bundle's folder.
        evidence: String,
    },
}

impl RunError {
    /// 2 for wrong input, 3 where there is no provider, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Workload(_) | RunError::Gap { .. } | RunError::NoAccess { .. } => 2,
            RunError::Evidence(error) => error.exit_code(),
            RunError::Provider { kind: Failure::NoProvider, .. } => 3,
            RunError::Provider { kind: Failure::Refused, .. } => 2,
            RunError::Provider { .. } | RunError::Step { .. } | RunError::Interrupted { .. } => 1,
        }
    }
}

/// Attempts of agents, each on a branch of its own.
#[derive(Debug, Clone)]
pub struct Attempts {
    /// The agent: a command for `sh -c` on this machine.
    pub command: String,
    /// How many.
    pub count: u32,
    /// How long each may work.
    pub time_limit: Duration,
}

/// Lets agents make attempts on the server behind `client`, which they reach at `url`, and judges what they left beside
/// the workload's patches.
///
/// # Errors
/// [`RunError`], after everything the run had made was removed.
pub async fn attempt(
    client: Client,
    url: String,
    options: RunOptions,
    attempts: Attempts,
) -> Result<RunReport, RunError> {
    // The source and every branch outlive the agents' work.
    let provider = Remuda::new(client).reached_at(url).living(attempts.time_limit + BESIDE_ATTEMPTS);
    run_with(provider, options, Some(attempts)).await
}

/// How much longer than agents work a run may take.
const BESIDE_ATTEMPTS: Duration = Duration::from_secs(3_600);

/// Runs a comparison on the server behind `client`.
///
/// # Errors
/// [`RunError`], after everything the run had made was removed.
pub async fn run(client: Client, options: RunOptions) -> Result<RunReport, RunError> {
    run_with(Remuda::new(client), options, None).await
}

/// Runs a comparison on any provider, with attempts of agents where there are any.
///
/// # Errors
/// [`RunError`], after everything the run had made was removed.
pub async fn run_with<P: Provider>(
    provider: P,
    options: RunOptions,
    attempts: Option<Attempts>,
) -> Result<RunReport, RunError> {
    let began = Instant::now();
    let started_at_ms = now_ms();
    let workload = Workload::find(&options.workload)?;
    let patches = choose(&workload, options.patches.as_deref())?;
    let abilities = provider.abilities();
    if !abilities.can(options.mode) {
        return Err(RunError::Gap { provider: provider.name(), mode: options.mode });
    }
    if let Some(attempts) = &attempts {
        check_attempts(&workload, &abilities, provider.name(), attempts)?;
    }
    // Permissions, before anything is written or made.
    let refused =
        |error: crate::provider::ProviderError| RunError::Provider { kind: error.kind, message: error.message };
    let provider_says = provider.check().await.map_err(refused)?;
    let inventory = provider.inventory().await.map_err(refused)?;

    let check = &workload.manifest.check;
    let ledger = Ledger::from_seed(options.seed.unwrap_or(check.seed), check.jobs, check.free_jobs);
    let run = run_id(&workload.manifest.name, options.mode);
    let evidence = Evidence::begin(&options.out, &run)?;
    // Of the workload alone: attempts add files to it.
    let digests = workload.digests();
    let case = Case { workload, patches, mode: options.mode, ledger };
    let mut context = Context::new(provider, case, run, evidence, options.progress.clone());
    let begun = Begun { digests, abilities, provider_says, started_at_ms };
    context.evidence.write("run", &begun.record(&context, Outcome::Running, None))?;
    context.evidence.write("inventory-before", &inventory)?;

    let compared = tokio::select! {
        compared = steps::compare(&mut context, attempts.as_ref()) => Some(compared),
        () = options.cancel.cancelled() => None,
    };
    let cleaned = finish(&context, &inventory).await;
    context.timed("total", began);

    let clean = cleaned.as_ref().is_ok_and(|record| record.clean);
    let (outcome, error) = match &compared {
        Some(Ok(_)) => (Outcome::Finished, None),
        Some(Err(error)) => (Outcome::Failed, Some(error.to_string())),
        None => (Outcome::Interrupted, None),
    };
    let last = begun.record(&context, outcome, error);
    let case = &context.case;
    context.evidence.write("run", &last)?;
    cleaned?;
    let report = match &compared {
        Some(Ok(compared)) => {
            let (baseline, branches, cold_control) = case.reports(compared);
            let report = RunReport {
                workload: last.workload.clone(),
                provider: last.provider.clone(),
                mode: case.mode,
                seed: case.ledger.seed,
                baseline,
                branches,
                attempts: context.attempts.clone(),
                cold_control,
                source: compared.source.clone(),
                timings_ms: last.timings_ms.clone(),
                // In the bundle it is the run's name, since a bundle may be moved.
                evidence: context.run.clone(),
                clean,
            };
            context.evidence.write("verdicts", compared)?;
            context.evidence.write("report", &report)?;
            Some(report)
        }
        _ => None,
    };
    // Only now: agents have no business with the patches.
    let attempts = context.attempts.iter().map(|attempt| attempt_file(&attempt.name)).collect::<Vec<_>>();
    for (path, bytes) in case.workload.verdict_files().filter(|(path, _)| !attempts.iter().any(|file| file == path)) {
        context.evidence.keep(&format!("{WORKLOAD_FOLDER}/{path}"), bytes)?;
    }
    // Also a run that failed is vouched for: it can't be unmade by a later success.
    seal(&context, &options.signer, last)?;

    let evidence = context.evidence.folder().display().to_string();
    match (compared, report) {
        (Some(Err(StepError::Evidence(error))), _) => Err(error.into()),
        (Some(Err(error @ StepError::Step { .. })), _) => {
            Err(RunError::Step { message: error.to_string(), clean, evidence })
        }
        (Some(Ok(_)), Some(report)) => Ok(RunReport { evidence, ..report }),
        _ => Err(RunError::Interrupted { clean, evidence }),
    }
}

/// What is known of a run when it begins.
struct Begun {
    digests: Digests,
    abilities: Abilities,
    provider_says: serde_json::Value,
    started_at_ms: i64,
}

impl Begun {
    /// The run's record as it stands now.
    fn record<P: Provider>(&self, context: &Context<P>, outcome: Outcome, error: Option<String>) -> RunRecord {
        let case = &context.case;
        RunRecord {
            schema: BUNDLE_SCHEMA,
            harness: HARNESS.to_owned(),
            run: context.run.clone(),
            workload: case.workload.manifest.name.clone(),
            digests: self.digests.clone(),
            provider: context.provider.name().to_owned(),
            abilities: self.abilities.clone(),
            provider_says: self.provider_says.clone(),
            mode: case.mode,
            ledger: case.ledger.clone(),
            patches: case.patches.iter().map(|patch| patch.name.clone()).collect(),
            attempts: context.attempts.clone(),
            started_at_ms: self.started_at_ms,
            ended_at_ms: (outcome != Outcome::Running).then(now_ms),
            outcome,
            error,
            timings_ms: context.timings_ms(),
        }
    }
}

/// What of attempts can be refused before anything is made.
fn check_attempts(
    workload: &Workload,
    abilities: &Abilities,
    provider: &'static str,
    attempts: &Attempts,
) -> Result<(), RunError> {
    if !abilities.narrow_access {
        return Err(RunError::NoAccess { provider });
    }
    let mut with_attempts = workload.clone();
    for index in 1..=attempts.count {
        with_attempts.add_attempt(&attempt_name(index as usize), Vec::new())?;
    }
    Ok(())
}

/// Signs what was written. Nothing is written afterwards.
fn seal<P: Provider>(context: &Context<P>, signer: &Signer, run: RunRecord) -> Result<(), EvidenceError> {
    let digests = parts(&run.digests, Some(&context.case.workload));
    context.evidence.seal(signer, |files| Manifest {
        schema: BUNDLE_SCHEMA,
        run: run.run,
        outcome: run.outcome,
        harness: run.harness,
        runner: runner_digest(),
        provider: run.provider,
        provider_says: run.provider_says,
        mode: run.mode,
        seed: run.ledger.seed,
        workload: run.workload,
        digests,
        files,
    })
}

/// BLAKE3 of this program, hex.
fn runner_digest() -> Option<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(std::fs::File::open("/proc/self/exe").ok()?).ok()?;
    Some(hasher.finalize().to_hex().to_string())
}

/// Removes everything, takes the inventory again, and records both.
async fn finish<P: Provider>(context: &Context<P>, before: &Inventory) -> Result<CleanupRecord, EvidenceError> {
    (context.progress)(Progress::CleaningUp);
    let began = Instant::now();
    let record = steps::clean_up(context).await;
    context.timed("cleanup", began);
    context.evidence.write("cleanup", &record)?;
    let after = context.provider.inventory().await;
    let added = after.as_ref().map(|after| after.beyond(before));
    let error = after.as_ref().err().map(ToString::to_string);
    let added = added.unwrap_or_default();
    let after = AfterRecord { inventory: after.ok(), error, added };
    context.evidence.write("inventory-after", &after)?;
    Ok(record)
}

fn choose(workload: &Workload, names: Option<&[String]>) -> Result<Vec<Patch>, WorkloadError> {
    let Some(names) = names else { return Ok(workload.manifest.patches.clone()) };
    for name in names {
        workload.manifest.patch(name)?;
    }
    Ok(workload.manifest.patches.iter().filter(|patch| names.contains(&patch.name)).cloned().collect())
}

/// A name of its own for every run, also for two that begin in the same millisecond.
fn run_id(workload: &str, mode: SnapshotMode) -> String {
    let mut random = [0; 4];
    // Without randomness the time alone must do; a bundle is never written over anyway.
    let _ = getrandom::fill(&mut random);
    let time = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    format!("{workload}-{mode}-{time}-{:08x}", u32::from_le_bytes(random))
}
