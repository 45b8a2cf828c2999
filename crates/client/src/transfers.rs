//! Snapshots as files: one method for each route. Whoever calls keeps the place where an export or an import goes on.

use http::header::{ETAG, IF_MATCH};
use http::{HeaderMap, HeaderValue, Method};
use remuda_types::wire::{ImportSnapshot, ImportState, Snapshot};

use crate::address::segment;
use crate::{Client, ClientError, Incoming};

/// An export on its way in.
#[derive(Debug)]
pub struct SnapshotExport {
    /// By which one that was cut off is gone on with.
    pub tag: Option<String>,
    /// The bytes.
    pub body: Incoming,
}

fn import_path(digest: &str) -> Result<String, ClientError> {
    Ok(format!("/v1/imports/{}", segment(digest)?))
}

impl Client {
    /// `GET /v1/snapshots/{id or name}/export`: a snapshot as one file, from an offset on; of the same bytes as before, where
    /// `tag` is what came with those.
    ///
    /// # Errors
    /// `precondition_failed` where it would be another file by now; otherwise as for every call.
    pub async fn export_snapshot(
        &self,
        id_or_name: &str,
        offset: u64,
        tag: Option<&str>,
    ) -> Result<SnapshotExport, ClientError> {
        let mut headers = HeaderMap::new();
        if let Some(tag) = tag {
            let value = HeaderValue::try_from(format!("\"{tag}\""));
            headers.insert(IF_MATCH, value.map_err(|e| ClientError::Input(e.to_string()))?);
        }
        let path = format!("/v1/snapshots/{}/export", segment(id_or_name)?);
        let body = self.call(Method::GET, path).query(&[("offset", offset)]).headers(headers).send().await?;
        let tag = body.headers().get(ETAG).and_then(|tag| tag.to_str().ok());
        Ok(SnapshotExport { tag: tag.map(|tag| tag.trim_matches('"').to_owned()), body })
    }

    /// `GET /v1/imports/{digest}`: how much of a file the server has.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn import_state(&self, digest: &str) -> Result<ImportState, ClientError> {
        self.call(Method::GET, import_path(digest)?).read().await
    }

    /// `PUT /v1/imports/{digest}`: adds a piece at the end of what the server has.
    ///
    /// # Errors
    /// `input_gap` where the piece belongs elsewhere; otherwise as for every call.
    pub async fn import_piece(
        &self,
        digest: &str,
        offset: u64,
        piece: impl Into<reqwest::Body>,
    ) -> Result<ImportState, ClientError> {
        self.call(Method::PUT, import_path(digest)?).query(&[("offset", offset)]).body(piece).read().await
    }

    /// `DELETE /v1/imports/{digest}`: forgets a file that is on its way in.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn forget_import(&self, digest: &str) -> Result<(), ClientError> {
        self.call(Method::DELETE, import_path(digest)?).done().await
    }

    /// `POST /v1/imports/{digest}/snapshot`: makes a snapshot of a file that the server has whole.
    ///
    /// # Errors
    /// `archive_refused`, `engine_mismatch`; otherwise as for every call.
    pub async fn import_snapshot(&self, digest: &str, request: &ImportSnapshot) -> Result<Snapshot, ClientError> {
        let path = format!("{}/snapshot", import_path(digest)?);
        self.change("import", None, Method::POST, path).json(request).read().await
    }
}
