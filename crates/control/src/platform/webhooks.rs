//! Calls about webhooks: where the account's events are delivered to.

use remuda_types::wire::{CreateWebhook, Delivery, MadeWebhook, Webhook, WebhookRemoval};
use remuda_types::{Error, ErrorCode, WebhookId};

use super::Platform;
use crate::access::Action;
use crate::caller::Caller;
use crate::operation::{Answered, Call, operate};
use crate::operations::webhooks::{MakeWebhook, RedeliverEvent, RemoveWebhook, RotateSecret};

impl Platform {
    /// Makes a webhook. The secret is told once: an answer that is told again under its key has none.
    ///
    /// # Errors
    /// `invalid_request` for a URL to which nothing is delivered; `limit_reached`; `forbidden`, also to a narrowed key.
    pub async fn create_webhook(&self, call: &Call, request: CreateWebhook) -> Answered<MadeWebhook> {
        operate(self, call, MakeWebhook { request }).await.map(MadeWebhook::from)
    }

    /// The account's webhooks, oldest first.
    ///
    /// # Errors
    /// `forbidden`.
    pub fn webhooks(&self, caller: &Caller) -> Result<Vec<Webhook>, Error> {
        caller.may(Action::ListWebhooks)?;
        may_have_webhooks(caller)?;
        Ok(self.hooks().list(&caller.account))
    }

    /// One webhook.
    ///
    /// # Errors
    /// `webhook_not_found`.
    pub fn webhook(&self, caller: &Caller, id: &WebhookId) -> Result<Webhook, Error> {
        caller.may(Action::ShowWebhook)?;
        may_have_webhooks(caller)?;
        self.hooks().show(&caller.account, id)
    }

    /// Removes a webhook; no delivery begins after that.
    ///
    /// # Errors
    /// `webhook_not_found`.
    pub async fn remove_webhook(&self, call: &Call, id: &WebhookId) -> Answered<WebhookRemoval> {
        operate(self, call, RemoveWebhook { id: id.clone() }).await
    }

    /// Gives a webhook another secret, which is told once, as that of [`Platform::create_webhook`].
    ///
    /// # Errors
    /// `webhook_not_found`.
    pub async fn rotate_webhook(&self, call: &Call, id: &WebhookId) -> Answered<MadeWebhook> {
        operate(self, call, RotateSecret { id: id.clone() }).await.map(MadeWebhook::from)
    }

    /// Deliveries of a webhook that are kept, newest first.
    ///
    /// # Errors
    /// `webhook_not_found`.
    pub fn webhook_deliveries(&self, caller: &Caller, id: &WebhookId) -> Result<Vec<Delivery>, Error> {
        caller.may(Action::ListWebhookDeliveries)?;
        may_have_webhooks(caller)?;
        self.hooks().deliveries(&caller.account, id)
    }

    /// Delivers one event once more, now and in one attempt.
    ///
    /// # Errors
    /// `webhook_not_found`; `invalid_request` where the event is no longer kept.
    pub async fn redeliver_webhook(&self, call: &Call, id: &WebhookId, sequence: u64) -> Answered<Delivery> {
        operate(self, call, RedeliverEvent { id: id.clone(), sequence }).await
    }
}

/// A narrowed key sees less than the account, and a webhook would tell it all.
pub(crate) fn may_have_webhooks(caller: &Caller) -> Result<(), Error> {
    match caller.narrowing() {
        None => Ok(()),
        Some(narrowing) => {
            Err(Error::new(ErrorCode::Forbidden, "an access key that is narrowed has nothing to do with webhooks")
                .cause(format!("it is narrowed to {narrowing}, and webhooks are for events of the whole account"))
                .remedy("use a key that is not narrowed"))
        }
    }
}
