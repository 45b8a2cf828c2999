//! What reconciliation asks: whether the database is sound, and whether sums are those of what they are made of. Reads
//! only; a sum is put right by [`Change::Recount`](crate::Change::Recount).

use remuda_types::SnapshotId;

use crate::error::JournalError;
use crate::journal::Journal;
use crate::model::{AdriftSum, SnapshotRecord};
use crate::store::{quotas, snapshots};

impl Journal {
    /// What is wrong with the database first; none where it is sound. As quick as its size allows: everything is read,
    /// and indexes are not held against their tables.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn check(&self) -> Result<Option<String>, JournalError> {
        self.read(|db| {
            let found = db.one("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0))?;
            Ok(found.filter(|found| found != "ok"))
        })
        .await
    }

    /// Sums of what is held that are not those of their holds, of all accounts.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn adrift_sums(&self) -> Result<Vec<AdriftSum>, JournalError> {
        self.read(quotas::adrift).await
    }

    /// A snapshot by its id, of whatever account: for reconciliation. Whoever answers a caller compares the account.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn snapshot_of_any(&self, id: &SnapshotId) -> Result<Option<SnapshotRecord>, JournalError> {
        let id = id.clone();
        self.read(move |db| snapshots::of_any(db, &id)).await
    }
}

#[cfg(test)]
mod tests {
    use remuda_types::{Account, Uid};

    use super::*;
    use crate::model::{Change, Hold, Holder};
    use crate::settings::Settings;

    #[tokio::test]
    async fn a_sum_that_is_adrift_is_found_and_made_anew_from_what_is_held() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path(), Settings { reserve_bytes: 0, ..Settings::default() }).unwrap();
        let (account, other): (Account, Account) = ("main".parse().unwrap(), "other".parse().unwrap());
        let hold = |n: u8, name: &str, amount| {
            let holder = Holder::from(&Uid::from_entropy([n; 20]));
            Hold { holder, name: name.to_owned(), amount, limit: None }
        };
        let holds = [
            Change::Hold(account.clone(), hold(1, "memory_mib", 5)),
            Change::Hold(account.clone(), hold(2, "memory_mib", 6)),
            Change::Hold(account.clone(), hold(2, "sandboxes", 0)),
            Change::Hold(other.clone(), hold(3, "memory_mib", 7)),
        ];
        journal.apply(holds.to_vec()).await.unwrap();
        assert_eq!(journal.adrift_sums().await.unwrap(), []);
        let by_hand = rusqlite::Connection::open(journal.path()).unwrap();
        by_hand.execute("UPDATE used SET amount = 99 WHERE account = 'main'", []).unwrap();
        by_hand.execute("DELETE FROM used WHERE account = 'other'", []).unwrap();
        let adrift = |account: &Account, says, held| AdriftSum {
            account: account.clone(),
            name: "memory_mib".to_owned(),
            says,
            held,
        };
        assert_eq!(journal.adrift_sums().await.unwrap(), [adrift(&account, 99, 11), adrift(&other, 0, 7)]);
        journal.apply(vec![Change::Recount(account.clone())]).await.unwrap();
        assert_eq!(journal.adrift_sums().await.unwrap(), [adrift(&other, 0, 7)]);
        let used = journal.used(&account).await.unwrap();
        assert!(used.iter().any(|used| (used.name.as_str(), used.amount) == ("memory_mib", 11)), "{used:?}");
        assert_eq!(journal.check().await.unwrap(), None);
    }
}
