//! `rodeo run`: a comparison on the server that is there, or on an embedded one. Judges nothing itself.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use remuda_client::Client;
use remuda_rodeo::evidence::key::Signer;
use remuda_rodeo::{CancellationToken, RunError, RunOptions, RunReport};

use super::evidence;
use crate::args::{Global, RodeoRun};
use crate::connection::connect_if_any;
use crate::embedded::Embedded;
use crate::failure::Failure;
use crate::print;
use crate::signals::Signals;

/// Where evidence goes unless somebody says otherwise; each run makes a directory of its own in it.
pub(super) const EVIDENCE: &str = "evidence";

pub async fn run(global: &Global, args: RodeoRun) -> anyhow::Result<u8> {
    // Before anything is made: a run that nobody can vouch for is none.
    let signer = evidence::signer(global, &args.key)?;
    // From here on a signal ends the run in order, and what it made is removed.
    let mut signals = Signals::take()?;
    let cancel = CancellationToken::new();
    let asked = cancel.clone();
    let listening = tokio::spawn(async move {
        signals.next().await;
        asked.cancel();
    });
    let outcome = match connect_if_any(global).await? {
        Some(client) => compare(client, &args, signer, cancel).await,
        None => {
            let embedded = Embedded::start(&global.cache_dir).await?;
            let outcome = match embedded.client() {
                Ok(client) => compare(client, &args, signer, cancel).await,
                Err(error) => Err(error),
            };
            // Its end is waited for whatever became of the run; the run's own error is told first.
            let ended = embedded.end().await;
            outcome.and_then(|report| ended.map(|()| report))
        }
    };
    listening.abort();
    let report = outcome?;
    if global.json {
        print::json(&report)?;
    } else {
        print::line(report.to_string().trim_end())?;
    }
    Ok(report.exit_code())
}

async fn compare(
    client: Client,
    args: &RodeoRun,
    signer: Signer,
    cancel: CancellationToken,
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
    let outcome = remuda_rodeo::run(client, options).await;
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
