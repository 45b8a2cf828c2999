//! Preparing a machine, and proving the fault on one that was prepared the same way and not copied.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::attempt::{release_and_read, status};
use super::{Context, StepError};
use crate::judging::{Case, Identity};
use crate::observe::{Action, Attempt, Preparation};
use crate::probe::{act, not_yet_200};
use crate::provider::{Command, Ended, Failure, Machine, Process, Provider, ProviderError};
use crate::reading;
use crate::records::TwinRecord;
use crate::verdict::Judgement;
use crate::workload::{Prepare, Put, Run};

/// Files that are put at once.
const PUTS_AT_ONCE: usize = 8;

/// A machine whose process holds the submitted work.
pub(crate) struct Prepared {
    pub machine: Machine,
    pub process: Process,
    pub identity: Identity,
}

/// Makes a machine and prepares it by the workload's steps; submits the jobs, once.
pub(crate) async fn prepare<P: Provider>(context: &Context<P>, role: &'static str) -> Result<Prepared, StepError> {
    let failed = |error: ProviderError| StepError::new("preparing", format!("the {role}: {}", error.message));
    let began = Instant::now();
    let (provider, run) = (context.provider.clone(), context.run.clone());
    let machine = context.make(async move { provider.create(&run, role).await }).await.map_err(failed)?;
    context.made().machines.push(machine.clone());
    context.timed(if role == "source" { "create_source" } else { "create_twin" }, began);

    let mut record = Preparation {
        machine: machine.0.clone(),
        preparation: Case::preparation(&context.run, role),
        steps: Vec::new(),
        submitted: None,
        status: None,
    };
    let prepared = steps(context, &machine, &mut record).await;
    // What was observed is kept whether or not it was enough.
    context.evidence.write(&format!("{role}-prepared"), &record)?;
    let process = prepared.map_err(failed)?;
    let identity = context.case.prepared(&record).map_err(|why| {
        let submitted = reading::expect_status(record.submitted.as_ref(), 201).err().unwrap_or_default();
        StepError::new(
            "preparing",
            format!("the {role} does not hold the submitted jobs: {why} {submitted}").trim_end(),
        )
    })?;
    Ok(Prepared { machine, process, identity })
}

async fn steps<P: Provider>(
    context: &Context<P>,
    machine: &Machine,
    record: &mut Preparation,
) -> Result<Process, ProviderError> {
    for step in &context.case.workload.manifest.prepare {
        let (action, result) = match step {
            Prepare::Put(put) => act(step.to_string(), put_all(context, machine, put)).await,
            Prepare::Run(run) => act(step.to_string(), run_one(context, machine, run)).await,
        };
        record.steps.push(action);
        result?;
    }
    let process = launch(context, machine, &record.preparation, &mut record.steps).await?;
    let application = context.application(machine);
    record.submitted = Some(application.post("/jobs", Some(context.case.ledger.submission())).await);
    record.status = Some(status(&application, Duration::ZERO).await);
    Ok(process)
}

async fn put_all<P: Provider>(context: &Context<P>, machine: &Machine, put: &Put) -> Result<(), ProviderError> {
    let files: Vec<(String, Bytes, bool)> = context
        .case
        .workload
        .put_files(put)
        .map(|(path, file)| (path, Bytes::copy_from_slice(&file.bytes), file.executable))
        .collect();
    let puts = files
        .into_iter()
        .map(|(path, bytes, executable)| async move { context.provider.put(machine, &path, bytes, executable).await });
    stream::iter(puts).buffer_unordered(PUTS_AT_ONCE).try_collect().await
}

async fn run_one<P: Provider>(context: &Context<P>, machine: &Machine, run: &Run) -> Result<(), ProviderError> {
    let command = Command { argv: run.run.clone(), cwd: run.cwd.clone(), env: run.env.clone() };
    let ended = context.provider.command(machine, &command, Duration::from_millis(run.timeout_ms)).await?;
    if ended.exit_code == Some(0) { Ok(()) } else { Err(ended_early(&run.run, &ended)) }
}

fn ended_early(argv: &[String], ended: &Ended) -> ProviderError {
    let code = ended.exit_code.map_or("without an exit code".to_owned(), |code| format!("with exit code {code}"));
    ProviderError {
        kind: Failure::Other,
        message: format!("{argv:?} ended {code}; its last output: {}", ended.output.trim_end()),
    }
}

/// Launches the workload's program and waits until it serves.
pub(crate) async fn launch<P: Provider>(
    context: &Context<P>,
    machine: &Machine,
    preparation: &str,
    record: &mut Vec<Action>,
) -> Result<Process, ProviderError> {
    let command = context.start_command(preparation);
    let [launching, waiting] = context.case.workload.manifest.launch_texts();
    let (action, launched) = act(launching, context.provider.launch(machine, &command)).await;
    record.push(action);
    let process = launched?;
    let (action, ready) = act(waiting, serving(context, machine, &process, &command)).await;
    record.push(action);
    ready?;
    Ok(process)
}

/// Waits until the program answers, or ends, or its time is over.
async fn serving<P: Provider>(
    context: &Context<P>,
    machine: &Machine,
    process: &Process,
    command: &Command,
) -> Result<(), ProviderError> {
    let start = &context.case.workload.manifest.start;
    let patience = Duration::from_millis(start.ready_timeout_ms);
    let application = context.application(machine);
    let end = async {
        match context.provider.wait_end(machine, process, patience).await {
            Ok(Some(ended)) => ended_early(&command.argv, &ended),
            Ok(None) => ProviderError {
                kind: Failure::Other,
                message: format!("it did not serve within {} ms", start.ready_timeout_ms),
            },
            Err(error) => error,
        }
    };
    tokio::select! {
        answer = application.get(&start.ready_path, patience, not_yet_200) => {
            reading::expect_status(Some(&answer), 200)
                .map_err(|why| ProviderError { kind: Failure::Other, message: format!("it does not serve: {why}") })
        }
        error = end => Err(error),
    }
}

/// Proves the fault: a twin, prepared the same way and not copied, is released without a patch.
pub(crate) async fn baseline<P: Provider>(context: &Context<P>) -> Result<Judgement, StepError> {
    let twin = prepare(context, "twin").await?;
    let began = Instant::now();
    let application = context.application(&twin.machine);
    let mut attempt = Attempt { machine: Some(twin.machine.0.clone()), ..Attempt::default() };
    attempt.before = Some(status(&application, Duration::ZERO).await);
    release_and_read(&application, &mut attempt).await;
    let judgement = context.case.judge_baseline(&twin.identity, &attempt);
    let record = TwinRecord { expectation: context.case.expect_unpatched(&twin.identity), attempt };
    context.evidence.write("twin", &record)?;
    context.timed("baseline", began);
    Ok(judgement)
}
