//! The ledger of a generation: what its life leaves in receipts and events. An entry is made when something has
//! happened, and written in one transaction with the outcome that it belongs to.
//!
//! A machine's receipt is one document to which its whole life adds. Whoever adds to it has the *turn* from reading it
//! until the addition is on the disk, so that none is lost.

use std::sync::Arc;

use remuda_journal::{Change, Receipt as Record, ReceiptKind, SandboxChange};
use remuda_types::limits::RECEIPT_CAPTURES_MAX;
use remuda_types::wire::{
    Captured, Death, DeletionReceipt, EventAbout, Expiry, Fact, MachineReceipt, Receipt, Removal, Snapshot, StopResult,
};
use remuda_types::{Account, Error, ErrorCode, OperationId, ReceiptId, SandboxId, SandboxState, SnapshotState, Uid};
use tokio::sync::OwnedMutexGuard;

use crate::caller::Caller;
use crate::clock::now_unix_ms;
use crate::events;
use crate::platform::Platform;
use crate::records::{self, SandboxRecords, document};
use crate::registry::{SandboxCell, SnapshotCell};
use crate::usage::Quotas;

/// Where one generation's receipts and events are written. Clones share the turn.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    id: SandboxId,
    records: SandboxRecords,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// What is to be written with an outcome. Hold it until that is on the disk.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) changes: Vec<Change>,
    /// The turn, where a receipt is among them.
    pub(crate) turn: Option<OwnedMutexGuard<()>>,
}

/// A stop, as a receipt states it.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    pub(crate) result: StopResult,
    pub(crate) reason: String,
}

impl Ledger {
    pub(crate) fn new(id: SandboxId, records: SandboxRecords) -> Ledger {
        Ledger { id, records, turn: Arc::default() }
    }

    /// It came up.
    pub(crate) async fn running(&self, operation: Option<&OperationId>) -> Entry {
        let mut entry = self.add(operation, |_| {}).await;
        entry.changes.push(self.event(events::SANDBOX_RUNNING, None, None));
        entry
    }

    /// It never came up.
    pub(crate) fn failed(&self, reason: Option<String>) -> Change {
        self.event(events::SANDBOX_FAILED, reason, None)
    }

    /// It stands still, or goes on.
    pub(crate) fn halted(&self, state: SandboxState) -> Option<Change> {
        match state {
            SandboxState::Paused => Some(self.event(events::SANDBOX_PAUSED, None, None)),
            SandboxState::Running => Some(self.event(events::SANDBOX_RUNNING, None, None)),
            _ => None,
        }
    }

    /// Its processes ended by themselves: that is written down, before this returns.
    pub(crate) async fn died(&self, at_ms: i64, reason: &str) {
        let death = Death { at_ms, reason: reason.to_owned() };
        let entry = self.add(None, |machine| {
            machine.died.get_or_insert(death);
        });
        let mut entry = entry.await;
        let change = SandboxChange::of(&self.records.uid).state(SandboxState::Stopped).reason(Some(reason.to_owned()));
        let receipt = Some(machine_receipt(&self.records.uid));
        let event = self.event(events::SANDBOX_STOPPED, Some(reason.to_owned()), receipt);
        entry.changes.extend([Change::Sandbox(change), event]);
        // Its place and memory are free; its files are kept, and so is their share.
        entry.changes.extend(Quotas::at_rest(&self.records.account, &self.records.uid));
        if let Err(e) = self.records.journal.apply(entry.changes).await {
            tracing::error!("the end of {} is not written down: {e}", self.id);
        }
    }

    /// When its processes ended by themselves, if that is on record.
    pub(crate) async fn died_at_ms(&self) -> Option<i64> {
        self.machine().await.ok()?.0.died.map(|death| death.at_ms)
    }

    /// Its deadline is near.
    pub(crate) fn deadline_soon(&self, deadline_at_ms: i64) -> Change {
        let at = jiff::Timestamp::from_millisecond(deadline_at_ms)
            .map_or_else(|_| deadline_at_ms.to_string(), |at| format!("{at:.3}"));
        self.event(events::SANDBOX_DEADLINE_SOON, Some(format!("its deadline is {at}")), None)
    }

