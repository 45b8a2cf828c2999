//! What lives, in memory: sandboxes that have not ended, and snapshots whose bytes are kept. Reads of the living are
//! answered from here; what has ended is in the journal alone, which is told of every change first or with it.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use remuda_engine::{Fingerprint, MemoryImage};
use remuda_journal::{Change, SandboxChange, SnapshotChange};
use remuda_types::wire::{DueTo, Labels, Sandbox, Snapshot};
use remuda_types::{Account, Error, ErrorCode, SandboxId, SandboxState, SnapshotId, SnapshotMode, SnapshotState, Uid};
use tokio::sync::{Notify, watch};

use crate::deadlines::{Life, Term};
use crate::dial::MayIdle;
use crate::driver::{Driver, Live, Status};
use crate::executions::{CarriedExecution, Executions};
use crate::ledger::Ledger;
use crate::records::{SandboxRecords, SandboxSpec, SnapshotDoc, document};
use crate::watches::Watches;

/// The generation before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Predecessor {
    pub(crate) id: SandboxId,
    pub(crate) uid: Uid,
}

impl Predecessor {
    pub(crate) fn of(cell: &SandboxCell) -> Predecessor {
        Predecessor { id: cell.id.clone(), uid: cell.uid.clone() }
    }
}

/// What a sandbox's upper lies on.
#[derive(Debug)]
pub(crate) struct Ground {
    /// Frozen layers, newest first.
    pub(crate) layers: Vec<SnapshotId>,
    /// Agent and base image below them, and the engine that raises it.
    pub(crate) parts: Fingerprint,
}

/// One generation of a slot that has not ended.
#[derive(Debug)]
pub(crate) struct SandboxCell {
    pub(crate) id: SandboxId,
    pub(crate) account: Account,
    pub(crate) uid: Uid,
    pub(crate) labels: Labels,
    pub(crate) spec: SandboxSpec,
    /// Frozen layers below its upper, newest first.
    pub(crate) layers: Vec<SnapshotId>,
    /// Whose agent and base image lie below them, and the engine it was raised by.
    pub(crate) parts: Fingerprint,
    pub(crate) records: SandboxRecords,
    /// What its life leaves in receipts and events.
    pub(crate) ledger: Ledger,
    pub(crate) executions: Arc<Executions>,
    pub(crate) status: Arc<watch::Sender<Status>>,
    pub(crate) running: OnceLock<(Arc<Live>, Driver)>,
    /// Whether it is known what became of its machine: not yet, while a server that has just started looks for it.
    pub(crate) found: watch::Sender<bool>,
    /// The generation whose files it goes on with.
    pub(crate) continues: OnceLock<Predecessor>,
    /// Held by whoever boots, stops, continues or removes it: one at a time.
    pub(crate) removing: Arc<tokio::sync::Mutex<()>>,
    /// How long it may live.
    pub(crate) life: Arc<Life>,
    /// Who watches its files.
    pub(crate) watches: Arc<Watches>,
    /// Until when connections to it may stand idle.
    pub(crate) may_idle: MayIdle,
    /// Whether somebody sees to the program that it was launched with.
    pub(crate) kept: AtomicBool,
}

impl SandboxCell {
    pub(crate) fn new(
        id: SandboxId,
        records: SandboxRecords,
        labels: Labels,
        spec: SandboxSpec,
        ground: Ground,
        executions: Executions,
        status: Status,
    ) -> Arc<SandboxCell> {
        Arc::new(SandboxCell {
            ledger: Ledger::new(id.clone(), records.clone()),
            id,
            account: records.account.clone(),
            uid: records.uid.clone(),
            labels,
            life: Arc::new(Life::new(spec.term.clone(), executions.work().clone())),
            spec,
            layers: ground.layers,
            parts: ground.parts,
            records,
            executions: Arc::new(executions),
            status: Arc::new(watch::Sender::new(status)),
            running: OnceLock::new(),
            found: watch::Sender::new(true),
            continues: OnceLock::new(),
            removing: Arc::default(),
            watches: Arc::default(),
            may_idle: MayIdle::default(),
            kept: AtomicBool::new(false),
        })
    }

    /// Waits until it is known what became of its machine.
    pub(crate) async fn found(&self) {
        // The sender goes with the cell.
        let _ = self.found.subscribe().wait_for(|found| *found).await;
    }

