//! Previews: one method for each route, nothing decided here.

use http::Method;
use remuda_types::wire::{CreatePreview, MadePreview, Preview, PreviewList, PreviewProbe, RenewPreview};
use remuda_types::{PreviewId, SandboxId};

use crate::sandboxes::sandbox_path;
use crate::{Client, ClientError};

fn path(sandbox: &SandboxId, rest: &str) -> Result<String, ClientError> {
    Ok(format!("{}/previews{rest}", sandbox_path(sandbox)?))
}

impl Client {
    /// `POST /v1/sandboxes/{id}/previews`: whoever has its credential reaches the port. A lost answer is asked for again,
    /// and has the same credential.
    ///
    /// # Errors
    /// `limit_reached`; `wrong_state` for a sandbox that was stopped; otherwise as for every call.
    pub async fn create_preview(&self, id: &SandboxId, request: &CreatePreview) -> Result<MadePreview, ClientError> {
        self.change("create_preview", Some(id), Method::POST, path(id, "")?).json(request).read().await
    }

    /// `GET /v1/sandboxes/{id}/previews`, oldest first, also of a sandbox that has ended.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn previews(&self, id: &SandboxId) -> Result<Vec<Preview>, ClientError> {
        let list: PreviewList = self.call(Method::GET, path(id, "")?).read().await?;
        Ok(list.previews)
    }

    /// `GET /v1/sandboxes/{id}/previews/{preview}`
    ///
    /// # Errors
    /// `preview_not_found`; otherwise as for every call.
    pub async fn preview(&self, id: &SandboxId, preview: &PreviewId) -> Result<Preview, ClientError> {
        self.call(Method::GET, path(id, &format!("/{preview}"))?).read().await
    }

    /// `POST /v1/sandboxes/{id}/previews/{preview}/rotate`: another credential; the one before is refused from then on.
    ///
    /// # Errors
    /// `preview_gone` for one that is over for good; otherwise as for [`Client::preview`].
    pub async fn rotate_preview(&self, id: &SandboxId, preview: &PreviewId) -> Result<MadePreview, ClientError> {
        let path = path(id, &format!("/{preview}/rotate"))?;
        self.change("rotate_preview", Some(id), Method::POST, path).read().await
    }

    /// `POST /v1/sandboxes/{id}/previews/{preview}/renew`: it lives longer, under the same credential.
    ///
    /// # Errors
    /// As for [`Client::rotate_preview`].
    pub async fn renew_preview(
        &self,
        id: &SandboxId,
        preview: &PreviewId,
        request: &RenewPreview,
    ) -> Result<MadePreview, ClientError> {
        let path = path(id, &format!("/{preview}/renew"))?;
        self.change("renew_preview", Some(id), Method::POST, path).json(request).read().await
    }

    /// `DELETE /v1/sandboxes/{id}/previews/{preview}`: it opens nothing any more. Also good when it was over before.
    ///
    /// # Errors
    /// As for [`Client::preview`].
    pub async fn revoke_preview(&self, id: &SandboxId, preview: &PreviewId) -> Result<Preview, ClientError> {
        self.change("revoke_preview", Some(id), Method::DELETE, path(id, &format!("/{preview}"))?).read().await
    }

    /// `GET /v1/sandboxes/{id}/previews/{preview}/probe`: what is behind it at this moment.
    ///
    /// # Errors
    /// As for [`Client::preview`].
    pub async fn probe_preview(&self, id: &SandboxId, preview: &PreviewId) -> Result<PreviewProbe, ClientError> {
        self.call(Method::GET, path(id, &format!("/{preview}/probe"))?).read().await
    }
}
