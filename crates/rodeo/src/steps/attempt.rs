//! What every attempt has in common: reading the status, putting the patch, releasing, reading the results.

use std::time::Duration;

use super::Context;
use crate::observe::{Attempt, Exchange, Liveness};
use crate::probe::{self, Application, not_yet_200};
use crate::provider::{Machine, Provider};
use crate::reading;

/// How long the results may say that they are not complete.
const COMPLETION_TIME_MAX: Duration = Duration::from_secs(15);

/// Reads the status; `patience` is how long nobody may be listening yet.
pub(crate) async fn status<P: Provider>(application: &Application<'_, P>, patience: Duration) -> Exchange {
    application.get("/status", patience, not_yet_200).await
}

/// Puts a patch where the program reads it at its release.
pub(crate) async fn put_patch<P: Provider>(
    context: &Context<P>,
    machine: &Machine,
    bytes: &[u8],
    attempt: &mut Attempt,
) {
    attempt.put =
        Some(probe::put(&context.provider, machine, &context.case.workload.manifest.reload.file, bytes).await);
}

/// Releases, reads the results when they are there, and the status once more.
pub(crate) async fn release_and_read<P: Provider>(application: &Application<'_, P>, attempt: &mut Attempt) {
    attempt.release = Some(application.post("/release", None).await);
    let open = |answer: &Exchange| reading::results(Some(answer)).is_ok_and(|results| !results.completed);
    let released = reading::expect_status(attempt.release.as_ref(), 200).is_ok();
    let patience = if released { COMPLETION_TIME_MAX } else { Duration::ZERO };
    attempt.results = Some(application.get("/results", patience, open).await);
    attempt.after = Some(status(application, Duration::ZERO).await);
    let Ok(before) = reading::status(attempt.before.as_ref()) else { return };
    let at_ms = probe::now_ms();
    let runs = application.provider.runs(application.machine, before.pid).await.map_err(|error| error.message);
    attempt.liveness = Some(Liveness { at_ms, pid: before.pid, runs });
}
