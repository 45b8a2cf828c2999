//! Applies changes in their order, within the transaction of whoever brings them.

use crate::error::{JournalError, Refusal};
use crate::limits::CHANGES_MAX;
use crate::model::{Change, Operation};
use crate::store::{Tx, access, accounts, events, executions, quotas, receipts, sandboxes, snapshots, webhooks};

/// Applies all of them; `within` is the operation they belong to.
pub(crate) fn apply(tx: &Tx<'_>, within: Option<&Operation>, changes: &[Change]) -> Result<(), JournalError> {
    if changes.len() > CHANGES_MAX {
        let (limit, current) = (CHANGES_MAX as u64, 0);
        let wanted = changes.len() as u64;
        return Err(Refusal::Limit { name: "changes_max".to_owned(), limit, current, wanted }.into());
    }
    changes.iter().try_for_each(|change| apply_one(tx, within, change))
}

fn apply_one(tx: &Tx<'_>, within: Option<&Operation>, change: &Change) -> Result<(), JournalError> {
    match change {
        Change::Sandbox(change) => sandboxes::change(tx, change),
        Change::Snapshot(change) => snapshots::change(tx, change),
        Change::NewSnapshot { snapshot, now_ms } => match within {
            Some(operation) => snapshots::reserve(tx, &operation.account, &operation.id, snapshot, *now_ms),
            None => Err(Refusal::Contradiction("a snapshot comes to be in an operation only".to_owned()).into()),
        },
        Change::Execution(record) => executions::write(tx, record),
        Change::ForgetExecution { id, now_ms } => executions::forget(tx, id, *now_ms),
        Change::Preview(preview) => access::write_preview(tx, preview),
        Change::AccessKey(key) => access::write_key(tx, key),
        Change::Webhook { record, new } => webhooks::write(tx, record, *new),
        Change::ForgetWebhook(id) => webhooks::forget(tx, id),
        Change::Account(account) => accounts::write(tx, account),
        Change::Receipt(receipt) => receipts::write(tx, receipt),
        Change::Event(event) => events::write(tx, event).map(drop),
        Change::Hold(account, hold) => quotas::hold(tx, account, hold),
        Change::Release(holder) => quotas::release(tx, holder),
        Change::Recount(account) => quotas::recount(tx, account),
    }
}
