//! import: read the manifest of a file that is here whole → reserve a snapshot with the key → hold the file against its
//! digest → unpack, check, and put in place → active. And the other way: a snapshot as such a file.
//!
//! Who made the file is not known, and nothing in it is believed. Files of a layer are a guest's files like others. A memory
//! image is more: it is the state of an engine's process, and is taken only from those who may do everything here.

use std::sync::Arc;

use remuda_engine::install::Digest;
use remuda_engine::{EngineError, Export, Fingerprint, Imported, WantedImport};
use remuda_journal::{Holder, Reservation};
use remuda_types::limits::{DISK_LOW_WATER_BYTES, DISK_MIB_MAX, MEMORY_MIB_MAX, MEMORY_MIB_MIN};
use remuda_types::wire::{ImportSnapshot, Snapshot};
use remuda_types::{AccessScope, Error, ErrorCode, SandboxId, SnapshotId, SnapshotMode, SnapshotState};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::clock::{id_entropy, now_unix_ms};
use crate::executions::CarriedExecution;
use crate::ledger;
use crate::operation::{Ended, Operation, Work, canonical};
use crate::operations::capture::{self, Wanted};
use crate::operations::{launch, parts};
use crate::platform::Platform;
use crate::records::SnapshotDoc;
use crate::registry::SnapshotCell;
use crate::usage::Quotas;

/// The form of what is exported.
const FORMAT: u32 = 1;
/// Sentences of a manifest about what was left out.
const EXCLUDED_MAX: usize = 100;
/// What the files of a memory snapshot alone leave out.
const WITHOUT_MEMORY: &str =
    "processes and everything in their memory, which were not taken from the exported snapshot";

/// What an exported file says first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Manifest {
    format: u32,
    /// The snapshot as the API showed it.
    pub(crate) snapshot: Snapshot,
    memory_mib: u32,
    #[serde(default)]
    disk_bytes: Option<u64>,
    #[serde(default)]
    internet: bool,
    fingerprint: Fingerprint,
    /// Digests of its layers' contents, newest first.
    layers: Vec<String>,
    /// Digests of its memory image's files.
    #[serde(default)]
    memory: Option<Vec<String>>,
    #[serde(default)]
    carried: Vec<CarriedExecution>,
    #[serde(default)]
    unbound: bool,
}

/// What is to be written out, and how it is told from another.
pub(crate) fn export_of(platform: &Platform, cell: &SnapshotCell) -> Result<(Export, String), Error> {
    let doc = cell.doc();
    let unknown = |id: &SnapshotId| {
        let message = format!("the layer {id}, on which snapshot {} stands, has no digest on record", cell.id);
        Error::new(ErrorCode::SnapshotNotActive, message)
    };
    let mut layers = Vec::new();
    for id in &doc.layers {
        let below = platform.registry().tables().snapshot_by_id(id).ok_or_else(|| unknown(id))?;
        let digest = below.inner().doc.layer_seal.as_ref().map(|seal| seal.digest().to_owned());
        layers.push(digest.ok_or_else(|| unknown(id))?);
    }
    let manifest = Manifest {
        format: FORMAT,
        snapshot: doc.shown.clone().judged(),
        memory_mib: doc.memory_mib,
        disk_bytes: doc.disk_bytes,
        internet: doc.internet,
        fingerprint: doc.fingerprint.clone(),
        layers,
        memory: doc.memory.as_ref().map(|image| image.digests().map(str::to_owned).collect()),
        carried: doc.carried.clone(),
        unbound: doc.unbound,
    };
    let text = serde_json::to_vec(&manifest)
        .map_err(|e| Error::new(ErrorCode::Internal, "a manifest can't be written").cause(e))?;
    let dirs = platform.engine().dirs();
    let tag = blake3::hash(&text).to_hex()[..32].to_owned();
    let export = Export {
        manifest: text,
        layers: doc.layers.iter().map(|id| dirs.layer(id)).collect(),
        memory: doc.memory.is_some().then(|| dirs.memory(&cell.id)),
        executions: platform.execution_places().snapshot(&cell.id),
    };
    Ok((export, tag))
}

/// Makes a snapshot of a file that is here whole.
pub(crate) struct Import {
    pub(crate) digest: Digest,
    pub(crate) request: ImportSnapshot,
}

/// An import that may begin.
pub(crate) struct Plan {
    doc: SnapshotDoc,
    wanted: WantedImport,
}

impl Operation for Import {
    const KIND: &'static str = "import";
    const ACTION: Action = Action::ImportSnapshot;
    const ALWAYS: bool = true;
    type Plan = Plan;
    type Output = Snapshot;

    fn target(&self) -> Option<&SandboxId> {
        None
    }

