//! The server itself and its sandboxes: one method for each route, nothing decided here.

use http::Method;
use remuda_types::wire::{
    Capabilities, CreateSandbox, Health, Removal, Sandbox, SandboxList, SetDeadline, StartSandbox, Stop,
};
use remuda_types::{SandboxId, Slot};

use crate::address::segment;
use crate::{Client, ClientError};

/// Which sandboxes a listing shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxFilter {
    /// Ended ones too.
    pub include_ended: bool,
    /// Of this slot only.
    pub slot: Option<Slot>,
    /// With all of these labels, as key and value.
    pub labels: Vec<(String, String)>,
}

pub(crate) fn sandbox_path(id: &SandboxId) -> Result<String, ClientError> {
    Ok(format!("/v1/sandboxes/{}", segment(&id.to_string())?))
}

impl Client {
    /// `GET /v1/health`
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn health(&self) -> Result<Health, ClientError> {
        self.call(Method::GET, "/v1/health").read().await
    }

    /// `GET /v1/capabilities`: what the server and its engine can do, and every limit.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn capabilities(&self) -> Result<Capabilities, ClientError> {
        self.call(Method::GET, "/v1/capabilities").read().await
    }

    /// `GET /v1/openapi.json`
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn openapi(&self) -> Result<serde_json::Value, ClientError> {
        self.call(Method::GET, "/v1/openapi.json").read().await
    }

    /// `POST /v1/sandboxes`: a new sandbox from the base image; it runs when this returns.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn create_sandbox(&self, request: &CreateSandbox) -> Result<Sandbox, ClientError> {
        self.change("create", None, Method::POST, "/v1/sandboxes").json(request).read().await
    }

    /// `GET /v1/sandboxes`
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn list_sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<Sandbox>, ClientError> {
        let mut query: Vec<(&str, String)> = Vec::new();
        if filter.include_ended {
            query.push(("all", "true".into()));
        }
        if let Some(slot) = &filter.slot {
            query.push(("slot", slot.to_string()));
        }
        query.extend(filter.labels.iter().map(|(key, value)| ("label", format!("{key}={value}"))));
        let list: SandboxList = self.call(Method::GET, "/v1/sandboxes").query(&query).read().await?;
        Ok(list.sandboxes)
    }

    /// `GET /v1/sandboxes/{id}`
    ///
    /// # Errors
    /// `generation_gone` when it has ended; otherwise as for every call.
    pub async fn sandbox(&self, id: &SandboxId) -> Result<Sandbox, ClientError> {
        self.call(Method::GET, sandbox_path(id)?).read().await
    }

    /// `DELETE /v1/sandboxes/{id}`: ends it and removes everything; also good when it had ended before.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<Removal, ClientError> {
        self.change("remove", Some(id), Method::DELETE, sandbox_path(id)?).read().await
    }

    /// `POST /v1/sandboxes/{id}/stop`: ends its processes and keeps its files; also good when it had none.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn stop(&self, id: &SandboxId) -> Result<Stop, ClientError> {
        self.change("stop", Some(id), Method::POST, format!("{}/stop", sandbox_path(id)?)).read().await
    }

    /// `POST /v1/sandboxes/{id}/start`: goes on with the files of a stopped sandbox, as the next generation.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn start(&self, id: &SandboxId, request: &StartSandbox) -> Result<Sandbox, ClientError> {
        let path = format!("{}/start", sandbox_path(id)?);
        self.change("start", Some(id), Method::POST, path).json(request).read().await
    }

    /// `POST /v1/sandboxes/{id}/deadline`: another deadline, counted from now.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn set_deadline(&self, id: &SandboxId, request: &SetDeadline) -> Result<Sandbox, ClientError> {
        let path = format!("{}/deadline", sandbox_path(id)?);
        self.change("set_deadline", Some(id), Method::POST, path).json(request).read().await
    }

    /// `POST /v1/sandboxes/{id}/pause`
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn pause(&self, id: &SandboxId) -> Result<Sandbox, ClientError> {
        self.change("pause", Some(id), Method::POST, format!("{}/pause", sandbox_path(id)?)).read().await
    }

    /// `POST /v1/sandboxes/{id}/resume`
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn resume(&self, id: &SandboxId) -> Result<Sandbox, ClientError> {
        self.change("resume", Some(id), Method::POST, format!("{}/resume", sandbox_path(id)?)).read().await
    }
}
