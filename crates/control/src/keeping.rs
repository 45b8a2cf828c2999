//! Keeps what launch recipes started: a program that ends after it served is started again, as its recipe says, with a
//! growing wait between two starts. It is told by nobody but the executions themselves, each of which is on record. Must
//! start nothing in a sandbox that is stopped, removed or being ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use remuda_types::wire::{LaunchRecipe, Restart};
use remuda_types::{ExecutionState, SandboxState};
use tokio::time::Instant;

use crate::operations::launch;
use crate::platform::Platform;
use crate::registry::SandboxCell;

/// Wait before the first start after an end.
const WAIT_FIRST: Duration = Duration::from_millis(500);
/// Longest wait between two starts; it doubles with each until then.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// A program that ran for so long is taken to have been well: the next wait is the first again.
const WELL_AFTER: Duration = Duration::from_secs(60);

/// Sees to the program of a sandbox's recipe, if that is to be kept, until the sandbox ends or the server does. Called when
/// it has come up, and again by each later server that takes it over.
pub(crate) fn keep(platform: &Platform, cell: &Arc<SandboxCell>) {
    let Some(recipe) = cell.spec.launch.clone().filter(|recipe| recipe.restart != Restart::Never) else { return };
    let (closing, cell) = (platform.closing().clone(), cell.clone());
    tokio::spawn(async move {
        tokio::select! {
            () = closing.cancelled() => {}
            () = watch(&cell, &recipe) => {}
        }
    });
}

async fn watch(cell: &Arc<SandboxCell>, recipe: &LaunchRecipe) {
    let Some(mut execution) = cell.executions.newest_of(&recipe.argv) else { return };
    // Of one that comes up while a server takes it over, both may say so.
    if cell.kept.swap(true, Ordering::SeqCst) {
        return;
    }
    let mut wait = WAIT_FIRST;
    loop {
        let since = Instant::now();
        execution.ended().await;
        if !starts_again(recipe.restart, execution.state(), execution.show().exit_code) {
            return;
        }
        if since.elapsed() >= WELL_AFTER {
            wait = WAIT_FIRST;
        }
        execution = loop {
            tracing::info!("what {} was launched with has ended, and is started again in {wait:?}", cell.id);
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
            if !runs(cell).await {
                return;
            }
            match launch::start(cell, recipe).await {
                Ok(execution) => break execution,
                // A program that is not there any more may come back, and a guest may have room again.
                Err(e) => tracing::warn!("what {} was launched with does not start: {e}", cell.id),
            }
        };
    }
}

/// Waits until it runs; false where it never will again.
async fn runs(cell: &SandboxCell) -> bool {
    let mut status = cell.status.subscribe();
    let stands = status.wait_for(|status| status.state != SandboxState::Paused).await;
    stands.is_ok_and(|status| status.state == SandboxState::Running) && cell.not_ending().is_ok()
}

/// Whether a program that came to this end is started again.
fn starts_again(restart: Restart, state: ExecutionState, exit_code: Option<i32>) -> bool {
    match state {
        // Somebody wanted it to end, or it ended with its sandbox.
        ExecutionState::Cancelled | ExecutionState::SandboxGone | ExecutionState::Oom => false,
        _ => match restart {
            Restart::Never => false,
            Restart::OnFailure => exit_code != Some(0),
            Restart::Always => true,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ended_by_itself_is_started_again() {
        use ExecutionState::{Cancelled, Exited, SandboxGone};
        for (restart, state, code, again) in [
            (Restart::Never, Exited, Some(1), false),
            (Restart::OnFailure, Exited, Some(0), false),
            (Restart::OnFailure, Exited, Some(1), true),
            (Restart::OnFailure, Exited, Some(137), true),
            (Restart::Always, Exited, Some(0), true),
            (Restart::Always, Cancelled, Some(137), false),
            (Restart::Always, SandboxGone, None, false),
        ] {
            assert_eq!(starts_again(restart, state, code), again, "{restart:?} {state:?} {code:?}");
        }
    }
}