    fn request(&self) -> Value {
        json!({ "file": self.digest.as_str(), "import": canonical(&self.request) })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Plan, Reservation), Error> {
        platform.admit_work()?;
        let manifest = self.manifest(platform, caller).await?;
        let plan = self.plan(platform, caller, manifest)?;
        let quotas = Quotas(platform.accounts());
        let shown = &plan.doc.shown;
        let share = quotas.of_capture(&caller.account, &shown.id, shown.bytes, false);
        let snapshot = Some(plan.doc.reservation()?);
        let reservation = Reservation { snapshot, holds: share.holds, counts: share.counts, ..Reservation::default() };
        Ok((plan, reservation))
    }

    async fn run(self, platform: &Platform, plan: Plan, work: &Work) -> Ended<Snapshot> {
        let cell = SnapshotCell::new(work.account.clone(), plan.doc);
        platform.registry().tables().add_snapshot(cell.clone());
        match take_in(platform, &cell, &self.digest, plan.wanted).await {
            Ok(()) => {
                let changes = cell.doc().change().map(|change| {
                    let bytes = cell.doc().shown.bytes;
                    vec![change, Quotas::captured(&cell.account, &cell.id, bytes)]
                });
                match changes {
                    Ok(changes) => {
                        let entry = ledger::imported(&cell);
                        // It is in its place: what came is not needed any more.
                        if let Err(e) = platform.staging().remove(&cell.account, &self.digest) {
                            tracing::warn!("the file of an imported snapshot is not removed: {e}");
                        }
                        Ended::done(cell.to_be(), changes).with(entry).publishing(&cell)
                    }
                    Err(e) => failed(platform, &cell, e).await,
                }
            }
            Err(e) => failed(platform, &cell, e).await,
        }
    }
}

async fn failed(platform: &Platform, cell: &Arc<SnapshotCell>, error: Error) -> Ended<Snapshot> {
    let error = error.detail("snapshot", cell.id.to_string());
    let mut changes = capture::fail(platform, cell, &error).await;
    changes.push(remuda_journal::Change::Release(Holder::from(&cell.id)));
    Ended::failed(error, changes).publishing(cell)
}

/// What is to be done about one that a dead server had begun: nothing of it is left, and the file is still there.
pub(crate) async fn undo(platform: &Platform, cell: &Arc<SnapshotCell>, error: Error) -> Ended<Snapshot> {
    if let Err(e) = platform.engine().remove_capture(&cell.id).await {
        tracing::error!("what was taken in for {} is not removed: {}", cell.id, crate::errors::chain(&e));
    }
    failed(platform, cell, error).await
}

