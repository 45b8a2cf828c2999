//! Records: sandboxes, snapshots, executions, previews, access keys, receipts, quotas. They are changed by
//! [`Change`](crate::Change)s; here they are read.

use remuda_types::{
    AccessKeyId, Account, ExecutionId, Generation, PreviewId, ReceiptId, SandboxId, Slot, SnapshotId, Uid,
};

use crate::error::JournalError;
use crate::journal::Journal;
use crate::limits::PAGE_MAX;
use crate::model::{
    AccessKey, AccountRecord, ExecutionRecord, Held, Holder, PageOf, Paging, Preview, Receipt, SandboxFilter,
    SandboxRecord, SnapshotFilter, SnapshotRecord, Used, WebhookRecord, Whose,
};
use crate::store::{access, accounts, executions, quotas, receipts, sandboxes, snapshots, webhooks};

/// Whose records, as a call carries it to another thread.
fn owned(whose: Whose<'_>) -> Option<Account> {
    match whose {
        Whose::Of(account) => Some(account.clone()),
        Whose::Everyones => None,
    }
}

fn borrowed(whose: &Option<Account>) -> Whose<'_> {
    whose.as_ref().map_or(Whose::Everyones, Whose::Of)
}

/// All of these fail only when reading does.
impl Journal {
    /// A generation, ended or not.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn sandbox(&self, account: &Account, id: &SandboxId) -> Result<Option<SandboxRecord>, JournalError> {
        let (account, id) = (account.clone(), id.clone());
        self.read(move |db| sandboxes::by_id(db, &account, &id)).await
    }

    /// A generation by its uid, of whatever account: for host names and adoption. Whoever answers a caller compares
    /// the account.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn sandbox_by_uid(&self, uid: &Uid) -> Result<Option<SandboxRecord>, JournalError> {
        let uid = uid.clone();
        self.read(move |db| sandboxes::by_uid(db, &uid)).await
    }

    /// Sandboxes by creation, then slot.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn sandboxes(
        &self,
        whose: Whose<'_>,
        filter: SandboxFilter,
        paging: Paging,
    ) -> Result<PageOf<SandboxRecord>, JournalError> {
        let whose = owned(whose);
        self.read(move |db| sandboxes::list(db, borrowed(&whose), &filter, &paging)).await
    }

    /// The newest generation that a slot ever had, also when its record is gone.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn newest_generation(&self, account: &Account, slot: &Slot) -> Result<Option<Generation>, JournalError> {
        let (account, slot) = (account.clone(), slot.clone());
        self.read(move |db| sandboxes::newest_generation(db, &account, &slot)).await
    }

    /// A snapshot, whatever its state.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn snapshot(&self, account: &Account, id: &SnapshotId) -> Result<Option<SnapshotRecord>, JournalError> {
        let (account, id) = (account.clone(), id.clone());
        self.read(move |db| snapshots::by_id(db, &account, &id)).await
    }

    /// The snapshot that holds this name now.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn snapshot_by_name(
        &self,
        account: &Account,
        name: &str,
    ) -> Result<Option<SnapshotRecord>, JournalError> {
        let (account, name) = (account.clone(), name.to_owned());
        self.read(move |db| snapshots::by_name(db, &account, &name)).await
    }

    /// Snapshots, oldest first.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn snapshots(
        &self,
        whose: Whose<'_>,
        filter: SnapshotFilter,
        paging: Paging,
    ) -> Result<PageOf<SnapshotRecord>, JournalError> {
        let whose = owned(whose);
        self.read(move |db| snapshots::list(db, borrowed(&whose), &filter, &paging)).await
    }

    /// An execution's record.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn execution(
        &self,
        account: &Account,
        id: &ExecutionId,
    ) -> Result<Option<ExecutionRecord>, JournalError> {
        let (account, id) = (account.clone(), id.clone());
        self.read(move |db| executions::by_id(db, &account, &id)).await
    }

    /// Executions of a sandbox, oldest first.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn executions(
        &self,
        whose: Whose<'_>,
        sandbox: &Uid,
        paging: Paging,
    ) -> Result<PageOf<ExecutionRecord>, JournalError> {
        let (whose, sandbox) = (owned(whose), sandbox.clone());
        self.read(move |db| executions::list(db, borrowed(&whose), &sandbox, &paging)).await
    }

    /// The preview whose credential has this digest, of whatever account, revoked and expired ones too.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn preview_by_hash(&self, token_hash: [u8; 32]) -> Result<Option<Preview>, JournalError> {
        self.read(move |db| access::preview_by_hash(db, &token_hash)).await
    }

    /// A preview.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn preview(&self, account: &Account, id: &PreviewId) -> Result<Option<Preview>, JournalError> {
        let (account, id) = (account.clone(), id.clone());
        self.read(move |db| access::preview(db, &account, &id)).await
    }

    /// Previews, of one sandbox or all, oldest first; revoked and expired ones too.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn previews(
        &self,
        whose: Whose<'_>,
        sandbox: Option<&Uid>,
        paging: Paging,
    ) -> Result<PageOf<Preview>, JournalError> {
        let (whose, sandbox) = (owned(whose), sandbox.cloned());
        self.read(move |db| access::previews(db, borrowed(&whose), sandbox.as_ref(), &paging)).await
    }

    /// The access key whose secret has this digest, of whatever account, revoked and expired ones too.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn access_key_by_hash(&self, hash: [u8; 32]) -> Result<Option<AccessKey>, JournalError> {
        self.read(move |db| access::key_by_hash(db, &hash)).await
    }

    /// An access key.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn access_key(&self, account: &Account, id: &AccessKeyId) -> Result<Option<AccessKey>, JournalError> {
        let (account, id) = (account.clone(), id.clone());
        self.read(move |db| access::key(db, &account, &id)).await
    }

    /// Access keys, oldest first; revoked and expired ones too.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn access_keys(&self, whose: Whose<'_>, paging: Paging) -> Result<PageOf<AccessKey>, JournalError> {
        let whose = owned(whose);
        self.read(move |db| access::keys(db, borrowed(&whose), &paging)).await
    }

    /// Webhooks, oldest first.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn webhooks(&self, whose: Whose<'_>, paging: Paging) -> Result<PageOf<WebhookRecord>, JournalError> {
        let whose = owned(whose);
        self.read(move |db| webhooks::list(db, borrowed(&whose), &paging)).await
    }

    /// Accounts that were made on purpose, by name: at most a page after the last one that was seen.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn accounts(&self, after: Option<Account>) -> Result<Vec<AccountRecord>, JournalError> {
        self.read(move |db| accounts::list(db, after.as_ref())).await
    }

    /// A receipt.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn receipt(&self, account: &Account, id: &ReceiptId) -> Result<Option<Receipt>, JournalError> {
        let (account, id) = (account.clone(), id.clone());
        self.read(move |db| receipts::by_id(db, &account, &id)).await
    }

    /// Receipts of one generation or all, oldest first.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn receipts(
        &self,
        account: &Account,
        sandbox: Option<&SandboxId>,
        paging: Paging,
    ) -> Result<PageOf<Receipt>, JournalError> {
        let (account, sandbox) = (account.clone(), sandbox.cloned());
        self.read(move |db| receipts::list(db, &account, sandbox.as_ref(), &paging)).await
    }

    /// What an account holds now and has used in each period.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn used(&self, account: &Account) -> Result<Vec<Used>, JournalError> {
        let account = account.clone();
        self.read(move |db| quotas::used(db, &account)).await
    }

    /// What is held for a sandbox, snapshot or operation now.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn held(&self, account: &Account, holder: &Holder) -> Result<Vec<Held>, JournalError> {
        let (account, holder) = (account.clone(), holder.clone());
        self.read(move |db| quotas::held(db, &account, &holder)).await
    }

    /// Everything that is held, of all accounts, for reconciliation: at most a page after the last one that was seen.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn all_held(&self, after: Option<Held>) -> Result<Vec<(Account, Held)>, JournalError> {
        self.read(move |db| quotas::all_held(db, after.as_ref(), PAGE_MAX)).await
    }
}
