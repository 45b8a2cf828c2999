//! Events. Numbers are given in the transaction that writes the event, so that a reader never sees a gap that is filled
//! later; the newest number is kept apart, so that none is given twice after old ones are gone.

use remuda_types::Account;
use rusqlite::params;

use crate::error::{JournalError, Refusal};
use crate::limits::{EVENT_BYTES_MAX, PAGE_MAX, WORD_BYTES_MAX};
use crate::model::{EventPage, EventRecord, NewEvent};
use crate::store::db::{amount, json, to_json};
use crate::store::{Db, Tx};

/// Writes an event and tells its number.
pub(crate) fn write(tx: &Tx<'_>, event: &NewEvent) -> Result<u64, JournalError> {
    if event.kind.is_empty() || event.kind.len() > WORD_BYTES_MAX {
        return Err(Refusal::Contradiction(format!("an event's kind has 1 to {WORD_BYTES_MAX} bytes")).into());
    }
    let doc = to_json(&event.doc, "the event's document", "event_bytes_max", EVENT_BYTES_MAX)?;
    let next = "INSERT INTO accounts (account, newest_event) VALUES (?, 1)
                ON CONFLICT (account) DO UPDATE SET newest_event = newest_event + 1 RETURNING newest_event";
    let sequence: i64 = tx
        .one(next, [event.account.as_str()], |row| row.get(0))?
        .ok_or_else(|| JournalError::internal("an event got no number"))?;
    tx.change(
        "INSERT INTO events (account, sequence, at, kind, doc) VALUES (?, ?, ?, ?, ?)",
        params![event.account.as_str(), sequence, event.at_ms, event.kind, doc],
    )?;
    let sequence = sequence.unsigned_abs();
    tx.announce(&event.account, sequence);
    Ok(sequence)
}

/// The newest number that was ever given in an account.
pub(crate) fn newest(db: &Db<'_>, account: &Account) -> Result<u64, JournalError> {
    let sql = "SELECT newest_event FROM accounts WHERE account = ?";
    Ok(db.one(sql, [account.as_str()], |row| row.get::<_, i64>(0))?.unwrap_or(0).unsigned_abs())
}

/// Events above a number, at most `limit` of them.
pub(crate) fn after(db: &Db<'_>, account: &Account, after: u64, limit: usize) -> Result<EventPage, JournalError> {
    let newest = newest(db, account)?;
    let oldest = "SELECT min(sequence) FROM events WHERE account = ?";
    let oldest: Option<i64> = db.one(oldest, [account.as_str()], |row| row.get(0))?.flatten();
    let limit = if limit == 0 { PAGE_MAX } else { limit.min(PAGE_MAX) };
    let events = db.many(
        "SELECT sequence, at, kind, doc FROM events WHERE account = ? AND sequence > ? ORDER BY sequence LIMIT ?",
        params![account.as_str(), amount(after), limit as i64],
        |row| {
            Ok(EventRecord {
                sequence: row.get::<_, i64>(0)?.unsigned_abs(),
                at_ms: row.get(1)?,
                kind: row.get(2)?,
                doc: json(row, 3)?,
            })
        },
    )?;
    Ok(EventPage { events, oldest: oldest.map_or(newest + 1, i64::unsigned_abs), newest })
}
