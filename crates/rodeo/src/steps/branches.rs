//! One capture, one branch for each patch, all at once; and the source, which must not notice.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde::Serialize;

use super::attempt::{put_patch, release_and_read, status};
use super::prepare::Prepared;
use super::{Context, StepError};
use crate::observe::{Attempt, Exchange, Markers, Sighting, SourceWatch};
use crate::probe;
use crate::progress::Progress;
use crate::provider::{Forked, Launch, Machine, Provider, ProviderError};
use crate::verdict::{self, Expectation, Judgement, Others, SourceState};
use crate::workload::{Patch, sha256_hex};

use remuda_types::SnapshotMode;

/// How long a new branch may take to its first answer after the provider called it running.
const FIRST_ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Serialize)]
struct Record<'a> {
    patch: &'a str,
    expectation: &'a Expectation,
    attempt: &'a Attempt,
    judgement: &'a Judgement,
}

/// Forks the source, tries every patch, and sees what became of the source.
pub(crate) async fn fork_and_judge<P: Provider>(
    context: &Context<P>,
    source: &Prepared,
) -> Result<(Vec<(String, Judgement)>, SourceState), StepError> {
    let began = Instant::now();
    context.say(Progress::Forking(context.patches.len()));
    let forked = fork(context, source).await?;
    context.timed("fork", began);

    let began = Instant::now();
    context.say(Progress::Releasing);
    let named = context.patches.iter().zip(&forked.branches);
    let mut attempts = join_all(named.map(|(patch, branch)| look_and_mark(context, patch, branch.as_ref()))).await;
    // Only now that every branch carries its markers does anybody look for them.
    let mut watch = SourceWatch::default();
    let work = attempts.iter_mut().zip(&forked.branches).zip(&context.patches);
    let work = work.map(|((attempt, branch), patch)| try_patch(context, patch, branch.as_ref().ok(), attempt));
    let (sighting, _) = tokio::join!(sight(context, &source.machine), join_all(work));
    watch.sighting = Some(sighting);
    watch.end = Some(status(&context.application(&source.machine), Duration::ZERO).await);
    context.timed("branches", began);

    let expectation = context.expectation(source, context.unpatched_digest(), false);
    let state = verdict::source_state(&expectation, &watch);
    context.evidence.write("source", &(&expectation, &watch, &state))?;
    Ok((judge_all(context, source, &attempts, &watch)?, state))
}

fn judge_all<P: Provider>(
    context: &Context<P>,
    source: &Prepared,
    attempts: &[Attempt],
    watch: &SourceWatch,
) -> Result<Vec<(String, Judgement)>, StepError> {
    let mut judged = Vec::new();
    for (index, (patch, attempt)) in context.patches.iter().zip(attempts).enumerate() {
        let expectation = context.expectation(source, sha256_hex(context.patch_bytes(patch)), true);
        let mut sightings = vec![("the source", watch.sighting.as_ref())];
        // A branch that never came up has no files and no memory in which a marker could show.
        let others = context.patches.iter().zip(attempts).enumerate();
        let others = others.filter(|(other, (_, attempt))| *other != index && attempt.machine.is_some());
        sightings.extend(others.map(|(_, (patch, attempt))| (patch.name.as_str(), attempt.sighting.as_ref())));
        let judgement = verdict::judge(&expectation, attempt, Some(Others { sightings: &sightings }));
        let record = Record { patch: &patch.name, expectation: &expectation, attempt, judgement: &judgement };
        context.evidence.write(&format!("branch-{}", patch.name), &record)?;
        context.say(Progress::BranchJudged(patch.name.clone(), judgement.verdict));
        judged.push((patch.name.clone(), judgement));
    }
    Ok(judged)
}

async fn fork<P: Provider>(context: &Context<P>, source: &Prepared) -> Result<Forked, StepError> {
    let start = &context.workload.manifest.start;
    let launch = (context.mode == SnapshotMode::Filesystem).then(|| Launch {
        command: context.start_command(&source.preparation),
        port: start.port,
        ready_path: start.ready_path.clone(),
        timeout: Duration::from_millis(start.ready_timeout_ms),
    });
    let (provider, machine, run) = (context.provider.clone(), source.machine.clone(), context.run.clone());
    let (count, mode) = (context.patches.len() as u32, context.mode);
    let forked = context
        .make(async move { provider.fork(&machine, &run, count, mode, launch.as_ref()).await })
        .await
        .map_err(|error| StepError::new("forking", error.message))?;
    {
        let mut made = context.made();
        made.machines.extend(forked.branches.iter().flatten().cloned());
        made.captures.extend(forked.capture.clone());
    }
    context.evidence.write("fork", &forked.raw)?;
    if forked.branches.len() != context.patches.len() {
        let message = format!("{} branches came instead of {}", forked.branches.len(), context.patches.len());
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
    let path = format!("{}/{file}", context.workload.manifest.start.cwd);
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
    put_patch(context, machine, context.patch_bytes(patch), attempt).await;
    release_and_read(&context.application(machine), attempt).await;
}

async fn sight<P: Provider>(context: &Context<P>, machine: &Machine) -> Sighting {
    let application = context.application(machine);
    let folder = &context.workload.manifest.start.cwd;
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
    let watch = SourceWatch { sighting: None, end: Some(end) };
    let expectation = context.expectation(source, context.unpatched_digest(), false);
    let state = verdict::source_state(&expectation, &watch);
    context.evidence.write("source", &(&expectation, &watch, &state))?;
    Ok(state)
}
