//! Webhooks. One that was forgotten stays so, whatever a delivery that was under way writes later.

use remuda_types::WebhookId;
use rusqlite::{Row, params};

use crate::error::JournalError;
use crate::model::{Cursor, PageOf, Paging, WebhookRecord, Whose};
use crate::store::db::{document, json, parsed};
use crate::store::paged::Listing;
use crate::store::{Db, Tx};

const COLUMNS: &str = "account, id, created_at, doc";

/// Writes a webhook.
pub(crate) fn write(tx: &Tx<'_>, record: &WebhookRecord, new: bool) -> Result<(), JournalError> {
    let doc = document(&record.doc, "the webhook's document")?;
    let (account, id) = (record.account.as_str(), record.id.as_str());
    if new {
        let sql = "INSERT INTO webhooks (account, id, created_at, doc) VALUES (?, ?, ?, ?)";
        tx.change(sql, params![account, id, record.created_at_ms, doc])?;
    } else {
        tx.change("UPDATE webhooks SET doc = ? WHERE id = ? AND account = ?", params![doc, id, account])?;
    }
    Ok(())
}

/// Drops a webhook.
pub(crate) fn forget(tx: &Tx<'_>, id: &WebhookId) -> Result<(), JournalError> {
    tx.change("DELETE FROM webhooks WHERE id = ?", [id.as_str()]).map(drop)
}

/// Webhooks, oldest first.
pub(crate) fn list(db: &Db<'_>, whose: Whose<'_>, paging: &Paging) -> Result<PageOf<WebhookRecord>, JournalError> {
    Listing::of("webhooks", COLUMNS, ("created_at", "id"))
        .whose(whose)
        .page(db, paging, read, |last| Cursor { at_ms: last.created_at_ms, id: last.id.to_string() })
}

fn read(row: &Row<'_>) -> rusqlite::Result<WebhookRecord> {
    Ok(WebhookRecord { account: parsed(row, 0)?, id: parsed(row, 1)?, created_at_ms: row.get(2)?, doc: json(row, 3)? })
}
