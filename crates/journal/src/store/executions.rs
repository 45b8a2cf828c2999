//! Executions' records, by sandbox. They must never hold output.

use remuda_types::{Account, ExecutionId, Uid};
use rusqlite::{Row, params};

use crate::error::{JournalError, Refusal};
use crate::model::{Cursor, ExecutionRecord, NewExecution, PageOf, Paging, Whose};
use crate::store::db::{document, json, parsed, word};
use crate::store::paged::Listing;
use crate::store::{Db, Tx};

const COLUMNS: &str = "account, id, sandbox, state, started_at, doc";

/// Records an execution of a keyed call before it is handed over.
pub(crate) fn reserve(
    tx: &Tx<'_>,
    account: &Account,
    new: &NewExecution,
    operation: i64,
    now_ms: i64,
) -> Result<(), JournalError> {
    tx.change(
        "INSERT INTO executions (id, account, sandbox, state, started_at, doc, operation)
         VALUES (?, ?, ?, 'running', ?, ?, ?)",
        params![
            new.id.as_str(),
            account.as_str(),
            new.sandbox.as_str(),
            now_ms,
            document(&new.doc, "the execution's document")?,
            operation
        ],
    )?;
    Ok(())
}

/// Writes a record. One that has ended never runs again.
pub(crate) fn write(tx: &Tx<'_>, record: &ExecutionRecord) -> Result<(), JournalError> {
    let written = tx.change(
        "INSERT INTO executions (id, account, sandbox, state, started_at, doc) VALUES (?, ?, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET
             doc = iif(executions.state = 'running' OR excluded.state <> 'running', excluded.doc, executions.doc),
             state = iif(executions.state = 'running', excluded.state, executions.state)
         WHERE account = excluded.account AND sandbox = excluded.sandbox",
        params![
            record.id.as_str(),
            record.account.as_str(),
            record.sandbox.as_str(),
            record.state.to_string(),
            record.started_at_ms,
            document(&record.doc, "the execution's document")?
        ],
    )?;
    match written {
        0 => Err(Refusal::Contradiction(format!("{} is an execution of another sandbox", record.id)).into()),
        _ => Ok(()),
    }
}

/// Drops a record; the key of its call begins to run out.
pub(crate) fn forget(tx: &Tx<'_>, id: &ExecutionId, now_ms: i64) -> Result<(), JournalError> {
    let sql = "DELETE FROM executions WHERE id = ? RETURNING operation";
    if let Some(Some(operation)) = tx.one(sql, [id.as_str()], |row| row.get::<_, Option<i64>>(0))? {
        let sql = "UPDATE operations SET pinned = 0, keep_until = max(keep_until, ?) WHERE number = ?";
        tx.change(sql, [now_ms, operation])?;
    }
    Ok(())
}

/// One record.
pub(crate) fn by_id(db: &Db<'_>, account: &Account, id: &ExecutionId) -> Result<Option<ExecutionRecord>, JournalError> {
    let sql = &format!("SELECT {COLUMNS} FROM executions WHERE id = ? AND account = ?");
    db.one(sql, [id.as_str(), account.as_str()], read)
}

/// Executions of a sandbox, oldest first.
pub(crate) fn list(
    db: &Db<'_>,
    whose: Whose<'_>,
    sandbox: &Uid,
    paging: &Paging,
) -> Result<PageOf<ExecutionRecord>, JournalError> {
    Listing::of("executions", COLUMNS, ("started_at", "id"))
        .only("sandbox = ?", [sandbox.to_string().into()])
        .whose(whose)
        .page(db, paging, read, |last| Cursor { at_ms: last.started_at_ms, id: last.id.to_string() })
}

fn read(row: &Row<'_>) -> rusqlite::Result<ExecutionRecord> {
    Ok(ExecutionRecord {
        account: parsed(row, 0)?,
        id: parsed(row, 1)?,
        sandbox: parsed(row, 2)?,
        state: word(row, 3)?,
        started_at_ms: row.get(4)?,
        doc: json(row, 5)?,
    })
}
