//! Removes what the run made, and sees by itself that it is gone. Runs after a good run, a failed one and an
//! interrupted one alike.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;

use super::Context;
use crate::provider::{Capture, Machine, Presence, Provider};
use crate::records::{CaptureRemoval, CleanupRecord, MachineRemoval};

/// How long cleanup waits for calls that are still making something.
const MAKING_LEFT_TIME_MAX: Duration = Duration::from_secs(60);
/// How long one call of the cleanup may take.
const REMOVAL_TIME_MAX: Duration = Duration::from_secs(60);

/// Removes everything that carries the run's label or is known to be the run's.
pub(crate) async fn clean_up<P: Provider>(context: &Context<P>) -> CleanupRecord {
    let provider = &context.provider;
    let mut record = CleanupRecord::default();
    context.making.close();
    if tokio::time::timeout(MAKING_LEFT_TIME_MAX, context.making.wait()).await.is_err() {
        record.calls_left = context.making.len();
    }

    let made = context.made().clone();
    let mut machines: BTreeSet<Machine> = made.machines.into_iter().collect();
    if let Ok(listed) = in_time(provider.machines_of(&context.run)).await {
        machines.extend(listed);
    }
    let sources: Vec<Machine> = machines.iter().cloned().collect();
    let mut captures: BTreeSet<Capture> = made.captures.into_iter().collect();
    if let Ok(found) = in_time(provider.captures_of(&sources)).await {
        captures.extend(found);
    }

    let removals = machines.into_iter().map(|machine| async move {
        let removal = in_time(provider.remove(&machine)).await;
        let presence = match tokio::time::timeout(REMOVAL_TIME_MAX, provider.presence(&machine)).await {
            Ok(presence) => presence,
            Err(_) => Presence::Unknown("no answer in time".into()),
        };
        MachineRemoval { machine, removal, presence }
    });
    record.machines = join_all(removals).await;
    // After the machines, which stand on them.
    let removals = captures.into_iter().map(|capture| async move {
        let removal = in_time(provider.remove_capture(&capture)).await;
        CaptureRemoval { capture, removal }
    });
    record.captures = join_all(removals).await;
    record.still_listed = Some(in_time(provider.machines_of(&context.run)).await);

    record.clean = record.says_clean();
    record
}

async fn in_time<T>(call: impl Future<Output = Result<T, crate::provider::ProviderError>>) -> Result<T, String> {
    match tokio::time::timeout(REMOVAL_TIME_MAX, call).await {
        Ok(result) => result.map_err(|error| error.message),
        Err(_) => Err(format!("no answer within {} seconds", REMOVAL_TIME_MAX.as_secs())),
    }
}