    /// As the API shows it.
    pub(crate) fn show(&self) -> Sandbox {
        let status = self.status.borrow().clone();
        let lives = matches!(status.state, SandboxState::Running | SandboxState::Paused);
        let shown = Sandbox {
            id: self.id.clone(),
            uid: self.uid.clone(),
            state: if lives && self.life.ending().is_some() { SandboxState::Stopping } else { status.state },
            reason: status.reason,
            created_at_ms: self.id.generation.unix_ms(),
            ended_at_ms: status.ended_at_ms,
            labels: self.labels.clone(),
            memory_mib: self.spec.memory_mib,
            disk_mib: self.spec.disk_bytes() >> 20,
            internet: self.spec.internet,
            origin: self.spec.origin.clone(),
            continues: self.continues.get().map(|before| before.id.clone()),
            deadline_at_ms: None,
            idle_timeout_ms: None,
            idle_at_ms: None,
            on_deadline: None,
        };
        self.life.show(shown)
    }

    /// Its specification with another term, to be written down.
    pub(crate) fn with_term(&self, term: &Term) -> Result<Change, Error> {
        let spec = SandboxSpec { term: Some(term.clone()), ..self.spec.clone() };
        Ok(Change::Sandbox(SandboxChange::of(&self.uid).spec(document(&spec)?)))
    }

    /// Whether it has come up.
    pub(crate) fn is_up(&self) -> bool {
        self.state() != SandboxState::Starting
    }

    /// Refuses what comes when its end has begun.
    pub(crate) fn not_ending(&self) -> Result<(), Error> {
        let Some(due_to) = self.life.ending() else { return Ok(()) };
        let cause = match due_to {
            DueTo::Deadline => "its deadline has passed",
            DueTo::Idle => "it was idle for as long as it may be",
        };
        Err(Error::new(ErrorCode::WrongState, format!("{} is being ended", self.id))
            .cause(cause)
            .remedy("ask for it again in a moment: the answer will tell where its work is kept")
            .detail("state", SandboxState::Stopping.to_string()))
    }

    /// Where it stands.
    pub(crate) fn state(&self) -> SandboxState {
        self.status.borrow().state
    }

    /// Whether it has ended for good: nothing of it is left but its record.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state(), SandboxState::Gone)
    }

    /// The machine, if its guest may be spoken to now.
    pub(crate) fn live(&self) -> Result<&Arc<Live>, Error> {
        self.not_ending()?;
        match self.running.get() {
            Some((live, _)) if self.state() == SandboxState::Running => Ok(live),
            _ => Err(self.wrong_state()),
        }
    }

    /// Its driver.
    pub(crate) fn driver(&self) -> Result<&Driver, Error> {
        match self.running.get() {
            Some((_, driver)) if matches!(self.state(), SandboxState::Running | SandboxState::Paused) => Ok(driver),
            _ => Err(self.wrong_state()),
        }
    }

    /// Why it can't be used as it stands.
    pub(crate) fn wrong_state(&self) -> Error {
        let Status { state, reason, .. } = self.status.borrow().clone();
        if !*self.found.borrow() {
            let message = format!("{} was {state} when the server started, and is still being looked for", self.id);
            return Error::new(ErrorCode::Unreachable, message)
                .cause("its machine has not answered yet; it is not known to have ended either")
                .remedy("try again in a moment");
        }
        let error = Error::new(ErrorCode::WrongState, format!("{} is {state}, not running", self.id))
            .detail("state", state.to_string());
        match (state, reason) {
            (SandboxState::Paused, _) => error.remedy(format!("resume it: remuda resume {}", self.id)),
            (SandboxState::Stopped, Some(reason)) => {
                error.cause(reason).remedy(format!("go on with its files: remuda start {}", self.id))
            }
            (_, Some(reason)) => error.cause(reason),
            _ => error,
        }
    }
}

/// A machine as it was captured.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    pub(crate) image: Arc<MemoryImage>,
    /// Executions that ran in it.
    pub(crate) carried: Vec<CarriedExecution>,
    /// Whether its agent may wait for the rest of a frame.
    pub(crate) unbound: bool,
}

/// A snapshot and what stands on it.
#[derive(Debug)]
pub(crate) struct SnapshotCell {
    pub(crate) id: SnapshotId,
    pub(crate) account: Account,
    inner: Mutex<SnapshotInner>,
    /// Tells that what became of it is on record.
    settled: watch::Sender<()>,
    /// Held while its labels are written down.
    pub(crate) labelling: tokio::sync::Mutex<()>,
}

/// What changes of a snapshot.
#[derive(Debug)]
pub(crate) struct SnapshotInner {
    /// What is, or is to be, written down.
    pub(crate) doc: SnapshotDoc,
    /// Restores that read it now.
    pub(crate) readers: usize,
    /// It is active or has failed, and that is not on the disk yet: nobody is told that it is active.
    pub(crate) unwritten: bool,
}

impl SnapshotCell {
    pub(crate) fn new(account: Account, doc: SnapshotDoc) -> Arc<SnapshotCell> {
        let id = doc.shown.id.clone();
        let inner = Mutex::new(SnapshotInner { doc, readers: 0, unwritten: false });
        Arc::new(SnapshotCell { id, account, inner, settled: watch::Sender::new(()), labelling: Default::default() })
    }

