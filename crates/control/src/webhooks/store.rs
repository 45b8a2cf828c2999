//! All webhooks of a server: made, listed, changed, removed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_journal::{Change, Journal, Whose};
use remuda_types::limits::{WEBHOOK_CONCURRENT_MAX, WEBHOOK_URL_BYTES_MAX, WEBHOOKS_MAX};
use remuda_types::wire::{CreateWebhook, Delivery, MadeWebhook, Webhook, WebhookRemoval};
use remuda_types::{Account, Error, ErrorCode, OperationId, WebhookId};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::courier::Courier;
use super::deliver::{self, Means};
use super::filter;
use super::hook::{Doc, Hook};
use super::signature::Secret;
use crate::clock::{id_entropy, now_unix_ms};
use crate::pages;

/// Every webhook. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Webhooks {
    means: Means,
    hooks: Arc<Mutex<BTreeMap<WebhookId, Arc<Hook>>>>,
    /// Held while one is made, so that the limit holds.
    making: Arc<tokio::sync::Mutex<()>>,
}

impl Webhooks {
    /// Reads them all. Nothing is delivered yet.
    pub(crate) async fn open(
        journal: Journal,
        courier: Arc<dyn Courier>,
        closing: CancellationToken,
    ) -> Result<Webhooks, Error> {
        let mut hooks = BTreeMap::new();
        for record in pages::all(|paging| journal.webhooks(Whose::Everyones, paging)).await? {
            let hook = Hook::read(record)?;
            hooks.insert(hook.id.clone(), hook);
        }
        let attempts = Arc::new(Semaphore::new(WEBHOOK_CONCURRENT_MAX));
        let means = Means { journal, courier, attempts, closing };
        Ok(Webhooks { means, hooks: Arc::new(Mutex::new(hooks)), making: Arc::default() })
    }

    /// Begins to deliver, where each had come to.
    pub(crate) fn start(&self) {
        for hook in self.hooks().values() {
            tokio::spawn(deliver::run(self.means.clone(), hook.clone()));
        }
    }

