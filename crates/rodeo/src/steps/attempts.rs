//! Attempts of agents: each on a branch of its own, reached with access to that branch and to nothing else. What counts
//! of an attempt is the file that it left at the reload point. It is judged later, in a fresh copy of the source that no
//! agent ever reached, so that nothing else an agent did can decide its verdict.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::branches::fork;
use super::prepare::Prepared;
use super::{Context, StepError};
use crate::agent;
use crate::evidence::EvidenceError;
use crate::progress::Progress;
use crate::provider::{Machine, Provider, ProviderError};
use crate::records::AttemptRecord;
use crate::run::Attempts;
use crate::workload::{attempt_file, attempt_name};

/// Largest file that an attempt may leave at the reload point, in bytes.
const PATCH_BYTES_MAX: usize = 8 << 20;
/// An access ends by itself a little after its agent must have ended.
const ACCESS_MARGIN: Duration = Duration::from_secs(60);

/// Forks the source, lets the agents work, and takes what they left into the case as patches.
pub(crate) async fn attempt<P: Provider>(
    context: &mut Context<P>,
    source: &Prepared,
    attempts: &Attempts,
) -> Result<(), StepError> {
    let began = Instant::now();
    context.say(Progress::Attempting(attempts.count as usize));
    let forked = fork(context, source, attempts.count, "fork-attempts").await?;
    let work = forked
        .branches
        .into_iter()
        .enumerate()
        .map(|(index, branch)| one(context, source, attempts, attempt_name(index + 1), branch));
    let done = join_all(work).await;
    context.timed("attempts", began);
    for done in done {
        let (record, patch) = done?;
        if let Some(bytes) = patch {
            // The name is the harness's own; one that a patch of the workload has was refused before the run.
            let patch = context.case.workload.add_attempt(&record.name, bytes);
            context.case.patches.push(patch.map_err(|error| StepError::new("attempting", error.to_string()))?);
        }
        context.attempts.push(record);
    }
    Ok(())
}

async fn one<P: Provider>(
    context: &Context<P>,
    source: &Prepared,
    attempts: &Attempts,
    name: String,
    branch: Result<Machine, ProviderError>,
) -> Result<(AttemptRecord, Option<Vec<u8>>), EvidenceError> {
    let mut record = AttemptRecord {
        name,
        machine: branch.as_ref().ok().cloned(),
        command: blake3::hash(attempts.command.as_bytes()).to_hex().to_string(),
        agent: None,
        patch: None,
        error: None,
    };
    let machine = match branch {
        Ok(machine) => machine,
        Err(error) => {
            record.error = Some(error.message);
            return Ok((record, None));
        }
    };
    if let Err(error) = work(context, source, attempts, &machine, &mut record).await {
        record.error = Some(error);
    }
    let left = context.provider.get(&machine, &context.case.workload.manifest.reload.file, PATCH_BYTES_MAX).await;
    match left {
        Ok(bytes) => {
            record.patch = Some(blake3::hash(&bytes).to_hex().to_string());
            context.evidence.keep(&attempt_file(&record.name), &bytes)?;
            Ok((record, Some(bytes.to_vec())))
        }
        Err(error) => {
            record.error.get_or_insert(format!("what it left can't be read: {}", error.message));
            Ok((record, None))
        }
    }
}

/// Runs the agent between the granting of its access and the end of it.
async fn work<P: Provider>(
    context: &Context<P>,
    source: &Prepared,
    attempts: &Attempts,
    machine: &Machine,
    record: &mut AttemptRecord,
) -> Result<(), String> {
    let label = format!("{} {}", context.run, record.name);
    let grant = context.provider.grant(machine, &label, attempts.time_limit + ACCESS_MARGIN).await;
    let grant = grant.map_err(|error| format!("no access could be granted: {}", error.message))?;
    let manifest = &context.case.workload.manifest;
    let mut env: BTreeMap<String, String> = grant.env.clone();
    env.extend(
        [
            ("RODEO_ATTEMPT", record.name.clone()),
            ("RODEO_WORKLOAD", manifest.name.clone()),
            ("RODEO_RELOAD_FILE", manifest.reload.file.clone()),
            ("RODEO_PORT", manifest.start.port.to_string()),
            ("RODEO_PREPARATION", source.identity.preparation.clone()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    let (folder, output) = agent::places(context.evidence.folder(), &record.name);
    let ended = agent::run(&attempts.command, &env, &folder, &output, attempts.time_limit).await;
    // Whatever became of the agent. Where this fails, the access ends by itself, and with its branch.
    let revoked = context.provider.revoke(&grant).await;
    record.agent = Some(ended.map_err(|cause| format!("the agent could not be run: {cause}"))?);
    revoked.map_err(|error| format!("its access was not taken back at once: {}", error.message))
}
