//! The benchmark `journal`: keyed creates, replays and reads of the journal by itself, on a real disk with every commit
//! on it, and how they grow from 100 to 100,000 records: the large journal is held against the small one, turn by turn.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use remuda_journal::{
    Admission, Admitted, Change, Count, Hold, Holder, Journal, JournalError, NewSandbox, Outcome, Reservation,
    SandboxChange, Scope, Settings,
};
use remuda_types::ids::UID_LEN;
use remuda_types::{Account, Key, OperationId, SandboxId, SandboxState, Uid};
use serde_json::json;

use crate::harness::{Contender, Contest, Figure, Goal, Side, Turn};
use crate::world::World;

/// Clients that call at once.
pub(crate) const CLIENTS: usize = 64;
/// Records in the small journal and in the large one.
pub(crate) const RECORDS: [usize; 2] = [100, 100_000];
/// Clients that fill a journal.
const FILLERS: usize = 256;
/// Keyed creates of one turn: in a second, at most.
pub(crate) const CREATES: usize = 1_000;
/// Replays, and reads, of one turn: in a second, at most.
pub(crate) const REPLAYS: usize = 5_000;
/// A second, in which a turn must be done.
pub(crate) const SECOND_MS: f64 = 1_000.0;
/// When it all happens, in Unix milliseconds.
const NOW_MS: i64 = 1_790_000_000_000;

/// A journal with what is in it.
pub(crate) struct Filled {
    journal: Journal,
    account: Account,
    /// Sandboxes that are recorded, each made by the key of its number.
    ids: Vec<SandboxId>,
    /// The number of the next key.
    next: AtomicU64,
}

impl Filled {
    pub(crate) fn new(world: &World, directory: &Path, records: usize) -> anyhow::Result<Arc<Filled>> {
        let journal = Journal::open(directory, Settings::default()).context("cannot open a journal")?;
        let filled = Filled { journal, account: "main".parse()?, ids: Vec::new(), next: AtomicU64::new(0) };
        let filled = Arc::new(filled);
        let measured = all_at_once(world, FILLERS, records, {
            let filled = filled.clone();
            move |_| {
                let filled = filled.clone();
                async move { filled.create(filled.next.fetch_add(1, Ordering::Relaxed)).await }
            }
        })?;
        let mut filled = Arc::into_inner(filled).context("a client still holds the journal")?;
        filled.ids = measured.results;
        Ok(Arc::new(filled))
    }

    /// A keyed create from its admission to its outcome, as the platform would journal it around a machine that takes
    /// no time; the sandbox has ended then.
    async fn create(&self, number: u64) -> Result<SandboxId, JournalError> {
        let admission = self.admission(number);
        let uid = uid(number);
        match self.journal.admit(admission).await? {
            Admitted::New(operation) => {
                let gone = SandboxChange::of(&uid).state(SandboxState::Gone).ended(NOW_MS);
                let changes = vec![Change::Sandbox(gone), Change::Release(Holder::from(&uid))];
                let outcome = Outcome::Done(json!({ "sandbox": operation.reserved.sandbox }));
                self.journal.finish(&operation.id, outcome, changes, NOW_MS).await?;
                operation.reserved.sandbox.ok_or(JournalError::Closed)
            }
            other => Err(JournalError::Internal(format!("a new key was known: {other:?}"))),
        }
    }

    /// The retry of a create whose outcome is there.
    async fn replay(&self, number: u64) -> Result<(), JournalError> {
        match self.journal.admit(self.admission(number)).await? {
            Admitted::Replay(_) => Ok(()),
            other => Err(JournalError::Internal(format!("no replay: {other:?}"))),
        }
    }

    /// What `GET /v1/sandboxes/{id}` asks.
    async fn read(&self, id: &SandboxId) -> Result<(), JournalError> {
        let found = self.journal.sandbox(&self.account, id).await?;
        found.map(drop).ok_or_else(|| JournalError::Internal(format!("{id} is not recorded")))
    }

