//! A data directory and a host, which outlive servers, and the server of the moment. Killing it drops its runtime with
//! all tasks wherever they stand; nothing that they would do after that moment is done.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remuda_journal::{Gate, Paging, Passage};
use remuda_stand_in::{Plan, Session, StandIn, Verdict};
use remuda_types::QuotaLimits;
use remuda_types::limits::{
    KEYS_LIVE_MS_DEFAULT, RECONCILE_EVERY_MS_DEFAULT, SANDBOXES_MAX, SCRUB_EVERY_MS_DEFAULT, TIMEOUT_MS_MAX_DEFAULT,
};
use tokio::runtime::{Builder, Runtime};

use crate::platform::{Ground, Platform};
use crate::webhooks::{Courier, Parcel, Refused};

/// Longest wait for anything that must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server in this process.
struct Server {
    platform: Platform,
    session: Arc<Session>,
    runtime: Runtime,
}

/// All of it.
pub(super) struct World {
    server: Option<Server>,
    pub(super) host: StandIn,
    data_dir: PathBuf,
    /// Of the agents; must go last but for the directory.
    _agents: Runtime,
    _directory: tempfile::TempDir,
}

/// Carries nothing: no trial has webhooks.
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

/// Writes of the journal are points like effects.
struct AtCommits(Arc<Session>);

impl Gate for AtCommits {
    fn before(&self, _: usize) -> Passage {
        passage(self.0.decide("before a commit"))
    }

    fn after(&self) -> Passage {
        passage(self.0.decide("after a commit"))
    }
}

fn passage(verdict: Verdict) -> Passage {
    match verdict {
        Verdict::GoOn => Passage::Open,
        Verdict::Fail => Passage::Full,
        Verdict::Hang | Verdict::Die => Passage::Dead,
    }
}

fn runtime(threads: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap()
}

impl World {
    /// An empty data directory with a server on it.
    pub(super) fn new() -> World {
        // Nothing here is about a loss of power: what is synced need not reach a disk.
        let place = [std::path::Path::new("/dev/shm"), &std::env::temp_dir()]
            .into_iter()
            .find(|p| p.is_dir())
            .unwrap()
            .to_owned();
        let directory = tempfile::tempdir_in(place).unwrap();
        let agents = runtime(1);
        let host = StandIn::new(agents.handle().clone());
        let data_dir = directory.path().join("data");
        std::fs::create_dir(&data_dir).unwrap();
        let mut world = World { server: None, host, data_dir, _agents: agents, _directory: directory };
        world.start(None);
        world
    }

    /// Starts a server, which is killed where the plan says; tells whether it lives.
    pub(super) fn start(&mut self, plan: Option<Plan>) -> bool {
        let session = Session::begin();
        if plan.is_some() {
            session.plan(plan);
        }
        let runtime = runtime(2);
        let (host, data_dir, of_engine) = (self.host.clone(), self.data_dir.clone(), session.clone());
        let ground = Ground {
            data_dir: data_dir.clone(),
            quotas: QuotaLimits::default(),
            timeout_ms_max: TIMEOUT_MS_MAX_DEFAULT,
            reconcile_every: Duration::from_millis(RECONCILE_EVERY_MS_DEFAULT),
            scrub_every: Duration::from_millis(SCRUB_EVERY_MS_DEFAULT),
            keys_live: Duration::from_millis(KEYS_LIVE_MS_DEFAULT),
            courier: Arc::new(Nobody),
            sandboxes_max: SANDBOXES_MAX,
            gate: Some(Arc::new(AtCommits(session.clone()))),
            engine: Box::new(move || host.engine(&data_dir, &of_engine)),
        };
        let opened = runtime.block_on(async {
            // On its own, so that one that is killed is dropped with the runtime.
            let opening = tokio::spawn(Platform::open_on(ground));
            tokio::select! {
                opened = opening => Some(opened.unwrap()),
                () = session.died() => None,
            }
        });
        match opened {
            Some(Ok(platform)) => {
                self.server = Some(Server { platform, session, runtime });
                true
            }
            Some(Err(e)) if plan.is_none() => panic!("the server does not start: {e} {:?}", e.cause),
            _ => {
                session.die();
                runtime.shutdown_timeout(PATIENCE);
                false
            }
        }
    }

    /// Kills the server where it stands.
    pub(super) fn kill(&mut self) {
        if let Some(Server { platform, session, runtime }) = self.server.take() {
            session.die();
            drop(platform);
            runtime.shutdown_timeout(PATIENCE);
        }
    }

    /// Kills the server, starts the next one, and waits until it has brought everything to its outcome.
    pub(super) fn restart(&mut self) {
        self.kill();
        self.start(None);
        self.settle();
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.server.as_ref().unwrap().session
    }

    /// Does something with the platform; none if the server is killed meanwhile.
    pub(super) fn run<T: Send + 'static, F>(&self, call: impl FnOnce(Platform) -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let Server { platform, session, runtime } = self.server.as_ref().unwrap();
        let task = runtime.spawn(call(platform.clone()));
        runtime.block_on(async {
            tokio::select! {
                biased;
                () = session.died() => None,
                done = tokio::time::timeout(PATIENCE, task) => Some(done.expect("it never ends").unwrap()),
            }
        })
    }

    /// Does something with a platform that lives.
    pub(super) fn ask<T: Send + 'static, F>(&self, call: impl FnOnce(Platform) -> F) -> T
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.run(call).expect("the server was killed")
    }

    /// Waits until nothing is under way any more, or the server was killed. Tells whether every operation has its
    /// outcome: one whose outcome could not be written waits for the next server.
    pub(super) fn settle(&self) -> bool {
        let begun = Instant::now();
        let unfinished = self.run(move |platform| async move {
            loop {
                let idle = platform.under_way().is_empty();
                let open = platform.journal().unfinished(Paging::first()).await.unwrap().items.len();
                // With a write that is waited for, those before it are on the disk that nobody waits for.
                let _ = platform.journal().apply(Vec::new()).await;
                if idle && platform.under_way().is_empty() {
                    return open;
                }
                assert!(begun.elapsed() < PATIENCE, "{open} operations never end");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        unfinished == Some(0)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.kill();
    }
}
