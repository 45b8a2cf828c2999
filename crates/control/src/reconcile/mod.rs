//! Reconciliation: what the journal says, what memory has and what the machine has are compared, and what differs is put
//! right where it is certain what is right, each with an event; the rest is told. It runs when a server starts, every
//! now and then, and when somebody asks (`remuda doctor`).
//!
//! ```text
//!  look ──► compare ──► nothing differs: done
//!                  └──► wait ──► look ──► compare ──► what was a difference both times
//!                                                        ├─ certain: look once more at this thing alone ─► repair ─► event
//!                                                        └─ else: a finding, with what to do about it
//! ```
//!
//! It must never touch what is under way. What an operation that is pending is about, what somebody holds the turn of,
//! and what is being read, is left out of the comparison. What changes by itself, as a machine that dies, is a difference
//! in one look at most. Nothing is signalled but what is in the control group of a sandbox that has ended, or is the very
//! process on record: boot, pid and start time are compared.

mod compare;
mod finding;
mod look;
mod picture;
mod repair;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

use remuda_engine::Leftovers;
use remuda_types::wire::{RepairTold, Repaired, ThingKind};
use remuda_types::{Error, ErrorCode, Uid};

use crate::clock::now_unix_ms;
use crate::platform::{Platform, Shared};
use compare::compare;
pub(crate) use finding::{Finding, Repair};

/// Between the look that finds a difference and the one that has to find it again: longer than anything takes that
/// changes several things one after another and is no operation. None of them says when it is over.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
/// Repairs that are told of afterwards.
const REPAIRS_TOLD_MAX: usize = 1_000;

/// What is found of what recovery removes.
pub(crate) const LEFT_BEHIND: &str = "an earlier server left it behind";

/// What was found and done since the server started.
#[derive(Debug)]
pub(crate) struct Reconciler {
    pub(crate) since_ms: i64,
    /// One comparison at a time.
    turn: tokio::sync::Mutex<()>,
    repairs: Mutex<Repairs>,
}

#[derive(Debug, Default)]
struct Repairs {
    latest: VecDeque<Repaired>,
    count: u64,
}

/// What one comparison came to.
#[derive(Debug)]
pub(crate) struct Compared {
    /// What differs as it did.
    pub(crate) findings: Vec<Finding>,
    /// When the look ended.
    pub(crate) at_ms: i64,
}

impl Reconciler {
    pub(crate) fn new() -> Reconciler {
        Reconciler { since_ms: now_unix_ms(), turn: tokio::sync::Mutex::new(()), repairs: Mutex::default() }
    }

    /// The latest repairs, oldest first, and how many there were.
    pub(crate) fn repairs(&self) -> (Vec<Repaired>, u64) {
        let repairs = self.repairs.lock().unwrap_or_else(PoisonError::into_inner);
        (repairs.latest.iter().cloned().collect(), repairs.count)
    }

    fn note(&self, finding: &Finding, done: &str) {
        let told =
            Repaired { at_ms: now_unix_ms(), account: finding.account.clone(), repair: finding.repair_told(done) };
        let mut repairs = self.repairs.lock().unwrap_or_else(PoisonError::into_inner);
        repairs.count += 1;
        repairs.latest.push_back(told);
        if repairs.latest.len() > REPAIRS_TOLD_MAX {
            repairs.latest.pop_front();
        }
    }
}

impl Finding {
    /// As its event tells it.
    pub(crate) fn repair_told(&self, done: &str) -> RepairTold {
        RepairTold { thing: self.thing, name: self.name.clone(), found: self.found.clone(), done: done.to_owned() }
    }
}

