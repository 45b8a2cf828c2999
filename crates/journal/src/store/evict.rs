//! Eviction: what has been kept long enough goes, a bounded number of rows at a time. An operation with a key never
//! goes without leaving a tombstone, and one without an outcome never goes, nor does what it has made.

use rusqlite::params;

use crate::error::JournalError;
use crate::limits::{EVICTION_ROWS_MAX, TOMBSTONE_OUTCOME_BYTES_MAX};
use crate::settings::Retention;
use crate::store::{Tx, executions};

/// How many records went in one round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Operations, of which those with a key left a tombstone.
    pub operations: usize,
    /// Tombstones, and keys that were cancelled ahead.
    pub tombstones: usize,
    /// Events.
    pub events: usize,
    /// Ended sandboxes.
    pub sandboxes: usize,
    /// Executions of ended sandboxes.
    pub executions: usize,
    /// Failed and deleted snapshots.
    pub snapshots: usize,
    /// Revoked and expired previews.
    pub previews: usize,
    /// Revoked and expired access keys.
    pub access_keys: usize,
    /// Receipts.
    pub receipts: usize,
    /// Whether another round would find more.
    pub more: bool,
}

/// Snapshots on whose layers something stands: what they were sealed with is needed as long as it does.
const LAYERS_IN_USE: &str = "SELECT layer.value FROM sandboxes AS s, json_each(s.layers) AS layer
                                 WHERE s.ended_at IS NULL
                             UNION SELECT layer.value FROM snapshots AS s, json_each(s.doc, '$.layers') AS layer
                                 WHERE s.ended_at IS NULL";

/// One round.
pub(crate) fn evict(tx: &Tx<'_>, retention: &Retention, now_ms: i64) -> Result<Evicted, JournalError> {
    let ended_before = now_ms.saturating_sub(retention.ended_ms);
    // Tombstones first: one that is made in this round has its whole time before it.
    let tombstones = delete(tx, "tombstones", "until <= ?", "(account, key, scope)", "account, key, scope", now_ms)?;
    let operations = operations(tx, retention, now_ms)?;
    let executions = executions_of_ended(tx, ended_before, now_ms)?;
    let previews = delete(tx, "previews", "dead_at <= ?", "id", "id", ended_before)?
        + delete(
            tx,
            "previews",
            "sandbox IN (SELECT uid FROM sandboxes WHERE ended_at <= ?)",
            "id",
            "id",
            ended_before,
        )?;
    let sandboxes = delete(
        tx,
        "sandboxes",
        "ended_at <= ? AND NOT EXISTS (SELECT 1 FROM executions WHERE executions.sandbox = uid)
         AND NOT EXISTS (SELECT 1 FROM previews WHERE previews.sandbox = uid)
         AND NOT EXISTS (SELECT 1 FROM operations AS o WHERE o.id = sandboxes.operation AND o.state = 'pending')",
        "number",
        "number",
        ended_before,
    )?;
    let evicted = Evicted {
        operations,
        tombstones,
        events: events(tx, now_ms.saturating_sub(retention.events_ms))?,
        sandboxes,
        executions,
        snapshots: delete(
            tx,
            "snapshots",
            &format!(
                "ended_at <= ? AND id NOT IN ({LAYERS_IN_USE})
                 AND NOT EXISTS (SELECT 1 FROM operations AS o WHERE o.id = snapshots.operation AND o.state = 'pending')"
            ),
            "number",
            "number",
            ended_before,
        )?,
        previews,
        access_keys: delete(tx, "access_keys", "dead_at <= ?", "id", "id", ended_before)?,
        receipts: delete(tx, "receipts", "created_at <= ?", "id", "id", now_ms.saturating_sub(retention.receipts_ms))?,
        more: false,
    };
    let Evicted { snapshots, access_keys, receipts, events, .. } = evicted;
    let counts = [operations, tombstones, events, sandboxes, executions, snapshots, previews, access_keys, receipts];
    Ok(Evicted { more: counts.iter().any(|n| *n >= EVICTION_ROWS_MAX), ..evicted })
}

/// Deletes a bounded number of rows for which a condition with one value holds.
fn delete(
    tx: &Tx<'_>,
    table: &str,
    condition: &str,
    is: &str,
    identity: &str,
    value: i64,
) -> Result<usize, JournalError> {
    let sql = format!(
        "DELETE FROM {table} WHERE {is} IN (SELECT {identity} FROM {table} WHERE {condition} LIMIT {EVICTION_ROWS_MAX})"
    );
    tx.change(&sql, [value])
}

/// Finished operations become tombstones, or go at once where nobody can come back with a key.
fn operations(tx: &Tx<'_>, retention: &Retention, now_ms: i64) -> Result<usize, JournalError> {
    // Its outcome may have come late; it is kept as a whole until its time is over, and then for the tombstone's.
    let chosen = format!(
        "SELECT number FROM operations WHERE state <> 'pending' AND pinned = 0 AND keep_until <= ?1
         ORDER BY keep_until LIMIT {EVICTION_ROWS_MAX}"
    );
    let until = now_ms.saturating_add(retention.tombstone_ms());
    let numbers = tx.many(&chosen, [now_ms], |row| row.get::<_, i64>(0))?;
    for number in &numbers {
        tx.change(
            "INSERT INTO tombstones (account, key, scope, id, fingerprint, state, admitted_at, finished_at, outcome, until)
             SELECT account, key, scope, id, fingerprint, state, admitted_at, finished_at,
                    iif(length(CAST(outcome AS BLOB)) <= ?2, outcome, NULL), ?3
             FROM operations WHERE number = ?1 AND key IS NOT NULL",
            params![number, TOMBSTONE_OUTCOME_BYTES_MAX as i64, until],
        )?;
        tx.change("DELETE FROM operations WHERE number = ?", [number])?;
    }
    Ok(numbers.len())
}

/// The keys of their calls begin to run out.
fn executions_of_ended(tx: &Tx<'_>, ended_before: i64, now_ms: i64) -> Result<usize, JournalError> {
    let sql = format!(
        "SELECT e.id FROM sandboxes AS s JOIN executions AS e ON e.sandbox = s.uid
         WHERE s.ended_at <= ? LIMIT {EVICTION_ROWS_MAX}"
    );
    let ids = tx.many(&sql, [ended_before], |row| crate::store::db::parsed(row, 0))?;
    for id in &ids {
        executions::forget(tx, id, now_ms)?;
    }
    Ok(ids.len())
}

/// From each account's oldest on, up to the first that is still to be kept: what is left has no gap.
fn events(tx: &Tx<'_>, before: i64) -> Result<usize, JournalError> {
    let accounts = "SELECT account FROM accounts WHERE newest_event > 0";
    let mut gone = 0;
    for account in tx.many(accounts, [], |row| row.get::<_, String>(0))? {
        let left = EVICTION_ROWS_MAX - gone;
        if left == 0 {
            break;
        }
        let oldest = "SELECT sequence, at FROM events WHERE account = ? ORDER BY sequence LIMIT ?";
        let oldest =
            tx.many(oldest, params![account, left as i64], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
        if let Some((last, _)) = oldest.iter().take_while(|(_, at)| *at < before).last() {
            gone += tx.change("DELETE FROM events WHERE account = ? AND sequence <= ?", params![account, last])?;
        }
    }
    Ok(gone)
}