    pub(crate) fn inner(&self) -> MutexGuard<'_, SnapshotInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As the API shows it.
    pub(crate) fn show(&self) -> Snapshot {
        let inner = self.inner();
        let mut shown = inner.doc.shown.clone();
        if inner.unwritten && shown.state == SnapshotState::Active {
            shown.state = SnapshotState::Verifying;
        }
        shown.judged()
    }

    /// As the API shows it when what is being written down is on the disk.
    pub(crate) fn to_be(&self) -> Snapshot {
        self.inner().doc.shown.clone().judged()
    }

    /// It was verified: active, once that is written down.
    pub(crate) fn verified(&self) {
        let mut inner = self.inner();
        inner.doc.shown.state = SnapshotState::Active;
        inner.unwritten = true;
    }

    /// What was to be written down is.
    pub(crate) fn written(&self) {
        self.inner().unwritten = false;
        self.settled.send_replace(());
    }

    /// Waits until what became of its capture is on record.
    pub(crate) async fn settled(&self) {
        let mut told = self.settled.subscribe();
        loop {
            {
                let inner = self.inner();
                let under_way = matches!(inner.doc.shown.state, SnapshotState::Capturing | SnapshotState::Verifying);
                if !under_way && !inner.unwritten {
                    return;
                }
            }
            // The sender goes with the cell.
            if told.changed().await.is_err() {
                return;
            }
        }
    }

    /// What is written down of it when it is active, with the name that it takes over.
    pub(crate) fn takes_name(&self) -> Result<Vec<Change>, Error> {
        let taken = {
            let doc = &mut self.inner().doc;
            let taken = doc.takes_name.take();
            if taken.is_some() {
                doc.shown.name.clone_from(&taken);
            }
            taken
        };
        let takes = taken.map(|name| Change::Snapshot(SnapshotChange::of(&self.id).takes_name(name)));
        Ok(std::iter::once(self.doc().change()?).chain(takes).collect())
    }

    /// All that is written down of it, as it stands.
    pub(crate) fn doc(&self) -> SnapshotDoc {
        self.inner().doc.clone()
    }

    /// Its memory, if it has any that is kept.
    pub(crate) fn memory(&self) -> Option<Memory> {
        let inner = self.inner();
        let image = inner.doc.memory.as_ref().filter(|_| inner.doc.shown.mode == SnapshotMode::Memory)?;
        let (carried, unbound) = (inner.doc.carried.clone(), inner.doc.unbound);
        Some(Memory { image: Arc::new(image.clone()), carried, unbound })
    }

    /// Whether it failed or was deleted.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.inner().doc.shown.state, SnapshotState::Failed | SnapshotState::Deleted)
    }

    /// Whether its bytes may still be needed.
    fn holds_layer(&self) -> bool {
        let inner = self.inner();
        inner.readers > 0
            || matches!(
                inner.doc.shown.state,
                SnapshotState::Capturing | SnapshotState::Verifying | SnapshotState::Active
            )
    }
}

/// All of it, behind one lock that is never held across a wait.
#[derive(Debug)]
pub(crate) struct Registry {
    inner: Mutex<Tables>,
    /// Most sandboxes of all accounts together.
    sandboxes_max: usize,
    /// Sandboxes that are being admitted: they count before they are in the table.
    arriving: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
pub(crate) struct Tables {
    sandboxes: BTreeMap<(Account, SandboxId), Arc<SandboxCell>>,
    snapshots: BTreeMap<SnapshotId, Arc<SnapshotCell>>,
    /// Wakes whoever watches over deadlines.
    alarm: Arc<Notify>,
}

/// Room for one more sandbox on this server, held until that sandbox counts itself.
#[derive(Debug)]
pub(crate) struct Room(Arc<AtomicUsize>);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Registry {
    pub(crate) fn of_at_most(sandboxes_max: usize) -> Registry {
        Registry { inner: Mutex::default(), sandboxes_max, arriving: Arc::default() }
    }

    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox with that id, as long as it is in memory.
    pub(crate) fn sandbox(&self, account: &Account, id: &SandboxId) -> Option<Arc<SandboxCell>> {
        self.tables().sandboxes.get(&(account.clone(), id.clone())).cloned()
    }

