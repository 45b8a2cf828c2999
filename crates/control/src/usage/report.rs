//! The four figures of usage, each from its own source: what was captured from the snapshots' records, what is held from
//! the disk, what is reserved and what was counted from the journal. Must never derive one from another.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use remuda_types::wire::{CapturedBytes, HeldBytes, MonthUsage, Reserved, Usage};
use remuda_types::{Account, Error, ErrorCode, Quota, SnapshotState};

use super::disk::disk_use;
use crate::access::Action;
use crate::caller::Caller;
use crate::platform::Platform;

impl Platform {
    /// What an account uses. The operator may name another than the caller's.
    ///
    /// # Errors
    /// `forbidden`, `account_not_found`; the journal fails.
    pub async fn usage(&self, caller: &Caller, account: Option<&Account>) -> Result<Usage, Error> {
        caller.may(Action::ShowUsage)?;
        let account = self.known_account(caller, account)?;
        let used = self.journal().used(account).await.map_err(|e| crate::errors::journal(&e))?;
        let limits = self.accounts().limits(account);
        let figure = |name: &str, amount: u64| {
            let limit = name.parse::<Quota>().ok().and_then(|quota| limits.of(quota));
            Reserved { quota: name.to_owned(), amount, limit }
        };
        let mut months: BTreeMap<String, Vec<Reserved>> = BTreeMap::new();
        let mut reserved = BTreeMap::new();
        for used in &used {
            match &used.period {
                Some(month) => months.entry(month.clone()).or_default().push(figure(&used.name, used.amount)),
                None => drop(reserved.insert(used.name.as_str(), used.amount)),
            }
        }
        // A quota of which nothing was ever taken is told all the same: its limit is what a caller looks for.
        let held_now = Quota::ALL.iter().filter(|quota| **quota != Quota::StartsPerMonth).map(|quota| quota.as_str());
        let reserved = held_now.map(|name| figure(name, reserved.get(name).copied().unwrap_or(0))).collect();
        let months = months.into_iter().rev().map(|(month, counters)| MonthUsage { month, counters }).collect();
        let (captured, places) = self.on_disk(account);
        let held = tokio::task::spawn_blocking(move || places.look());
        let held = held.await.map_err(|e| Error::new(ErrorCode::Internal, "a task ended").cause(e))?;
        Ok(Usage { account: account.clone(), captured, held, reserved, months })
    }

    /// What the snapshots of an account hold by their records, and where its bytes lie.
    fn on_disk(&self, account: &Account) -> (CapturedBytes, Places) {
        let (mut captured, mut places) = (CapturedBytes::default(), Places::default());
        let (tables, dirs) = (self.registry().tables(), self.engine().dirs());
        for snapshot in tables.snapshots().iter().filter(|s| s.account == *account) {
            let shown = snapshot.show();
            if matches!(shown.state, SnapshotState::Active | SnapshotState::Verifying) {
                captured.snapshots += 1;
                captured.bytes = captured.bytes.saturating_add(shown.bytes);
            }
            // Its layer may stay when it is gone, below whatever stands on it; what is gone counts nothing.
            places.layers.insert(dirs.layer(&snapshot.id));
            places.memory_images.insert(dirs.memory(&snapshot.id));
        }
        for sandbox in tables.sandboxes().iter().filter(|c| c.account == *account && !c.is_over()) {
            places.sandboxes.insert(dirs.sandbox(&sandbox.uid).upper);
        }
        (captured, places)
    }
}

/// Directories of an account, each once.
#[derive(Debug, Default)]
struct Places {
    layers: BTreeSet<PathBuf>,
    memory_images: BTreeSet<PathBuf>,
    sandboxes: BTreeSet<PathBuf>,
}

impl Places {
    fn look(&self) -> HeldBytes {
        let bytes = |places: &BTreeSet<PathBuf>| {
            places
                .iter()
                .filter_map(|place| disk_use(place).ok())
                .fold(0, |sum: u64, found| sum.saturating_add(found.bytes))
        };
        HeldBytes {
            layers: bytes(&self.layers),
            memory_images: bytes(&self.memory_images),
            sandboxes: bytes(&self.sandboxes),
        }
    }
}
