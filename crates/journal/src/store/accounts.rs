//! Accounts that were made on purpose. Whoever made one first has made it: its time stays.

use remuda_types::Account;
use rusqlite::{Row, params};

use crate::error::JournalError;
use crate::limits::PAGE_MAX;
use crate::model::AccountRecord;
use crate::store::db::{document, json, parsed};
use crate::store::{Db, Tx};

/// Writes an account.
pub(crate) fn write(tx: &Tx<'_>, record: &AccountRecord) -> Result<(), JournalError> {
    tx.change(
        "INSERT INTO accounts (account, created_at, doc) VALUES (?, ?, ?)
         ON CONFLICT (account) DO UPDATE SET created_at = coalesce(created_at, excluded.created_at), doc = excluded.doc",
        params![record.account.as_str(), record.created_at_ms, document(&record.doc, "the account's document")?],
    )?;
    Ok(())
}

/// Accounts by name, after one, at most a page.
pub(crate) fn list(db: &Db<'_>, after: Option<&Account>) -> Result<Vec<AccountRecord>, JournalError> {
    let sql = "SELECT account, created_at, doc FROM accounts WHERE created_at IS NOT NULL AND account > ?
               ORDER BY account LIMIT ?";
    db.many(sql, params![after.map_or("", Account::as_str), PAGE_MAX as i64], read)
}

fn read(row: &Row<'_>) -> rusqlite::Result<AccountRecord> {
    Ok(AccountRecord { account: parsed(row, 0)?, created_at_ms: row.get(1)?, doc: json(row, 2)? })
}
