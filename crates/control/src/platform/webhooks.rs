//! Calls about webhooks: where the account's events are delivered to.

use remuda_types::wire::{CreateWebhook, Delivery, MadeWebhook, Webhook, WebhookRemoval};
use remuda_types::{Error, ErrorCode, WebhookId};

use super::Platform;
use crate::access::Action;
use crate::caller::Caller;
use crate::operation::{Answered, Call, operate};
use crate::operations::webhooks::{RedeliverEvent, RemoveWebhook};

impl Platform {
    /// Makes a webhook. It has no idempotency key, as the making of an access key: the secret is told once.
    ///
    /// # Errors
    /// `invalid_request` for a URL to which nothing is delivered; `limit_reached`; `forbidden`, also to a narrowed key.
    pub async fn create_webhook(&self, caller: &Caller, request: CreateWebhook) -> Result<MadeWebhook, Error> {
        caller.may(Action::CreateWebhook)?;
        may_have_webhooks(caller)?;
        self.admit_work()?;
        let (hooks, account) = (self.hooks().clone(), caller.account.clone());
        // To its end also where the caller goes away: memory and journal must agree.
        let making = self.under_way().spawn(async move { hooks.make(&account, request).await });
        making.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?
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

    /// Gives a webhook another secret, which is told once.
    ///
    /// # Errors
    /// `webhook_not_found`.
    pub async fn rotate_webhook(&self, caller: &Caller, id: &WebhookId) -> Result<MadeWebhook, Error> {
        caller.may(Action::RotateWebhook)?;
        may_have_webhooks(caller)?;
        let (hooks, account, id) = (self.hooks().clone(), caller.account.clone(), id.clone());
        let rotating = self.under_way().spawn(async move { hooks.rotate(&account, &id).await });
        rotating.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?
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
