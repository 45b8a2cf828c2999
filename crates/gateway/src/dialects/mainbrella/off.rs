//! What this dialect has and is off here, said as `/capabilities` says it: metrics, webhooks, and images of one's own.

use serde_json::json;

use super::answer::{Refusal, Told, told};
use super::enter::Asked;

/// There are no measurements.
pub(super) async fn metrics(asked: Asked) -> Told {
    asked.sandbox()?;
    Err(Refusal::new(503, "metrics_unavailable"))
}

/// None can be set up.
pub(super) async fn no_webhooks(asked: Asked) -> Told {
    asked.sandbox()?;
    Err(Refusal::new(503, "webhooks_not_configured"))
}

/// None is set up.
pub(super) async fn webhook(asked: Asked) -> Told {
    asked.sandbox()?;
    Ok(told(200, &json!({ "webhook": null })))
}

/// None is there to be removed.
pub(super) async fn remove_webhook(asked: Asked) -> Told {
    asked.sandbox()?;
    Ok(told(200, &json!({ "removed": true })))
}

/// Nothing was delivered.
pub(super) async fn deliveries(asked: Asked) -> Told {
    asked.sandbox()?;
    Ok(told(200, &json!({ "deliveries": [] })))
}

/// There is nothing that could be delivered again.
pub(super) async fn retry(asked: Asked) -> Told {
    asked.sandbox()?;
    Err(Refusal::new(404, "delivery_not_found"))
}

/// Nobody has any of their own.
pub(super) async fn images(_: Asked) -> Told {
    Ok(told(200, &json!({ "images": [] })))
}
