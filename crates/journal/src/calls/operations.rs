//! Operations: admit, step, finish; forbid, look up, recover, evict.

use remuda_types::{Account, Key, OperationId};
use serde_json::Value;

use crate::canonical::Canonical;
use crate::error::JournalError;
use crate::journal::{Journal, Underway};
use crate::model::{
    Admission, Admitted, Change, Finished, Forbidden, Operation, Outcome, PageOf, Paging, Scope, Stepped,
};
use crate::store::evict::{self, Evicted};
use crate::store::writer::Purpose;
use crate::store::{changes, operations};

impl Journal {
    /// Receives a call. Its key, its canonical request and everything that is reserved are stored together before this
    /// returns; nothing may be done before. A key that is known answers with its operation, and reserves nothing.
    ///
    /// # Errors
    /// A [`Refusal`](crate::Refusal), after which neither key nor reservation is stored: the same key may come again.
    /// [`JournalError::Full`] when the disk is.
    pub async fn admit(&self, admission: Admission) -> Result<Admitted, JournalError> {
        let request = Canonical::of(&admission.request)?;
        let key_ms = self.settings().retention.key_ms;
        self.write(Purpose::Begin, move |tx| operations::admit(tx, &admission, &request, key_ms)).await
    }

    /// How a call with this key would be received, if the key is known: so that a repeated call is answered before it is
    /// judged by how things stand now. None where the key is new; [`Journal::admit`] then decides.
    ///
    /// # Errors
    /// The key was cancelled; the request has no canonical form; reading fails.
    pub async fn received(
        &self,
        account: &Account,
        scope: &Scope,
        key: &Key,
        request: &Value,
    ) -> Result<Option<Admitted>, JournalError> {
        let request = Canonical::of(request)?;
        let (account, scope, key) = (account.clone(), scope.clone(), key.clone());
        self.read(move |db| operations::known(db, &account, &scope, &key, &request)).await
    }

    /// Journals a step and applies changes with it. A step of that name that was journaled before stays as it was, and
    /// its changes are not applied again: repeating is safe.
    ///
    /// # Errors
    /// There is no such operation, or it has its outcome; a change is refused: then nothing of it is written.
    pub async fn step(
        &self,
        operation: &OperationId,
        name: &str,
        data: Value,
        changes: Vec<Change>,
    ) -> Result<Stepped, JournalError> {
        let (id, name) = (operation.clone(), name.to_owned());
        self.write(Purpose::Record, move |tx| operations::step(tx, &id, &name, &data, &changes)).await
    }

    /// Journals an outcome and applies changes with it. The first outcome stands: a later one, and its changes, are not
    /// applied, and the answer says so.
    ///
    /// # Errors
    /// There is no such operation, or it is a tombstone by now; a change is refused: then nothing of it is written.
    pub async fn finish(
        &self,
        operation: &OperationId,
        outcome: Outcome,
        changes: Vec<Change>,
        now_ms: i64,
    ) -> Result<Finished, JournalError> {
        let id = operation.clone();
        self.write(Purpose::Record, move |tx| operations::finish(tx, &id, &outcome, &changes, now_ms)).await
    }

    /// Applies changes that belong to no operation, as when a sandbox dies by itself.
    ///
    /// # Errors
    /// A change is refused: then none of them is written.
    pub async fn apply(&self, changes: Vec<Change>) -> Result<(), JournalError> {
        self.write(Purpose::Record, move |tx| changes::apply(tx, None, &changes)).await
    }

    /// Applies changes without waiting for the disk: they ride along with the next commit, or make one of their own
    /// after at most 50 ms. Until then they are not seen by those who read, and a crash takes them back. Later changes
    /// never overtake them.
    ///
    /// # Errors
    /// The journal is closed. What is refused or fails later is told to whoever awaits the answer, and is logged else.
    pub async fn apply_soon(&self, changes: Vec<Change>) -> Result<Underway, JournalError> {
        self.write_soon(move |tx| changes::apply(tx, None, &changes)).await.map(Underway)
    }

    /// Waits until everything that was given to [`Journal::apply_soon`] before is on the disk.
    ///
    /// # Errors
    /// The journal is closed or has stopped.
    pub async fn flush(&self) -> Result<(), JournalError> {
        self.write(Purpose::Record, |_| Ok(())).await
    }

    /// Cancels a key that may not have been admitted yet: whoever comes with it later is refused as cancelled, for as
    /// long as a key and its tombstone live. If it was admitted before, the answer is its operation.
    ///
    /// # Errors
    /// Too many keys of this account are cancelled at the moment.
    pub async fn forbid(
        &self,
        account: &Account,
        scope: &Scope,
        key: &Key,
        now_ms: i64,
    ) -> Result<Forbidden, JournalError> {
        let retention = self.settings().retention;
        let until = now_ms.saturating_add(retention.key_ms).saturating_add(retention.tombstone_ms());
        let (account, scope, key) = (account.clone(), scope.clone(), key.clone());
        self.write(Purpose::Record, move |tx| operations::forbid(tx, &account, &scope, &key, now_ms, until)).await
    }

    /// An operation of an account with its steps, or its tombstone.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn operation(&self, account: &Account, id: &OperationId) -> Result<Option<Operation>, JournalError> {
        let (account, id) = (account.clone(), id.clone());
        self.read(move |db| operations::operation(db, &account, &id)).await
    }

    /// All operations that a key was used for, since keys are scoped; tombstones too, steps not.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn operations_by_key(&self, account: &Account, key: &Key) -> Result<Vec<Operation>, JournalError> {
        let (account, key) = (account.clone(), key.clone());
        self.read(move |db| operations::of_key_in_all_scopes(db, &account, &key)).await
    }

    /// The parts of an operation, as branches are of their fork, in the order of their admission; without steps.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn operations_within(
        &self,
        account: &Account,
        parent: &OperationId,
    ) -> Result<Vec<Operation>, JournalError> {
        let (account, parent) = (account.clone(), parent.clone());
        self.read(move |db| operations::parts(db, &account, &parent)).await
    }

    /// Operations of all accounts that have no outcome, with their steps, in the order of their admission: what a
    /// restarted server has to finish or undo.
    ///
    /// # Errors
    /// Reading fails.
    pub async fn unfinished(&self, paging: Paging) -> Result<PageOf<Operation>, JournalError> {
        self.read(move |db| operations::unfinished(db, &paging)).await
    }

    /// Removes what has been kept long enough, a bounded number of records of each kind: repeat it while it says that
    /// there is more, with other calls in between.
    ///
    /// # Errors
    /// The disk is full or fails.
    pub async fn evict(&self, now_ms: i64) -> Result<Evicted, JournalError> {
        let retention = self.settings().retention;
        self.write(Purpose::Record, move |tx| evict::evict(tx, &retention, now_ms)).await
    }
}
