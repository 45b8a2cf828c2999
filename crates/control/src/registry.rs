//! What the platform knows, in memory: sandboxes by slot and generation, and snapshots.
//!
//! The journal will take its place. Until then a server forgets everything when it ends, and ends everything it knows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use remuda_engine::{Fingerprint, LayerSeal, MemoryImage};
use remuda_types::limits::SANDBOXES_MAX;
use remuda_types::wire::{Labels, Origin, Sandbox, Snapshot};
use remuda_types::{
    Account, Error, ErrorCode, Generation, SandboxId, SandboxState, Slot, SnapshotId, SnapshotState, Uid,
};
use tokio::sync::watch;

use crate::clock::now_unix_ms;
use crate::driver::{Driver, Live, Status};
use crate::executions::{CarriedExecution, Executions};

/// Ended sandboxes whose record is kept, so that a late handle learns what became of it.
const ENDED_SANDBOXES_MAX: usize = 2_000;
/// Deleted and failed snapshots whose record is kept.
const ENDED_SNAPSHOTS_MAX: usize = 2_000;

/// One generation of a slot.
#[derive(Debug)]
pub(crate) struct SandboxCell {
    pub(crate) account: Account,
    pub(crate) id: SandboxId,
    pub(crate) uid: Uid,
    pub(crate) labels: Labels,
    pub(crate) memory_mib: u32,
    pub(crate) origin: Origin,
    /// Frozen layers below its upper, newest first.
    pub(crate) layers: Vec<SnapshotId>,
    pub(crate) executions: Arc<Executions>,
    pub(crate) status: Arc<watch::Sender<Status>>,
    pub(crate) running: OnceLock<(Arc<Live>, Driver)>,
    /// Held by whoever removes it, so that two removals are one.
    pub(crate) removing: tokio::sync::Mutex<()>,
}

impl SandboxCell {
    /// As the API shows it.
    pub(crate) fn show(&self) -> Sandbox {
        let status = self.status.borrow().clone();
        Sandbox {
            id: self.id.clone(),
            uid: self.uid.clone(),
            state: status.state,
            reason: status.reason,
            created_at_ms: self.id.generation.unix_ms(),
            ended_at_ms: status.ended_at_ms,
            labels: self.labels.clone(),
            memory_mib: self.memory_mib,
            origin: self.origin.clone(),
        }
    }

    /// Where it stands.
    pub(crate) fn state(&self) -> SandboxState {
        self.status.borrow().state
    }

    /// Whether it has ended for good: nothing of it is left but this record.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state(), SandboxState::Gone)
    }

    /// The machine, if its guest may be spoken to now.
    pub(crate) fn live(&self) -> Result<&Arc<Live>, Error> {
        let state = self.state();
        match self.running.get() {
            Some((live, _)) if state == SandboxState::Running => Ok(live),
            _ => {
                let error = Error::new(ErrorCode::WrongState, format!("{} is {state}, not running", self.id))
                    .detail("state", state.to_string());
                Err(match (state, self.status.borrow().reason.clone()) {
                    (SandboxState::Paused, _) => error.remedy(format!("resume it: remuda resume {}", self.id)),
                    (_, Some(reason)) => error.cause(reason),
                    _ => error,
                })
            }
        }
    }

    /// Its driver.
    pub(crate) fn driver(&self) -> Result<&Driver, Error> {
        match self.running.get() {
            Some((_, driver)) => Ok(driver),
            None => Err(self.live().err().unwrap_or_else(|| {
                // A cell is `running` only after its driver was stored.
                Error::new(ErrorCode::Internal, format!("{} runs without a driver", self.id))
            })),
        }
    }
}

/// A snapshot and what stands on it.
#[derive(Debug)]
pub(crate) struct SnapshotCell {
    pub(crate) account: Account,
    pub(crate) id: SnapshotId,
    pub(crate) source: SandboxId,
    pub(crate) memory_mib: u32,
    /// Its own layer first, then those it stands on.
    pub(crate) layers: Vec<SnapshotId>,
    pub(crate) fingerprint: Fingerprint,
    inner: Mutex<SnapshotInner>,
}

/// What changes of a snapshot.
#[derive(Debug)]
pub(crate) struct SnapshotInner {
    pub(crate) shown: Snapshot,
    pub(crate) memory: Option<Arc<MemoryImage>>,
    pub(crate) layer_seal: Option<LayerSeal>,
    pub(crate) carried: Vec<CarriedExecution>,
    /// Made by a fork for itself; goes when nothing stands on it any more.
    pub(crate) of_fork: bool,
    /// Restores that read it now.
    pub(crate) readers: usize,
}

impl SnapshotCell {
    pub(crate) fn new(
        account: Account,
        shown: Snapshot,
        memory_mib: u32,
        layers: Vec<SnapshotId>,
        fingerprint: Fingerprint,
        of_fork: bool,
    ) -> Self {
        SnapshotCell {
            account,
            id: shown.id.clone(),
            source: shown.source.clone(),
            memory_mib,
            layers,
            fingerprint,
            inner: Mutex::new(SnapshotInner {
                shown,
                memory: None,
                layer_seal: None,
                carried: Vec::new(),
                of_fork,
                readers: 0,
            }),
        }
    }

