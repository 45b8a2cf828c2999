//! One capture, one branch for each patch, all at once; and the source, which must not notice.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::attempt::{put_patch, release_and_read, status};
use super::prepare::Prepared;
use super::{Context, StepError};
use crate::observe::{Attempt, Exchange, Markers, Sighting, SourceWatch};
use crate::probe;
use crate::progress::Progress;
use crate::provider::{Forked, Launch, Machine, Provider, ProviderError};
use crate::records::{BranchRecord, ForkRecord, SourceRecord};
use crate::verdict::{Judgement, SourceState};
use crate::workload::Patch;

use remuda_types::SnapshotMode;

/// How long a new branch may take to its first answer after the provider called it running.
const FIRST_ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Forks the source, tries every patch, and sees what became of the source.
pub(crate) async fn fork_and_judge<P: Provider>(
    context: &Context<P>,
    source: &Prepared,
) -> Result<(Vec<(String, Judgement)>, SourceState), StepError> {
    let began = Instant::now();
    context.say(Progress::Forking(context.case.patches.len()));
    let forked = fork(context, source, context.case.patches.len() as u32, "fork").await?;
    context.timed("fork", began);

    let began = Instant::now();
    context.say(Progress::Releasing);
    let named = context.case.patches.iter().zip(&forked.branches);
    let mut attempts = join_all(named.map(|(patch, branch)| look_and_mark(context, patch, branch.as_ref()))).await;
    // Only now that every branch carries its markers does anybody look for them.
    let mut watch = SourceWatch::default();
    let work = attempts.iter_mut().zip(&forked.branches).zip(&context.case.patches);
    let work = work.map(|((attempt, branch), patch)| try_patch(context, patch, branch.as_ref().ok(), attempt));
    let (sighting, _) = tokio::join!(sight(context, &source.machine), join_all(work));
    watch.sighting = Some(sighting);
    watch.end = Some(status(&context.application(&source.machine), Duration::ZERO).await);
    context.timed("branches", began);

    let judgements = context.case.judge_branches(&source.identity, &attempts, &watch);
    let mut judged = Vec::new();
    for ((patch, attempt), judgement) in context.case.patches.iter().zip(attempts).zip(judgements) {
        let record = BranchRecord {
            patch: patch.name.clone(),
            expectation: context.case.expect_patched(&source.identity, patch),
            attempt,
            judgement: judgement.clone(),
        };
        context.evidence.write(&format!("branch-{}", patch.name), &record)?;
        context.say(Progress::BranchJudged(patch.name.clone(), judgement.verdict));
        judged.push((patch.name.clone(), judgement));
    }
    Ok((judged, write_source(context, source, watch)?))
}

/// Records what became of the source, and says it.
fn write_source<P: Provider>(
    context: &Context<P>,
    source: &Prepared,
    watch: SourceWatch,
) -> Result<SourceState, StepError> {
    let state = context.case.judge_source(&source.identity, &watch);
    let expectation = context.case.expect_unpatched(&source.identity);
    context.evidence.write("source", &SourceRecord { expectation, watch, state: state.clone() })?;
    Ok(state)
}

/// Forks the source and records the provider's answer under this name.
pub(crate) async fn fork<P: Provider>(
    context: &Context<P>,
    source: &Prepared,
    count: u32,
    record: &str,
) -> Result<Forked, StepError> {
    let start = &context.case.workload.manifest.start;
    let launch = (context.case.mode == SnapshotMode::Filesystem).then(|| Launch {
        command: context.start_command(&source.identity.preparation),
        port: start.port,
        ready_path: start.ready_path.clone(),
        timeout: Duration::from_millis(start.ready_timeout_ms),
    });
    let (provider, machine, run) = (context.provider.clone(), source.machine.clone(), context.run.clone());
    let mode = context.case.mode;
    let forked = context
        .make(async move { provider.fork(&machine, &run, count, mode, launch.as_ref()).await })
        .await
        .map_err(|error| StepError::new("forking", error.message))?;
    {
        let mut made = context.made();
        made.machines.extend(forked.branches.iter().flatten().cloned());
        made.captures.extend(forked.capture.clone());
    }
    let branches = forked.branches.iter().map(|branch| branch.clone().map_err(|error| error.message));
    let kept =
        ForkRecord { capture: forked.capture.clone(), branches: branches.collect(), provider: forked.raw.clone() };
    context.evidence.write(record, &kept)?;
    if forked.branches.len() != count as usize {
        let message = format!("{} branches came instead of {}", forked.branches.len(), count);
        return Err(StepError::new("forking", message));
    }
    Ok(forked)
}

fn marker_file(patch: &Patch) -> String {
    format!("rodeo-marker-{}", patch.name)
}

/// Looks at a branch as it came, then sets its markers.
async fn look_and_mark<P: Provider>(
    context: &Context<P>,
    patch: &Patch,
    branch: Result<&Machine, &ProviderError>,
) -> Attempt {
    let machine = match branch {
        Ok(machine) => machine,
        Err(error) => return Attempt { no_machine: Some(error.message.clone()), ..Attempt::default() },
    };
    let application = context.application(machine);
    let before = status(&application, FIRST_ANSWER_TIME_MAX).await;
    let (memory, file) = (format!("{} {}", context.run, patch.name), marker_file(patch));
    let path = format!("{}/{file}", context.case.workload.manifest.start.cwd);
    let body = serde_json::json!({ "marker": memory }).to_string();
    let (set, put) = tokio::join!(
        application.post("/marker", Some(body)),
        probe::put(&context.provider, machine, &path, memory.as_bytes()),
    );
    Attempt {
        machine: Some(machine.0.clone()),
        before: Some(before),
        markers: Some(Markers { memory, file, set, put }),
        ..Attempt::default()
    }
}

/// Looks for markers, puts the patch, releases, and reads what came of it.
async fn try_patch<P: Provider>(context: &Context<P>, patch: &Patch, branch: Option<&Machine>, attempt: &mut Attempt) {
    let Some(machine) = branch else { return };
    attempt.sighting = Some(sight(context, machine).await);
    put_patch(context, machine, context.case.patch_bytes(patch), attempt).await;
    release_and_read(&context.application(machine), attempt).await;
}

async fn sight<P: Provider>(context: &Context<P>, machine: &Machine) -> Sighting {
    let application = context.application(machine);
    let folder = &context.case.workload.manifest.start.cwd;
    let (status, files): (Exchange, _) =
        tokio::join!(status(&application, Duration::ZERO), probe::list(&context.provider, machine, folder));
    Sighting { status, files }
}

/// What became of a source that was never forked.
pub(crate) async fn source_alone<P: Provider>(
    context: &Context<P>,
    source: &Prepared,
) -> Result<SourceState, StepError> {
    let end = status(&context.application(&source.machine), Duration::ZERO).await;
    write_source(context, source, SourceWatch { sighting: None, end: Some(end) })
}
