//! Sandboxes and their slots. A slot holds one generation that has not ended, and each generation of it is newer than
//! all before, also when the clock steps back and when the records of those before are gone.

use std::collections::HashSet;

use remuda_types::{Account, Generation, OperationId, SandboxId, Slot, Uid};
use rusqlite::{Row, params};

use crate::error::{JournalError, Refusal};
use crate::limits::SLOT_NAMES_MAX;
use crate::model::{Cursor, NewSandbox, PageOf, Paging, SandboxChange, SandboxFilter, SandboxRecord, Whose};
use crate::store::db::{document, document_or_null, generation, json, parsed, sandbox_id, word};
use crate::store::paged::Listing;
use crate::store::{Db, Tx};

const COLUMNS: &str = "account, slot, generation, uid, operation, state, reason, labels, spec, parts, layers, host, \
                       ended_at, continues, continued_as";

/// Takes a slot and records a new generation in it.
pub(crate) fn reserve(
    tx: &Tx<'_>,
    account: &Account,
    operation: &OperationId,
    new: &NewSandbox,
    now_ms: i64,
) -> Result<SandboxId, JournalError> {
    let slot = match (&new.continues, &new.slot) {
        (Some(old), Some(slot)) if old.slot != *slot => {
            let message = format!("{old} can only be continued in its own slot, not in {slot}");
            return Err(Refusal::Contradiction(message).into());
        }
        (Some(old), _) => old.slot.clone(),
        (None, Some(slot)) => slot.clone(),
        (None, None) => first_free(tx, account)?,
    };
    let generation = next_generation(tx, account, &slot, now_ms)?;
    if let Some(old) = &new.continues {
        let given_up = tx.change(
            "UPDATE sandboxes SET ended_at = ?, continued_as = ?, state = 'gone'
             WHERE account = ? AND slot = ? AND generation = ? AND ended_at IS NULL",
            params![now_ms, generation.unix_ms(), account.as_str(), slot.as_str(), old.generation.unix_ms()],
        )?;
        if given_up == 0 {
            return Err(Refusal::NotContinuable(old.clone()).into());
        }
    } else if let Some(occupant) = occupant(tx, account, &slot)? {
        return Err(
            Refusal::SlotInUse { occupant: SandboxId { slot: slot.clone(), generation: occupant }, slot }.into()
        );
    }
    tx.change(
        "INSERT INTO sandboxes (account, slot, generation, uid, operation, state, labels, spec, parts, layers, host,
                                continues)
         VALUES (?, ?, ?, ?, ?, 'starting', ?, ?, ?, ?, 'null', ?)",
        params![
            account.as_str(),
            slot.as_str(),
            generation.unix_ms(),
            new.uid.as_str(),
            operation.as_str(),
            document(&new.labels, "the sandbox's labels")?,
            document(&new.spec, "the sandbox's specification")?,
            document(&new.parts, "the sandbox's parts")?,
            document(&new.layers, "the sandbox's layers")?,
            new.continues.as_ref().map(|old| old.generation.unix_ms()),
        ],
    )?;
    Ok(SandboxId { slot, generation })
}

/// The first of `c1`, `c2`, … that holds nothing.
fn first_free(tx: &Tx<'_>, account: &Account) -> Result<Slot, JournalError> {
    let sql = "SELECT slot FROM sandboxes WHERE account = ? AND ended_at IS NULL AND slot GLOB 'c[1-9]*'";
    let taken: HashSet<String> = tx.many(sql, [account.as_str()], |row| row.get(0))?.into_iter().collect();
    // One more than are taken is enough to find one that is free.
    let free = (1..=taken.len() + 1).map(|n| format!("c{n}")).find(|slot| !taken.contains(slot));
    free.and_then(|slot| slot.parse().ok()).ok_or_else(|| JournalError::internal("no slot is free"))
}

fn occupant(db: &Db<'_>, account: &Account, slot: &Slot) -> Result<Option<Generation>, JournalError> {
    let sql = "SELECT generation FROM sandboxes WHERE account = ? AND slot = ? AND ended_at IS NULL";
    db.one(sql, [account.as_str(), slot.as_str()], |row| generation(row, 0))
}

fn next_generation(tx: &Tx<'_>, account: &Account, slot: &Slot, now_ms: i64) -> Result<Generation, JournalError> {
    let newest = newest_generation(tx, account, slot)?;
    let next = Generation::next(now_ms, newest).ok_or(Refusal::Clock)?;
    if newest.is_none() {
        let sql = "INSERT INTO accounts (account, slot_names) VALUES (?, 1)
                   ON CONFLICT (account) DO UPDATE SET slot_names = slot_names + 1 RETURNING slot_names";
        let names = tx.one(sql, [account.as_str()], |row| row.get::<_, i64>(0))?.unwrap_or(0).unsigned_abs();
        if names > SLOT_NAMES_MAX {
            let name = "slot_names_max".to_owned();
            return Err(Refusal::Limit { name, limit: SLOT_NAMES_MAX, current: names - 1, wanted: 1 }.into());
        }
    }
    tx.change(
        "INSERT INTO slots (account, slot, newest) VALUES (?, ?, ?)
         ON CONFLICT (account, slot) DO UPDATE SET newest = excluded.newest",
        params![account.as_str(), slot.as_str(), next.unix_ms()],
    )?;
    Ok(next)
}