impl Platform {
    /// Compares, and repairs what is certain where that is wanted.
    ///
    /// # Errors
    /// A picture can't be made; the server ends.
    pub(crate) async fn reconcile(&self, repairing: bool) -> Result<Compared, Error> {
        let reconciler = self.reconciler();
        let _turn = reconciler.turn.lock().await;
        let mut differing = self.compared().await?;
        if !differing.is_empty() {
            self.while_open(tokio::time::sleep(AGAIN_AFTER)).await;
            self.admit_work()?;
            let before = std::mem::replace(&mut differing, self.compared().await?);
            differing.retain(|finding| before.iter().any(|earlier| earlier.is_again(finding)));
        }
        let mut findings = Vec::new();
        for mut finding in differing {
            let Some(repair) = finding.repair.clone().filter(|_| repairing) else {
                findings.push(finding);
                continue;
            };
            // A server that ends waits for what has begun, and begins nothing more.
            self.admit_work()?;
            match self.under_way().track_future(repair::repair(self, &finding)).await {
                Ok(true) => reconciler.note(&finding, repair.words()),
                // It is no longer as it was found.
                Ok(false) => {}
                Err(e) => {
                    let cause = e.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
                    tracing::error!("{} {} is not repaired: {e}{cause}", finding.thing.word(), finding.name);
                    finding.found = format!("{}; it could not be repaired: {e}{cause}", finding.found);
                    findings.push(finding);
                }
            }
        }
        Ok(Compared { findings, at_ms: now_unix_ms() })
    }

    async fn compared(&self) -> Result<Vec<Finding>, Error> {
        let (seen, told) = look::look(self).await?;
        Ok(compare(&seen, &told))
    }

    /// Tells of what an earlier server left behind, and was removed before anything was taken up.
    pub(crate) async fn tell_leftovers(&self, left: &Leftovers, handed_over: &BTreeSet<Uid>) -> Result<(), Error> {
        let mut repaired = Vec::new();
        let failed = |e| crate::errors::journal(&e);
        for uid in left.machines.difference(handed_over) {
            let record = self.journal().sandbox_by_uid(uid).await.map_err(failed)?;
            let finding = Finding::new(ThingKind::Machine, uid, LEFT_BEHIND);
            let finding = match record {
                Some(record) => finding.of(&record.account).sandbox(&record.id),
                None => finding,
            };
            repaired.push((finding, Repair::TearDown(uid.clone()).words()));
        }
        for id in &left.snapshots {
            let record = self.journal().snapshot_of_any(id).await.map_err(failed)?;
            let finding = Finding::new(ThingKind::Capture, id, LEFT_BEHIND).snapshot(id);
            let finding = match record {
                Some(record) => finding.of(&record.account),
                None => finding,
            };
            repaired.push((finding, Repair::RemoveCapture(id.clone()).words()));
        }
        for path in &left.strangers {
            let finding = Finding::new(ThingKind::Path, path.display(), "the server gives no such name");
            repaired.push((finding, "it is removed"));
        }
        if repaired.is_empty() {
            return Ok(());
        }
        let events = repaired.iter().map(|(finding, done)| repair::told(finding, done)).collect();
        self.journal().apply(events).await.map_err(failed)?;
        repaired.iter().for_each(|(finding, done)| self.reconciler().note(finding, done));
        Ok(())
    }
}

/// Compares and repairs at once and then every now and then, as long as there is a platform.
pub(crate) async fn run(shared: Weak<Shared>, every: Duration) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let platform = Platform::of(shared);
        match platform.reconcile(true).await {
            Ok(compared) => compared.findings.iter().for_each(|finding| {
                tracing::warn!("{} {}: {}; {}", finding.thing.word(), finding.name, finding.found, finding.remedy);
            }),
            Err(e) if e.code == ErrorCode::ShuttingDown => return,
            // An end that removes everything takes away what was just being looked at.
            Err(_) if platform.closing().is_cancelled() => return,
            Err(e) => {
                let cause = e.cause.as_deref().unwrap_or("no cause is known");
                tracing::warn!("records and machine are not compared: {e}: {cause}");
            }
        }
        let closing = platform.closing().clone();
        drop(platform);
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            () = closing.cancelled() => return,
        }
    }
}