    pub(crate) fn inner(&self) -> MutexGuard<'_, SnapshotInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As the API shows it.
    pub(crate) fn show(&self) -> Snapshot {
        self.inner().shown.clone()
    }

    /// Whether it can be restored by itself: a fork's own goes with its branches.
    fn can_be_restored(&self) -> bool {
        let inner = self.inner();
        inner.shown.state == SnapshotState::Active && !inner.of_fork
    }

    /// Whether its bytes may still be needed.
    fn holds_layer(&self) -> bool {
        let inner = self.inner();
        inner.readers > 0
            || matches!(inner.shown.state, SnapshotState::Capturing | SnapshotState::Verifying | SnapshotState::Active)
    }
}

/// All of it, behind one lock that is never held across a wait.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    inner: Mutex<Tables>,
}

#[derive(Debug, Default)]
pub(crate) struct Tables {
    sandboxes: BTreeMap<(Account, SandboxId), Arc<SandboxCell>>,
    newest: HashMap<(Account, Slot), Generation>,
    snapshots: BTreeMap<SnapshotId, Arc<SnapshotCell>>,
}

/// What a new sandbox is to be.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) account: Account,
    pub(crate) slot: Option<Slot>,
    pub(crate) uid: Uid,
    pub(crate) labels: Labels,
    pub(crate) memory_mib: u32,
    pub(crate) origin: Origin,
    pub(crate) layers: Vec<SnapshotId>,
}

impl Registry {
    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox with that id: living, or ended for good and told as such.
    pub(crate) fn living(&self, account: &Account, id: &SandboxId) -> Result<Arc<SandboxCell>, Error> {
        let tables = self.tables();
        let cell = tables.sandboxes.get(&(account.clone(), id.clone())).ok_or_else(|| unknown(id))?.clone();
        if cell.is_over() { Err(tables.gone(&cell)) } else { Ok(cell) }
    }

    /// The sandbox with that id, ended or not.
    pub(crate) fn known(&self, account: &Account, id: &SandboxId) -> Result<Arc<SandboxCell>, Error> {
        self.tables().sandboxes.get(&(account.clone(), id.clone())).cloned().ok_or_else(|| unknown(id))
    }
}

impl Tables {
    /// Takes a slot and makes a new generation in it.
    pub(crate) fn reserve(&mut self, reservation: Reservation) -> Result<Arc<SandboxCell>, Error> {
        let living = self.sandboxes.values().filter(|c| !c.is_over()).count();
        if living >= SANDBOXES_MAX {
            return Err(Error::limit("sandboxes_max", SANDBOXES_MAX as u64, living as u64)
                .remedy("remove one with: remuda rm ID"));
        }
        let taken: HashSet<&Slot> = self
            .sandboxes
            .values()
            .filter(|c| !c.is_over() && c.account == reservation.account)
            .map(|c| &c.id.slot)
            .collect();
        let slot = match reservation.slot {
            Some(slot) if taken.contains(&slot) => {
                return Err(Error::new(ErrorCode::SlotInUse, format!("the slot {slot} holds a living sandbox"))
                    .remedy("choose another slot, or remove that sandbox first (see: remuda ls)"));
            }
            Some(slot) => slot,
            None => (1..=SANDBOXES_MAX + 1)
                .filter_map(|n| format!("c{n}").parse().ok())
                .find(|slot| !taken.contains(slot))
                .ok_or_else(|| Error::limit("sandboxes_max", SANDBOXES_MAX as u64, living as u64))?,
        };
        let generation =
            Generation::next(now_unix_ms(), self.newest.get(&(reservation.account.clone(), slot.clone())).copied())
                .ok_or_else(|| Error::new(ErrorCode::Internal, "the clock is outside the years 1970 to 9999"))?;
        self.newest.insert((reservation.account.clone(), slot.clone()), generation);
        let cell = Arc::new(SandboxCell {
            account: reservation.account,
            id: SandboxId { slot, generation },
            uid: reservation.uid,
            labels: reservation.labels,
            memory_mib: reservation.memory_mib,
            origin: reservation.origin,
            layers: reservation.layers,
            executions: Arc::default(),
            status: Arc::new(watch::Sender::new(Status::starting())),
            running: OnceLock::new(),
            removing: tokio::sync::Mutex::default(),
        });
        self.sandboxes.insert((cell.account.clone(), cell.id.clone()), cell.clone());
        self.forget_oldest();
        Ok(cell)
    }

    fn forget_oldest(&mut self) {
        let mut ended: Vec<_> =
            self.sandboxes.values().filter(|c| c.is_over()).map(|c| (c.account.clone(), c.id.clone())).collect();
        if ended.len() > ENDED_SANDBOXES_MAX {
            ended.sort_by_key(|(_, id)| id.generation);
            self.sandboxes.remove(&ended[0]);
        }
        let done = |s: &SnapshotCell| matches!(s.show().state, SnapshotState::Deleted | SnapshotState::Failed);
        let mut ended: Vec<_> =
            self.snapshots.values().filter(|s| done(s)).map(|s| (s.show().created_at_ms, s.id.clone())).collect();
        if ended.len() > ENDED_SNAPSHOTS_MAX {
            ended.sort();
            self.snapshots.remove(&ended[0].1);
        }
    }

