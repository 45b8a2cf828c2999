//! Watches of a sandbox's files. The agent tells of changes as they happen; each watch keeps the last of them here, with
//! numbers, so that a reader who lost its connection goes on where it was. It goes on for a while without a reader, and
//! then ends. What it can't keep is told as missed, never left out in silence.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use remuda_guest_proto::{Reply, Request, Watch, WatchEvent, WatchKind};
use remuda_types::limits::{WATCH_EVENTS_MAX, WATCH_LINGER_MS, WATCHES_MAX};
use remuda_types::wire::{FileEvent, FileEventKind};
use remuda_types::{Account, Error, ErrorCode, SandboxId};
use tokio::sync::watch;

use crate::access::Action;
use crate::caller::Caller;
use crate::channel::{Channel, Download, unexpected};
use crate::operations::files::failed;

/// Longest line of an agent, in bytes: two paths, escaped.
const LINE_BYTES_MAX: usize = 64 << 10;

/// The watches of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Watches(Mutex<Vec<Weak<Session>>>);

/// One watch.
#[derive(Debug)]
struct Session {
    name: String,
    account: Account,
    asked: Watch,
    kept: Mutex<Kept>,
    /// Moves whenever there is more.
    moved: watch::Sender<u64>,
    /// How many read it.
    readers: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Told>,
    /// Number of the next one.
    next: u64,
    ended: bool,
}

/// What a watch tells.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// A change.
    Event(FileEvent),
    /// More happened than was kept: whoever must know looks at all of it.
    Missed,
}

/// Reads a watch.
#[derive(Debug)]
pub struct FileWatcher {
    session: Arc<Session>,
    caller: Caller,
    next: u64,
    moved: watch::Receiver<u64>,
    /// To be told before anything else.
    missed: bool,
}

/// Where a reader was, as it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchPlace {
    /// The watch's name.
    pub watch: String,
    /// The next number.
    pub next: u64,
}

impl Session {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, told: Told) {
        let mut kept = self.kept();
        kept.next += 1;
        kept.events.push_back(told);
        if kept.events.len() > WATCH_EVENTS_MAX {
            kept.events.pop_front();
        }
        let next = kept.next;
        drop(kept);
        self.moved.send_replace(next);
    }

    /// Takes what the agent tells, until it ends or nobody has read for a while.
    async fn run(self: Arc<Self>, mut download: Download) {
        let mut line = Vec::new();
        loop {
            let piece = tokio::select! {
                piece = download.next() => piece,
                () = self.left_alone() => break,
            };
            let Some(Ok(piece)) = piece else { break };
            for part in piece.split_inclusive(|byte| *byte == b'\n') {
                line.extend_from_slice(part);
                if !line.ends_with(b"\n") {
                    continue;
                }
                // Believed no further than that it is one: a guest may tell anything of its own files.
                match serde_json::from_slice::<WatchEvent>(&line) {
                    Ok(event) => self.push(told(event)),
                    Err(_) => self.push(Told::Missed),
                }
                line.clear();
            }
            if line.len() > LINE_BYTES_MAX {
                break;
            }
        }
        self.kept().ended = true;
        self.moved.send_modify(|_| {});
    }

    async fn left_alone(&self) {
        let mut readers = self.readers.subscribe();
        loop {
            // The sender lives as long as this.
            let _ = readers.wait_for(|count| *count == 0).await;
            let linger = Duration::from_millis(WATCH_LINGER_MS);
            if tokio::time::timeout(linger, readers.wait_for(|count| *count > 0)).await.is_err() {
                return;
            }
        }
    }
}

fn told(event: WatchEvent) -> Told {
    let WatchEvent { kind, path, from, directory } = event;
    let kind = match kind {
        WatchKind::Created => FileEventKind::Created,
        WatchKind::Changed => FileEventKind::Changed,
        WatchKind::Attributes => FileEventKind::Attributes,
        WatchKind::Removed => FileEventKind::Removed,
        WatchKind::Moved => FileEventKind::Moved,
        WatchKind::Skipped => FileEventKind::Skipped,
        WatchKind::Gone => FileEventKind::Gone,
        WatchKind::Missed => return Told::Missed,
    };
    Told::Event(FileEvent { kind, path, from, directory })
}

impl Watches {
    fn all(&self) -> MutexGuard<'_, Vec<Weak<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reader of a watch: of the one it read before, where it was, if that is still there; else of a new one.
    pub(crate) async fn read(
        &self,
        channel: &Channel,
        caller: &Caller,
        id: &SandboxId,
        asked: Watch,
        place: Option<WatchPlace>,
    ) -> Result<FileWatcher, Error> {
        let missed = place.is_some();
        if let Some(WatchPlace { watch, next }) = place
            && let Some(reader) = self.go_on(caller, &asked, &watch, next)
        {
            return Ok(reader);
        }
        let room = {
            let mut all = self.all();
            all.retain(|session| session.upgrade().is_some_and(|session| !session.kept().ended));
            all.len() < WATCHES_MAX
        };
        if !room {
            return Err(Error::new(
                ErrorCode::LimitReached,
                format!("{WATCHES_MAX} watches of files are open in {id}"),
            )
            .remedy("close one; one that lost its reader ends after a minute")
            .detail("limit", "watches_max"));
        }
        let request = Request::Watch(asked.clone());
        let (reply, download) = Download::start(channel, request).await.map_err(|e| failed(id, e))?;
        let Reply::Opened { .. } = reply else { return Err(failed(id, unexpected(&reply))) };
        let name: [u8; 8] = crate::clock::entropy()?;
        let session = Arc::new(Session {
            name: name.iter().map(|byte| format!("{byte:02x}")).collect(),
            account: caller.account.clone(),
            asked,
            kept: Mutex::default(),
            moved: watch::Sender::new(0),
            readers: watch::Sender::new(0),
        });
        self.all().push(Arc::downgrade(&session));
        let reader = FileWatcher::of(session.clone(), caller, 0, missed);
        tokio::spawn(session.run(download));
        Ok(reader)
    }

