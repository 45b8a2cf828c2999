//! Quotas: sums of what is held, kept beside the holds they are made of, and counters that only add up. A sum is always
//! changed in the transaction that changes its hold.

use remuda_types::Account;
use rusqlite::params;

use crate::error::{JournalError, Refusal};
use crate::limits::WORD_BYTES_MAX;
use crate::model::{AdriftSum, Count, Held, Hold, Holder, Used};
use crate::store::db::amount;
use crate::store::{Db, Tx};

/// The period of what is held now.
const NOW: &str = "";

/// Holds an amount, or another one than before. Beyond the limit it is refused where it grows.
pub(crate) fn hold(tx: &Tx<'_>, account: &Account, hold: &Hold) -> Result<(), JournalError> {
    check_word(&hold.name)?;
    let before = "SELECT account, amount FROM holds WHERE holder = ? AND name = ?";
    let before = tx.one(before, [hold.holder.0.as_str(), hold.name.as_str()], |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?))
    })?;
    if before.as_ref().is_some_and(|(owner, _)| owner != account.as_str()) {
        return Err(Refusal::Contradiction(format!("{} holds for another account", hold.holder)).into());
    }
    let before = before.map_or(0, |(_, amount)| amount);
    let after = amount(hold.amount);
    add(tx, account, &hold.name, NOW, after.saturating_sub(before), hold.limit)?;
    tx.change(
        "INSERT INTO holds (holder, name, account, amount) VALUES (?, ?, ?, ?)
         ON CONFLICT (holder, name) DO UPDATE SET amount = excluded.amount",
        params![hold.holder.0, hold.name, account.as_str(), after],
    )?;
    Ok(())
}

/// Adds to a counter for good.
pub(crate) fn count(tx: &Tx<'_>, account: &Account, count: &Count) -> Result<(), JournalError> {
    check_word(&count.name)?;
    check_word(&count.period)?;
    add(tx, account, &count.name, &count.period, amount(count.amount), count.limit)
}

fn check_word(word: &str) -> Result<(), JournalError> {
    if word.is_empty() || word.len() > WORD_BYTES_MAX {
        let message = format!("the name and period of a quota have 1 to {WORD_BYTES_MAX} bytes");
        return Err(Refusal::Contradiction(message).into());
    }
    Ok(())
}

fn add(
    tx: &Tx<'_>,
    account: &Account,
    name: &str,
    period: &str,
    more: i64,
    limit: Option<u64>,
) -> Result<(), JournalError> {
    if more == 0 {
        return Ok(());
    }
    let current = "SELECT amount FROM used WHERE account = ? AND name = ? AND period = ?";
    let current: i64 = tx.one(current, [account.as_str(), name, period], |row| row.get(0))?.unwrap_or(0);
    let sum = current.saturating_add(more);
    if let Some(limit) = limit
        && more > 0
        && sum > amount(limit)
    {
        let (current, wanted) = (current.unsigned_abs(), more.unsigned_abs());
        return Err(Refusal::Limit { name: name.to_owned(), limit, current, wanted }.into());
    }
    tx.change(
        "INSERT INTO used (account, name, period, amount) VALUES (?, ?, ?, ?)
         ON CONFLICT (account, name, period) DO UPDATE SET amount = excluded.amount",
        params![account.as_str(), name, period, sum],
    )?;
    Ok(())
}

/// Releases everything that is held for this.
pub(crate) fn release(tx: &Tx<'_>, holder: &Holder) -> Result<(), JournalError> {
    tx.change(
        "UPDATE used SET amount = used.amount - held.amount FROM holds AS held
         WHERE held.holder = ? AND used.account = held.account AND used.name = held.name AND used.period = ''",
        [holder.0.as_str()],
    )?;
    tx.change("DELETE FROM holds WHERE holder = ?", [holder.0.as_str()])?;
    Ok(())
}

/// Sums that are not those of their holds. One statement, and so one moment of the database.
pub(crate) fn adrift(db: &Db<'_>) -> Result<Vec<AdriftSum>, JournalError> {
    db.many(
        "SELECT account, name, sum(says), sum(held) FROM (
             SELECT account, name, amount AS says, 0 AS held FROM used WHERE period = ''
             UNION ALL SELECT account, name, 0, amount FROM holds)
         GROUP BY account, name HAVING sum(says) <> sum(held) ORDER BY account, name",
        [],
        |row| {
            let amount = |column| Ok::<_, rusqlite::Error>(row.get::<_, i64>(column)?.max(0).unsigned_abs());
            let account = crate::store::db::parsed(row, 0)?;
            Ok(AdriftSum { account, name: row.get(1)?, says: amount(2)?, held: amount(3)? })
        },
    )
}

/// Makes the sums of an account anew.
pub(crate) fn recount(tx: &Tx<'_>, account: &Account) -> Result<(), JournalError> {
    tx.change("DELETE FROM used WHERE account = ? AND period = ''", [account.as_str()])?;
    tx.change(
        "INSERT INTO used (account, name, period, amount)
         SELECT account, name, '', sum(amount) FROM holds WHERE account = ? GROUP BY account, name",
        [account.as_str()],
    )?;
    Ok(())
}

/// What an account has used, by name and period.
pub(crate) fn used(db: &Db<'_>, account: &Account) -> Result<Vec<Used>, JournalError> {
    db.many(
        "SELECT name, period, amount FROM used WHERE account = ? ORDER BY name, period",
        [account.as_str()],
        |row| {
            let period: String = row.get(1)?;
            let period = (period != NOW).then_some(period);
            Ok(Used { name: row.get(0)?, period, amount: row.get::<_, i64>(2)?.max(0).unsigned_abs() })
        },
    )
}

/// What is held for something now.
pub(crate) fn held(db: &Db<'_>, account: &Account, holder: &Holder) -> Result<Vec<Held>, JournalError> {
    db.many(
        "SELECT name, amount FROM holds WHERE holder = ? AND account = ? ORDER BY name",
        [holder.0.as_str(), account.as_str()],
        |row| {
            Ok(Held { holder: holder.clone(), name: row.get(0)?, amount: row.get::<_, i64>(1)?.max(0).unsigned_abs() })
        },
    )
}

/// All that is held, of all accounts, for reconciliation; after a holder and name, at most a page.
pub(crate) fn all_held(db: &Db<'_>, after: Option<&Held>, limit: usize) -> Result<Vec<(Account, Held)>, JournalError> {
    let (holder, name) = after.map_or(("", ""), |held| (held.holder.0.as_str(), held.name.as_str()));
    db.many(
        "SELECT account, holder, name, amount FROM holds WHERE (holder, name) > (?, ?) ORDER BY holder, name LIMIT ?",
        params![holder, name, limit as i64],
        |row| {
            let amount = row.get::<_, i64>(3)?.max(0).unsigned_abs();
            let held = Held { holder: Holder(row.get(1)?), name: row.get(2)?, amount };
            Ok((crate::store::db::parsed(row, 0)?, held))
        },
    )
}
