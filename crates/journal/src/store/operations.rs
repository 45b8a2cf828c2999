//! Operations: admitted, stepping, finished. The key is looked at and stored in one transaction with everything that
//! is reserved, so that it can't be admitted twice; an outcome, once written, is never replaced.

use remuda_types::{Account, Key, OperationId, OperationState};
use rusqlite::{Row, params};
use serde_json::Value;

use crate::canonical::Canonical;
use crate::error::{JournalError, Refusal};
use crate::limits::{OUTCOME_BYTES_MAX, PAGE_MAX, QUOTAS_MAX, STEP_BYTES_MAX, STEPS_MAX, WORD_BYTES_MAX};
use crate::model::{
    Admission, Admitted, Change, Cursor, Finished, Forbidden, Operation, Outcome, PageOf, Paging, Reserved, Scope,
    Step, Stepped,
};
use crate::store::db::{json, parsed, parsed_or_null, to_json, word};
use crate::store::tombstones::{self, Tombstone};
use crate::store::{Db, Tx, changes, executions, quotas, sandboxes, snapshots};

const COLUMNS: &str = "id, account, scope, key, parent, request, reserved, state, admitted_at, finished_at, outcome, \
                       number, fingerprint";

/// An operation with what only the store needs of it.
struct Stored {
    number: i64,
    fingerprint: [u8; 32],
    operation: Operation,
}

/// Receives a call: new, or one that its key was used for before.
pub(crate) fn admit(
    tx: &Tx<'_>,
    admission: &Admission,
    request: &Canonical,
    key_retention_ms: i64,
) -> Result<Admitted, JournalError> {
    let Admission { account, scope, key, now_ms, reservation, .. } = admission;
    if let Some(key) = key
        && let Some(known) = known(tx, account, scope, key, request)?
    {
        return Ok(known);
    }
    if reservation.holds.len() + reservation.counts.len() > QUOTAS_MAX {
        let current = (reservation.holds.len() + reservation.counts.len()) as u64;
        let name = "quotas_max".to_owned();
        return Err(Refusal::Limit { name, limit: QUOTAS_MAX as u64, current, wanted: 0 }.into());
    }
    for hold in &reservation.holds {
        quotas::hold(tx, account, hold)?;
    }
    for count in &reservation.counts {
        quotas::count(tx, account, count)?;
    }
    let sandbox = reservation.sandbox.as_ref();
    let sandbox = sandbox.map(|new| sandboxes::reserve(tx, account, &admission.id, new, *now_ms)).transpose()?;
    if let Some(new) = &reservation.snapshot {
        snapshots::reserve(tx, account, &admission.id, new, *now_ms)?;
    }
    let reserved = Reserved {
        sandbox,
        snapshot: reservation.snapshot.as_ref().map(|new| new.id.clone()),
        execution: reservation.execution.as_ref().map(|new| new.id.clone()),
    };
    // The key of an execution's call lives as long as the execution's record.
    let pinned = reservation.execution.is_some();
    let number = tx.insert(
        "INSERT INTO operations (id, account, scope, key, fingerprint, request, parent, reserved, state, admitted_at,
                                 keep_until, pinned)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'pending', ?, ?, ?)",
        params![
            admission.id.as_str(),
            account.as_str(),
            scope.to_string(),
            key.as_ref().map(Key::as_str),
            request.fingerprint,
            request.text,
            admission.parent.as_ref().map(OperationId::as_str),
            serde_json::to_string(&reserved).map_err(JournalError::internal)?,
            now_ms,
            now_ms.saturating_add(key_retention_ms),
            pinned,
        ],
    )?;
    if let Some(new) = &reservation.execution {
        executions::reserve(tx, account, new, number, *now_ms)?;
    }
    Ok(Admitted::New(Operation {
        id: admission.id.clone(),
        account: account.clone(),
        scope: scope.clone(),
        key: key.clone(),
        parent: admission.parent.clone(),
        request: Some(admission.request.clone()),
        reserved,
        state: OperationState::Pending,
        admitted_at_ms: *now_ms,
        finished_at_ms: None,
        steps: Vec::new(),
        outcome: None,
        evicted: false,
    }))
}