    fn go_on(&self, caller: &Caller, asked: &Watch, name: &str, next: u64) -> Option<FileWatcher> {
        let session = self.all().iter().filter_map(Weak::upgrade).find(|session| session.name == name)?;
        let is_same = session.account == caller.account && session.asked == *asked;
        // A number that was never given is none of this watch's.
        let known = is_same && next <= session.kept().next;
        known.then(|| FileWatcher::of(session, caller, next, false))
    }
}

impl FileWatcher {
    fn of(session: Arc<Session>, caller: &Caller, next: u64, missed: bool) -> FileWatcher {
        session.readers.send_modify(|count| *count += 1);
        let moved = session.moved.subscribe();
        FileWatcher { session, caller: caller.clone(), next, moved, missed }
    }

    /// Where this reader is.
    pub fn place(&self) -> WatchPlace {
        WatchPlace { watch: self.session.name.clone(), next: self.next }
    }

    /// What comes next, all that there is; waits for it. Nothing once the watch has ended.
    ///
    /// # Errors
    /// `unauthorized` where the caller's key is no more.
    pub async fn next(&mut self) -> Result<Option<Vec<(u64, Told)>>, Error> {
        loop {
            self.caller.may(Action::WatchFiles)?;
            self.moved.borrow_and_update();
            if let Some(told) = self.ready() {
                return Ok(told);
            }
            if self.moved.changed().await.is_err() {
                return Ok(None);
            }
        }
    }

    /// What there is; nothing at all where it must be waited for.
    fn ready(&mut self) -> Option<Option<Vec<(u64, Told)>>> {
        let kept = self.session.kept();
        let oldest = kept.next - kept.events.len() as u64;
        let missed = std::mem::take(&mut self.missed) || self.next < oldest;
        self.next = self.next.max(oldest);
        let from = usize::try_from(self.next - oldest).unwrap_or(usize::MAX);
        let mut told: Vec<(u64, Told)> = missed.then_some((self.next, Told::Missed)).into_iter().collect();
        for event in kept.events.iter().skip(from) {
            self.next += 1;
            told.push((self.next, event.clone()));
        }
        match (told.is_empty(), kept.ended) {
            (false, _) => Some(Some(told)),
            (true, true) => Some(None),
            (true, false) => None,
        }
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        self.session.readers.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Arc<Session> {
        Arc::new(Session {
            name: "w".into(),
            account: "default".parse().unwrap(),
            asked: Watch { path: "/a".into(), user: "user".into(), recursive: true },
            kept: Mutex::default(),
            moved: watch::Sender::new(0),
            readers: watch::Sender::new(0),
        })
    }

    fn event(path: &str) -> Told {
        told(WatchEvent { kind: WatchKind::Created, path: path.into(), from: None, directory: false })
    }

    #[tokio::test]
    async fn a_reader_goes_on_where_it_was_and_learns_what_it_missed() {
        let (session, caller) = (session(), Caller::operator());
        let watches = Watches(Mutex::new(vec![Arc::downgrade(&session)]));
        let mut reader = FileWatcher::of(session.clone(), &caller, 0, false);
        session.push(event("/a/1"));
        session.push(event("/a/2"));
        assert_eq!(reader.next().await.unwrap(), Some(vec![(1, event("/a/1")), (2, event("/a/2"))]));
        let place = reader.place();
        drop(reader);
        session.push(event("/a/3"));
        let mut again = watches.go_on(&caller, &session.asked, &place.watch, place.next).unwrap();
        assert_eq!(again.next().await.unwrap(), Some(vec![(3, event("/a/3"))]));
        for number in 0..=WATCH_EVENTS_MAX {
            session.push(event(&number.to_string()));
        }
        let mut late = watches.go_on(&caller, &session.asked, &place.watch, place.next).unwrap();
        let told = late.next().await.unwrap().unwrap();
        assert_eq!((told.len(), &told[0].1), (WATCH_EVENTS_MAX + 1, &Told::Missed));
        // Another watch's number, or one that was never given, is none.
        assert!(watches.go_on(&caller, &session.asked, "other", 0).is_none());
        assert!(watches.go_on(&caller, &session.asked, "w", u64::MAX).is_none());
        let other = Watch { recursive: false, ..session.asked.clone() };
        assert!(watches.go_on(&caller, &other, "w", 0).is_none());
        session.kept().ended = true;
        assert_eq!(late.next().await.unwrap(), None);
    }
}
