//! expire: what was kept long enough is let go of: records and output of executions, also after their sandbox is gone, and
//! in the journal operations (which leave a tombstone), events, receipts, and records of what has ended.

use std::collections::HashSet;
use std::sync::Weak;
use std::time::{Duration, SystemTime};

use remuda_journal::{Journal, JournalError};
use remuda_types::limits::EXECUTION_RETENTION_MS;

use crate::clock::now_unix_ms;
use crate::platform::Shared;

/// Between two looks. Retention is a matter of hours.
const LOOK_EVERY: Duration = Duration::from_secs(600);

/// Looks at once and then every now and then, as long as there is a platform.
pub(crate) async fn run(shared: Weak<Shared>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        if let Err(e) = evict(shared.journal()).await {
            tracing::warn!("what the journal has kept long enough is not removed: {e}");
        }
        let (cells, snapshots) = {
            let tables = shared.registry.tables();
            (tables.sandboxes(), tables.snapshots())
        };
        for cell in &cells {
            cell.executions.expire(now_unix_ms());
        }
        let owners: HashSet<String> =
            cells.iter().map(|c| c.uid.to_string()).chain(snapshots.iter().map(|s| s.id.to_string())).collect();
        let (places, kept) = (shared.places.clone(), Duration::from_millis(EXECUTION_RETENTION_MS.unsigned_abs()));
        let removing = tokio::task::spawn_blocking(move || places.remove_older(&owners, SystemTime::now() - kept));
        if let Ok(Err(e)) = removing.await {
            tracing::warn!("failed to remove executions that were kept long enough: {e}");
        }
        let staging = shared.staging.clone();
        if let Ok(Err(e)) = tokio::task::spawn_blocking(move || staging.expire()).await {
            tracing::warn!("failed to remove files that nobody went on to send: {e}");
        }
        drop((shared, cells, snapshots));
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Round after round, so that calls come in between.
async fn evict(journal: &Journal) -> Result<(), JournalError> {
    while journal.evict(now_unix_ms()).await?.more {
        tokio::task::yield_now().await;
    }
    Ok(())
}
