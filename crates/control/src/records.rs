//! What is written down of sandboxes, snapshots and executions, and how it is read back: the documents that the journal
//! keeps without looking into them. What was written by an earlier build must still be read: members are only added.

use std::collections::BTreeMap;

use remuda_engine::{Fingerprint, HostFacts, LayerSeal, MemoryImage};
use remuda_journal::{
    Change, ExecutionRecord, Journal, NewExecution, NewSnapshot, SandboxChange, SandboxRecord, SnapshotChange,
    SnapshotRecord,
};
use remuda_types::limits::DISK_BYTES_DEFAULT;
use remuda_types::wire::{Execution, LaunchRecipe, Origin, Sandbox, Snapshot};
use remuda_types::{Account, Error, ErrorCode, SandboxState, SnapshotId, SnapshotMode, SnapshotState, Uid};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::{ClockReading, now_unix_ms};
use crate::deadlines::Term;
use crate::executions::CarriedExecution;

/// What a sandbox is to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SandboxSpec {
    pub(crate) memory_mib: u32,
    pub(crate) origin: Origin,
    /// Private files that it may hold, in bytes; the default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disk_bytes: Option<u64>,
    /// Whether it has a way out; those of earlier builds have none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) internet: bool,
    /// What must run before it counts as up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) launch: Option<LaunchRecipe>,
    /// How long it may live.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) term: Option<Term>,
}

impl SandboxSpec {
    /// Private files that it may hold, in bytes.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.disk_bytes.unwrap_or(DISK_BYTES_DEFAULT)
    }
}

/// What is known of a machine on the host: what a later server takes it over by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostRecord {
    /// Its processes, and the boot they belong to.
    pub(crate) processes: HostFacts,
    /// How long it has run.
    pub(crate) clock: ClockReading,
}

/// Everything about a snapshot that is not in the columns of its record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotDoc {
    /// As the API shows it. State, name and labels are the record's own.
    pub(crate) shown: Snapshot,
    pub(crate) memory_mib: u32,
    /// Private files that its source may hold, in bytes, and so may what is restored from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disk_bytes: Option<u64>,
    /// Whether its source has a way out, and so does what is restored from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) internet: bool,
    /// Its own layer first, then those it stands on.
    pub(crate) layers: Vec<SnapshotId>,
    pub(crate) fingerprint: Fingerprint,
    /// Made by a fork for itself.
    pub(crate) of_fork: bool,
    /// The duty to resume: whether the source ran when its capture began, and so must run after it, whatever happens.
    pub(crate) source_ran: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<MemoryImage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layer_seal: Option<LayerSeal>,
    /// The boot in which it was captured. Until it is verified nothing of it need be on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) boot: Option<String>,
    /// Executions that ran in it, and that every copy goes on with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) carried: Vec<CarriedExecution>,
    /// Whether its agent may wait for the rest of a frame of a dead server, since its source stood still when a server
    /// took it over, and did until it was captured.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unbound: bool,
    /// The name that it takes over when it is active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) takes_name: Option<String>,
    /// Parts of it that were found damaged, and how.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) damaged_parts: BTreeMap<String, String>,
}

/// Everything about an execution that is not in the columns of its record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ExecutionDoc {
    /// As the API shows it.
    pub(crate) shown: Execution,
    /// Its channel to the agent.
    pub(crate) channel: u32,
    /// The number of its spawn, by which the agent knows it.
    pub(crate) effect: u64,
    /// Its time limit, in milliseconds of running time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<u64>,
}

/// Plain data as the journal takes it.
pub(crate) fn document(of: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(of).map_err(|e| Error::new(ErrorCode::Internal, "a record can't be written").cause(e))
}

/// A document that was written before.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(what: &dyn std::fmt::Display, doc: &Value) -> Result<T, Error> {
    T::deserialize(doc).map_err(|e| Error::new(ErrorCode::JournalFailed, format!("{what} can't be read")).cause(e))
}

/// A sandbox's record as the API shows it.
pub(crate) fn sandbox(record: &SandboxRecord) -> Result<Sandbox, Error> {
    let spec: SandboxSpec = read(&format_args!("the record of {}", record.id), &record.spec)?;
    let shown = Sandbox {
        id: record.id.clone(),
        uid: record.uid.clone(),
        state: record.state,
        reason: record.reason.clone(),
        created_at_ms: record.id.generation.unix_ms(),
        ended_at_ms: record.ended_at_ms,
        labels: record.labels.clone(),
        memory_mib: spec.memory_mib,
        disk_mib: spec.disk_bytes() >> 20,
        internet: spec.internet,
        origin: spec.origin,
        continues: record.continues.clone(),
        deadline_at_ms: None,
        idle_timeout_ms: None,
        idle_at_ms: None,
        on_deadline: None,
    };
    Ok(match &spec.term {
        Some(term) => term.show(shown),
        None => shown,
    })
}

