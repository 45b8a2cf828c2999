//! The journal's handle: opening, closing, and the way of a call to the threads that write and read. What the calls
//! mean is in `calls`; nothing in here may know a table.

use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use tokio::sync::{Semaphore, oneshot};

use crate::announcer::Announcer;
use crate::error::{JournalError, OpenError};
use crate::gate::Gate;
use crate::limits::{READERS, READS_QUEUED_MAX, WRITES_QUEUED_MAX};
use crate::settings::Settings;
use crate::store::readers::{self, Look};
use crate::store::reserve::Reserve;
use crate::store::writer::{Ask, Call, Purpose, Writer};
use crate::store::{self, Db, Tx};

/// The journal of one server. Clones share it.
///
/// Every call that changes something has been written to the disk when it answers. Whoever drops a call's future has
/// not taken the call back: it may still take place.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

struct Inner {
    path: PathBuf,
    settings: Settings,
    announcer: Arc<Announcer>,
    stopped: Arc<OnceLock<String>>,
    writes: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    threads: Mutex<Threads>,
}

/// Each thread holds its other end; nothing is ever sent.
type Ended = tokio::sync::mpsc::Receiver<std::convert::Infallible>;

/// Threads end when the last sender is gone. Those that read go first: whoever closes the database last takes its log
/// and its index away, and only the one that writes can.
struct Threads {
    write: Option<Sender<Box<dyn Ask>>>,
    read: Option<Sender<Look>>,
    readers: Vec<JoinHandle<()>>,
    writer: Option<JoinHandle<()>>,
    /// Ends when every thread that reads has let go of the database.
    readers_ended: Option<Ended>,
    /// Ends when the one that writes has written what there was and let go of it.
    writer_ended: Option<Ended>,
}

impl Journal {
    /// Opens the journal in a directory, or makes one there. Only one server at a time may have it open. It blocks for
    /// as long as the check of the database takes.
    ///
    /// # Errors
    /// Another server uses it; it is damaged, foreign, or of a newer build; the directory can't be used. Nothing was
    /// written then.
    pub fn open(directory: &Path, settings: Settings) -> Result<Journal, OpenError> {
        Journal::open_behind(directory, settings, None)
    }

    /// The same behind a gate.
    ///
    /// # Errors
    /// As for [`Journal::open`].
    pub fn open_behind(
        directory: &Path,
        settings: Settings,
        gate: Option<Arc<dyn Gate>>,
    ) -> Result<Journal, OpenError> {
        let mut reserve = Reserve::at(directory.join("journal.reserve"), settings.reserve_bytes);
        let opened = match store::open(directory) {
            // Recovery has outcomes to write: this is what the reserve is for.
            Err(OpenError::Io { full: true, .. }) if reserve.release() => store::open(directory),
            opened => opened,
        }?;
        reserve.take();
        let path = opened.path;
        let announcer = Arc::<Announcer>::default();
        let stopped = Arc::<OnceLock<String>>::default();
        let (write, to_write) = mpsc::channel::<Box<dyn Ask>>();
        let (read, to_read) = mpsc::channel::<Look>();
        let (end, readers_ended) = tokio::sync::mpsc::channel(1);
        let mut readers = Vec::with_capacity(READERS);
        let to_read = Arc::new(Mutex::new(to_read));
        for _ in 0..READERS {
            let (conn, place, to_read, end) = (store::open_reader(&path)?, path.clone(), to_read.clone(), end.clone());
            readers.push(spawn(&path, "journal-read", move || {
                readers::serve(&conn, &place, &to_read);
                drop(conn);
                drop(end);
            })?);
        }
        drop(end);
        let (end, writer_ended) = tokio::sync::mpsc::channel(1);
        let writer = Writer::new(opened.writer, path.clone(), reserve, announcer.clone(), stopped.clone());
        let writer = writer.behind(gate);
        let lock = opened.lock;
        let writer = spawn(&path, "journal-write", move || {
            writer.serve(&to_write);
            // Not before the last write.
            drop(lock);
            drop(end);
        })?;
        let threads = Threads {
            write: Some(write),
            read: Some(read),
            readers,
            writer: Some(writer),
            readers_ended: Some(readers_ended),
            writer_ended: Some(writer_ended),
        };
        let inner = Inner {
            path,
            settings,
            announcer,
            stopped,
            writes: Arc::new(Semaphore::new(WRITES_QUEUED_MAX)),
            reads: Arc::new(Semaphore::new(READS_QUEUED_MAX)),
            threads: Mutex::new(threads),
        };
        Ok(Journal { inner: Arc::new(inner) })
    }