    fn hooks(&self) -> MutexGuard<'_, BTreeMap<WebhookId, Arc<Hook>>> {
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, account: &Account, id: &WebhookId) -> Result<Arc<Hook>, Error> {
        let found = self.hooks().get(id).filter(|hook| hook.account == *account).cloned();
        found.ok_or_else(|| {
            Error::new(ErrorCode::WebhookNotFound, format!("there is no webhook {id} in this account"))
                .remedy("list them with: remuda webhook ls")
        })
    }

    /// Whether one could be made as things stand.
    pub(crate) fn judge(&self, account: &Account, request: &CreateWebhook) -> Result<(), Error> {
        filter::check(&request.events)?;
        let invalid = |why: String| {
            Error::new(ErrorCode::InvalidRequest, "nothing can be delivered to this url")
                .cause(why)
                .remedy("give an https:// or http:// URL of a public host")
                .detail("member", "url")
        };
        if request.url.len() > WEBHOOK_URL_BYTES_MAX {
            return Err(invalid(format!("it is longer than {WEBHOOK_URL_BYTES_MAX} bytes")));
        }
        self.means.courier.check(&request.url).map_err(invalid)?;
        let count = self.hooks().values().filter(|hook| hook.account == *account).count();
        if count >= WEBHOOKS_MAX {
            return Err(Error::limit("webhooks_max", WEBHOOKS_MAX as u64, count as u64)
                .remedy("remove one with: remuda webhook rm ID"));
        }
        Ok(())
    }

    /// Makes one; events from now on are delivered.
    pub(crate) async fn make(
        &self,
        account: &Account,
        request: CreateWebhook,
        by: Option<&OperationId>,
    ) -> Result<MadeWebhook, Error> {
        let _making = self.making.lock().await;
        // Others may have been made since.
        self.judge(account, &request)?;
        let failed = |e| crate::errors::journal(&e);
        let now_ms = now_unix_ms();
        let newest = self.means.journal.events(account, 0, 1).await.map_err(failed)?.newest;
        let doc = Doc {
            url: request.url,
            events: request.events,
            secret: Secret::generate()?,
            secret_made_at_ms: now_ms,
            secret_made_by: by.cloned(),
            done_through: newest,
            failing: None,
            missed: 0,
            deliveries: Default::default(),
        };
        let secret = doc.secret.reveal();
        let hook = Hook::new(account.clone(), WebhookId::from_entropy(id_entropy()?), now_ms, doc.clone());
        self.means.journal.apply(vec![hook.record(&doc, true)?]).await.map_err(failed)?;
        self.hooks().insert(hook.id.clone(), hook.clone());
        tokio::spawn(deliver::run(self.means.clone(), hook.clone()));
        Ok(MadeWebhook { webhook: hook.show(), secret: Some(secret) })
    }

    /// Those of an account, oldest first.
    pub(crate) fn list(&self, account: &Account) -> Vec<Webhook> {
        let mut all: Vec<_> = self.hooks().values().filter(|h| h.account == *account).map(|h| h.show()).collect();
        all.sort_by(|a, b| (a.created_at_ms, &a.id).cmp(&(b.created_at_ms, &b.id)));
        all
    }

    /// One.
    pub(crate) fn show(&self, account: &Account, id: &WebhookId) -> Result<Webhook, Error> {
        self.find(account, id).map(|hook| hook.show())
    }

    /// The one whose secret was made by that call.
    pub(crate) fn with_secret_of(&self, account: &Account, call: &OperationId) -> Option<Webhook> {
        let hooks = self.hooks();
        let made = |hook: &&Arc<Hook>| hook.account == *account && hook.doc().secret_made_by.as_ref() == Some(call);
        hooks.values().find(made).map(|hook| hook.show())
    }

    /// Removes one: no delivery begins after this returns.
    pub(crate) async fn remove(&self, account: &Account, id: &WebhookId) -> Result<WebhookRemoval, Error> {
        let hook = self.find(account, id)?;
        let forgotten = self.means.journal.apply(vec![Change::ForgetWebhook(id.clone())]).await;
        forgotten.map_err(|e| crate::errors::journal(&e))?;
        hook.removed.cancel();
        self.hooks().remove(id);
        Ok(WebhookRemoval { id: id.clone(), done_through: hook.show().done_through })
    }

    /// Gives one another secret: every attempt that begins later is signed with it.
    pub(crate) async fn rotate(
        &self,
        account: &Account,
        id: &WebhookId,
        by: Option<&OperationId>,
    ) -> Result<MadeWebhook, Error> {
        let (hook, secret) = (self.find(account, id)?, Secret::generate()?);
        let told = secret.reveal();
        hook.change(&self.means.journal, |doc| {
            doc.secret = secret;
            doc.secret_made_at_ms = now_unix_ms();
            doc.secret_made_by = by.cloned();
        })
        .await?;
        // What failed may have failed for the secret.
        hook.hurry.notify_one();
        Ok(MadeWebhook { webhook: hook.show(), secret: Some(told) })
    }

    /// Deliveries that are kept, newest first.
    pub(crate) fn deliveries(&self, account: &Account, id: &WebhookId) -> Result<Vec<Delivery>, Error> {
        self.find(account, id).map(|hook| hook.doc().deliveries.into())
    }

    /// Delivers one event once more, in one attempt beside the order.
    pub(crate) async fn redeliver(&self, account: &Account, id: &WebhookId, sequence: u64) -> Result<Delivery, Error> {
        let hook = self.find(account, id)?;
        let page = match sequence.checked_sub(1) {
            Some(before) => {
                self.means.journal.events(account, before, 1).await.map_err(|e| crate::errors::journal(&e))?
            }
            None => return Err(no_event(sequence)),
        };
        let event = page.events.into_iter().find(|event| event.sequence == sequence);
        let event = event.ok_or_else(|| no_event(sequence))?;
        let taken = deliver::attempt(&self.means, &hook, &event).await?;
        let delivery = deliver::noted(&event, 1, &taken, true);
        hook.change(&self.means.journal, |doc| doc.note(delivery.clone())).await?;
        Ok(delivery)
    }
}

fn no_event(sequence: u64) -> Error {
    Error::new(ErrorCode::InvalidRequest, format!("there is no event {sequence}, or it is no longer kept"))
        .remedy("look with: remuda events")
        .detail("member", "sequence")
}
