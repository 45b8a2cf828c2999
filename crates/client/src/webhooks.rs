//! Webhooks: one method for each route, nothing decided here.

use http::Method;
use remuda_types::WebhookId;
use remuda_types::wire::{
    CreateWebhook, Delivery, DeliveryList, MadeWebhook, Redeliver, Webhook, WebhookList, WebhookRemoval,
};

use crate::{Client, ClientError};

impl Client {
    /// `POST /v1/webhooks`: events from now on are delivered. The secret is in the first answer and is
    /// never told again: where that one was lost, the call that is sent again has none, and the webhook is to be rotated.
    ///
    /// # Errors
    /// `invalid_request` for a URL to which nothing is delivered; otherwise as for every call.
    pub async fn create_webhook(&self, request: &CreateWebhook) -> Result<MadeWebhook, ClientError> {
        self.change("create_webhook", None, Method::POST, "/v1/webhooks").json(request).read().await
    }

    /// `GET /v1/webhooks`, oldest first.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn webhooks(&self) -> Result<Vec<Webhook>, ClientError> {
        let list: WebhookList = self.call(Method::GET, "/v1/webhooks").read().await?;
        Ok(list.webhooks)
    }

    /// `GET /v1/webhooks/{webhook}`
    ///
    /// # Errors
    /// `webhook_not_found`; otherwise as for every call.
    pub async fn webhook(&self, id: &WebhookId) -> Result<Webhook, ClientError> {
        self.call(Method::GET, format!("/v1/webhooks/{id}")).read().await
    }

    /// `DELETE /v1/webhooks/{webhook}`
    ///
    /// # Errors
    /// As for [`Client::webhook`].
    pub async fn remove_webhook(&self, id: &WebhookId) -> Result<WebhookRemoval, ClientError> {
        self.change("remove_webhook", None, Method::DELETE, format!("/v1/webhooks/{id}")).read().await
    }

    /// `POST /v1/webhooks/{webhook}/rotate`: another secret, told as by
    /// [`Client::create_webhook`].
    ///
    /// # Errors
    /// As for [`Client::webhook`].
    pub async fn rotate_webhook(&self, id: &WebhookId) -> Result<MadeWebhook, ClientError> {
        self.change("rotate_webhook", None, Method::POST, format!("/v1/webhooks/{id}/rotate")).read().await
    }

    /// `GET /v1/webhooks/{webhook}/deliveries`, newest first.
    ///
    /// # Errors
    /// As for [`Client::webhook`].
    pub async fn webhook_deliveries(&self, id: &WebhookId) -> Result<Vec<Delivery>, ClientError> {
        let list: DeliveryList = self.call(Method::GET, format!("/v1/webhooks/{id}/deliveries")).read().await?;
        Ok(list.deliveries)
    }

    /// `POST /v1/webhooks/{webhook}/redeliver`: one event once more, in one attempt.
    ///
    /// # Errors
    /// `invalid_request` where the event is no longer kept; otherwise as for [`Client::webhook`].
    pub async fn redeliver_webhook(&self, id: &WebhookId, sequence: u64) -> Result<Delivery, ClientError> {
        let path = format!("/v1/webhooks/{id}/redeliver");
        self.change("redeliver_webhook", None, Method::POST, path).json(&Redeliver { sequence }).read().await
    }
}
