//! Receipts. They refer to sandboxes and operations by their ids only, since they outlive both.

use remuda_types::{Account, OperationId, ReceiptId, SandboxId};
use rusqlite::{Row, params};

use crate::error::{JournalError, Refusal};
use crate::model::{Cursor, PageOf, Paging, Receipt, Whose};
use crate::store::db::{document, json, parsed, parsed_or_null};
use crate::store::paged::Listing;
use crate::store::{Db, Tx};

const COLUMNS: &str = "account, id, kind, sandbox, operation, created_at, doc";

/// Writes a receipt.
pub(crate) fn write(tx: &Tx<'_>, receipt: &Receipt) -> Result<(), JournalError> {
    let written = tx.change(
        "INSERT INTO receipts (account, id, kind, sandbox, operation, created_at, doc) VALUES (?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET operation = excluded.operation, doc = excluded.doc
         WHERE account = excluded.account AND sandbox = excluded.sandbox AND kind = excluded.kind",
        params![
            receipt.account.as_str(),
            receipt.id.as_str(),
            receipt.kind.as_str(),
            receipt.sandbox.to_string(),
            receipt.operation.as_ref().map(OperationId::as_str),
            receipt.created_at_ms,
            document(&receipt.doc, "the receipt")?
        ],
    )?;
    match written {
        0 => Err(Refusal::Contradiction(format!("{} is a receipt of another sandbox or kind", receipt.id)).into()),
        _ => Ok(()),
    }
}

/// One receipt.
pub(crate) fn by_id(db: &Db<'_>, account: &Account, id: &ReceiptId) -> Result<Option<Receipt>, JournalError> {
    let sql = &format!("SELECT {COLUMNS} FROM receipts WHERE id = ? AND account = ?");
    db.one(sql, [id.as_str(), account.as_str()], read)
}

/// Receipts of one generation or all of an account, oldest first.
pub(crate) fn list(
    db: &Db<'_>,
    account: &Account,
    sandbox: Option<&SandboxId>,
    paging: &Paging,
) -> Result<PageOf<Receipt>, JournalError> {
    Listing::of("receipts", COLUMNS, ("created_at", "id"))
        .whose(Whose::Of(account))
        .only_if("sandbox = ?", sandbox.map(|id| [id.to_string().into()]))
        .page(db, paging, read, |last| Cursor { at_ms: last.created_at_ms, id: last.id.to_string() })
}

fn read(row: &Row<'_>) -> rusqlite::Result<Receipt> {
    Ok(Receipt {
        account: parsed(row, 0)?,
        id: parsed(row, 1)?,
        kind: parsed(row, 2)?,
        sandbox: parsed(row, 3)?,
        operation: parsed_or_null(row, 4)?,
        created_at_ms: row.get(5)?,
        doc: json(row, 6)?,
    })
}