impl Import {
    /// What the file says first. The rest of it is not looked at yet.
    async fn manifest(&self, platform: &Platform, caller: &Caller) -> Result<Manifest, Error> {
        let (staging, account, digest) = (platform.staging().clone(), caller.account.clone(), self.digest.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let file = staging.whole(&account, &digest)?;
            remuda_engine::manifest_of(file).map_err(refused)
        });
        let text = reading.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))??;
        let manifest: Manifest = serde_json::from_slice(&text).map_err(|e| {
            Error::new(ErrorCode::ArchiveRefused, "the file's manifest is none of a snapshot")
                .cause(e)
                .remedy("export it again, with a server that is no newer than this one")
        })?;
        if manifest.format != FORMAT {
            let message = format!("the file is of form {}, and this server reads {FORMAT}", manifest.format);
            return Err(Error::new(ErrorCode::ArchiveRefused, message));
        }
        Ok(manifest)
    }

    fn plan(&self, platform: &Platform, caller: &Caller, manifest: Manifest) -> Result<Plan, Error> {
        let Manifest {
            snapshot, memory_mib, disk_bytes, internet, fingerprint, layers, memory, carried, unbound, ..
        } = manifest;
        // It is a stranger's word, and what is made of it must be what could be made here.
        let disk_mib = disk_bytes.map_or(0, |bytes| bytes >> 20);
        if !(MEMORY_MIB_MIN..=MEMORY_MIB_MAX).contains(&memory_mib) || disk_mib > u64::from(DISK_MIB_MAX) {
            let message = "the file's manifest tells of a sandbox that is larger or smaller than one may be";
            return Err(Error::new(ErrorCode::ArchiveRefused, message)
                .cause(format!("memory_mib is {memory_mib}, and {disk_mib} MiB of files"))
                .remedy("export it again, from a sandbox within this server's limits"));
        }
        let mode = self.request.mode.unwrap_or(snapshot.mode);
        let labels = self.request.labels.clone().unwrap_or_else(|| snapshot.labels.clone());
        caller.may_make_snapshot(&snapshot.source, &labels)?;
        let memory = match (mode, memory) {
            (SnapshotMode::Filesystem, _) => None,
            (SnapshotMode::Memory, Some(digests)) => Some(digests),
            (SnapshotMode::Memory, None) => {
                return Err(Error::new(ErrorCode::InvalidRequest, "the file holds no memory, only files")
                    .remedy("import it with: --mode filesystem"));
            }
        };
        if memory.is_some() && caller.require(AccessScope::Admin).is_err() {
            return Err(Error::new(ErrorCode::Forbidden, "this access key may not bring in a memory image")
                .cause("it is the state of an engine's process, and whoever made it is trusted like the engine itself")
                .remedy("import its files alone (--mode filesystem), or use a key with the scope admin")
                .detail("missing_scope", AccessScope::Admin.as_str()));
        }
        parts::check(platform, mode, &fingerprint).map_err(|why| {
            let error = why.told(format!("the exported snapshot {}", snapshot.id));
            match mode {
                SnapshotMode::Memory => {
                    error.remedy("import its files alone, which are bound to the base image only: --mode filesystem")
                }
                SnapshotMode::Filesystem => error,
            }
        })?;
        let launch = snapshot.launch.clone().filter(|_| mode == SnapshotMode::Filesystem);
        let wanted = Wanted {
            name: self.request.name.clone(),
            replace: false,
            mode,
            labels: labels.clone(),
            launch: launch.clone(),
            of_fork: false,
        };
        capture::check(&wanted)?;
        if let Some(recipe) = &launch {
            launch::check(recipe)?;
        }
        let id = SnapshotId::from_entropy(id_entropy()?);
        let excluded = match (mode, snapshot.mode) {
            (SnapshotMode::Filesystem, SnapshotMode::Memory) => vec![WITHOUT_MEMORY.to_owned()],
            _ => snapshot.excluded.iter().take(EXCLUDED_MAX).map(|told| capture::sentence(told)).collect(),
        };
        let shown = Snapshot {
            id: id.clone(),
            name: self.request.name.clone(),
            mode,
            state: SnapshotState::Capturing,
            failure: None,
            source: snapshot.source,
            created_at_ms: now_unix_ms(),
            memory_mib,
            internet,
            base: Some(fingerprint.base.clone()),
            labels,
            launch,
            pause_ms: None,
            connections_dropped: None,
            bytes: snapshot.bytes,
            excluded,
            memory_kept: false,
            restorable: false,
            damage: None,
        };
        let with_memory = memory.is_some();
        let doc = SnapshotDoc {
            shown,
            memory_mib,
            disk_bytes,
            internet,
            layers: vec![id],
            fingerprint,
            of_fork: false,
            source_ran: false,
            memory: None,
            layer_seal: None,
            boot: platform.engine().boot_id().ok(),
            carried: if with_memory { carried } else { Vec::new() },
            unbound: with_memory && unbound,
            takes_name: None,
            damaged_parts: Default::default(),
        };
        Ok(Plan { doc, wanted: WantedImport { layers, memory } })
    }
}

async fn take_in(
    platform: &Platform,
    cell: &Arc<SnapshotCell>,
    digest: &Digest,
    wanted: WantedImport,
) -> Result<(), Error> {
    let places = platform.engine().capture_places(&cell.id, wanted.memory.is_some());
    let executions = platform.execution_places().snapshot(&cell.id);
    let (staging, account, digest) = (platform.staging().clone(), cell.account.clone(), digest.clone());
    let taking = tokio::task::spawn_blocking(move || {
        let file = staging.whole(&account, &digest)?;
        let judge = &mut |_: &[u8]| Ok(wanted.clone());
        remuda_engine::import(file, &places, &executions, DISK_LOW_WATER_BYTES, judge).map_err(refused)
    });
    let imported = taking.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))??;
    let Imported { seal, memory, bytes } = imported;
    {
        let mut inner = cell.inner();
        let doc = &mut inner.doc;
        doc.shown.bytes = bytes;
        doc.shown.memory_kept = memory.is_some();
        doc.memory = memory;
        doc.layer_seal = Some(seal);
    }
    cell.verified();
    Ok(())
}

/// Why an archive is not taken.
fn refused(e: EngineError) -> Error {
    if e.is_disk_full() {
        return Error::new(ErrorCode::DiskFull, "the disk is too full to take the snapshot in")
            .cause(crate::errors::chain(&e))
            .remedy("free space on the data directory's disk, and try again: the file is still here");
    }
    match e {
        EngineError::Damaged { why, .. } => {
            Error::new(ErrorCode::ArchiveRefused, "the file is no snapshot that can be taken in").cause(why)
        }
        other => {
            Error::new(ErrorCode::EngineFailed, "the snapshot can't be taken in").cause(crate::errors::chain(&other))
        }
    }
}
