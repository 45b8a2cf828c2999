//! What still answers for a key when its operation's record is gone, and keys that were cancelled ahead of their
//! admission. A late retry finds one and never runs again.

use remuda_types::{Account, Key, OperationId, OperationState};
use rusqlite::{Row, params};
use serde_json::Value;

use crate::error::{JournalError, Refusal};
use crate::limits::FORBIDDEN_KEYS_MAX;
use crate::model::{Operation, Outcome, Reserved, Scope};
use crate::store::db::{json, parsed, parsed_or_null, word};
use crate::store::{Db, Tx};

/// The state of a key that was cancelled ahead.
const CANCELLED: &str = "cancelled";
const COLUMNS: &str = "id, account, scope, key, state, admitted_at, finished_at, outcome, fingerprint";

/// What a tombstone says.
pub(crate) enum Tombstone {
    /// The key was cancelled before it was admitted.
    Cancelled,
    /// An operation ended; with the fingerprint of its request.
    Ended(Box<Operation>, [u8; 32]),
}

pub(crate) fn of_key(
    db: &Db<'_>,
    account: &Account,
    scope: &Scope,
    key: &Key,
) -> Result<Option<Tombstone>, JournalError> {
    let sql = &format!("SELECT {COLUMNS} FROM tombstones WHERE account = ? AND key = ? AND scope = ?");
    db.one(sql, params![account.as_str(), key.as_str(), scope.to_string()], read)
}

/// Those of a key in all scopes that are left of operations.
pub(crate) fn of_key_in_all_scopes(db: &Db<'_>, account: &Account, key: &Key) -> Result<Vec<Operation>, JournalError> {
    let sql = &format!(
        "SELECT {COLUMNS} FROM tombstones WHERE account = ? AND key = ? AND state <> '{CANCELLED}' ORDER BY scope LIMIT ?"
    );
    let found = db.many(sql, params![account.as_str(), key.as_str(), crate::limits::PAGE_MAX as i64], read)?;
    Ok(found.into_iter().filter_map(ended).collect())
}

pub(crate) fn of_operation(
    db: &Db<'_>,
    account: &Account,
    id: &OperationId,
) -> Result<Option<Operation>, JournalError> {
    let sql = &format!("SELECT {COLUMNS} FROM tombstones WHERE id = ? AND account = ?");
    Ok(db.one(sql, params![id.as_str(), account.as_str()], read)?.and_then(ended))
}

/// Refuses a key from now on.
pub(crate) fn cancel_ahead(
    tx: &Tx<'_>,
    account: &Account,
    scope: &Scope,
    key: &Key,
    now_ms: i64,
    until_ms: i64,
) -> Result<(), JournalError> {
    let count =
        "SELECT count(*) FROM tombstones INDEXED BY tombstones_cancelled WHERE account = ? AND state = 'cancelled'";
    let current = tx.one(count, [account.as_str()], |row| row.get::<_, i64>(0))?.unwrap_or(0).unsigned_abs();
    if current >= FORBIDDEN_KEYS_MAX {
        let name = "forbidden_keys_max".to_owned();
        return Err(Refusal::Limit { name, limit: FORBIDDEN_KEYS_MAX, current, wanted: 1 }.into());
    }
    tx.change(
        "INSERT INTO tombstones (account, key, scope, state, admitted_at, until) VALUES (?, ?, ?, 'cancelled', ?, ?)
         ON CONFLICT (account, key, scope) DO UPDATE SET until = max(until, excluded.until)",
        params![account.as_str(), key.as_str(), scope.to_string(), now_ms, until_ms],
    )?;
    Ok(())
}

fn ended(tombstone: Tombstone) -> Option<Operation> {
    match tombstone {
        Tombstone::Ended(operation, _) => Some(*operation),
        Tombstone::Cancelled => None,
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<Tombstone> {
    if row.get_ref(4)?.as_str()? == CANCELLED {
        return Ok(Tombstone::Cancelled);
    }
    let state: OperationState = word(row, 4)?;
    // Null where the outcome was too long to be kept: how it ended is known all the same.
    let domain = match row.get_ref(7)?.as_str_or_null()? {
        Some(_) => json(row, 7)?,
        None => Value::Null,
    };
    let operation = Operation {
        id: parsed(row, 0)?,
        account: parsed(row, 1)?,
        scope: parsed(row, 2)?,
        key: parsed_or_null(row, 3)?,
        parent: None,
        request: None,
        reserved: Reserved::default(),
        state,
        admitted_at_ms: row.get(5)?,
        finished_at_ms: row.get(6)?,
        steps: Vec::new(),
        outcome: Outcome::new(state, domain),
        evicted: true,
    };
    Ok(Tombstone::Ended(Box::new(operation), row.get(8)?))
}
