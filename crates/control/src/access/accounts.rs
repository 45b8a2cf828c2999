//! The server's accounts, with the quotas that are set for each. Must never show one account to another: whoever asks
//! for the list is the operator.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use remuda_journal::{AccountRecord, Change, Journal, JournalError};
use remuda_types::limits::ACCOUNTS_MAX;
use remuda_types::wire::AccountInfo;
use remuda_types::{Account, Error, ErrorCode, Quota, QuotaChanges, QuotaLimits};
use serde::{Deserialize, Serialize};

/// Every account that was made on purpose. Clones share it.
#[derive(Debug, Clone)]
pub struct Accounts {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    journal: Journal,
    defaults: QuotaLimits,
    known: RwLock<BTreeMap<Account, Known>>,
    /// Held while one is written, so that memory and journal agree on the last.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone)]
struct Known {
    created_at_ms: i64,
    doc: Doc,
}

/// What is set for an account, as the journal has it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Doc {
    #[serde(default)]
    quotas: QuotaChanges,
}

impl Accounts {
    /// Reads them all.
    ///
    /// # Errors
    /// When the journal can't be read, or what is set for an account isn't understood.
    pub async fn open(journal: Journal, defaults: QuotaLimits) -> Result<Accounts, Error> {
        let mut known = BTreeMap::new();
        let mut after = None;
        loop {
            let page = journal.accounts(after).await.map_err(|e| crate::errors::journal(&e))?;
            let Some(last) = page.last() else { break };
            after = Some(last.account.clone());
            for record in page {
                let doc: Option<Doc> = serde_json::from_value(record.doc).map_err(|e| {
                    Error::new(
                        ErrorCode::Internal,
                        format!("what is set for the account {} is damaged", record.account),
                    )
                    .cause(e)
                })?;
                let doc = doc.unwrap_or_default();
                known.insert(record.account, Known { created_at_ms: record.created_at_ms, doc });
            }
        }
        let inner = Inner { journal, defaults, known: RwLock::new(known), writing: tokio::sync::Mutex::default() };
        Ok(Accounts { inner: Arc::new(inner) })
    }

    /// Whether it was made.
    pub fn exists(&self, account: &Account) -> bool {
        self.known(account).is_some()
    }

    /// What an account may use at most.
    pub fn limits(&self, account: &Account) -> QuotaLimits {
        match self.known(account) {
            Some(known) => self.inner.defaults.with(&known.doc.quotas),
            None => self.inner.defaults.clone(),
        }
    }

    /// Every account, by name.
    pub fn list(&self) -> Vec<AccountInfo> {
        let known = self.inner.known.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().map(|(account, known)| self.show(account, known)).collect()
    }

    /// Makes an account where there is none of that name, and writes these changes with it.
    ///
    /// # Errors
    /// `limit_reached`; the journal fails: then nothing was done.
    pub(crate) async fn make(&self, account: &Account, with: Vec<Change>, now_ms: i64) -> Result<(), Error> {
        let doc = |known: Option<Known>| known.map(|known| known.doc);
        self.write(account, doc, with, now_ms).await.map(drop)
    }

    /// Makes an account where there is none of that name, and replaces its own quotas.
    ///
    /// # Errors
    /// As for [`Accounts::make`].
    pub async fn set_quotas(&self, account: &Account, quotas: QuotaChanges, now_ms: i64) -> Result<AccountInfo, Error> {
        let known = self.write(account, |_| Some(Doc { quotas }), Vec::new(), now_ms).await?;
        Ok(self.show(account, &known))
    }

