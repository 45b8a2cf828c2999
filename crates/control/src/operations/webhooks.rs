//! remove_webhook, redeliver_webhook: what of webhooks takes a key. Both may be repeated.

use remuda_journal::Reservation;
use remuda_types::wire::{Delivery, WebhookRemoval};
use remuda_types::{Account, Error, SandboxId, WebhookId};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::operation::{Ended, Fault, Operation, Work};
use crate::platform::{Platform, may_have_webhooks};

/// Removes a webhook.
pub(crate) struct RemoveWebhook {
    pub(crate) id: WebhookId,
}

impl Operation for RemoveWebhook {
    const KIND: &'static str = "remove_webhook";
    const ACTION: Action = Action::RemoveWebhook;
    const ALWAYS: bool = false;
    type Plan = Account;
    type Output = WebhookRemoval;

    fn target(&self) -> Option<&SandboxId> {
        None
    }

    fn request(&self) -> Value {
        json!({ "webhook": self.id })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Account, Reservation), Error> {
        may_have_webhooks(caller)?;
        platform.hooks().show(&caller.account, &self.id)?;
        Ok((caller.account.clone(), Reservation::default()))
    }

    async fn run(self, platform: &Platform, account: Account, _: &Work) -> Ended<WebhookRemoval> {
        Ended::from(platform.hooks().remove(&account, &self.id).await.map_err(Fault::Failed))
    }
}

/// Delivers one event once more.
pub(crate) struct RedeliverEvent {
    pub(crate) id: WebhookId,
    pub(crate) sequence: u64,
}

impl Operation for RedeliverEvent {
    const KIND: &'static str = "redeliver_webhook";
    const ACTION: Action = Action::RedeliverWebhook;
    const ALWAYS: bool = false;
    type Plan = Account;
    type Output = Delivery;

    fn target(&self) -> Option<&SandboxId> {
        None
    }

    fn request(&self) -> Value {
        json!({ "webhook": self.id, "sequence": self.sequence })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Account, Reservation), Error> {
        may_have_webhooks(caller)?;
        platform.hooks().show(&caller.account, &self.id)?;
        Ok((caller.account.clone(), Reservation::default()))
    }

    async fn run(self, platform: &Platform, account: Account, _: &Work) -> Ended<Delivery> {
        let delivered = platform.hooks().redeliver(&account, &self.id, self.sequence).await;
        Ended::from(delivered.map_err(Fault::Failed))
    }
}
