//! The steps of a comparison, in the order in which they are taken. Each records what it observed before anything is
//! judged.

mod attempt;
mod attempts;
mod branches;
mod cleanup;
mod cold;
mod prepare;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio_util::task::TaskTracker;

use crate::evidence::{Evidence, EvidenceError};
use crate::judging::{Case, Compared};
use crate::probe::{Application, since_ms};
use crate::progress::Progress;
use crate::provider::{Capture, Command, Failure, Machine, Provider, ProviderError};
use crate::records::AttemptRecord;
use crate::run::{Attempts, ProgressFn};

pub(crate) use cleanup::clean_up;

/// How long the making of a machine or a fork may take. The harness's own deadline, apart from the provider's.
const MAKING_TIME_MAX: Duration = Duration::from_secs(180);

/// Everything the steps of one run share.
pub(crate) struct Context<P> {
    pub provider: P,
    pub case: Case,
    /// How each attempt went, once they were made.
    pub attempts: Vec<AttemptRecord>,
    pub run: String,
    pub evidence: Evidence,
    pub progress: ProgressFn,
    /// Calls that make something. They are never dropped half-way: cleanup waits for them, then removes what they made.
    pub making: TaskTracker,
    made: Mutex<Made>,
    timings_ms: Mutex<BTreeMap<String, u64>>,
}

/// What the run knows to have made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Made {
    pub machines: Vec<Machine>,
    pub captures: Vec<Capture>,
}

/// A step could not be taken, so that there is nothing to judge.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error("{step} failed: {message}")]
    Step { step: &'static str, message: String },
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
}

impl StepError {
    fn new(step: &'static str, message: impl Into<String>) -> Self {
        StepError::Step { step, message: message.into() }
    }
}

impl<P: Provider> Context<P> {
    pub fn new(provider: P, case: Case, run: String, evidence: Evidence, progress: ProgressFn) -> Self {
        Context {
            provider,
            case,
            attempts: Vec::new(),
            run,
            evidence,
            progress,
            making: TaskTracker::new(),
            made: Mutex::default(),
            timings_ms: Mutex::default(),
        }
    }

    pub fn made(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn timings_ms(&self) -> BTreeMap<String, u64> {
        self.timings_ms.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn timed(&self, step: &'static str, began: Instant) {
        self.timings_ms.lock().unwrap_or_else(PoisonError::into_inner).insert(step.to_owned(), since_ms(began));
    }

    fn say(&self, progress: Progress) {
        (self.progress)(progress);
    }

    fn application<'a>(&'a self, machine: &'a Machine) -> Application<'a, P> {
        Application { provider: &self.provider, machine, port: self.case.workload.manifest.start.port }
    }

    /// What is launched, told which preparation it belongs to.
    fn start_command(&self, preparation: &str) -> Command {
        let start = &self.case.workload.manifest.start;
        let mut env = start.env.clone();
        env.insert(start.preparation_env.clone(), preparation.to_owned());
        Command { argv: start.argv.clone(), cwd: Some(start.cwd.clone()), env }
    }

    /// Lets a call that makes something run to its end, whatever becomes of the caller.
    async fn make<T, F>(&self, making: F) -> Result<T, ProviderError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ProviderError>> + Send + 'static,
    {
        let failed = |message: String| ProviderError { kind: Failure::Other, message };
        match tokio::time::timeout(MAKING_TIME_MAX, self.making.spawn(making)).await {
            Ok(Ok(result)) => result,
            Ok(Err(cause)) => Err(failed(format!("the call broke off: {cause}"))),
            Err(_) => Err(failed(format!("no answer within {} seconds", MAKING_TIME_MAX.as_secs()))),
        }
    }
}

/// Takes all steps from the preparation to the last control; between the baseline and the fork, agents make their
/// attempts where there are any.
pub(crate) async fn compare<P: Provider>(
    context: &mut Context<P>,
    attempts: Option<&Attempts>,
) -> Result<Compared, StepError> {
    let began = Instant::now();
    context.say(Progress::Preparing);
    let preparing = &*context;
    let (source, baseline) = tokio::try_join!(prepare::prepare(preparing, "source"), prepare::baseline(preparing))?;
    context.timed("prepare", began);
    context.say(Progress::BaselineJudged(baseline.verdict));
    if baseline.verdict != context.case.known_baseline() {
        let source = branches::source_alone(context, &source).await?;
        return Ok(Compared { baseline, branches: Vec::new(), cold_control: None, source });
    }
    if let Some(attempts) = attempts {
        attempts::attempt(context, &source, attempts).await?;
    }
    let context = &*context;
    let (branches, source_state) = branches::fork_and_judge(context, &source).await?;
    let began = Instant::now();
    let cold_control = cold::cold_control(context, &source).await?;
    context.timed("cold_control", began);
    Ok(Compared { baseline, branches, cold_control, source: source_state })
}
