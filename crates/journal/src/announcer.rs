//! Tells subscribers that there are new events. It must never tell of one that is not on the disk.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use remuda_types::Account;
use tokio::sync::watch;

/// For each account that somebody listens to, the number of its newest event.
#[derive(Debug, Default)]
pub(crate) struct Announcer {
    newest: Mutex<HashMap<Account, watch::Sender<u64>>>,
}

impl Announcer {
    fn newest(&self) -> MutexGuard<'_, HashMap<Account, watch::Sender<u64>>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, news of this account.
    pub(crate) fn subscribe(&self, account: &Account) -> watch::Receiver<u64> {
        let mut newest = self.newest();
        // Accounts that nobody listens to any more make room here, so that there are never more than listeners.
        newest.retain(|_, sender| sender.receiver_count() > 0);
        newest.entry(account.clone()).or_insert_with(|| watch::Sender::new(0)).subscribe()
    }

    /// These are committed.
    pub(crate) fn announce(&self, news: impl IntoIterator<Item = (Account, u64)>) {
        let newest = self.newest();
        for (account, sequence) in news {
            if let Some(sender) = newest.get(&account) {
                sender.send_if_modified(|known| {
                    let newer = sequence > *known;
                    *known = (*known).max(sequence);
                    newer
                });
            }
        }
    }
}
