//! `rodeo run` and `rodeo attempt`: a comparison on the server that is there, or on an embedded one. Judges nothing itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use remuda_client::Client;
use remuda_rodeo::evidence::key::Signer;
use remuda_rodeo::{Attempts, CancellationToken, RunError, RunOptions, RunReport};

use super::evidence;
use crate::args::{Global, Mode, RodeoAttempt, RodeoRun};
use crate::connection::connect_if_any;
use crate::embedded::Embedded;
use crate::failure::{Failure, NOT_READY, USAGE};
use crate::print;
use crate::signals::Signals;

/// Where evidence goes unless somebody says otherwise; each run makes a directory of its own in it.
pub(super) const EVIDENCE: &str = "evidence";

pub async fn run(global: &Global, args: RodeoRun) -> anyhow::Result<u8> {
    // Before anything is made: a run that nobody can vouch for is none.
    let signer = evidence::signer(global, &args.key)?;
    let report = until_signalled(async |cancel| match connect_if_any(global).await? {
        Some(client) => shown(&args, signer, cancel, |options| remuda_rodeo::run(client, options)).await,
        None => {
            let embedded = Embedded::start(&global.cache_dir).await?;
            on_embedded(embedded, async |client| {
                shown(&args, signer, cancel, |options| remuda_rodeo::run(client, options)).await
            })
            .await
        }
    })
    .await?;
    tell(global, &report)
}

pub async fn attempt(global: &Global, args: RodeoAttempt) -> anyhow::Result<u8> {
    if args.run.mode != Mode::Memory {
        let message =
            "attempts are judged in copies of the running source, and a filesystem copy has lost what it held";
        return Err(Failure::new(USAGE, message).remedy("leave out --mode, or use --mode memory").into());
    }
    let signer = evidence::signer(global, &args.run.key)?;
    let attempts = Attempts { command: args.agent, count: args.count, time_limit: args.time_limit };
    let report = until_signalled(async |cancel| match &global.url {
        Some(url) => {
            let client = connect_if_any(global)
                .await?
                .ok_or_else(|| Failure::new(NOT_READY, format!("no server answers at {url}")))?;
            shown(&args.run, signer, cancel, |options| remuda_rodeo::attempt(client, url.clone(), options, attempts))
                .await
        }
        // Also where a local server runs: agents could not come through its socket, which opens everything.
        None => {
            let (embedded, url) = Embedded::start_with_url(&global.cache_dir).await?;
            on_embedded(embedded, async |client| {
                shown(&args.run, signer, cancel, |options| remuda_rodeo::attempt(client, url, options, attempts)).await
            })
            .await
        }
    })
    .await?;
    tell(global, &report)
}

/// Does something that is asked to end by the first signal, and then ends in order.
async fn until_signalled<T>(work: impl AsyncFnOnce(CancellationToken) -> anyhow::Result<T>) -> anyhow::Result<T> {
    // From here on a signal ends the run in order, and what it made is removed.
    let mut signals = Signals::take_with_hangup()?;
    let cancel = CancellationToken::new();
    let asked = cancel.clone();
    let listening = tokio::spawn(async move {
        signals.next().await;
        asked.cancel();
    });
    let outcome = work(cancel).await;
    listening.abort();
    outcome
}

/// Does something on an embedded server. Its end is waited for whatever came of it; the work's own error is told first.
async fn on_embedded<T>(embedded: Embedded, work: impl AsyncFnOnce(Client) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let outcome = match embedded.client() {
        Ok(client) => work(client).await,
        Err(error) => Err(error),
    };
    let ended = embedded.end().await;
    outcome.and_then(|done| ended.map(|()| done))
}

fn tell(global: &Global, report: &RunReport) -> anyhow::Result<u8> {
    if global.json {
        print::json(report)?;
    } else {
        print::line(report.to_string().trim_end())?;
    }
    Ok(report.exit_code())
}

/// Runs a comparison and shows meanwhile how it goes on.
async fn shown<F: Future<Output = Result<RunReport, RunError>>>(
    args: &RodeoRun,
    signer: Signer,
    cancel: CancellationToken,
    run: impl FnOnce(RunOptions) -> F,
) -> anyhow::Result<RunReport> {
    // Drawn on a terminal only, and on standard error.
    let spinner = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(120));
    let shown = spinner.clone();
    let options = RunOptions {
        mode: args.mode.into(),
        seed: args.seed,
        cancel,
        progress: Arc::new(move |progress| shown.set_message(progress.to_string())),
        ..RunOptions::new(&args.workload, args.out.clone().unwrap_or_else(|| PathBuf::from(EVIDENCE)), signer)
    };
    let outcome = run(options).await;
    spinner.finish_and_clear();
    outcome.map_err(|error| explain(&error).into())
}

fn explain(error: &RunError) -> Failure {
    let failure = Failure::new(error.exit_code(), error.to_string());
    match std::error::Error::source(error) {
        Some(cause) => failure.cause(cause),
        None => failure,
    }
}