    /// Its deadline passed or it was idle for as long as it may be, and that is carried out.
    pub(crate) async fn expired(&self, operation: Option<&OperationId>, expiry: &Expiry, reason: &str) -> Entry {
        let mut entry = self.add(operation, |machine| machine.expiry = Some(expiry.clone())).await;
        let about = EventAbout {
            sandbox: Some(self.id.clone()),
            snapshot: expiry.snapshot.clone(),
            reason: Some(reason.to_owned()),
            receipt: Some(machine_receipt(&self.records.uid)),
            ..EventAbout::default()
        };
        entry.changes.push(events::event(&self.records.account, events::SANDBOX_EXPIRED, &about));
        entry
    }

    /// Something was captured of it.
    async fn captured(&self, operation: Option<&OperationId>, shown: &Snapshot) -> Entry {
        let captured = Captured { snapshot: shown.id.clone(), mode: shown.mode, at_ms: shown.created_at_ms };
        self.add(operation, |machine| {
            if !machine.captured.iter().any(|known| known.snapshot == captured.snapshot) {
                machine.captured.push(captured);
            }
            let over = machine.captured.len().saturating_sub(RECEIPT_CAPTURES_MAX);
            machine.captured.drain(..over);
            machine.captured_dropped += over as u64;
        })
        .await
    }

    /// It was paused, since it holds more files than it may.
    pub(crate) fn at_disk_limit(&self, reason: &str) -> Change {
        self.event(events::SANDBOX_DISK_LIMIT, Some(reason.to_owned()), None)
    }

    /// It was stopped, and its files are kept.
    pub(crate) fn at_rest(&self, reason: &str) -> Change {
        self.event(events::SANDBOX_STOPPED, Some(reason.to_owned()), Some(machine_receipt(&self.records.uid)))
    }

    /// Another generation goes on with its files.
    pub(crate) async fn replaced(&self, operation: Option<&OperationId>, by: &SandboxId) -> Entry {
        let mut entry = self.add(operation, |machine| machine.replacement = Some(by.clone())).await;
        let receipt = Some(machine_receipt(&self.records.uid));
        entry.changes.push(self.event(events::SANDBOX_GONE, Some(format!("{by} goes on with its files")), receipt));
        entry
    }

    /// A stop of it came to this.
    pub(crate) async fn stopped(&self, operation: Option<&OperationId>, stop: Stop) -> Entry {
        let id = self.id.clone();
        self.add(operation, |machine| {
            // The first stop that ended it is the one that counts.
            if machine.stop_result != Some(StopResult::Stopped) {
                machine.stop_target = Some(id);
                machine.stop_result = Some(stop.result);
                machine.stopped_at_ms = Some(now_unix_ms());
                machine.stop_reason = Some(stop.reason);
            }
        })
        .await
    }

    /// It was removed. States the four facts, each looked at now.
    pub(crate) async fn removed(
        &self,
        platform: &Platform,
        cell: &SandboxCell,
        operation: Option<&OperationId>,
        stop: Stop,
        removal: &mut Removal,
    ) -> Entry {
        let reason = cell.status.borrow().reason.clone();
        let mut entry = self.stopped(operation, stop).await;
        match self.deletion(platform, cell, removal).await {
            Ok((deletion, revoked)) => {
                let id = deletion_receipt(&self.records.uid);
                entry.changes.extend(revoked);
                entry.changes.extend(self.receipt(&id, ReceiptKind::Deletion, operation, now_unix_ms(), &deletion));
                removal.receipt = Some(id);
            }
            Err(e) => tracing::error!("the deletion of {} has no receipt: {e}", self.id),
        }
        entry.changes.push(self.event(events::SANDBOX_GONE, reason, removal.receipt.clone()));
        entry
    }