/// A snapshot's record as the API shows it.
pub(crate) fn snapshot(record: &SnapshotRecord) -> Result<(Snapshot, SnapshotDoc), Error> {
    let doc: SnapshotDoc = read(&format_args!("the record of {}", record.id), &record.doc)?;
    let shown = Snapshot {
        state: record.state,
        name: record.name.clone(),
        labels: record.labels.clone(),
        // Records of earlier builds say these in the document alone.
        memory_mib: doc.memory_mib,
        internet: doc.internet,
        base: Some(doc.fingerprint.base.clone()),
        ..doc.shown.clone()
    };
    Ok((shown.judged(), doc))
}

impl SnapshotDoc {
    /// A snapshot that is to be reserved.
    pub(crate) fn reservation(&self) -> Result<NewSnapshot, Error> {
        let shown = &self.shown;
        Ok(NewSnapshot {
            id: shown.id.clone(),
            name: shown.name.clone(),
            mode: shown.mode,
            state: shown.state,
            source: Some(shown.source.clone()),
            labels: shown.labels.clone(),
            doc: document(self)?,
        })
    }

    /// All of it as it stands now.
    pub(crate) fn change(&self) -> Result<Change, Error> {
        let change = SnapshotChange::of(&self.shown.id).state(self.shown.state, now_unix_ms()).doc(document(self)?);
        Ok(Change::Snapshot(change))
    }

    /// Whether a restore would need memory that is no longer kept.
    pub(crate) fn lacks_memory(&self) -> bool {
        self.shown.mode == SnapshotMode::Memory && self.memory.is_none()
    }
}

/// A snapshot is in this state from now on, and nothing else about it changes.
pub(crate) fn snapshot_is(id: &SnapshotId, state: SnapshotState) -> Change {
    Change::Snapshot(SnapshotChange::of(id).state(state, now_unix_ms()))
}

/// Where one sandbox's records are written.
#[derive(Debug, Clone)]
pub(crate) struct SandboxRecords {
    pub(crate) journal: Journal,
    pub(crate) account: Account,
    pub(crate) uid: Uid,
}

impl SandboxRecords {
    /// Writes down that the sandbox is to be in this state, and what is known of its machine then, before this returns.
    pub(crate) async fn is_to_be(&self, state: SandboxState, host: &HostRecord) -> Result<(), Error> {
        let change = SandboxChange::of(&self.uid).state(state).reason(None).host(document(host)?);
        self.journal.apply(vec![Change::Sandbox(change)]).await.map_err(|e| crate::errors::journal(&e))
    }

    /// Writes down what the processes of a machine are, before anybody hears that it runs.
    pub(crate) async fn raised(&self, host: &HostRecord) -> Result<(), Error> {
        let change = SandboxChange::of(&self.uid).host(document(host)?);
        self.journal.apply(vec![Change::Sandbox(change)]).await.map_err(|e| crate::errors::journal(&e))
    }

    /// Changes that nobody waits for. After a crash that takes them back, they are found again by looking.
    pub(crate) async fn soon(&self, changes: Vec<Change>) {
        match self.journal.apply_soon(changes).await {
            Ok(underway) => drop(underway),
            Err(e) => tracing::error!("a record of {} is not written: {e}", self.uid),
        }
    }

    /// An execution that is to be reserved with a keyed call.
    pub(crate) fn new_execution(&self, doc: &ExecutionDoc) -> Result<NewExecution, Error> {
        Ok(NewExecution { id: doc.shown.id.clone(), sandbox: self.uid.clone(), doc: document(doc)? })
    }

    /// An execution's record, whole.
    pub(crate) fn execution(&self, doc: &ExecutionDoc) -> Result<Change, Error> {
        Ok(Change::Execution(ExecutionRecord {
            account: self.account.clone(),
            id: doc.shown.id.clone(),
            sandbox: self.uid.clone(),
            state: doc.shown.state,
            started_at_ms: doc.shown.started_at_ms,
            doc: document(doc)?,
        }))
    }
}
