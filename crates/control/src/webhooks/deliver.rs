//! Delivers: one event after another, each until it is taken or given up.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use remuda_journal::{EventRecord, Journal};
use remuda_types::limits::WEBHOOK_RETRY_MS_FIRST;
use remuda_types::wire::{Delivery, DeliveryResult, Event, FailingDelivery};
use remuda_types::{Error, ErrorCode};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::courier::{Courier, Parcel, Refused};
use super::hook::{Doc, Hook};
use super::{backoff, filter};
use crate::clock::now_unix_ms;
use crate::records;

/// Events that are read at once.
const PAGE: usize = 100;

/// What deliveries are made with. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Means {
    pub(super) journal: Journal,
    pub(super) courier: Arc<dyn Courier>,
    /// Attempts that may be under way at once.
    pub(super) attempts: Arc<Semaphore>,
    pub(super) closing: CancellationToken,
}

/// Delivers until the webhook is removed or the server ends. An attempt that is under way then is made again later.
pub(super) async fn run(means: Means, hook: Arc<Hook>) {
    tokio::select! {
        () = hook.removed.cancelled() => {}
        () = means.closing.cancelled() => {}
        () = go_on(&means, &hook) => {}
    }
}

async fn go_on(means: &Means, hook: &Hook) {
    let mut watching = None;
    loop {
        match round(means, hook).await {
            Ok(true) => continue,
            Ok(false) => {}
            Err(e) => {
                tracing::error!("deliveries of {} stand still for a moment: {e}", hook.id);
                tokio::time::sleep(Duration::from_millis(WEBHOOK_RETRY_MS_FIRST)).await;
                continue;
            }
        }
        if watching.is_none() {
            // From here on nothing that is new is missed; what came before is looked for once more.
            watching = means.journal.watch_events(&hook.account).await.ok();
            continue;
        }
        let changed = match &mut watching {
            Some(newest) => newest.changed().await.is_ok(),
            None => false,
        };
        if !changed {
            watching = None;
        }
    }
}

/// Sees to a page of events; whether there was one.
async fn round(means: &Means, hook: &Hook) -> Result<bool, Error> {
    let doc = hook.doc();
    let page = means.journal.events(&hook.account, doc.done_through, PAGE).await;
    let page = page.map_err(|e| crate::errors::journal(&e))?;
    let missed = page.missed_since(doc.done_through);
    if missed > 0 {
        let next = page.events.first().map_or(page.newest, |first| first.sequence - 1);
        hook.change(&means.journal, |doc| {
            doc.missed += missed;
            doc.done_through = doc.done_through.max(next);
            doc.failing = None;
        })
        .await?;
    }
    for event in &page.events {
        if filter::takes(&doc.events, &event.kind) {
            until_done(means, hook, event).await?;
        } else {
            hook.pass_over(event.sequence);
        }
    }
    Ok(!page.events.is_empty())
}

/// Tries until it is taken or given up; each attempt is on record before the next is waited for.
async fn until_done(means: &Means, hook: &Hook, event: &EventRecord) -> Result<(), Error> {
    loop {
        let failed = hook.doc().failing.filter(|failing| failing.sequence == event.sequence);
        if let Some(failing) = &failed {
            let wait = u64::try_from(failing.next_at_ms.saturating_sub(now_unix_ms())).unwrap_or(0);
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(wait)) => {}
                () = hook.hurry.notified() => {}
            }
        }
        let attempts = failed.map_or(0, |failing| failing.attempts) + 1;
        let taken = attempt(means, hook, event).await?;
        let wait = backoff::wait_ms(attempts);
        let done = taken.is_ok() || wait.is_none();
        hook.change(&means.journal, |doc: &mut Doc| {
            if done {
                doc.done_through = event.sequence;
                doc.failing = None;
                doc.note(noted(event, attempts, &taken, false));
            } else if let Err(refused) = &taken {
                doc.failing = Some(FailingDelivery {
                    sequence: event.sequence,
                    attempts,
                    next_at_ms: now_unix_ms().saturating_add_unsigned(wait.unwrap_or_default()),
                    error: refused.why.clone(),
                });
            }
        })
        .await?;
        if done {
            return Ok(());
        }
    }
}

/// What is kept of a delivery.
pub(super) fn noted(event: &EventRecord, attempts: u32, taken: &Result<u16, Refused>, by_hand: bool) -> Delivery {
    Delivery {
        sequence: event.sequence,
        kind: event.kind.clone(),
        result: if taken.is_ok() { DeliveryResult::Delivered } else { DeliveryResult::Failed },
        attempts,
        at_ms: now_unix_ms(),
        status: taken.as_ref().map_or_else(|refused| refused.status, |status| Some(*status)),
        error: taken.as_ref().err().map(|refused| refused.why.clone()),
        by_hand,
    }
}

/// One attempt. An error means that there was none.
pub(super) async fn attempt(means: &Means, hook: &Hook, event: &EventRecord) -> Result<Result<u16, Refused>, Error> {
    let about = records::read(&format_args!("event {}", event.sequence), &event.doc)?;
    let told = Event { sequence: event.sequence, at_ms: event.at_ms, kind: event.kind.clone(), about };
    let unwritable = |e| Error::new(ErrorCode::Internal, "an event can't be written").cause(e);
    let body = Bytes::from(serde_json::to_vec(&told).map_err(unwritable)?);
    let closed = |e| Error::new(ErrorCode::Internal, "nothing is delivered any more").cause(e);
    let _turn = means.attempts.acquire().await.map_err(closed)?;
    let (doc, timestamp_s) = (hook.doc(), now_unix_ms().div_euclid(1_000));
    let id = format!("{}_{}", hook.id, event.sequence);
    let signature = doc.secret.sign(&id, timestamp_s, &body)?;
    let parcel = Parcel { url: doc.url, webhook: hook.id.clone(), id, timestamp_s, signature, body };
    Ok(means.courier.carry(parcel).await)
}