    /// Room for one more sandbox, below the limit of all accounts together.
    pub(crate) fn make_room(&self) -> Result<Room, Error> {
        let tables = self.tables();
        let living = tables.sandboxes.values().filter(|c| !c.is_over()).count();
        let taken = living + self.arriving.fetch_add(1, Ordering::SeqCst);
        let room = Room(self.arriving.clone());
        if taken >= self.sandboxes_max {
            // How many of them are whose is told to nobody: they are of all accounts.
            let message = format!("this server holds as many sandboxes as it can: {}", self.sandboxes_max);
            return Err(Error::new(ErrorCode::LimitReached, message)
                .detail("limit", "sandboxes_max")
                .detail("maximum", self.sandboxes_max as u64)
                .remedy("remove one with: remuda rm ID"));
        }
        Ok(room)
    }
}

impl Tables {
    /// Takes in a sandbox that was admitted or adopted.
    pub(crate) fn add_sandbox(&mut self, cell: Arc<SandboxCell>) {
        cell.life.wakes(&self.alarm);
        self.alarm.notify_one();
        self.sandboxes.insert((cell.account.clone(), cell.id.clone()), cell);
    }

    /// Woken when a deadline may have moved.
    pub(crate) fn alarm(&self) -> Arc<Notify> {
        self.alarm.clone()
    }

    /// Forgets a sandbox whose end is on record.
    pub(crate) fn forget_sandbox(&mut self, cell: &SandboxCell) {
        self.sandboxes.remove(&(cell.account.clone(), cell.id.clone()));
    }

    /// Every sandbox, by creation and then id.
    pub(crate) fn sandboxes(&self) -> Vec<Arc<SandboxCell>> {
        let mut all: Vec<_> = self.sandboxes.values().cloned().collect();
        all.sort_by(|a, b| (a.id.generation, &a.id.slot).cmp(&(b.id.generation, &b.id.slot)));
        all
    }

    /// Takes a snapshot in that was admitted.
    pub(crate) fn add_snapshot(&mut self, cell: Arc<SnapshotCell>) {
        self.snapshots.insert(cell.id.clone(), cell);
    }

    /// Forgets snapshots that ended, whose end is on record, and of which no bytes are left.
    pub(crate) fn forget_snapshots(&mut self, ended: &[SnapshotId]) {
        let used = self.layers_in_use();
        self.snapshots.retain(|id, cell| !ended.contains(id) || used.contains(id) || !cell.is_over());
    }

    /// A snapshot by id or name, as long as it is in memory.
    pub(crate) fn snapshot(&self, account: &Account, id_or_name: &str) -> Option<Arc<SnapshotCell>> {
        let by_id = id_or_name.parse::<SnapshotId>().ok().and_then(|id| self.snapshots.get(&id));
        let by_id = by_id.filter(|s| s.account == *account);
        let named = |s: &&Arc<SnapshotCell>| {
            s.account == *account && !s.is_over() && s.show().name.as_deref() == Some(id_or_name)
        };
        by_id.or_else(|| self.snapshots.values().find(named)).cloned()
    }

    /// A snapshot has its name now, which no other has any more.
    pub(crate) fn named(&self, cell: &SnapshotCell) {
        let name = {
            let shown = &cell.inner().doc.shown;
            shown.name.clone().filter(|_| shown.state == SnapshotState::Active)
        };
        let Some(name) = name else { return };
        for other in self.snapshots.values().filter(|s| s.account == cell.account && s.id != cell.id && !s.is_over()) {
            let theirs = &mut other.inner().doc.shown.name;
            if theirs.as_ref() == Some(&name) {
                *theirs = None;
            }
        }
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
        let sandboxes = self.sandboxes.values().filter(|c| !c.is_over()).flat_map(|c| c.layers.iter().cloned());
        let kept = self.snapshots.values().filter(|s| s.holds_layer());
        sandboxes.chain(kept.flat_map(|s| s.inner().doc.layers.clone())).collect()
    }

    /// Layers in use, with whose they are, of snapshots that are not in memory.
    pub(crate) fn layers_without_snapshot(&self) -> BTreeMap<SnapshotId, Account> {
        let sandboxes = self.sandboxes.values().map(|c| (c.layers.clone(), &c.account));
        let snapshots = self.snapshots.values().map(|s| (s.inner().doc.layers.clone(), &s.account));
        let in_use = self.layers_in_use();
        let all =
            sandboxes.chain(snapshots).flat_map(|(layers, account)| layers.into_iter().map(|id| (id, account.clone())));
        all.filter(|(id, _)| in_use.contains(id) && !self.snapshots.contains_key(id)).collect()
    }

    /// Snapshots that forks made for themselves and that no living sandbox stands on any more.
    pub(crate) fn abandoned_by_forks(&self) -> Vec<Arc<SnapshotCell>> {
        let under: HashSet<&SnapshotId> =
            self.sandboxes.values().filter(|c| !c.is_over()).flat_map(|c| c.layers.iter()).collect();
        let abandoned = |s: &&Arc<SnapshotCell>| {
            let inner = s.inner();
            let of_fork = inner.doc.of_fork && inner.doc.shown.state == SnapshotState::Active;
            of_fork && inner.readers == 0 && !under.contains(&s.id)
        };
        self.snapshots.values().filter(abandoned).cloned().collect()
    }
}