    async fn deletion(
        &self,
        platform: &Platform,
        cell: &SandboxCell,
        removal: &Removal,
    ) -> Result<(DeletionReceipt, Vec<Change>), Error> {
        let fact = |holds, method: &str| Fact { holds, at_ms: now_unix_ms(), method: method.to_owned() };
        let caller = Caller::platform(self.records.account.clone());
        let listed = platform.list(&caller, false).await?;
        let absent = fact(
            !listed.iter().any(|sandbox| sandbox.uid == self.records.uid),
            "the account's sandboxes were listed, and it was not among them",
        );
        let processes_gone = fact(
            removal.processes_gone,
            "its processes on the host were waited for by their descriptors, and its cgroup was then found without any",
        );
        let SandboxRecords { account, uid, .. } = &self.records;
        let previews = platform.previews_kept().end_with(account, uid).await?;
        let refused = platform.living(&caller, &self.id).await;
        let refused = refused.is_err_and(|e| e.code == ErrorCode::GenerationGone);
        let credentials_refused = fact(
            refused && previews.refused == previews.asked,
            &format!(
                "a call with its id was refused; its control channel is removed; each of its {} previews was asked for \
                 with its own credential: {} refused it",
                previews.asked, previews.refused
            ),
        );
        let bytes_gone =
            fact(removal.files_gone, "its directories were looked for after they had been removed, and not found");
        let used = platform.registry().tables().layers_in_use();
        let deletion = DeletionReceipt {
            absent,
            processes_gone,
            credentials_refused,
            bytes_gone,
            bytes_reclaimed: removal.bytes_reclaimed,
            still_referenced: cell.layers.iter().filter(|layer| used.contains(layer)).cloned().collect(),
        };
        Ok((deletion, previews.changes))
    }

    /// Adds to the machine's receipt. One that can't be read or written is told to the operator: what it tells of has
    /// happened all the same.
    async fn add(&self, operation: Option<&OperationId>, addition: impl FnOnce(&mut MachineReceipt)) -> Entry {
        let turn = self.turn.clone().lock_owned().await;
        let changes = match self.machine().await {
            Ok((mut machine, created_at_ms)) => {
                addition(&mut machine);
                let id = machine_receipt(&self.records.uid);
                self.receipt(&id, ReceiptKind::Machine, operation, created_at_ms, &machine)
            }
            Err(e) => {
                tracing::error!("the receipt of {} is not written: {e}", self.id);
                None
            }
        };
        Entry { changes: changes.into_iter().collect(), turn: Some(turn) }
    }

    /// The machine's receipt as it stands, and when it was first written.
    async fn machine(&self) -> Result<(MachineReceipt, i64), Error> {
        let failed = |e| crate::errors::journal(&e);
        let SandboxRecords { journal, account, uid } = &self.records;
        if let Some(written) = journal.receipt(account, &machine_receipt(uid)).await.map_err(failed)? {
            let machine = records::read(&format_args!("the receipt of {}", self.id), &written.doc)?;
            return Ok((machine, written.created_at_ms));
        }
        let unknown = || Error::new(ErrorCode::Internal, format!("{} is not on record", self.id));
        let record = journal.sandbox_by_uid(uid).await.map_err(failed)?.ok_or_else(unknown)?;
        let made_by = journal.operation(account, &record.operation).await.map_err(failed)?;
        let machine = MachineReceipt {
            slot: record.id.slot,
            generation: record.id.generation,
            uid: record.uid,
            made_by: record.operation,
            create_key: made_by.and_then(|operation| operation.key),
            labels: record.labels,
            continues: record.continues,
            captured: Vec::new(),
            captured_dropped: 0,
            died: None,
            stop_target: None,
            stop_result: None,
            stopped_at_ms: None,
            stop_reason: None,
            expiry: None,
            replacement: None,
        };
        Ok((machine, now_unix_ms()))
    }

