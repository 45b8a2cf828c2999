//! Calls about what has been: receipts and events. They outlive what they tell of.

use remuda_journal::{Cursor, Paging, Receipt as Record, ReceiptKind};
use remuda_types::limits::RECORDS_PAGE_MAX;
use remuda_types::wire::{Event, EventAbout, EventList, Receipt, ReceiptList};
use remuda_types::{Account, Error, ErrorCode, ReceiptId, SandboxId};
use tokio::sync::watch;

use super::Platform;
use crate::access::Action;
use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::{ledger, records};

impl Platform {
    /// The receipt that tells most of a generation that has ended: of its deletion, or else of its life.
    pub(crate) async fn last_receipt(&self, account: &Account, id: &SandboxId) -> Result<Option<ReceiptId>, Error> {
        let found = self.journal().receipts(account, Some(id), Paging::first()).await;
        let found = found.map_err(|e| crate::errors::journal(&e))?.items;
        let deletion = found.iter().find(|receipt| receipt.kind == ReceiptKind::Deletion);
        Ok(deletion.or(found.last()).map(|receipt| receipt.id.clone()))
    }

    /// One receipt.
    ///
    /// # Errors
    /// `receipt_not_found`.
    pub async fn receipt(&self, caller: &Caller, id: &ReceiptId) -> Result<Receipt, Error> {
        caller.may(Action::ShowReceipt)?;
        let found = self.journal().receipt(&caller.account, id).await.map_err(|e| crate::errors::journal(&e))?;
        if let Some(record) = found
            && self.sees_receipt(caller, &record).await?
        {
            return ledger::shown(&record);
        }
        Err(Error::new(ErrorCode::ReceiptNotFound, format!("there is no receipt {id} on record"))
            .remedy("list a sandbox's with: remuda receipt SANDBOX"))
    }

    /// Whether a caller sees the sandbox that a receipt is about, or saw it when it was on record.
    async fn sees_receipt(&self, caller: &Caller, receipt: &Record) -> Result<bool, Error> {
        if caller.narrowing().is_none() {
            return Ok(true);
        }
        let labels = match self.journal().sandbox(&caller.account, &receipt.sandbox).await {
            Ok(record) => record.map(|record| record.labels).unwrap_or_default(),
            Err(e) => return Err(crate::errors::journal(&e)),
        };
        Ok(caller.sees_sandbox(&receipt.sandbox, &labels))
    }

    /// Receipts of one generation or of all, oldest first; `after` is where the last page ended.
    ///
    /// # Errors
    /// `invalid_request` for an `after` that came with no page.
    pub async fn receipts(
        &self,
        caller: &Caller,
        sandbox: Option<&SandboxId>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ReceiptList, Error> {
        caller.may(Action::ListReceipts)?;
        let after = after.map(str::parse::<Cursor>).transpose();
        let after = after.map_err(|e| Error::new(ErrorCode::InvalidRequest, e.to_string()))?;
        let paging = Paging { after, limit: page(limit)? };
        let found = self.journal().receipts(&caller.account, sandbox, paging).await;
        let found = found.map_err(|e| crate::errors::journal(&e))?;
        let mut receipts = Vec::new();
        for record in &found.items {
            if self.sees_receipt(caller, record).await? {
                receipts.push(ledger::shown(record)?);
            }
        }
        Ok(ReceiptList { receipts, next: found.next.map(|cursor| cursor.to_string()) })
    }

    /// Events above a number, in order, at most `limit` of them; 0 stands for as many as a page may have.
    ///
    /// # Errors
    /// `invalid_request` for a limit that is none; `cursor_ahead` for a number that was never given; `forbidden` to a key that is narrowed, since the numbers alone would
    /// count what it doesn't see; `unauthorized` to one that was revoked or has expired since it came in.
    pub async fn events(&self, caller: &Caller, after: u64, limit: usize) -> Result<EventList, Error> {
        self.may_read_events(caller)?;
        let found = self.journal().events(&caller.account, after, page(limit)?).await;
        let found = found.map_err(|e| crate::errors::journal(&e))?;
        if after > found.newest {
            let message = format!("there is no event {after}: the newest is {}", found.newest);
            return Err(Error::new(ErrorCode::CursorAhead, message)
                .cause("the number is of another server or account, or this server's journal is older than it")
                .remedy("read from the beginning, with after=0, and look at what there is")
                .detail("newest", found.newest));
        }
        let missed = found.missed_since(after);
        let events = found.events.into_iter().map(|record| {
            let about: EventAbout = records::read(&format_args!("event {}", record.sequence), &record.doc)?;
            Ok(Event { sequence: record.sequence, at_ms: record.at_ms, kind: record.kind, about })
        });
        let events = events.collect::<Result<_, Error>>()?;
        Ok(EventList { events, oldest: found.oldest, newest: found.newest, missed })
    }

    fn may_read_events(&self, caller: &Caller) -> Result<(), Error> {
        caller.may(Action::ReadEvents)?;
        if let Some(narrowing) = caller.narrowing() {
            return Err(Error::new(ErrorCode::Forbidden, "an access key that is narrowed can't read events")
                .cause(format!("it is narrowed to {narrowing}, and events are numbered for the whole account"))
                .remedy("use a key that is not narrowed"));
        }
        // A stream may go on for longer than its key lives.
        let Some(id) = &caller.access_key else { return Ok(()) };
        let now = now_unix_ms();
        let alive = self.access_keys().find(caller, &caller.account, id).is_ok_and(|key| {
            key.revoked_at_ms.is_none() && key.expires_at_ms.is_none_or(|expires_at_ms| now < expires_at_ms)
        });
        match alive {
            true => Ok(()),
            false => Err(Error::new(ErrorCode::Unauthorized, "not authorized")
                .cause("the access key was revoked or has expired")
                .remedy("use another key")),
        }
    }

    /// The number of the newest event, now and whenever there is a new one.
    ///
    /// # Errors
    /// As for [`Platform::events`].
    pub async fn watch_events(&self, caller: &Caller) -> Result<watch::Receiver<u64>, Error> {
        self.may_read_events(caller)?;
        self.journal().watch_events(&caller.account).await.map_err(|e| crate::errors::journal(&e))
    }
}

pub(super) fn page(limit: usize) -> Result<usize, Error> {
    match limit {
        0..=RECORDS_PAGE_MAX => Ok(limit),
        _ => Err(Error::new(
            ErrorCode::InvalidRequest,
            format!("limit is {limit}, at most {RECORDS_PAGE_MAX} is allowed"),
        )
        .remedy("ask for less at once, and go on where the page ends")
        .detail("limit", "records_page_max")
        .detail("maximum", RECORDS_PAGE_MAX as u64)),
    }
}