/// How a call is received whose key is known.
pub(crate) fn known(
    db: &Db<'_>,
    account: &Account,
    scope: &Scope,
    key: &Key,
    request: &Canonical,
) -> Result<Option<Admitted>, JournalError> {
    if let Some(found) = of_key(db, account, scope, key)? {
        return Ok(Some(received(found.operation, found.fingerprint == request.fingerprint)));
    }
    match tombstones::of_key(db, account, scope, key)? {
        Some(Tombstone::Cancelled) => Err(Refusal::Cancelled(key.clone()).into()),
        Some(Tombstone::Ended(operation, fingerprint)) => {
            Ok(Some(received(*operation, fingerprint == request.fingerprint)))
        }
        None => Ok(None),
    }
}

fn received(operation: Operation, same_request: bool) -> Admitted {
    match operation.state {
        _ if !same_request => Admitted::Conflict(operation),
        OperationState::Pending => Admitted::InFlight(operation),
        _ => Admitted::Replay(operation),
    }
}

/// Cancels a key that was not admitted yet.
pub(crate) fn forbid(
    tx: &Tx<'_>,
    account: &Account,
    scope: &Scope,
    key: &Key,
    now_ms: i64,
    until_ms: i64,
) -> Result<Forbidden, JournalError> {
    if let Some(found) = of_key(tx, account, scope, key)? {
        return Ok(Forbidden::Admitted(Box::new(found.operation)));
    }
    if let Some(Tombstone::Ended(operation, _)) = tombstones::of_key(tx, account, scope, key)? {
        return Ok(Forbidden::Admitted(operation));
    }
    tombstones::cancel_ahead(tx, account, scope, key, now_ms, until_ms)?;
    Ok(Forbidden::Forbidden)
}

/// Journals a step with its changes; a step of that name that is there already stays as it is.
pub(crate) fn step(
    tx: &Tx<'_>,
    id: &OperationId,
    name: &str,
    data: &Value,
    with: &[Change],
) -> Result<Stepped, JournalError> {
    if name.is_empty() || name.len() > WORD_BYTES_MAX {
        return Err(Refusal::Contradiction(format!("a step's name has 1 to {WORD_BYTES_MAX} bytes")).into());
    }
    let found = stored(tx, "id = ?", [id.as_str()])?.ok_or_else(|| Refusal::UnknownOperation(id.clone()))?;
    let before = "SELECT data FROM steps WHERE operation = ? AND name = ?";
    if let Some(data) = tx.one(before, params![found.number, name], |row| json(row, 0))? {
        return Ok(Stepped::Before(data));
    }
    if found.operation.state != OperationState::Pending {
        return Err(Refusal::OperationEnded(id.clone()).into());
    }
    let last = "SELECT coalesce(max(place), 0) FROM steps WHERE operation = ?";
    let place: i64 = tx.one(last, [found.number], |row| row.get(0))?.unwrap_or(0) + 1;
    if place > STEPS_MAX as i64 {
        let (name, limit) = ("steps_max".to_owned(), STEPS_MAX as u64);
        return Err(Refusal::Limit { name, limit, current: limit, wanted: 1 }.into());
    }
    let text = to_json(data, "a step's data", "step_bytes_max", STEP_BYTES_MAX)?;
    tx.change(
        "INSERT INTO steps (operation, place, name, data) VALUES (?, ?, ?, ?)",
        params![found.number, place, name, text],
    )?;
    changes::apply(tx, Some(&found.operation), with)?;
    Ok(Stepped::New)
}

/// Journals an outcome with its changes; the first outcome stands.
pub(crate) fn finish(
    tx: &Tx<'_>,
    id: &OperationId,
    outcome: &Outcome,
    with: &[Change],
    now_ms: i64,
) -> Result<Finished, JournalError> {
    let found = stored(tx, "id = ?", [id.as_str()])?;
    let Stored { number, mut operation, .. } = found.ok_or_else(|| Refusal::UnknownOperation(id.clone()))?;
    if operation.state != OperationState::Pending {
        return Ok(Finished::Before(operation));
    }
    let text = to_json(outcome.domain(), "the outcome", "outcome_bytes_max", OUTCOME_BYTES_MAX)?;
    tx.change(
        "UPDATE operations SET state = ?, outcome = ?, finished_at = ? WHERE number = ?",
        params![outcome.state().to_string(), text, now_ms, number],
    )?;
    changes::apply(tx, Some(&operation), with)?;
    operation.state = outcome.state();
    operation.outcome = Some(outcome.clone());
    operation.finished_at_ms = Some(now_ms);
    Ok(Finished::Now(operation))
}

