//! Webhooks on the wire: events that are delivered to a URL.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::WebhookId;

/// `POST /v1/webhooks`: deliver events to a URL from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWebhook {
    /// Where to, `https://…` or `http://…`, without a name or password in it.
    pub url: String,
    /// Which kinds of events: whole ones such as `snapshot.active`, or all of a thing such as `sandbox.*`; every kind
    /// when absent or empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<String>,
}

/// A webhook. Its secret is told once, when it is made or rotated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Webhook {
    /// Its id.
    pub id: WebhookId,
    /// Where to.
    pub url: String,
    /// Which kinds of events; every kind when empty.
    pub events: Vec<String>,
    /// When it was made, in Unix milliseconds.
    pub created_at_ms: i64,
    /// When its secret was made, in Unix milliseconds.
    pub secret_made_at_ms: i64,
    /// The number of the newest event that it is done with: delivered, given up, or none of its kinds.
    pub done_through: u64,
    /// The delivery that fails at the moment; those behind it wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<FailingDelivery>,
    /// Events that were no longer kept when their turn came.
    pub missed: u64,
}

/// A delivery that fails and is tried again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailingDelivery {
    /// The event's number.
    pub sequence: u64,
    /// Attempts that failed.
    pub attempts: u32,
    /// When the next one is made, in Unix milliseconds.
    pub next_at_ms: i64,
    /// Why the last one failed.
    pub error: String,
}

/// The answer to making a webhook or rotating its secret. The first one is the only one that has the secret: one that is
/// told again under its key has not.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeWebhook {
    /// It.
    pub webhook: Webhook,
    /// `whsec_` and the key of its signatures in base64. Absent where the answer is told again: whoever lost the first one
    /// rotates the webhook's secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

impl std::fmt::Debug for MadeWebhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MadeWebhook").field("webhook", &self.webhook).finish_non_exhaustive()
    }
}

/// `GET /v1/webhooks`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookList {
    /// Oldest first.
    pub webhooks: Vec<Webhook>,
}

/// `DELETE /v1/webhooks/{webhook}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookRemoval {
    /// Which one.
    pub id: WebhookId,
    /// The number of the newest event that it was done with.
    pub done_through: u64,
}

/// One delivery of one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Delivery {
    /// The event's number.
    pub sequence: u64,
    /// The event's kind.
    pub kind: String,
    /// What became of it.
    pub result: DeliveryResult,
    /// Attempts that were made.
    pub attempts: u32,
    /// When the last one ended, in Unix milliseconds.
    pub at_ms: i64,
    /// The status of the last answer, where there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether it was asked for by hand.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_hand: bool,
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryResult {
    /// It was answered with 200 to 299.
    Delivered,
    /// It was given up.
    Failed,
}

/// `GET /v1/webhooks/{webhook}/deliveries`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryList {
    /// Newest first, as many as are kept.
    pub deliveries: Vec<Delivery>,
}

/// `POST /v1/webhooks/{webhook}/redeliver`: deliver one event once more, now and beside the order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Redeliver {
    /// The event's number.
    pub sequence: u64,
}