    /// Writes what `doc` makes of what is there, and `with` in the same transaction. An account that exists, and of
    /// which nothing changes, is not written.
    async fn write(
        &self,
        account: &Account,
        doc: impl FnOnce(Option<Known>) -> Option<Doc>,
        with: Vec<Change>,
        now_ms: i64,
    ) -> Result<Known, Error> {
        let _writing = self.inner.writing.lock().await;
        let before = self.known(account);
        let existed = before.is_some();
        let count = self.inner.known.read().unwrap_or_else(PoisonError::into_inner).len();
        if !existed && count >= ACCOUNTS_MAX {
            return Err(Error::limit("accounts_max", ACCOUNTS_MAX as u64, count as u64));
        }
        let created_at_ms = before.as_ref().map_or(now_ms, |known| known.created_at_ms);
        let known = Known { created_at_ms, doc: doc(before).unwrap_or_default() };
        let value = serde_json::to_value(&known.doc)
            .map_err(|e| crate::errors::journal(&JournalError::Internal(e.to_string())))?;
        let record = AccountRecord { account: account.clone(), created_at_ms, doc: value };
        let mut changes = vec![Change::Account(record)];
        changes.extend(with);
        self.inner.journal.apply(changes).await.map_err(|e| crate::errors::journal(&e))?;
        let mut all = self.inner.known.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(account.clone(), known.clone());
        Ok(known)
    }

    fn known(&self, account: &Account) -> Option<Known> {
        self.inner.known.read().unwrap_or_else(PoisonError::into_inner).get(account).cloned()
    }

    fn show(&self, account: &Account, known: &Known) -> AccountInfo {
        AccountInfo {
            account: account.clone(),
            created_at_ms: known.created_at_ms,
            quotas: known.doc.quotas.clone(),
            limits: told(&self.inner.defaults.with(&known.doc.quotas)),
        }
    }
}

/// Limits as the API tells them: every quota, null where there is no limit.
pub(crate) fn told(limits: &QuotaLimits) -> BTreeMap<String, Option<u64>> {
    Quota::ALL.iter().map(|quota| (quota.to_string(), limits.of(*quota))).collect()
}

#[cfg(test)]
mod tests {
    use remuda_journal::Settings;

    use super::*;

    async fn open(directory: &std::path::Path) -> Accounts {
        let journal = Journal::open(directory, Settings { reserve_bytes: 0, ..Settings::default() }).unwrap();
        Accounts::open(journal, QuotaLimits::default()).await.unwrap()
    }

    fn changes(settings: &[&str]) -> QuotaChanges {
        settings.iter().map(|text| text.parse::<remuda_types::QuotaSetting>().unwrap()).collect()
    }

    #[tokio::test]
    async fn quotas_of_an_account_outlive_the_server_and_the_rest_follows_the_settings() {
        let directory = tempfile::tempdir().unwrap();
        let (a, b): (Account, Account) = ("a".parse().unwrap(), "b".parse().unwrap());
        let accounts = open(directory.path()).await;
        assert!(!accounts.exists(&a));
        let made = accounts.set_quotas(&a, changes(&["sandboxes=3", "snapshots=none"]), 7).await.unwrap();
        assert_eq!((made.created_at_ms, made.limits["sandboxes"], made.limits["snapshots"]), (7, Some(3), None));
        accounts.make(&b, Vec::new(), 8).await.unwrap();
        // Making one that exists changes nothing of it.
        accounts.make(&a, Vec::new(), 9).await.unwrap();
        drop(accounts);

        let accounts = open(directory.path()).await;
        assert_eq!(accounts.limits(&a).of(Quota::Sandboxes), Some(3));
        assert_eq!(accounts.limits(&b), QuotaLimits::default());
        let list = accounts.list();
        assert_eq!(list.iter().map(|a| a.created_at_ms).collect::<Vec<_>>(), [7, 8]);
        assert_eq!(list[0], made);
        // Replaced whole: what is not named follows the settings again.
        accounts.set_quotas(&a, changes(&["memory_mib=512"]), 10).await.unwrap();
        assert_eq!(accounts.limits(&a).of(Quota::Sandboxes), QuotaLimits::default().of(Quota::Sandboxes));
        assert_eq!(accounts.limits(&a).of(Quota::MemoryMib), Some(512));
    }
}
