//! Snapshots. A name belongs to one snapshot of an account that is or will be active; one that failed or was deleted
//! stays so.

use remuda_types::{Account, OperationId, SandboxId, SnapshotId, SnapshotState};
use rusqlite::{Row, params};

use crate::error::{JournalError, Refusal};
use crate::model::{Cursor, NewSnapshot, PageOf, Paging, SnapshotChange, SnapshotFilter, SnapshotRecord, Whose};
use crate::store::db::{document, document_or_null, json, parsed, parsed_or_null, word};
use crate::store::paged::Listing;
use crate::store::{Db, Tx};

const COLUMNS: &str = "account, id, name, operation, mode, state, source, created_at, ended_at, labels, doc";
/// When a snapshot holds its name; the same words as in the index.
const HOLDS_NAME: &str = "name IS NOT NULL AND state IN ('capturing', 'verifying', 'active')";

/// Records a snapshot with its name.
pub(crate) fn reserve(
    tx: &Tx<'_>,
    account: &Account,
    operation: &OperationId,
    new: &NewSnapshot,
    now_ms: i64,
) -> Result<(), JournalError> {
    if let Some(name) = &new.name {
        must_be_free(tx, account, name, &new.id)?;
    }
    tx.change(
        "INSERT INTO snapshots (account, id, name, operation, mode, state, source, created_at, labels, doc)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            account.as_str(),
            new.id.as_str(),
            new.name,
            operation.as_str(),
            new.mode.to_string(),
            new.state.to_string(),
            new.source.as_ref().map(SandboxId::to_string),
            now_ms,
            document(&new.labels, "the snapshot's labels")?,
            document(&new.doc, "the snapshot's document")?,
        ],
    )?;
    Ok(())
}

fn must_be_free(tx: &Tx<'_>, account: &Account, name: &str, for_id: &SnapshotId) -> Result<(), JournalError> {
    match owner(tx, account, name)? {
        Some(owner) if owner != *for_id => Err(Refusal::NameTaken { name: name.to_owned(), owner }.into()),
        _ => Ok(()),
    }
}

fn owner(db: &Db<'_>, account: &Account, name: &str) -> Result<Option<SnapshotId>, JournalError> {
    let sql = &format!("SELECT id FROM snapshots WHERE account = ? AND name = ? AND {HOLDS_NAME}");
    db.one(sql, [account.as_str(), name], |row| parsed(row, 0))
}

/// Changes a snapshot. One that has failed or was deleted keeps its state and its name.
pub(crate) fn change(tx: &Tx<'_>, change: &SnapshotChange) -> Result<(), JournalError> {
    let SnapshotChange { id, state, name, takes_name, labels, doc } = change;
    let sql = "SELECT account, ended_at IS NULL FROM snapshots WHERE id = ?";
    let found = tx.one(sql, [id.as_str()], |row| Ok((parsed::<Account>(row, 0)?, row.get::<_, bool>(1)?)))?;
    let (account, kept) = found.ok_or_else(|| Refusal::UnknownRecord(format!("snapshot {id}")))?;
    if let Some(name) = name
        && kept
    {
        if let Some(name) = name {
            must_be_free(tx, &account, name, id)?;
        }
        tx.change("UPDATE snapshots SET name = ? WHERE id = ?", params![name, id.as_str()])?;
    }
    if let Some(name) = takes_name
        && kept
    {
        let sql = &format!("UPDATE snapshots SET name = NULL WHERE account = ? AND name = ? AND {HOLDS_NAME}");
        tx.change(sql, params![account.as_str(), name])?;
        tx.change("UPDATE snapshots SET name = ? WHERE id = ?", params![name, id.as_str()])?;
    }
    if let Some((state, now_ms)) = state
        && kept
    {
        let over = matches!(state, SnapshotState::Failed | SnapshotState::Deleted);
        tx.change(
            "UPDATE snapshots SET state = ?, ended_at = ? WHERE id = ?",
            params![state.to_string(), over.then_some(now_ms), id.as_str()],
        )?;
    }
    if labels.is_some() || doc.is_some() {
        tx.change(
            "UPDATE snapshots SET labels = coalesce(?2, labels), doc = coalesce(?3, doc) WHERE id = ?1",
            params![
                id.as_str(),
                document_or_null(labels, "the snapshot's labels")?,
                document_or_null(doc, "the snapshot's document")?
            ],
        )?;
    }
    Ok(())
}

/// A snapshot by its id, whatever its state.
pub(crate) fn by_id(db: &Db<'_>, account: &Account, id: &SnapshotId) -> Result<Option<SnapshotRecord>, JournalError> {
    let sql = &format!("SELECT {COLUMNS} FROM snapshots WHERE id = ? AND account = ?");
    db.one(sql, [id.as_str(), account.as_str()], read)
}

/// The same of whatever account.
pub(crate) fn of_any(db: &Db<'_>, id: &SnapshotId) -> Result<Option<SnapshotRecord>, JournalError> {
    db.one(&format!("SELECT {COLUMNS} FROM snapshots WHERE id = ?"), [id.as_str()], read)
}

/// The snapshot that has this name now.
pub(crate) fn by_name(db: &Db<'_>, account: &Account, name: &str) -> Result<Option<SnapshotRecord>, JournalError> {
    let sql = &format!("SELECT {COLUMNS} FROM snapshots WHERE account = ? AND name = ? AND {HOLDS_NAME}");
    db.one(sql, [account.as_str(), name], read)
}

/// Snapshots, oldest first.
pub(crate) fn list(
    db: &Db<'_>,
    whose: Whose<'_>,
    filter: &SnapshotFilter,
    paging: &Paging,
) -> Result<PageOf<SnapshotRecord>, JournalError> {
    let SnapshotFilter { include_ended, state, name, source, label, since_ms, before_ms } = filter;
    let mut listing = Listing::of("snapshots", COLUMNS, ("created_at", "id"))
        .whose(whose)
        .only_if("state = ?", state.map(|state| [state.to_string().into()]))
        .only_if("name = ?", name.clone().map(|name| [name.into()]))
        .only_if("source = ?", source.as_ref().map(|source| [source.to_string().into()]))
        .only_if("created_at >= ?", since_ms.map(|ms| [ms.into()]))
        .only_if("created_at < ?", before_ms.map(|ms| [ms.into()]))
        .labelled(label.as_ref());
    if !include_ended && state.is_none() {
        listing = listing.only("ended_at IS NULL", []);
    }
    listing.page(db, paging, read, |last| Cursor { at_ms: last.created_at_ms, id: last.id.to_string() })
}

fn read(row: &Row<'_>) -> rusqlite::Result<SnapshotRecord> {
    Ok(SnapshotRecord {
        account: parsed(row, 0)?,
        id: parsed(row, 1)?,
        name: row.get(2)?,
        operation: parsed(row, 3)?,
        mode: word(row, 4)?,
        state: word(row, 5)?,
        source: parsed_or_null(row, 6)?,
        created_at_ms: row.get(7)?,
        ended_at_ms: row.get(8)?,
        labels: json(row, 9)?,
        doc: json(row, 10)?,
    })
}
