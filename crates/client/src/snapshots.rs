//! Snapshots, forks and restores: one method for each route.

use std::time::Duration;

use http::Method;
use remuda_types::wire::{
    CreateSnapshot, Fork, ForkSandbox, RestoreSnapshot, Sandbox, Snapshot, SnapshotDiff, SnapshotList, SnapshotRemoval,
    Verification,
};
use remuda_types::{SandboxId, SnapshotState};

use crate::address::segment;
use crate::sandboxes::sandbox_path;
use crate::{Client, ClientError};

/// Which snapshots a listing shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SnapshotFilter {
    /// Failed and deleted ones too.
    pub include_ended: bool,
    /// In this state only; failed and deleted ones are found by it too.
    pub state: Option<SnapshotState>,
    /// With this name only.
    pub name: Option<String>,
    /// Captured from this generation only.
    pub source: Option<SandboxId>,
    /// With this label only, as key and value.
    pub label: Option<(String, String)>,
    /// Made at or after this Unix time in milliseconds only.
    pub since_ms: Option<i64>,
    /// Made before this Unix time in milliseconds only.
    pub before_ms: Option<i64>,
}

impl SnapshotFilter {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = Vec::new();
        if self.include_ended {
            pairs.push(("all", "true".to_owned()));
        }
        pairs.extend(self.state.map(|state| ("state", state.to_string())));
        pairs.extend(self.name.clone().map(|name| ("name", name)));
        pairs.extend(self.source.as_ref().map(|source| ("source", source.to_string())));
        pairs.extend(self.label.as_ref().map(|(key, value)| ("label", format!("{key}={value}"))));
        pairs.extend(self.since_ms.map(|ms| ("since_ms", ms.to_string())));
        pairs.extend(self.before_ms.map(|ms| ("before_ms", ms.to_string())));
        pairs
    }
}

fn snapshot_path(id_or_name: &str) -> Result<String, ClientError> {
    Ok(format!("/v1/snapshots/{}", segment(id_or_name)?))
}

impl Client {
    /// `POST /v1/sandboxes/{id}/snapshots`: captures it; the snapshot is active when this returns, unless the request says
    /// that the call waits no longer.
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
        self.snapshots_of(&SnapshotFilter { include_ended: all, ..SnapshotFilter::default() }).await
    }

    /// The same, as a filter says: all of them, page after page.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn snapshots_of(&self, filter: &SnapshotFilter) -> Result<Vec<Snapshot>, ClientError> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = self.snapshots_page(filter, after.as_deref(), None).await?;
            all.extend(page.snapshots);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// `GET /v1/snapshots`: one page, after the one that gave `after`.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn snapshots_page(
        &self,
        filter: &SnapshotFilter,
        after: Option<&str>,
        limit: Option<usize>,
    ) -> Result<SnapshotList, ClientError> {
        let mut query = filter.pairs();
        query.extend(after.map(|after| ("after", after.to_owned())));
        query.extend(limit.map(|limit| ("limit", limit.to_string())));
        self.call(Method::GET, "/v1/snapshots").query(&query).read().await
    }

    /// `GET /v1/snapshots/{id or name}`
    ///
    /// # Errors
    /// `snapshot_not_found`; otherwise as for every call.
    pub async fn snapshot_info(&self, id_or_name: &str) -> Result<Snapshot, ClientError> {
        self.call(Method::GET, snapshot_path(id_or_name)?).read().await
    }

    /// The same of one that is being captured, after its end or `wait`, whichever is first.
    ///
    /// # Errors
    /// `snapshot_not_found`; otherwise as for every call.
    pub async fn snapshot_settled(&self, id_or_name: &str, wait: Duration) -> Result<Snapshot, ClientError> {
        let query = [("wait_ms", u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))];
        self.call(Method::GET, snapshot_path(id_or_name)?).query(&query).read().await
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

    /// `POST /v1/snapshots/{id or name}/verify`: every byte of it, and a trial.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`]. Damage is told in the answer.
    pub async fn verify_snapshot(&self, id_or_name: &str) -> Result<Verification, ClientError> {
        self.change("verify", None, Method::POST, format!("{}/verify", snapshot_path(id_or_name)?)).read().await
    }

    /// `GET /v1/snapshots/{id or name}/diff`: which files differ from those of another snapshot, or from what its source
    /// was made from.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn diff_snapshots(&self, from: Option<&str>, to: &str, patch: bool) -> Result<SnapshotDiff, ClientError> {
        let mut query: Vec<(&str, String)> = from.map(|from| ("from", from.to_owned())).into_iter().collect();
        query.extend(patch.then(|| ("patch", "true".to_owned())));
        self.call(Method::GET, format!("{}/diff", snapshot_path(to)?)).query(&query).read().await
    }
}
