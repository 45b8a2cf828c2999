//! What the server tells about itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/capabilities`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Capabilities {
    /// Version of this server.
    pub version: String,
    /// The engine under it.
    pub engine: EngineInfo,
    /// What can be done here; absent or false means that it can't.
    pub features: BTreeMap<String, bool>,
    /// Every limit by its name; units are part of the name.
    pub limits: BTreeMap<String, u64>,
}

/// The engine that sandboxes run on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EngineInfo {
    /// Always `gvisor`.
    pub name: String,
    /// What `runsc --version` says.
    pub version: String,
    /// Digest of the runsc binary in use.
    pub digest: String,
    /// Platform, `systrap`.
    pub platform: String,
}

/// `GET /v1/health`: answered without a credential and tells nothing but this.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    pub status: String,
}