    fn receipt(
        &self,
        id: &ReceiptId,
        kind: ReceiptKind,
        operation: Option<&OperationId>,
        created_at_ms: i64,
        states: &impl serde::Serialize,
    ) -> Option<Change> {
        let doc = document(states).map_err(|e| tracing::error!("the receipt {id} is not written: {e}")).ok()?;
        Some(Change::Receipt(Record {
            account: self.records.account.clone(),
            id: id.clone(),
            kind,
            sandbox: self.id.clone(),
            operation: operation.cloned(),
            created_at_ms,
            doc,
        }))
    }

    fn event(&self, kind: &str, reason: Option<String>, receipt: Option<ReceiptId>) -> Change {
        let about = EventAbout { sandbox: Some(self.id.clone()), reason, receipt, ..EventAbout::default() };
        events::event(&self.records.account, kind, &about)
    }
}

/// What is written of a snapshot that became active; of one that was removed meanwhile, its removal tells.
pub(crate) async fn of_snapshot(platform: &Platform, cell: &SnapshotCell, operation: Option<&OperationId>) -> Entry {
    let shown = cell.to_be();
    if shown.state != SnapshotState::Active {
        return Entry::default();
    }
    let mut entry = match of_source(platform, cell.account.clone(), &shown).await {
        Some(ledger) => ledger.captured(operation, &shown).await,
        None => Entry::default(),
    };
    entry.changes.extend(events::snapshot(&cell.account, &shown));
    entry
}

/// What is written down of a snapshot that was taken in: its source may never have been here.
pub(crate) fn imported(cell: &SnapshotCell) -> Entry {
    let changes = events::snapshot(&cell.account, &cell.to_be()).into_iter().collect();
    Entry { changes, ..Entry::default() }
}

/// The ledger of a snapshot's source, which may have ended meanwhile.
async fn of_source(platform: &Platform, account: Account, shown: &Snapshot) -> Option<Ledger> {
    if let Some(source) = platform.registry().sandbox(&account, &shown.source) {
        return Some(source.ledger.clone());
    }
    // Nobody else adds to the receipt of one that is forgotten.
    let record = platform.journal().sandbox(&account, &shown.source).await.ok()??;
    let records = SandboxRecords { journal: platform.journal().clone(), account, uid: record.uid };
    Some(Ledger::new(record.id, records))
}

/// The id of the receipt of a machine's life. It derives from the uid, which no other machine ever has.
pub(crate) fn machine_receipt(uid: &Uid) -> ReceiptId {
    receipt_id("remuda 2026-11 receipt of a machine", uid)
}

/// The id of the receipt of a machine's deletion.
pub(crate) fn deletion_receipt(uid: &Uid) -> ReceiptId {
    receipt_id("remuda 2026-11 receipt of a deletion", uid)
}

fn receipt_id(context: &str, uid: &Uid) -> ReceiptId {
    let derived = blake3::derive_key(context, uid.as_str().as_bytes());
    let mut entropy = [0; remuda_types::ids::UID_LEN];
    entropy.copy_from_slice(&derived[..remuda_types::ids::UID_LEN]);
    ReceiptId::from_entropy(entropy)
}

/// A receipt's record as the API shows it.
pub(crate) fn shown(record: &Record) -> Result<Receipt, Error> {
    let what = format_args!("the receipt {}", record.id);
    let (machine, deletion) = match record.kind {
        ReceiptKind::Machine => (Some(records::read(&what, &record.doc)?), None),
        ReceiptKind::Deletion => (None, Some(records::read(&what, &record.doc)?)),
    };
    Ok(Receipt {
        id: record.id.clone(),
        sandbox: record.sandbox.clone(),
        operation: record.operation.clone(),
        created_at_ms: record.created_at_ms,
        machine,
        deletion,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_of_one_machine_have_ids_of_their_own_that_never_change() {
        let uid = Uid::from_entropy([7; remuda_types::ids::UID_LEN]);
        let other = Uid::from_entropy([8; remuda_types::ids::UID_LEN]);
        assert_eq!(machine_receipt(&uid), machine_receipt(&uid));
        assert_ne!(machine_receipt(&uid), deletion_receipt(&uid));
        assert_ne!(machine_receipt(&uid), machine_receipt(&other));
    }
}
