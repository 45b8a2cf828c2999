//! One webhook: what is on record of it, in memory, and how it is written.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_journal::{Change, Journal, WebhookRecord};
use remuda_types::limits::WEBHOOK_DELIVERIES_MAX;
use remuda_types::wire::{Delivery, FailingDelivery, Webhook};
use remuda_types::{Account, Error, OperationId, WebhookId};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::signature::Secret;
use crate::records::{self, document};

/// What the journal keeps of a webhook.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Doc {
    pub(super) url: String,
    pub(super) events: Vec<String>,
    pub(super) secret: Secret,
    pub(super) secret_made_at_ms: i64,
    /// The call that made it, where it had a key: so that it is known to have been done also after a crash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) secret_made_by: Option<OperationId>,
    /// The number of the newest event that it is done with.
    pub(super) done_through: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failing: Option<FailingDelivery>,
    #[serde(default)]
    pub(super) missed: u64,
    /// Newest first.
    #[serde(default)]
    pub(super) deliveries: VecDeque<Delivery>,
}

impl Doc {
    pub(super) fn note(&mut self, delivery: Delivery) {
        self.deliveries.push_front(delivery);
        self.deliveries.truncate(WEBHOOK_DELIVERIES_MAX);
    }
}

/// A webhook that is not removed.
#[derive(Debug)]
pub(super) struct Hook {
    pub(super) account: Account,
    pub(super) id: WebhookId,
    created_at_ms: i64,
    doc: Mutex<Doc>,
    /// Held by whoever changes it, until the change is on record.
    writing: tokio::sync::Mutex<()>,
    /// Its delivery that waits is tried at once.
    pub(super) hurry: Notify,
    /// It is removed.
    pub(super) removed: CancellationToken,
}

impl Hook {
    pub(super) fn new(account: Account, id: WebhookId, created_at_ms: i64, doc: Doc) -> Arc<Hook> {
        Arc::new(Hook {
            account,
            id,
            created_at_ms,
            doc: Mutex::new(doc),
            writing: tokio::sync::Mutex::default(),
            hurry: Notify::new(),
            removed: CancellationToken::new(),
        })
    }

    pub(super) fn read(record: WebhookRecord) -> Result<Arc<Hook>, Error> {
        let doc = records::read(&format_args!("the record of {}", record.id), &record.doc)?;
        Ok(Hook::new(record.account, record.id, record.created_at_ms, doc))
    }

    fn locked(&self) -> MutexGuard<'_, Doc> {
        self.doc.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn doc(&self) -> Doc {
        self.locked().clone()
    }

    /// As the API shows it.
    pub(super) fn show(&self) -> Webhook {
        let doc = self.locked();
        Webhook {
            id: self.id.clone(),
            url: doc.url.clone(),
            events: doc.events.clone(),
            created_at_ms: self.created_at_ms,
            secret_made_at_ms: doc.secret_made_at_ms,
            done_through: doc.done_through,
            failing: doc.failing.clone(),
            missed: doc.missed,
        }
    }

    /// Its record with this document.
    pub(super) fn record(&self, doc: &Doc, new: bool) -> Result<Change, Error> {
        let record = WebhookRecord {
            account: self.account.clone(),
            id: self.id.clone(),
            created_at_ms: self.created_at_ms,
            doc: document(doc)?,
        };
        Ok(Change::Webhook { record, new })
    }

    /// Changes it: on record first, and then in memory.
    pub(super) async fn change(&self, journal: &Journal, change: impl FnOnce(&mut Doc)) -> Result<(), Error> {
        let _writing = self.writing.lock().await;
        let mut doc = self.doc();
        change(&mut doc);
        journal.apply(vec![self.record(&doc, false)?]).await.map_err(|e| crate::errors::journal(&e))?;
        *self.locked() = doc;
        Ok(())
    }

    /// What it is done with although nothing was delivered, such as events of other kinds. It is written with whatever
    /// comes next: after a crash they are passed over once more.
    pub(super) fn pass_over(&self, through: u64) {
        let mut doc = self.locked();
        doc.done_through = doc.done_through.max(through);
    }
}
