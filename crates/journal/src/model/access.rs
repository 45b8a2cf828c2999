//! Previews and access keys: who may come in. Secrets are kept as digests only.

use remuda_types::{AccessKeyId, Account, PreviewId, Uid};
use serde_json::Value;

/// Access to one port of one generation over HTTP.
#[derive(Debug, Clone, PartialEq)]
pub struct Preview {
    /// Whose it is.
    pub account: Account,
    /// Its id.
    pub id: PreviewId,
    /// The generation it leads to.
    pub sandbox: Uid,
    /// Digest of its credential. Revoked and expired ones are found by it too: they are told apart from unknown ones.
    pub token_hash: [u8; 32],
    /// When it was made, in Unix milliseconds.
    pub created_at_ms: i64,
    /// When it ends by itself, in Unix milliseconds.
    pub expires_at_ms: Option<i64>,
    /// When it was revoked, in Unix milliseconds.
    pub revoked_at_ms: Option<i64>,
    /// Everything else about it: port, how the credential travels, host handling, label.
    pub doc: Value,
}

/// A key to the API.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessKey {
    /// Whose it is.
    pub account: Account,
    /// Its id, which is no secret.
    pub id: AccessKeyId,
    /// Digest of the secret.
    pub hash: [u8; 32],
    /// What it may do: `sandboxes:read`, ….
    pub scopes: Vec<String>,
    /// To what it is narrowed: a slot, one sandbox, a label; null when it isn't.
    pub narrowing: Value,
    /// When it was made, in Unix milliseconds.
    pub created_at_ms: i64,
    /// When it ends by itself, in Unix milliseconds.
    pub expires_at_ms: Option<i64>,
    /// When it was revoked, in Unix milliseconds.
    pub revoked_at_ms: Option<i64>,
    /// Everything else about it: its label.
    pub doc: Value,
}
