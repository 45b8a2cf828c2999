//! A platform on a host that stands in, with what is in its journal.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use remuda_control::{Answered, Call, Caller, Courier, Gate, Ground, Parcel, Passage, Platform, Refused};
use remuda_stand_in::{Session, StandIn};
use remuda_types::wire::{CreateSandbox, StartExecution};
use remuda_types::{Key, Quota, QuotaChanges, QuotaLimits, SandboxId};

use crate::journal::{CLIENTS, Failed, Filled, all_at_once};
use crate::world::World;

/// Sandboxes that live, whose status is read and whose creation is replayed.
const LIVING: usize = 100;
/// Most sandboxes of a server that is measured.
const SANDBOXES_MAX: usize = 5_000;

/// A platform with a clientele.
pub(crate) struct Plane {
    pub(crate) platform: Platform,
    slowness: Arc<Slowness>,
    living: Vec<SandboxId>,
    ended: Vec<SandboxId>,
    /// The number of the next key.
    pub(crate) next: AtomicU64,
    /// Outlives it.
    _agents: tokio::runtime::Runtime,
}

/// Makes commits slow.
#[derive(Default)]
pub(crate) struct Slowness(AtomicU64);

impl Gate for Slowness {
    fn before(&self, _: usize) -> Passage {
        let ms = self.0.load(Ordering::Relaxed);
        if ms > 0 {
            std::thread::sleep(Duration::from_millis(ms));
        }
        Passage::Open
    }

    fn after(&self) -> Passage {
        Passage::Open
    }
}

/// Carries nothing: nothing that is measured has webhooks.
#[derive(Debug)]
struct Nobody;

impl Courier for Nobody {
    fn check(&self, _: &str) -> Result<(), String> {
        Err("nobody carries anything here".to_owned())
    }

    fn carry(&self, _: Parcel) -> Pin<Box<dyn Future<Output = Result<u16, Refused>> + Send + '_>> {
        Box::pin(std::future::pending())
    }
}

/// Opens a platform on a host that stands in.
pub(crate) async fn open(host: &StandIn, directory: &Path, gate: Arc<dyn Gate>) -> anyhow::Result<Platform> {
    let (host, directory) = (host.clone(), directory.to_owned());
    let data_dir = directory.clone();
    let engine = Box::new(move || host.engine(&directory, &Session::begin()));
    let unlimited = QuotaChanges(Quota::ALL.iter().map(|quota| (*quota, None)).collect());
    let quotas = QuotaLimits::default().with(&unlimited);
    let ground = Ground {
        data_dir,
        quotas,
        timeout_ms_max: remuda_types::limits::TIMEOUT_MS_MAX_DEFAULT,
        reconcile_every: Duration::from_millis(remuda_types::limits::RECONCILE_EVERY_MS_DEFAULT),
        scrub_every: Duration::from_millis(remuda_types::limits::SCRUB_EVERY_MS_DEFAULT),
        keys_live: Duration::from_millis(remuda_types::limits::KEYS_LIVE_MS_DEFAULT),
        courier: Arc::new(Nobody),
        sandboxes_max: SANDBOXES_MAX,
        gate: Some(gate),
        engine,
    };
    Ok(Platform::open_on(ground).await?)
}

/// A runtime for what runs in machines.
pub(crate) fn agents() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?)
}

