//! The last control: the source's program, killed and launched again in the same machine, completes over an empty
//! queue. That must be told from a repair.

use std::time::Duration;

use super::attempt::{put_patch, release_and_read, status};
use super::prepare::{Prepared, launch};
use super::{Context, StepError};
use crate::observe::{Action, Attempt};
use crate::probe::act;
use crate::progress::Progress;
use crate::provider::{Failure, Provider, ProviderError};
use crate::records::ColdRecord;
use crate::verdict::Judgement;

/// How long a killed process may take to be gone.
const END_TIME_MAX: Duration = Duration::from_secs(10);

/// Runs the control where the workload has one.
pub(crate) async fn cold_control<P: Provider>(
    context: &Context<P>,
    source: &Prepared,
) -> Result<Option<Judgement>, StepError> {
    let case = &context.case;
    let Some(patch) = case.cold_patch() else { return Ok(None) };
    context.say(Progress::ColdControl);

    let mut steps = Vec::new();
    let mut attempt = Attempt { machine: Some(source.machine.0.clone()), ..Attempt::default() };
    match launch_again(context, source, &mut steps).await {
        Err(error) => attempt.no_machine = Some(format!("the program could not be launched again: {}", error.message)),
        Ok(()) => {
            let application = context.application(&source.machine);
            attempt.before = Some(status(&application, Duration::ZERO).await);
            put_patch(context, &source.machine, case.patch_bytes(patch), &mut attempt).await;
            release_and_read(&application, &mut attempt).await;
        }
    }
    let judgement = case.judge_cold(&source.identity, patch, &attempt);
    let record = ColdRecord {
        patch: patch.name.clone(),
        steps,
        expectation: case.expect_patched(&source.identity, patch),
        attempt,
        judgement: judgement.clone(),
    };
    context.evidence.write("cold-control", &record)?;
    Ok(Some(judgement))
}

async fn launch_again<P: Provider>(
    context: &Context<P>,
    source: &Prepared,
    steps: &mut Vec<Action>,
) -> Result<(), ProviderError> {
    let (machine, process) = (&source.machine, &source.process);
    let (action, killed) = act("kill the program".into(), context.provider.kill(machine, process)).await;
    steps.push(action);
    killed?;
    let (action, ended) =
        act("wait for its end".into(), context.provider.wait_end(machine, process, END_TIME_MAX)).await;
    steps.push(action);
    if ended?.is_none() {
        return Err(ProviderError { kind: Failure::Other, message: "it was killed and still runs".into() });
    }
    launch(context, machine, &source.identity.preparation, steps).await.map(drop)
}
