//! Watches files for the host, by inotify: one thread that sleeps until something happens or the host has enough. What it
//! can't keep up with is told as missed, never left out in silence. Reads no file.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use remuda_guest_proto::{AgentError, AgentErrorKind, Frame, Kind, Reply, Watch, WatchEvent, WatchKind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::tree::Outward;
use super::{entry, named, sound};
use crate::agent::{Agent, Place};
use crate::errors::{failed, failed_io, invalid, refusal};
use crate::limits::{WATCH_BATCH_MAX, WATCH_DIRECTORIES_MAX, WATCHES_MAX};
use crate::outbox::Host;
use crate::transfers::Transfer;
use crate::user_thread::as_user;

/// Takes up a [`Watch`].
pub fn watch(agent: &Arc<Agent>, host: Host, call: u32, watch: Watch) {
    let place = Place::take(&agent.live_watches, WATCHES_MAX)
        .ok_or_else(|| refusal(AgentErrorKind::Busy, format!("{WATCHES_MAX} watches are at work")));
    let place = match place {
        Ok(place) => place,
        Err(error) => return agent.reply(host, call, &Err(error)),
    };
    let transfer = match agent.execution(call) {
        None => agent.transfers.begin(host, call),
        Some(_) => None,
    };
    let Some(transfer) = transfer else {
        return agent.reply(host, call, &Err(invalid(format!("channel {call} is in use"))));
    };
    let (for_thread, of_thread) = (agent.clone(), transfer.clone());
    let started = agent.workers.run(move || {
        let (agent, transfer) = (&for_thread, &of_thread);
        let watched = as_user(agent, &watch.user, |_| {
            let path = sound(&watch.path)?;
            let mut watcher = Watcher::begin(path, watch.recursive)?;
            let entry = entry::of(path)?;
            agent.reply(host, call, &Ok(Reply::Opened { entry, first: 0, length: 0 }));
            Ok(watcher.run(agent, transfer))
        });
        match watched {
            Err(error) => agent.reply(host, call, &Err(error)),
            Ok(ended) => {
                let payload = match ended {
                    Ok(()) => Vec::new(),
                    Err(errno) => {
                        let error = failed(format!("watch {}", named(Path::new(&watch.path))), errno);
                        serde_json::to_vec(&error).unwrap_or_else(|_| b"null".to_vec())
                    }
                };
                agent.outbox.push(host, Frame::new(Kind::GuestEnd, call, payload));
            }
        }
        agent.transfers.end(transfer);
        drop(place);
    });
    if let Err(error) = started {
        agent.transfers.end(&transfer);
        let message = format!("there can't be another thread: {error}");
        agent.reply(host, call, &Err(refusal(AgentErrorKind::Busy, message)));
    }
}

struct Watcher {
    fd: OwnedFd,
    base: PathBuf,
    recursive: bool,
    /// What is watched, by its number. Of a file that is watched itself, the file.
    watched: HashMap<i32, PathBuf>,
    /// What is to be told.
    events: Vec<WatchEvent>,
    /// The last that was told of each path in this batch.
    last: HashMap<PathBuf, WatchKind>,
    gone: bool,
}

impl Watcher {
    fn begin(base: &Path, recursive: bool) -> Result<Watcher, AgentError> {
        let cannot = |errno| failed(format!("watch {}", named(base)), errno);
        let meta = fs::metadata(base).map_err(|error| failed_io(format!("watch {}", named(base)), &error))?;
        let mut watcher = Watcher {
            fd: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(cannot)?,
            base: base.to_owned(),
            recursive: recursive && meta.is_dir(),
            watched: HashMap::new(),
            events: Vec::new(),
            last: HashMap::new(),
            gone: false,
        };
        watcher.add(base, WatchFlags::empty()).map_err(cannot)?;
        if watcher.recursive {
            watcher.below(base, false);
        }
        if let Some(skipped) = watcher.events.iter().find(|event| event.kind == WatchKind::Missed) {
            let message = format!("{} has more than {WATCH_DIRECTORIES_MAX} directories below it", named(base));
            return Err(refusal(AgentErrorKind::Busy, format!("{message}, such as {}", skipped.path)));
        }
        Ok(watcher)
    }

    fn add(&mut self, path: &Path, more: WatchFlags) -> Result<(), Errno> {
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | more;
        let number = inotify::add_watch(&self.fd, path, flags)?;
        self.watched.insert(number, path.to_owned());
        Ok(())
    }

    /// Watches the directories below one; tells of what is there, if it is news.
    fn below(&mut self, top: &Path, news: bool) {
        let mut way = vec![top.to_owned()];
        while let Some(directory) = way.pop() {
            let found = match fs::read_dir(&directory) {
                Ok(found) => found,
                Err(error) => {
                    self.skip(&directory, Errno::from_io_error(&error).unwrap_or(Errno::IO));
                    continue;
                }
            };
            for one in found.flatten() {
                let is_directory = one.file_type().is_ok_and(|kind| kind.is_dir());
                if news {
                    self.tell(WatchKind::Created, &one.path(), is_directory);
                }
                if !is_directory {
                    continue;
                }
                if self.watched.len() >= WATCH_DIRECTORIES_MAX {
                    return self.tell(WatchKind::Missed, &one.path(), true);
                }
                // Also one that became a link meanwhile leads nowhere else.
                match self.add(&one.path(), WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW) {
                    Ok(()) => way.push(one.path()),
                    Err(errno) => self.skip(&one.path(), errno),
                }
            }
        }
    }

    fn skip(&mut self, path: &Path, errno: Errno) {
        // It came and went.
        if errno != Errno::NOENT && errno != Errno::NOTDIR {
            self.tell(WatchKind::Skipped, path, true);
        }
    }

