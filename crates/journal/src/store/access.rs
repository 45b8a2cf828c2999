//! Previews and access keys. A revocation, once written, stays, whatever is written later.

use remuda_types::{AccessKeyId, Account, PreviewId, Uid};
use rusqlite::{Row, params};

use crate::error::{JournalError, Refusal};
use crate::model::{AccessKey, Cursor, PageOf, Paging, Preview, Whose};
use crate::store::db::{document, json, parsed};
use crate::store::paged::Listing;
use crate::store::{Db, Tx};

const PREVIEW: &str = "account, id, sandbox, token_hash, created_at, expires_at, revoked_at, doc";
const KEY: &str = "account, id, hash, scopes, narrowing, created_at, expires_at, revoked_at, doc";

/// Writes a preview.
pub(crate) fn write_preview(tx: &Tx<'_>, preview: &Preview) -> Result<(), JournalError> {
    let written = tx.change(
        "INSERT INTO previews (account, id, sandbox, token_hash, created_at, expires_at, revoked_at, doc)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET token_hash = excluded.token_hash, expires_at = excluded.expires_at,
             revoked_at = coalesce(revoked_at, excluded.revoked_at), doc = excluded.doc
         WHERE account = excluded.account AND sandbox = excluded.sandbox",
        params![
            preview.account.as_str(),
            preview.id.as_str(),
            preview.sandbox.as_str(),
            preview.token_hash,
            preview.created_at_ms,
            preview.expires_at_ms,
            preview.revoked_at_ms,
            document(&preview.doc, "the preview's document")?
        ],
    )?;
    of_its_owner(written, || format!("{} is a preview of another sandbox", preview.id))
}

/// Writes an access key.
pub(crate) fn write_key(tx: &Tx<'_>, key: &AccessKey) -> Result<(), JournalError> {
    let written = tx.change(
        "INSERT INTO access_keys (account, id, hash, scopes, narrowing, created_at, expires_at, revoked_at, doc)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET hash = excluded.hash, scopes = excluded.scopes, narrowing = excluded.narrowing,
             expires_at = excluded.expires_at, revoked_at = coalesce(revoked_at, excluded.revoked_at),
             doc = excluded.doc
         WHERE account = excluded.account",
        params![
            key.account.as_str(),
            key.id.as_str(),
            key.hash,
            document(&key.scopes, "the access key's scopes")?,
            document(&key.narrowing, "the access key's narrowing")?,
            key.created_at_ms,
            key.expires_at_ms,
            key.revoked_at_ms,
            document(&key.doc, "the access key's document")?
        ],
    )?;
    of_its_owner(written, || format!("{} is an access key of another account", key.id))
}

fn of_its_owner(written: usize, otherwise: impl FnOnce() -> String) -> Result<(), JournalError> {
    match written {
        0 => Err(Refusal::Contradiction(otherwise()).into()),
        _ => Ok(()),
    }
}

/// The preview that a credential with this digest is for, of whatever account.
pub(crate) fn preview_by_hash(db: &Db<'_>, token_hash: &[u8; 32]) -> Result<Option<Preview>, JournalError> {
    db.one(&format!("SELECT {PREVIEW} FROM previews WHERE token_hash = ?"), [token_hash], read_preview)
}

/// One preview.
pub(crate) fn preview(db: &Db<'_>, account: &Account, id: &PreviewId) -> Result<Option<Preview>, JournalError> {
    let sql = &format!("SELECT {PREVIEW} FROM previews WHERE id = ? AND account = ?");
    db.one(sql, [id.as_str(), account.as_str()], read_preview)
}

/// Previews, of one sandbox or all, oldest first.
pub(crate) fn previews(
    db: &Db<'_>,
    whose: Whose<'_>,
    sandbox: Option<&Uid>,
    paging: &Paging,
) -> Result<PageOf<Preview>, JournalError> {
    Listing::of("previews", PREVIEW, ("created_at", "id"))
        .whose(whose)
        .only_if("sandbox = ?", sandbox.map(|uid| [uid.to_string().into()]))
        .page(db, paging, read_preview, |last| Cursor { at_ms: last.created_at_ms, id: last.id.to_string() })
}

/// The access key whose secret has this digest, of whatever account.
pub(crate) fn key_by_hash(db: &Db<'_>, hash: &[u8; 32]) -> Result<Option<AccessKey>, JournalError> {
    db.one(&format!("SELECT {KEY} FROM access_keys WHERE hash = ?"), [hash], read_key)
}

/// One access key.
pub(crate) fn key(db: &Db<'_>, account: &Account, id: &AccessKeyId) -> Result<Option<AccessKey>, JournalError> {
    let sql = &format!("SELECT {KEY} FROM access_keys WHERE id = ? AND account = ?");
    db.one(sql, [id.as_str(), account.as_str()], read_key)
}

/// Access keys, oldest first.
pub(crate) fn keys(db: &Db<'_>, whose: Whose<'_>, paging: &Paging) -> Result<PageOf<AccessKey>, JournalError> {
    Listing::of("access_keys", KEY, ("created_at", "id"))
        .whose(whose)
        .page(db, paging, read_key, |last| Cursor { at_ms: last.created_at_ms, id: last.id.to_string() })
}

fn read_preview(row: &Row<'_>) -> rusqlite::Result<Preview> {
    Ok(Preview {
        account: parsed(row, 0)?,
        id: parsed(row, 1)?,
        sandbox: parsed(row, 2)?,
        token_hash: row.get(3)?,
        created_at_ms: row.get(4)?,
        expires_at_ms: row.get(5)?,
        revoked_at_ms: row.get(6)?,
        doc: json(row, 7)?,
    })
}

fn read_key(row: &Row<'_>) -> rusqlite::Result<AccessKey> {
    Ok(AccessKey {
        account: parsed(row, 0)?,
        id: parsed(row, 1)?,
        hash: row.get(2)?,
        scopes: json(row, 3)?,
        narrowing: json(row, 4)?,
        created_at_ms: row.get(5)?,
        expires_at_ms: row.get(6)?,
        revoked_at_ms: row.get(7)?,
        doc: json(row, 8)?,
    })
}
