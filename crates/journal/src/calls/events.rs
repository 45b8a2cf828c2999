//! Events: read from a number on, and wait for new ones.

use remuda_types::Account;
use tokio::sync::watch;

use crate::error::JournalError;
use crate::journal::Journal;
use crate::model::EventPage;
use crate::store::events;

impl Journal {
    /// Events of an account above a number, in order, at most `limit` (0 stands for
    /// [`PAGE_MAX`](crate::limits::PAGE_MAX)). Begin with 0; go on with the last one's number.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn events(&self, account: &Account, after: u64, limit: usize) -> Result<EventPage, JournalError> {
        let account = account.clone();
        self.read(move |db| events::after(db, &account, after, limit)).await
    }

    /// The number of the newest event of an account, now and whenever there is a new one. What it tells of can be read.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn watch_events(&self, account: &Account) -> Result<watch::Receiver<u64>, JournalError> {
        // Listening comes first: what is written while the newest number is read is then told all the same.
        let receiver = self.announcer().subscribe(account);
        let whose = account.clone();
        let newest = self.read(move |db| events::newest(db, &whose)).await?;
        self.announcer().announce([(account.clone(), newest)]);
        Ok(receiver)
    }
}