impl Plane {
    pub(crate) fn new(world: &World, directory: &Path, records: usize) -> anyhow::Result<Arc<Plane>> {
        std::fs::create_dir_all(directory)?;
        drop(Filled::new(world, directory, records)?);
        let (agents, slowness) = (agents()?, Arc::<Slowness>::default());
        let host = StandIn::new(agents.handle().clone());
        let platform = world.runtime.block_on(open(&host, directory, slowness.clone()))?;
        let plane = Plane {
            platform,
            slowness,
            living: Vec::new(),
            ended: Vec::new(),
            next: AtomicU64::new(0),
            _agents: agents,
        };
        let plane = Arc::new(plane);
        let ended = plane.create_many(world, LIVING)?;
        plane.remove_all(world, ended.clone())?;
        // Replays are of these, by their number.
        plane.next.store(1_000_000, Ordering::Relaxed);
        let living = plane.create_many(world, LIVING)?;
        plane.next.store(2_000_000, Ordering::Relaxed);
        let mut plane = Arc::into_inner(plane).context("a client still holds the platform")?;
        (plane.living, plane.ended) = (living, ended);
        Ok(Arc::new(plane))
    }

    pub(crate) fn create_many(self: &Arc<Plane>, world: &World, count: usize) -> anyhow::Result<Vec<SandboxId>> {
        let plane = self.clone();
        let made = all_at_once(world, CLIENTS, count, move |_| {
            let plane = plane.clone();
            async move { plane.create(plane.next.fetch_add(1, Ordering::Relaxed)).await }
        })?;
        Ok(made.results)
    }

    /// Removes sandboxes, and waits until they are gone.
    pub(crate) fn remove_all(self: &Arc<Plane>, world: &World, ids: Vec<SandboxId>) -> anyhow::Result<()> {
        let (plane, ids, count) = (self.clone(), Arc::new(ids.clone()), ids.len());
        all_at_once(world, CLIENTS, count, move |n| {
            let (plane, ids) = (plane.clone(), ids.clone());
            async move {
                plane.platform.remove(&Call::of(Caller::operator()), &ids[n]).await.result.map(drop).map_err(failed)
            }
        })?;
        Ok(())
    }

    pub(crate) async fn create(&self, number: u64) -> Result<SandboxId, Failed> {
        let Answered { result, replayed } = self.platform.create(&keyed(number)?, request(number)).await;
        if replayed {
            return Err("a new key was known".into());
        }
        Ok(result.map_err(failed)?.id)
    }

    pub(crate) async fn replay(&self, n: usize) -> Result<(), Failed> {
        let number = 1_000_000 + (n % LIVING) as u64;
        let Answered { result, replayed } = self.platform.create(&keyed(number)?, request(number)).await;
        result.map_err(failed)?;
        if replayed { Ok(()) } else { Err("a known key was new".into()) }
    }

    pub(crate) async fn status(&self, n: usize) -> Result<(), Failed> {
        self.platform.show(&Caller::operator(), &self.living[n % LIVING]).await.map(drop).map_err(failed)
    }

    /// What has ended is answered for from the journal, as gone.
    pub(crate) async fn status_of_ended(&self, n: usize) -> Result<(), Failed> {
        let _ = self.platform.show(&Caller::operator(), &self.ended[n % LIVING]).await;
        Ok(())
    }

    pub(crate) async fn execute(&self, with_key: bool, request: StartExecution) -> Result<(), Failed> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let call = if with_key { keyed(number)? } else { Call::of(Caller::operator()) };
        let execution = self.platform.execute(&call, &self.living[0], request).await.result.map_err(failed)?;
        if execution.exit_code == Some(0) { Ok(()) } else { Err("it did not end well".into()) }
    }

    /// Every commit takes so much longer from now on.
    pub(crate) fn slow_down(&self, ms: u64) {
        self.slowness.0.store(ms, Ordering::Relaxed);
    }
}

pub(crate) fn keyed(number: u64) -> Result<Call, Failed> {
    let key = format!("bench-{number}").parse::<Key>().map_err(|e| e.to_string())?;
    Ok(Call { caller: Caller::operator(), key: Some(key) })
}

pub(crate) fn request(number: u64) -> CreateSandbox {
    CreateSandbox { labels: [("thread".to_owned(), format!("t{number}"))].into(), ..CreateSandbox::default() }
}

pub(crate) fn failed(error: remuda_types::Error) -> Failed {
    error.to_string().into()
}
