//! Webhooks: where an account's events are delivered to.

use std::fmt;

use remuda_types::{Account, WebhookId};
use serde_json::Value;

/// A webhook.
#[derive(Clone, PartialEq)]
pub struct WebhookRecord {
    /// Whose it is.
    pub account: Account,
    /// Its id, which is no secret.
    pub id: WebhookId,
    /// When it was made, in Unix milliseconds.
    pub created_at_ms: i64,
    /// Everything else about it, its secret too: it is needed to sign, so that no digest would do.
    pub doc: Value,
}

impl fmt::Debug for WebhookRecord {
    /// Without its document, which holds a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookRecord").field("account", &self.account).field("id", &self.id).finish_non_exhaustive()
    }
}