    fn admission(&self, number: u64) -> Admission {
        let uid = uid(number);
        let holder = Holder::from(&uid);
        let hold = |name: &str, amount, limit| Hold { holder: holder.clone(), name: name.to_owned(), amount, limit };
        let starts = Count { name: "starts".to_owned(), period: "2026-10".to_owned(), amount: 1, limit: None };
        let sandbox = NewSandbox {
            slot: None,
            uid: uid.clone(),
            continues: None,
            labels: [("thread".to_owned(), format!("t{number}"))].into(),
            spec: json!({ "memory_mib": 2048, "cpus": 2, "timeout_ms": 3_600_000, "on_deadline": "snapshot" }),
            parts: json!({ "runsc": "0".repeat(64), "base": "1".repeat(64), "agent": "2".repeat(64) }),
            layers: Vec::new(),
        };
        Admission {
            id: OperationId::from_entropy(entropy(number)),
            account: self.account.clone(),
            scope: word("create", Scope::new),
            key: Some(word(&format!("key-{number}"), str::parse::<Key>)),
            parent: None,
            request: json!({ "labels": { "thread": format!("t{number}") }, "memory_mib": 2048 }),
            now_ms: NOW_MS,
            reservation: Reservation {
                sandbox: Some(sandbox),
                holds: vec![hold("sandboxes", 1, Some(10_000)), hold("memory_mib", 2048, None)],
                counts: vec![starts],
                ..Reservation::default()
            },
        }
    }
}

/// Words that are written here and known to be good.
fn word<T, E: std::fmt::Debug>(text: &str, parse: impl FnOnce(&str) -> Result<T, E>) -> T {
    parse(text).unwrap_or_else(|e| unreachable!("{e:?}"))
}

fn uid(number: u64) -> Uid {
    Uid::from_entropy(entropy(number))
}

/// Spread as random bytes are, so that indexes grow as they really do.
fn entropy(number: u64) -> [u8; UID_LEN] {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    std::array::from_fn(|_| {
        state ^= state >> 31;
        state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(number);
        (state >> 56) as u8
    })
}

/// Why a call failed.
pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

/// What many calls took.
pub(crate) struct Measured<T> {
    pub(crate) whole: Duration,
    pub(crate) each: Vec<Duration>,
    pub(crate) results: Vec<T>,
}

impl<T> Measured<T> {
    /// The time that this share of the calls did not exceed.
    pub(crate) fn percentile(&self, share: f64) -> Duration {
        let mut sorted = self.each.clone();
        sorted.sort_unstable();
        let place = (sorted.len() as f64 * share).ceil() as usize;
        sorted.get(place.saturating_sub(1)).copied().unwrap_or_default()
    }
}

/// Makes calls from so many clients at once, each client one after the other.
pub(crate) fn all_at_once<T, F, E>(
    world: &World,
    clients: usize,
    calls: usize,
    call: impl Fn(usize) -> F + Send + Sync + 'static,
) -> anyhow::Result<Measured<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
    E: Into<Failed> + Send + 'static,
{
    let call = Arc::new(call);
    let next = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let clients: Vec<_> = (0..clients)
        .map(|_| {
            let (call, next) = (call.clone(), next.clone());
            world.runtime.spawn(async move {
                let mut done = Vec::new();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed) as usize;
                    if n >= calls {
                        return Ok::<_, Failed>(done);
                    }
                    let began = Instant::now();
                    let result = call(n).await.map_err(Into::into)?;
                    done.push((n, began.elapsed(), result));
                }
            })
        })
        .collect();
    let mut done = Vec::with_capacity(calls);
    for client in clients {
        done.extend(world.runtime.block_on(client)?.map_err(anyhow::Error::from_boxed)?);
    }
    let whole = start.elapsed();
    done.sort_unstable_by_key(|(n, ..)| *n);
    anyhow::ensure!(done.len() == calls, "{} of {calls} calls were made", done.len());
    let each = done.iter().map(|(_, took, _)| *took).collect();
    Ok(Measured { whole, each, results: done.into_iter().map(|(.., result)| result).collect() })
}

/// What is measured.
#[derive(Clone, Copy)]
enum Work {
    Create,
    Replay,
    Read,
}

