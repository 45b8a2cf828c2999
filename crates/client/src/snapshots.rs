//! Snapshots, forks and restores: one method for each route.

use http::Method;
use remuda_types::SandboxId;
use remuda_types::wire::{
    CreateSnapshot, Fork, ForkSandbox, RestoreSnapshot, Sandbox, Snapshot, SnapshotList, SnapshotRemoval,
};

use crate::address::segment;
use crate::sandboxes::sandbox_path;
use crate::{Client, ClientError};

fn snapshot_path(id_or_name: &str) -> Result<String, ClientError> {
    Ok(format!("/v1/snapshots/{}", segment(id_or_name)?))
}

impl Client {
    /// `POST /v1/sandboxes/{id}/snapshots`: captures it; the snapshot is active when this returns.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`]. The source goes on whatever the error is.
    pub async fn snapshot(&self, source: &SandboxId, request: &CreateSnapshot) -> Result<Snapshot, ClientError> {
        self.change("capture", Some(source), Method::POST, format!("{}/snapshots", sandbox_path(source)?))
            .json(request)
            .read()
            .await
    }

    /// `GET /v1/snapshots`, oldest first; deleted and failed ones where `all`.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn snapshots(&self, all: bool) -> Result<Vec<Snapshot>, ClientError> {
        let query: &[(&str, &str)] = if all { &[("all", "true")] } else { &[] };
        let list: SnapshotList = self.call(Method::GET, "/v1/snapshots").query(query).read().await?;
        Ok(list.snapshots)
    }

    /// `GET /v1/snapshots/{id or name}`
    ///
    /// # Errors
    /// `snapshot_not_found`; otherwise as for every call.
    pub async fn snapshot_info(&self, id_or_name: &str) -> Result<Snapshot, ClientError> {
        self.call(Method::GET, snapshot_path(id_or_name)?).read().await
    }

    /// `DELETE /v1/snapshots/{id or name}`
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn remove_snapshot(&self, id_or_name: &str) -> Result<SnapshotRemoval, ClientError> {
        self.change("remove_snapshot", None, Method::DELETE, snapshot_path(id_or_name)?).read().await
    }

    /// `POST /v1/snapshots/{id or name}/restore`
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn restore(&self, id_or_name: &str, request: &RestoreSnapshot) -> Result<Sandbox, ClientError> {
        self.change("restore", None, Method::POST, format!("{}/restore", snapshot_path(id_or_name)?))
            .json(request)
            .read()
            .await
    }

    /// `POST /v1/sandboxes/{id}/forks`: one capture, and a result for each branch.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`]. A branch that fails is no error of the call.
    pub async fn fork(&self, source: &SandboxId, request: &ForkSandbox) -> Result<Fork, ClientError> {
        self.change("fork", Some(source), Method::POST, format!("{}/forks", sandbox_path(source)?))
            .json(request)
            .read()
            .await
    }
}