    /// What is known of a generation that has ended.
    pub(crate) fn gone(&self, cell: &SandboxCell) -> Error {
        let status = cell.status.borrow().clone();
        let snapshots: Vec<String> = self
            .snapshots
            .values()
            .filter(|s| s.account == cell.account && s.source == cell.id && s.can_be_restored())
            .map(|s| s.id.to_string())
            .collect();
        let newer = self
            .newest
            .get(&(cell.account.clone(), cell.id.slot.clone()))
            .is_some_and(|newest| *newest > cell.id.generation);
        let error = Error::new(ErrorCode::GenerationGone, format!("{} has ended", cell.id))
            .detail("ended_at_ms", status.ended_at_ms)
            .detail("slot_has_newer", newer)
            .detail("snapshots", snapshots.clone());
        let error = match status.reason {
            Some(reason) => error.detail("reason", reason.clone()).cause(reason),
            None => error,
        };
        match snapshots.last() {
            Some(snapshot) => error.remedy(format!("its work is kept: remuda restore {snapshot}")),
            None => error.remedy("make a new sandbox with: remuda create"),
        }
    }

    /// Every sandbox, by creation and then id.
    pub(crate) fn sandboxes(&self) -> Vec<Arc<SandboxCell>> {
        let mut all: Vec<_> = self.sandboxes.values().cloned().collect();
        all.sort_by(|a, b| (a.id.generation, &a.id.slot).cmp(&(b.id.generation, &b.id.slot)));
        all
    }

    /// Takes a snapshot in. Its name must be free among those that are or will be active.
    pub(crate) fn add_snapshot(&mut self, cell: Arc<SnapshotCell>) -> Result<(), Error> {
        if let Some(name) = &cell.show().name
            && let Some(other) = self.named(&cell.account, name)
        {
            return Err(Error::new(ErrorCode::SnapshotNameTaken, format!("{} has the name {name}", other.id))
                .remedy("choose another name, or remove that snapshot first"));
        }
        self.snapshots.insert(cell.id.clone(), cell);
        Ok(())
    }

    fn named(&self, account: &Account, name: &str) -> Option<&Arc<SnapshotCell>> {
        self.snapshots
            .values()
            .find(|s| s.account == *account && s.holds_layer() && s.show().name.as_deref() == Some(name))
    }

    /// A snapshot by id or name.
    pub(crate) fn snapshot(&self, account: &Account, id_or_name: &str) -> Result<Arc<SnapshotCell>, Error> {
        let by_id = id_or_name.parse::<SnapshotId>().ok().and_then(|id| self.snapshots.get(&id));
        let by_id = by_id.filter(|s| s.account == *account);
        by_id.or_else(|| self.named(account, id_or_name)).cloned().ok_or_else(|| {
            let shown: String = id_or_name.chars().take(80).collect();
            Error::new(ErrorCode::SnapshotNotFound, format!("there is no snapshot {shown:?}"))
                .remedy("list them with: remuda snapshot ls")
        })
    }

    /// A snapshot by its id, of whatever account: for the platform's own reckoning, never for a caller.
    pub(crate) fn snapshot_by_id(&self, id: &SnapshotId) -> Option<Arc<SnapshotCell>> {
        self.snapshots.get(id).cloned()
    }

    /// Every snapshot, oldest first.
    pub(crate) fn snapshots(&self) -> Vec<Arc<SnapshotCell>> {
        let mut all: Vec<_> = self.snapshots.values().cloned().collect();
        all.sort_by_key(|s| (s.show().created_at_ms, s.id.clone()));
        all
    }

    /// Layers that something stands on: living sandboxes, and snapshots that are kept.
    pub(crate) fn layers_in_use(&self) -> HashSet<SnapshotId> {
        let sandboxes = self.sandboxes.values().filter(|c| !c.is_over()).flat_map(|c| c.layers.iter());
        let snapshots = self.snapshots.values().filter(|s| s.holds_layer()).flat_map(|s| s.layers.iter());
        sandboxes.chain(snapshots).cloned().collect()
    }

    /// Snapshots that forks made for themselves and that no living sandbox stands on any more.
    pub(crate) fn abandoned_by_forks(&self) -> Vec<Arc<SnapshotCell>> {
        let under: HashSet<&SnapshotId> =
            self.sandboxes.values().filter(|c| !c.is_over()).flat_map(|c| c.layers.iter()).collect();
        let abandoned = |s: &&Arc<SnapshotCell>| {
            let inner = s.inner();
            inner.of_fork && inner.readers == 0 && inner.shown.state == SnapshotState::Active && !under.contains(&s.id)
        };
        self.snapshots.values().filter(abandoned).cloned().collect()
    }
}

fn unknown(id: &SandboxId) -> Error {
    Error::new(ErrorCode::SandboxNotFound, format!("there is no sandbox {id} here")).remedy("list them with: remuda ls")
}
