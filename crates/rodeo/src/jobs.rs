//! The jobs that are submitted, made from a seed, and the harness's own ledger of what must come of them. Made outside
//! every sandbox; nothing in here is ever learned from a guest.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::workload::sha256_hex;

/// One job as it is submitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Job {
    /// Unique in its batch.
    pub id: String,
    /// What is sold, for people.
    pub item: String,
    /// How many.
    pub quantity: u32,
    /// Price of one, in cents; 0 is free of charge.
    pub unit_cents: u32,
}

impl Job {
    /// What its receipt must say, in cents.
    pub fn amount_cents(&self) -> i64 {
        i64::from(self.quantity) * i64::from(self.unit_cents)
    }

    /// Whether it costs nothing, so that the known fault loses it.
    pub fn is_free(&self) -> bool {
        self.unit_cents == 0
    }
}

/// The batch of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// What it was made from.
    pub seed: u64,
    /// The jobs in the order of their submission.
    pub jobs: Vec<Job>,
}

const ITEMS: [&str; 8] = ["rope", "saddle", "bridle", "blanket", "horseshoe", "canteen", "spurs", "halter"];

impl Ledger {
    /// The batch of this seed: `count` jobs, `free` of them free of charge. The same arguments give the same jobs.
    pub fn from_seed(seed: u64, count: u32, free: u32) -> Ledger {
        let mut draws = Draws::new(seed);
        let mut order: Vec<u32> = (0..count).collect();
        let chosen = free.min(count) as usize;
        for place in 0..chosen {
            let other = place + draws.below(order.len() - place);
            order.swap(place, other);
        }
        let chosen: BTreeSet<u32> = order[..chosen].iter().copied().collect();
        let is_free = |index: u32| chosen.contains(&index);
        let jobs = (0..count).map(|index| Job {
            id: format!("job-{}-{:08x}", index + 1, draws.next()),
            item: ITEMS[draws.below(ITEMS.len())].to_owned(),
            quantity: 1 + draws.next() % 9,
            unit_cents: if is_free(index) { 0 } else { 1 + draws.next() % 9_999 },
        });
        Ledger { seed, jobs: jobs.collect() }
    }

    /// The body by which the jobs are submitted.
    pub fn submission(&self) -> String {
        // Strings and numbers always have a JSON form.
        serde_json::to_string(&self.jobs).unwrap_or_default()
    }

    /// Digest of the queue, by the rule that the worker follows.
    pub fn fingerprint(&self) -> String {
        let rows: Vec<_> = self.jobs.iter().map(|job| (&job.id, &job.item, job.quantity, job.unit_cents)).collect();
        // Strings and numbers always have a JSON form.
        sha256_hex(serde_json::to_string(&rows).unwrap_or_default().as_bytes())
    }
}

/// Numbers that depend on the seed alone.
struct Draws(blake3::OutputReader);

impl Draws {
    fn new(seed: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("remuda rodeo 2026 jobs of the receipts check");
        hasher.update(&seed.to_le_bytes());
        Draws(hasher.finalize_xof())
    }

    fn next(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.0.fill(&mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// A number below `end`, which is never 0 here and small against 2³².
    fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_default_seed_gives_these_jobs_for_ever() {
        let ledger = Ledger::from_seed(12346, 5, 2);
        let told: Vec<_> =
            ledger.jobs.iter().map(|j| format!("{} {} {}x{}", j.id, j.item, j.quantity, j.unit_cents)).collect();
        let known = [
            "job-1-ebc77b5a halter 7x8946",
            "job-2-63bfcc66 saddle 2x0",
            "job-3-daa585f5 blanket 3x0",
            "job-4-6c11dac7 saddle 9x5098",
            "job-5-4dd5f7be spurs 3x76",
        ];
        assert_eq!(told, known);
    }

    proptest! {
        #[test]
        fn every_seed_gives_distinct_jobs_and_as_many_free_ones_as_asked(seed: u64, count in 1u32..40, share in 0u32..40) {
            let free = share.min(count);
            let ledger = Ledger::from_seed(seed, count, free);
            prop_assert_eq!(&ledger, &Ledger::from_seed(seed, count, free));
            prop_assert_eq!(ledger.jobs.len(), count as usize);
            prop_assert_eq!(ledger.jobs.iter().filter(|j| j.is_free()).count(), free as usize);
            prop_assert_eq!(ledger.jobs.iter().map(|j| &j.id).collect::<BTreeSet<_>>().len(), count as usize);
            prop_assert!(ledger.jobs.iter().all(|j| j.quantity >= 1 && (j.is_free() || j.amount_cents() > 0)));
        }

        #[test]
        fn another_seed_or_order_is_another_fingerprint(seed: u64) {
            let ledger = Ledger::from_seed(seed, 5, 2);
            prop_assert_ne!(ledger.fingerprint(), Ledger::from_seed(seed ^ 1, 5, 2).fingerprint());
            let mut turned = ledger.clone();
            turned.jobs.rotate_left(1);
            prop_assert_ne!(ledger.fingerprint(), turned.fingerprint());
        }
    }
}