impl Work {
    const ALL: [Work; 3] = [Work::Create, Work::Replay, Work::Read];

    fn name(self) -> &'static str {
        match self {
            Work::Create => "keyed create, admitted and finished",
            Work::Replay => "replay of a keyed create",
            Work::Read => "read of a sandbox's record",
        }
    }

    fn calls(self) -> usize {
        match self {
            Work::Create => CREATES,
            Work::Replay | Work::Read => REPLAYS,
        }
    }

    fn turn(self, world: &World, filled: &Arc<Filled>) -> anyhow::Result<Measured<()>> {
        let filled = filled.clone();
        all_at_once(world, CLIENTS, self.calls(), move |n| {
            let filled = filled.clone();
            // All over the records, and not the newest only.
            let known = (n * 7_919) % filled.ids.len();
            async move {
                match self {
                    Work::Create => filled.create(filled.next.fetch_add(1, Ordering::Relaxed)).await.map(drop),
                    Work::Replay => filled.replay(known as u64).await,
                    Work::Read => filled.read(&filled.ids[known]).await,
                }
            }
        })
    }
}

/// A side that is ready, or the reason why not, with what is taken of a turn.
fn contender<'a>(
    filled: &'a Result<Arc<Filled>, String>,
    records: usize,
    turn: impl Fn(&Arc<Filled>) -> anyhow::Result<Duration> + 'a,
) -> Contender<'a> {
    let flags = vec![format!("{records} records, {CLIENTS} clients, WAL, every commit synced")];
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let side = Side { name: format!("journal with {records} records"), version, flags };
    let turn = filled.as_ref().map_err(Clone::clone).map(|filled| -> Turn<'a> { Box::new(move || turn(filled)) });
    Contender { side, turn }
}

/// The three rates, which have goals, then how the percentiles grow, which is told and not judged.
///
/// Growth is not flat, and it is not the number of records by itself: reads of the same 100 records take about 1.2 times
/// as long among 100,000 as among 100 (one client). It is that calls go all over the records, as they do here: about 1.5
/// times with one client, 3 times with 64. A page cache that holds everything takes little of that away, nor do fewer
/// readers; what remains was not traced further. The 99th percentile of 64 clients on few processors is mostly the
/// scheduler's and the neighbours': it differs several times from run to run, on the small side too.
pub(crate) fn figures(world: &World, rounds: usize) -> anyhow::Result<Vec<Figure>> {
    let control = crate::control::figures(world, rounds)?;
    let fill = |records: usize, name: &str| Filled::new(world, &world.scratch.join(name), records);
    let [few, many] = RECORDS;
    let small = fill(few, "small").map_err(|e| format!("{e:#}"));
    let large = fill(many, "large").map_err(|e| format!("{e:#}"));
    let mut figures = control;
    for work in Work::ALL {
        let name = format!("{} × {}", work.calls(), work.name());
        let goal = Goal::MillisecondsAtMost(SECOND_MS);
        let contest = Contest { name: &name, rounds, warm_ups: 1, goal };
        let ours = contender(&large, many, |filled| Ok(work.turn(world, filled)?.whole));
        figures.push(contest.run(ours, None));
    }
    let fresh = std::cell::Cell::new(0);
    for work in Work::ALL {
        for share in [0.5, 0.99] {
            let name = format!("p{:.0} of a {}", share * 100.0, work.name());
            let contest = Contest { name: &name, rounds, warm_ups: 1, goal: Goal::None };
            let ours = contender(&large, many, |filled| Ok(work.turn(world, filled)?.percentile(share)));
            let peer = contender(&small, few, |filled| match work {
                // What creates adds records; a small journal stays small by being a new one each time.
                Work::Create => {
                    fresh.set(fresh.get() + 1);
                    Ok(work.turn(world, &fill(few, &format!("fresh-{}", fresh.get()))?)?.percentile(share))
                }
                Work::Replay | Work::Read => Ok(work.turn(world, filled)?.percentile(share)),
            });
            figures.push(contest.run(ours, Some(peer)));
        }
    }
    Ok(figures)
}
