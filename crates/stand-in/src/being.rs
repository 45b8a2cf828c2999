//! One machine of the stand-in, and a server's grip on it.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use remuda_engine::{
    Body, CapturePlaces, Captured, Death, EngineError, Frozen, HostFacts, ImageFiles, MemoryImage, Result, SandboxDirs,
    Work,
};
use remuda_types::Uid;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::mind::Mind;
use crate::session::Session;

/// What every machine is said to use, in bytes.
const MEMORY_BYTES: u64 = 1 << 20;

/// A machine; it ends when it is killed, and not with the server that raised it.
#[derive(Debug)]
pub(crate) struct Being {
    pub(crate) uid: Uid,
    pub(crate) facts: HostFacts,
    pub(crate) dirs: SandboxDirs,
    pub(crate) mind: Arc<Mutex<Mind>>,
    pub(crate) halted: watch::Sender<bool>,
    pub(crate) death: watch::Sender<Option<Death>>,
    pub(crate) agent: AbortHandle,
}

impl Being {
    pub(crate) fn die(&self, death: Death) {
        self.agent.abort();
        self.death.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(death);
            first
        });
    }

    pub(crate) fn death(&self) -> Option<Death> {
        *self.death.borrow()
    }
}

impl Drop for Being {
    fn drop(&mut self) {
        self.agent.abort();
    }
}

/// A server's grip on a machine.
#[derive(Debug)]
pub(crate) struct Grip {
    pub(crate) being: Arc<Being>,
    pub(crate) session: Arc<Session>,
}

impl Grip {
    async fn halt(&self, before: &'static str, after: &'static str, halted: bool) -> Result<()> {
        self.session.pass(before).await?;
        self.alive()?;
        self.being.halted.send_replace(halted);
        self.session.pass(after).await
    }

    fn alive(&self) -> Result<()> {
        if self.being.death().is_some() { Err(EngineError::Ended) } else { Ok(()) }
    }

    async fn take(&self, places: &CapturePlaces, was_paused: bool) -> Result<Captured> {
        let start = Instant::now();
        self.session.pass("before the pause of a capture").await?;
        self.alive()?;
        if !was_paused {
            self.being.halted.send_replace(true);
        }
        let taken = self.take_halted(places).await;
        if !was_paused {
            self.being.halted.send_replace(false);
        }
        let (files, layer) = taken?;
        self.session.pass("after the resume of a capture").await?;
        self.alive()?;
        let memory = match (&places.memory, files) {
            (Some((memory, memory_tmp)), Some(files)) => Some(MemoryImage::publish(memory_tmp, &files, memory)?),
            _ => None,
        };
        self.session.pass("before a layer is published").await?;
        fs::rename(&places.layer_tmp, &places.layer).map_err(|e| failed("publish a layer", e))?;
        self.session.pass("after a layer is published").await?;
        Ok(Captured { memory, layer, paused: start.elapsed().max(Duration::from_micros(1)) })
    }

    async fn take_halted(&self, places: &CapturePlaces) -> Result<(Option<ImageFiles>, Frozen)> {
        self.session.pass("before a checkpoint").await?;
        let files = match &places.memory {
            None => None,
            Some((_, memory_tmp)) => {
                let files = ImageFiles::create(memory_tmp)?;
                let mind = self.being.mind.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let texts = [serde_json::to_vec(&mind).unwrap_or_default(), b"meta".to_vec(), b"pages".to_vec()];
                for (file, text) in files.descriptors().into_iter().zip(texts) {
                    let file = file.try_clone_to_owned().map(fs::File::from);
                    file.and_then(|file| file.write_all_at(&text, 0)).map_err(|e| failed("write an image", e))?;
                }
                Some(files)
            }
        };
        self.session.pass("before a freeze").await?;
        let layer = freeze(&self.being.dirs.upper, &places.layer_tmp).map_err(|e| failed("freeze", e))?;
        self.session.pass("before the resume of a capture").await?;
        Ok((files, layer))
    }
}

impl Body for Grip {
    fn host_pids(&self) -> [i32; 2] {
        [self.being.facts.sentry.pid, self.being.facts.gofer.pid]
    }

    fn host_facts(&self) -> Result<HostFacts> {
        Ok(self.being.facts.clone())
    }

    fn pause(&self) -> Work<'_, ()> {
        Box::pin(self.halt("before a pause", "after a pause", true))
    }

    fn resume(&self) -> Work<'_, ()> {
        Box::pin(self.halt("before a resume", "after a resume", false))
    }

    fn capture(&self, places: CapturePlaces, was_paused: bool) -> Work<'_, Captured> {
        Box::pin(async move {
            let taken = self.take(&places, was_paused).await;
            if taken.is_err() {
                places.discard()?;
            }
            taken
        })
    }

    fn open_way_out(&self) -> Work<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn dial(&self, port: u16) -> Work<'_, tokio::net::TcpStream> {
        let refused = failed(&format!("connect to port {port}"), io::ErrorKind::ConnectionRefused.into());
        Box::pin(async { Err(refused) })
    }

    fn outside_connections(&self) -> Work<'_, u32> {
        Box::pin(async { Ok(0) })
    }

    fn ended(&self) -> BoxFuture<'_, Death> {
        Box::pin(async {
            let mut deaths = self.being.death.subscribe();
            match deaths.wait_for(Option::is_some).await.map(|death| *death) {
                Ok(Some(death)) => death,
                // The sender is held above.
                _ => std::future::pending().await,
            }
        })
    }

    fn has_ended(&self) -> bool {
        self.being.death().is_some()
    }

    fn memory_bytes(&self) -> u64 {
        MEMORY_BYTES
    }

    fn kill(&self) -> Result<()> {
        match self.session.decide("before a kill") {
            crate::Verdict::GoOn => {
                self.being.die(Death::Ended);
                Ok(())
            }
            crate::Verdict::Fail => Err(failed("kill", io::Error::other("it was to fail here"))),
            crate::Verdict::Hang | crate::Verdict::Die => Ok(()),
        }
    }

    fn both_ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.ended().await;
        })
    }
}

/// Copies what is in `upper`.
pub(crate) fn freeze(upper: &Path, layer: &Path) -> io::Result<Frozen> {
    fs::create_dir(layer)?;
    let mut entries = 0;
    for entry in fs::read_dir(upper)? {
        let entry = entry?;
        fs::copy(entry.path(), layer.join(entry.file_name()))?;
        entries += 1;
    }
    Ok(Frozen { entries, bytes: entries * 4096 })
}

/// A failure with its cause.
pub(crate) fn failed(what: &str, source: io::Error) -> EngineError {
    EngineError::Io { what: what.to_owned(), source }
}