    /// Writes what waits and closes; calls of other clones are refused from now on. Dropping the last clone does the
    /// same and blocks meanwhile.
    ///
    /// # Errors
    /// When writing had failed and it is not known what was written.
    pub async fn close(self) -> Result<(), JournalError> {
        let threads = || self.inner.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let readers_ended = {
            let mut threads = threads();
            threads.read = None;
            threads.readers_ended.take()
        };
        if let Some(mut ended) = readers_ended {
            // Nothing comes; it answers when the last other end is gone.
            let _ = ended.recv().await;
        }
        let writer_ended = {
            let mut threads = threads();
            threads.write = None;
            threads.writer_ended.take()
        };
        if let Some(mut ended) = writer_ended {
            let _ = ended.recv().await;
        }
        match self.inner.stopped.get() {
            Some(cause) => Err(JournalError::Stopped { path: self.inner.path.clone(), cause: cause.clone() }),
            None => Ok(()),
        }
    }

    /// Where the database is.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// What it was opened with.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Why nothing is written any more, if that is so. Nothing helps then but another opening.
    pub fn stopped(&self) -> Option<&str> {
        self.inner.stopped.get().map(String::as_str)
    }

    pub(crate) fn announcer(&self) -> &Announcer {
        &self.inner.announcer
    }

    /// Has something written, and waits until it is on the disk.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        purpose: Purpose,
        run: impl FnMut(&Tx<'_>) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        self.ask(purpose, true, run).await?.await
    }

    /// Has something written soon, and doesn't wait.
    pub(crate) async fn write_soon<T: Send + 'static>(
        &self,
        run: impl FnMut(&Tx<'_>) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<Answer<T>, JournalError> {
        self.ask(Purpose::Record, false, run).await
    }

    async fn ask<T: Send + 'static>(
        &self,
        purpose: Purpose,
        awaited: bool,
        run: impl FnMut(&Tx<'_>) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<Answer<T>, JournalError> {
        let place = self.inner.writes.clone().acquire_owned().await.map_err(|_| JournalError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let call = Box::new(Call { purpose, awaited, run, result: None, reply, _place: place });
        let threads = self.inner.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let write = threads.write.as_ref().ok_or(JournalError::Closed)?;
        write.send(call).map_err(|_| JournalError::Closed)?;
        Ok(Answer(answer))
    }

    /// Reads.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Db<'_>) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let _place = self.inner.reads.acquire().await.map_err(|_| JournalError::Closed)?;
        let (reply, answer) = oneshot::channel();
        let look: Look = Box::new(move |db| {
            // Whoever asked may be gone.
            let _ = reply.send(db.and_then(|db| run(&db)));
        });
        {
            let threads = self.inner.threads.lock().unwrap_or_else(PoisonError::into_inner);
            let read = threads.read.as_ref().ok_or(JournalError::Closed)?;
            read.send(look).map_err(|_| JournalError::Closed)?;
        }
        Answer(answer).await
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let threads = self.threads.get_mut().unwrap_or_else(PoisonError::into_inner);
        threads.read = None;
        for handle in threads.readers.drain(..) {
            // A thread that panicked has ended.
            let _ = handle.join();
        }
        threads.write = None;
        if let Some(handle) = threads.writer.take() {
            let _ = handle.join();
        }
    }
}

fn spawn(path: &Path, name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, OpenError> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|e| OpenError::Io {
        path: path.to_owned(),
        cause: format!("no thread can be started: {e}"),
        full: false,
        read_only: false,
    })
}

/// What becomes of a call that is under way.
pub(crate) struct Answer<T>(oneshot::Receiver<Result<T, JournalError>>);

impl<T> Future for Answer<T> {
    type Output = Result<T, JournalError>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| {
            // The thread ended, or the call's code panicked in it.
            answer.unwrap_or_else(|_| Err(JournalError::internal("a call was not answered")))
        })
    }
}

/// A change that is on its way to the disk, at the latest 50 ms after it was made. Awaiting it is optional and tells
/// when it is there; dropping it takes nothing back.
#[must_use = "drop it with `drop` where nobody needs to know when it is on the disk"]
pub struct Underway(pub(crate) Answer<()>);

impl fmt::Debug for Underway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Underway")
    }
}

impl Future for Underway {
    type Output = Result<(), JournalError>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}