/// One operation of an account with its steps, or what is left of it.
pub(crate) fn operation(db: &Db<'_>, account: &Account, id: &OperationId) -> Result<Option<Operation>, JournalError> {
    match stored(db, "id = ? AND account = ?", [id.as_str(), account.as_str()])? {
        Some(found) => with_steps(db, found).map(Some),
        None => tombstones::of_operation(db, account, id),
    }
}

/// Every operation that this key was used for, one for each scope, tombstones too.
pub(crate) fn of_key_in_all_scopes(db: &Db<'_>, account: &Account, key: &Key) -> Result<Vec<Operation>, JournalError> {
    let sql = &format!("SELECT {COLUMNS} FROM operations WHERE account = ? AND key = ? ORDER BY scope LIMIT ?");
    let found = db.many(sql, params![account.as_str(), key.as_str(), PAGE_MAX as i64], read)?;
    let mut all: Vec<_> = found.into_iter().map(|found| found.operation).collect();
    all.extend(tombstones::of_key_in_all_scopes(db, account, key)?);
    Ok(all)
}

/// The parts of an operation, in the order of their admission.
pub(crate) fn parts(db: &Db<'_>, account: &Account, parent: &OperationId) -> Result<Vec<Operation>, JournalError> {
    let sql = &format!("SELECT {COLUMNS} FROM operations WHERE parent = ? AND account = ? ORDER BY number LIMIT ?");
    let found = db.many(sql, params![parent.as_str(), account.as_str(), PAGE_MAX as i64], read)?;
    Ok(found.into_iter().map(|found| found.operation).collect())
}

/// Operations without an outcome, of all accounts, in the order of their admission.
pub(crate) fn unfinished(db: &Db<'_>, paging: &Paging) -> Result<PageOf<Operation>, JournalError> {
    let limit = paging.limit();
    let after = paging.after.as_ref().map_or(0, |cursor| cursor.at_ms);
    let sql =
        &format!("SELECT {COLUMNS} FROM operations WHERE state = 'pending' AND number > ? ORDER BY number LIMIT ?");
    let mut found = db.many(sql, params![after, limit as i64 + 1], read)?;
    let more = found.len() > limit;
    found.truncate(limit);
    let last = found.last().filter(|_| more);
    let next = last.map(|last| Cursor { at_ms: last.number, id: last.operation.id.to_string() });
    let items = found.into_iter().map(|found| with_steps(db, found)).collect::<Result<_, _>>()?;
    Ok(PageOf { items, next })
}

fn of_key(db: &Db<'_>, account: &Account, scope: &Scope, key: &Key) -> Result<Option<Stored>, JournalError> {
    let scope = scope.to_string();
    stored(db, "account = ? AND key = ? AND scope = ?", [account.as_str(), key.as_str(), scope.as_str()])
}

fn stored<const N: usize>(db: &Db<'_>, condition: &str, values: [&str; N]) -> Result<Option<Stored>, JournalError> {
    let sql = &format!("SELECT {COLUMNS} FROM operations WHERE {condition}");
    db.one(sql, rusqlite::params_from_iter(values), read)
}

fn with_steps(db: &Db<'_>, found: Stored) -> Result<Operation, JournalError> {
    let sql = "SELECT name, data FROM steps WHERE operation = ? ORDER BY place";
    let steps = db.many(sql, [found.number], |row| Ok(Step { name: row.get(0)?, data: json(row, 1)? }))?;
    Ok(Operation { steps, ..found.operation })
}

fn read(row: &Row<'_>) -> rusqlite::Result<Stored> {
    let state: OperationState = word(row, 7)?;
    let outcome = match row.get_ref(10)?.as_str_or_null()? {
        Some(_) => Outcome::new(state, json(row, 10)?),
        None => None,
    };
    let operation = Operation {
        id: parsed(row, 0)?,
        account: parsed(row, 1)?,
        scope: parsed(row, 2)?,
        key: parsed_or_null(row, 3)?,
        parent: parsed_or_null(row, 4)?,
        request: Some(json(row, 5)?),
        reserved: json(row, 6)?,
        state,
        admitted_at_ms: row.get(8)?,
        finished_at_ms: row.get(9)?,
        steps: Vec::new(),
        outcome,
        evicted: false,
    };
    Ok(Stored { number: row.get(11)?, fingerprint: row.get(12)?, operation })
}