    fn tell(&mut self, kind: WatchKind, path: &Path, directory: bool) {
        // A program that writes on and on is told of once each time somebody looks.
        if self.last.insert(path.to_owned(), kind) != Some(kind) {
            let path = path.to_string_lossy().into_owned();
            self.events.push(WatchEvent { kind, path, from: None, directory });
        }
    }

    /// Tells the host what happens, until it has enough or there is nothing left to watch.
    fn run(&mut self, agent: &Agent, transfer: &Transfer) -> Result<(), Errno> {
        let over = transfer.over_fd()?;
        // It holds nothing while nothing happens.
        let mut outward = Outward { agent, transfer, waiting: Vec::new() };
        loop {
            for event in self.events.drain(..) {
                let mut line = serde_json::to_vec(&event).unwrap_or_default();
                line.push(b'\n');
                if outward.write_all(&line).is_err() {
                    return Ok(());
                }
            }
            if outward.flush().is_err() || self.gone {
                return Ok(());
            }
            self.last.clear();
            let mut fds = [PollFd::from_borrowed_fd(over, PollFlags::IN), PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            let [ended, happened] = fds.map(|fd| !fd.revents().is_empty());
            if ended {
                return Ok(());
            }
            if happened {
                self.take()?;
            }
        }
    }

    /// Takes what has happened.
    fn take(&mut self) -> Result<(), Errno> {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 8 << 10];
        let mut raw = Vec::new();
        {
            let mut reader = inotify::Reader::new(self.fd.as_fd(), &mut buffer);
            while raw.len() < WATCH_BATCH_MAX {
                match reader.next() {
                    Ok(event) => {
                        let name = event.file_name().map(|name| name.to_bytes().to_vec());
                        raw.push((event.wd(), event.events(), event.cookie(), name));
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        // What left one place, until it is known whether it came to another.
        let mut left: HashMap<u32, (PathBuf, bool)> = HashMap::new();
        for (number, flags, cookie, name) in raw {
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                let base = self.base.clone();
                self.tell(WatchKind::Missed, &base, false);
                // Directories may have come unseen.
                if self.recursive {
                    self.below(&base, false);
                }
                continue;
            }
            let Some(at) = self.watched.get(&number).cloned() else { continue };
            if flags.contains(ReadFlags::IGNORED) {
                self.watched.remove(&number);
                continue;
            }
            let directory = flags.contains(ReadFlags::ISDIR);
            let Some(name) = name.filter(|name| !name.is_empty()) else {
                self.of_itself(&at, flags);
                continue;
            };
            let path = at.join(OsStr::from_bytes(&name));
            if flags.contains(ReadFlags::MOVED_FROM) {
                left.insert(cookie, (path, directory));
            } else if flags.contains(ReadFlags::MOVED_TO) {
                match left.remove(&cookie) {
                    Some((from, _)) => self.moved(&from, &path, directory),
                    None => self.came(&path, directory),
                }
            } else if flags.contains(ReadFlags::CREATE) {
                self.came(&path, directory);
            } else if flags.contains(ReadFlags::DELETE) {
                self.tell(WatchKind::Removed, &path, directory);
            } else if flags.contains(ReadFlags::MODIFY) {
                self.tell(WatchKind::Changed, &path, directory);
            } else if flags.contains(ReadFlags::ATTRIB) {
                self.tell(WatchKind::Attributes, &path, directory);
            }
        }
        for (path, directory) in left.into_values() {
            self.tell(WatchKind::Removed, &path, directory);
            if directory {
                self.forget(&path);
            }
        }
        Ok(())
    }

    /// Something happened to what is watched itself. Of a directory below, the one it is in tells it.
    fn of_itself(&mut self, at: &Path, flags: ReadFlags) {
        if at != self.base {
            return;
        }
        if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
            self.tell(WatchKind::Gone, at, false);
            self.gone = true;
        } else if flags.contains(ReadFlags::MODIFY) {
            self.tell(WatchKind::Changed, at, false);
        } else if flags.contains(ReadFlags::ATTRIB) {
            // A file that is replaced by another loses its last name first.
            if fs::symlink_metadata(at).is_err() {
                self.tell(WatchKind::Gone, at, false);
                self.gone = true;
            } else {
                self.tell(WatchKind::Attributes, at, flags.contains(ReadFlags::ISDIR));
            }
        }
    }

    fn came(&mut self, path: &Path, directory: bool) {
        self.tell(WatchKind::Created, path, directory);
        if !directory || !self.recursive {
            return;
        }
        if self.watched.len() >= WATCH_DIRECTORIES_MAX {
            return self.tell(WatchKind::Missed, path, true);
        }
        match self.add(path, WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW) {
            // What was put into it before it was watched.
            Ok(()) => self.below(path, true),
            Err(errno) => self.skip(path, errno),
        }
    }

    fn moved(&mut self, from: &Path, to: &Path, directory: bool) {
        self.last.remove(from);
        self.last.insert(to.to_owned(), WatchKind::Moved);
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let event = WatchEvent { kind: WatchKind::Moved, path: text(to), from: Some(text(from)), directory };
        self.events.push(event);
        if directory {
            // It is watched under its number still, and so is what lies in it.
            for path in self.watched.values_mut() {
                if let Ok(rest) = path.strip_prefix(from) {
                    *path = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
                }
            }
        }
    }

    /// What was moved away is watched no more.
    fn forget(&mut self, top: &Path) {
        let numbers = self.watched.iter().filter(|(_, path)| path.starts_with(top)).map(|(number, _)| *number);
        for number in numbers.collect::<Vec<_>>() {
            self.watched.remove(&number);
            // It may have gone by itself.
            let _ = inotify::remove_watch(&self.fd, number);
        }
    }
}
