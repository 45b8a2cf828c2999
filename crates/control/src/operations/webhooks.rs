//! create_webhook, rotate_webhook, remove_webhook, redeliver_webhook. A secret is told in the first answer and is part of no
//! outcome: what is told again under a key has none, since whoever may look an operation up by its key need not be whoever
//! made it.

use remuda_journal::{Operation as Record, Reservation};
use remuda_types::wire::{CreateWebhook, Delivery, MadeWebhook, Webhook, WebhookRemoval};
use remuda_types::{Account, Error, SandboxId, WebhookId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::operation::{Ended, Fault, Operation, Work, canonical};
use crate::platform::{Platform, may_have_webhooks};

/// What came of a call that makes a secret: what is kept of it has none.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Made {
    webhook: Webhook,
    #[serde(skip)]
    secret: Option<String>,
}

impl From<MadeWebhook> for Made {
    fn from(made: MadeWebhook) -> Made {
        Made { webhook: made.webhook, secret: made.secret }
    }
}

impl From<Made> for MadeWebhook {
    fn from(made: Made) -> MadeWebhook {
        MadeWebhook { webhook: made.webhook, secret: made.secret }
    }
}

/// Makes a webhook.
pub(crate) struct MakeWebhook {
    pub(crate) request: CreateWebhook,
}

impl Operation for MakeWebhook {
    const KIND: &'static str = "create_webhook";
    const ACTION: Action = Action::CreateWebhook;
    const ALWAYS: bool = false;
    type Plan = Account;
    type Output = Made;

    fn target(&self) -> Option<&SandboxId> {
        None
    }

    fn request(&self) -> Value {
        canonical(&self.request)
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Account, Reservation), Error> {
        may_have_webhooks(caller)?;
        platform.admit_work()?;
        platform.hooks().judge(&caller.account, &self.request)?;
        Ok((caller.account.clone(), Reservation::default()))
    }

    async fn run(self, platform: &Platform, account: Account, work: &Work) -> Ended<Made> {
        let made = platform.hooks().make(&account, self.request, work.id.as_ref()).await;
        Ended::from(made.map(Made::from).map_err(Fault::Failed))
    }
}

/// Gives a webhook another secret.
pub(crate) struct RotateSecret {
    pub(crate) id: WebhookId,
}

impl Operation for RotateSecret {
    const KIND: &'static str = "rotate_webhook";
    const ACTION: Action = Action::RotateWebhook;
    const ALWAYS: bool = false;
    type Plan = Account;
    type Output = Made;

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

    async fn run(self, platform: &Platform, account: Account, work: &Work) -> Ended<Made> {
        let rotated = platform.hooks().rotate(&account, &self.id, work.id.as_ref()).await;
        Ended::from(rotated.map(Made::from).map_err(Fault::Failed))
    }
}

/// What a dead server had come to with a call that makes a secret: done, where the webhook says that its secret was made
/// by it. The secret itself is lost with the answer.
pub(crate) fn secret_made(platform: &Platform, record: &Record) -> Option<Made> {
    let webhook = platform.hooks().with_secret_of(&record.account, &record.id)?;
    Some(Made { webhook, secret: None })
}

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