/// The newest generation that a slot ever had.
pub(crate) fn newest_generation(
    db: &Db<'_>,
    account: &Account,
    slot: &Slot,
) -> Result<Option<Generation>, JournalError> {
    let sql = "SELECT newest FROM slots WHERE account = ? AND slot = ?";
    db.one(sql, [account.as_str(), slot.as_str()], |row| generation(row, 0))
}

/// Changes a sandbox. One that has ended keeps its state, reason and time.
pub(crate) fn change(tx: &Tx<'_>, change: &SandboxChange) -> Result<(), JournalError> {
    let SandboxChange { uid, state, reason, labels, spec, parts, layers, host, ended_at_ms, hands_back } = change;
    let sql = "SELECT ended_at IS NULL FROM sandboxes WHERE uid = ?";
    let living: bool = tx
        .one(sql, [uid.as_str()], |row| row.get(0))?
        .ok_or_else(|| Refusal::UnknownRecord(format!("sandbox {uid}")))?;
    if living {
        tx.change(
            "UPDATE sandboxes SET state = coalesce(?2, state), reason = iif(?3, ?4, reason),
                                  ended_at = coalesce(?5, ended_at)
             WHERE uid = ?1",
            params![
                uid.as_str(),
                state.map(|s| s.to_string()),
                reason.is_some(),
                reason.as_ref().and_then(Option::as_deref),
                ended_at_ms
            ],
        )?;
        if *hands_back && ended_at_ms.is_some() {
            hand_back(tx, uid)?;
        }
    }
    if labels.is_some() || spec.is_some() || parts.is_some() || layers.is_some() || host.is_some() {
        tx.change(
            "UPDATE sandboxes SET labels = coalesce(?2, labels), spec = coalesce(?3, spec),
                                  parts = coalesce(?4, parts), layers = coalesce(?5, layers), host = coalesce(?6, host)
             WHERE uid = ?1",
            params![
                uid.as_str(),
                document_or_null(labels, "the sandbox's labels")?,
                document_or_null(spec, "the sandbox's specification")?,
                document_or_null(parts, "the sandbox's parts")?,
                document_or_null(layers, "the sandbox's layers")?,
                document_or_null(host, "what is known of the sandbox's processes")?,
            ],
        )?;
    }
    Ok(())
}

/// The generation that this one was to continue holds the slot again, and is stopped as it was.
fn hand_back(tx: &Tx<'_>, uid: &Uid) -> Result<(), JournalError> {
    tx.change(
        "UPDATE sandboxes AS old SET ended_at = NULL, continued_as = NULL, state = 'stopped' FROM sandboxes AS new
         WHERE new.uid = ? AND old.account = new.account AND old.slot = new.slot AND old.generation = new.continues
               AND old.continued_as = new.generation",
        [uid.as_str()],
    )?;
    Ok(())
}

/// A generation, ended or not.
pub(crate) fn by_id(db: &Db<'_>, account: &Account, id: &SandboxId) -> Result<Option<SandboxRecord>, JournalError> {
    let sql = &format!("SELECT {COLUMNS} FROM sandboxes WHERE account = ? AND slot = ? AND generation = ?");
    db.one(sql, params![account.as_str(), id.slot.as_str(), id.generation.unix_ms()], read)
}

/// A generation by its uid, of whatever account.
pub(crate) fn by_uid(db: &Db<'_>, uid: &Uid) -> Result<Option<SandboxRecord>, JournalError> {
    db.one(&format!("SELECT {COLUMNS} FROM sandboxes WHERE uid = ?"), [uid.as_str()], read)
}

/// Sandboxes by creation, then slot.
pub(crate) fn list(
    db: &Db<'_>,
    whose: Whose<'_>,
    filter: &SandboxFilter,
    paging: &Paging,
) -> Result<PageOf<SandboxRecord>, JournalError> {
    let mut listing = Listing::of("sandboxes", COLUMNS, ("generation", "slot"))
        .whose(whose)
        .only_if("slot = ?", filter.slot.as_ref().map(|slot| [slot.to_string().into()]))
        .labelled(filter.label.as_ref());
    if !filter.include_ended {
        listing = listing.only("ended_at IS NULL", []);
    }
    listing.page(db, paging, read, |last| Cursor { at_ms: last.id.generation.unix_ms(), id: last.id.slot.to_string() })
}

fn read(row: &Row<'_>) -> rusqlite::Result<SandboxRecord> {
    let id = sandbox_id(row, 1, 2)?;
    let in_slot = |column: usize| -> rusqlite::Result<Option<SandboxId>> {
        match row.get::<_, Option<i64>>(column)? {
            Some(_) => Ok(Some(SandboxId { slot: id.slot.clone(), generation: generation(row, column)? })),
            None => Ok(None),
        }
    };
    Ok(SandboxRecord {
        account: parsed(row, 0)?,
        uid: parsed(row, 3)?,
        operation: parsed(row, 4)?,
        state: word(row, 5)?,
        reason: row.get(6)?,
        labels: json(row, 7)?,
        spec: json(row, 8)?,
        parts: json(row, 9)?,
        layers: json(row, 10)?,
        host: json(row, 11)?,
        ended_at_ms: row.get(12)?,
        continues: in_slot(13)?,
        continued_as: in_slot(14)?,
        id,
    })
}
