//! Calls about snapshots: captured, looked at, removed, forked, restored.

use remuda_types::wire::{
    CreateSnapshot, Fork, ForkSandbox, RemovalResult, RestoreSnapshot, Sandbox, Snapshot, SnapshotRemoval,
};
use remuda_types::{Error, ErrorCode, SandboxId, SnapshotState};

use super::{Platform, detached};
use crate::caller::Caller;
use crate::operations::{capture, fork, restore};

impl Platform {
    /// Captures a sandbox; the snapshot is active when this returns.
    ///
    /// # Errors
    /// `snapshot_in_progress`, `snapshot_name_taken`, `checkpoint_refused`, `disk_full`, `too_large`. The source goes
    /// on in every case.
    pub async fn capture(&self, caller: &Caller, id: &SandboxId, request: CreateSnapshot) -> Result<Snapshot, Error> {
        capture::snapshot(self, caller, id, request).await
    }

    /// Snapshots, oldest first; deleted and failed ones too where asked for.
    pub async fn snapshots(&self, caller: &Caller, include_deleted: bool) -> Vec<Snapshot> {
        let all = self.registry().tables().snapshots();
        let own = all.iter().filter(|s| s.account == caller.account);
        let ended = |s: &Snapshot| matches!(s.state, SnapshotState::Deleted | SnapshotState::Failed);
        own.map(|s| s.show()).filter(|s| include_deleted || !ended(s)).collect()
    }

    /// A snapshot by id or name.
    ///
    /// # Errors
    /// `snapshot_not_found`.
    pub async fn snapshot(&self, caller: &Caller, id_or_name: &str) -> Result<Snapshot, Error> {
        self.registry().tables().snapshot(&caller.account, id_or_name).map(|s| s.show())
    }

    /// Removes a snapshot. Repeating it is fine and says so. Sandboxes restored from it go on, and its layer stays as long as something stands on it.
    ///
    /// # Errors
    /// `snapshot_not_found`; `wrong_state` while it is captured.
    pub async fn remove_snapshot(&self, caller: &Caller, id_or_name: &str) -> Result<SnapshotRemoval, Error> {
        let cell = self.registry().tables().snapshot(&caller.account, id_or_name)?;
        {
            let mut inner = cell.inner();
            match inner.shown.state {
                // A fork's own may still be under verification, which then finds it deleted.
                SnapshotState::Active | SnapshotState::Verifying => inner.shown.state = SnapshotState::Deleted,
                SnapshotState::Deleted | SnapshotState::Failed => {
                    return Ok(SnapshotRemoval {
                        id: cell.id.clone(),
                        result: RemovalResult::AlreadyAbsent,
                        bytes_reclaimed: 0,
                        bytes_still_referenced: 0,
                    });
                }
                state => {
                    let message = format!("snapshot {} is {state}; it can be removed when it is active", cell.id);
                    return Err(Error::new(ErrorCode::WrongState, message).remedy("try again in a moment"));
                }
            }
        }
        let of_memory = self.drop_memory(&cell).await;
        let of_layers = self.collect().await;
        let layer = self.engine().dirs().layer(&cell.id);
        let left = tokio::task::spawn_blocking(move || remuda_engine::disk_usage(&layer)).await.unwrap_or(0);
        Ok(SnapshotRemoval {
            id: cell.id.clone(),
            result: RemovalResult::Removed,
            bytes_reclaimed: of_memory + of_layers,
            bytes_still_referenced: left,
        })
    }

    /// Captures once and starts branches from it in parallel.
    ///
    /// # Errors
    /// As for [`Platform::capture`], and `limit_reached` with figures when memory does not suffice. A branch that
    /// fails is told in its place and is no error of the fork.
    pub async fn fork(&self, caller: &Caller, id: &SandboxId, request: ForkSandbox) -> Result<Fork, Error> {
        let (this, caller, id) = (self.clone(), caller.clone(), id.clone());
        detached(async move { fork::fork(&this, &caller, &id, request).await }).await
    }

    /// One sandbox from a snapshot.
    ///
    /// # Errors
    /// `snapshot_not_found`, `snapshot_not_active`, `snapshot_damaged`, `engine_mismatch`, `launch_failed`.
    pub async fn restore(&self, caller: &Caller, id_or_name: &str, request: RestoreSnapshot) -> Result<Sandbox, Error> {
        let (this, caller, name) = (self.clone(), caller.clone(), id_or_name.to_owned());
        detached(async move { restore::restore(&this, &caller, &name, request).await }).await
    }
}
