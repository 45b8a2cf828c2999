//! Files of a guest: each call is one call to the agent, contents are streamed through it.

use std::sync::Arc;

use futures_util::StreamExt;
use remuda_guest_proto::{AgentErrorKind, Entry, EntryKind, Reply, Request};
use remuda_journal::Reservation;
use remuda_types::limits::{DIRECTORY_ENTRIES_MAX, FILE_DIGEST_BYTES_MAX, PATH_BYTES_MAX};
use remuda_types::wire::{FileKind, FileList, FileStat};
use remuda_types::{Error, ErrorCode, SandboxId};

use crate::caller::Caller;
use crate::channel::{ChannelError, Download, unexpected};
use crate::deadlines::Working;
use crate::driver::Live;
use crate::operations::execute::USER_DEFAULT;
use crate::platform::Platform;
use crate::stream::{ByteStream, FileAt, FileContents, FileRead, ReadOptions};

pub(crate) async fn read(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    at: &FileAt,
    options: ReadOptions,
) -> Result<FileRead, Error> {
    let path = checked(&at.path)?;
    let user = user_of(&at.user);
    let cell = platform.living(caller, id).await?;
    let working = cell.life.work().begin();
    let channel = &cell.live()?.channel;
    let ReadOptions { range, conditions } = options;
    let plain = range.is_none() && conditions.is_empty();
    let open = Request::OpenFile {
        path: path.clone(),
        user: user.clone(),
        range,
        conditions,
        digest_bytes_max: FILE_DIGEST_BYTES_MAX,
    };
    // An old agent reads whole files, and tells no digest.
    let request = if plain && channel.knows(&open).is_err() { Request::ReadFile { path, user } } else { open };
    let (reply, download) = match Download::start(channel, request).await {
        Ok(started) => started,
        Err(ChannelError::Agent(refusal)) if refusal.kind == AgentErrorKind::Unchanged => {
            return Ok(FileRead::Unchanged { digest: shown_digest(&refusal.message).unwrap_or_default() });
        }
        Err(e) => {
            let is_behind = matches!(&e, ChannelError::Agent(refusal) if refusal.kind == AgentErrorKind::OutOfRange);
            let error = failed(id, e);
            if !is_behind {
                return Err(error);
            }
            // How long it is, for whoever asks for another part.
            return Err(match stat(platform, caller, id, at, false).await {
                Ok(stat) => error.detail("size", stat.size),
                Err(_) => error,
            });
        }
    };
    // It is under way until it was read.
    let bytes: ByteStream = Box::pin(download.inspect(move |_| working.goes_on()));
    Ok(FileRead::Contents(match reply {
        Reply::Opened { entry, first, length } => FileContents { stat: stat_of(entry), first, length, bytes },
        reply => {
            let stat = entry(id, reply)?;
            FileContents { first: 0, length: stat.size, stat, bytes }
        }
    }))
}

pub(crate) async fn list(platform: &Platform, caller: &Caller, id: &SandboxId, at: &FileAt) -> Result<FileList, Error> {
    let (path, user) = (checked(&at.path)?, user_of(&at.user));
    let request = Request::List { path, user, limit: DIRECTORY_ENTRIES_MAX as u32 };
    match call(platform, caller, id, request).await? {
        Reply::Entries { entries, truncated } => {
            let mut entries: Vec<FileStat> = entries.into_iter().map(stat_of).collect();
            entries.sort_by(|a, b| a.path.cmp(&b.path));
            Ok(FileList { path: at.path.clone(), entries, truncated })
        }
        other => Err(failed(id, unexpected(&other))),
    }
}

pub(crate) async fn stat(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    at: &FileAt,
    digest: bool,
) -> Result<FileStat, Error> {
    let request = Request::Stat { path: checked(&at.path)?, user: user_of(&at.user), digest };
    entry(id, call(platform, caller, id, request).await?)
}

/// The last part of a path alone may be a link here: links before it are the guest's kernel's to follow.
pub(crate) async fn stat_behind_links(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    at: &FileAt,
) -> Result<FileStat, Error> {
    // As many as Linux follows.
    const LINKS_MAX: usize = 40;
    let mut at = at.clone();
    for _ in 0..LINKS_MAX {
        let stat = stat(platform, caller, id, &at, false).await?;
        let Some(target) = stat.target.as_ref().filter(|_| stat.kind == FileKind::Symlink) else { return Ok(stat) };
        at.path = match at.path.rsplit_once('/') {
            Some((directory, _)) if !target.starts_with('/') => format!("{directory}/{target}"),
            _ => target.clone(),
        };
    }
    Err(Error::new(ErrorCode::FileNotFound, format!("{:?} is a link to too many links", at.path)))
}

pub(crate) async fn read_tree(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    at: &FileAt,
) -> Result<ByteStream, Error> {
    let request = Request::PackTree { path: checked(&at.path)?, user: user_of(&at.user) };
    let cell = platform.living(caller, id).await?;
    let working = cell.life.work().begin();
    let (reply, download) = Download::start(&cell.live()?.channel, request).await.map_err(|e| failed(id, e))?;
    match reply {
        Reply::Opened { .. } => Ok(Box::pin(download.inspect(move |_| working.goes_on()))),
        other => Err(failed(id, unexpected(&other))),
    }
}

/// Whose permissions count.
pub(crate) fn user_of(user: &Option<String>) -> String {
    user.clone().unwrap_or_else(|| USER_DEFAULT.into())
}

/// A digest as it is told; what is none is none.
pub(crate) fn shown_digest(hex: &str) -> Option<String> {
    (hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())).then(|| format!("sha256:{hex}"))
}

/// A guest that may be spoken to, in which something is done for as long as this is held.
pub(crate) struct Reached {
    pub(crate) live: Arc<Live>,
    _working: Working,
}

/// Whether the guest may be spoken to, and the path is one.
pub(crate) async fn judged(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    path: &str,
) -> Result<(Reached, Reservation), Error> {
    checked(path)?;
    let cell = platform.living(caller, id).await?;
    let working = cell.life.work().begin();
    Ok((Reached { live: cell.live()?.clone(), _working: working }, Reservation::default()))
}

pub(crate) async fn call(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    request: Request,
) -> Result<Reply, Error> {
    let cell = platform.living(caller, id).await?;
    cell.live()?.channel.call(request).await.map_err(|e| failed(id, e))
}

/// On the way to the guest a path is only text; what it means is decided there.
pub(crate) fn checked(path: &str) -> Result<String, Error> {
    if path.starts_with('/') && path.len() <= PATH_BYTES_MAX && !path.contains('\0') {
        return Ok(path.to_owned());
    }
    let shown: String = path.chars().take(80).collect();
    let message = format!("{shown:?} is not an absolute path of at most {PATH_BYTES_MAX} bytes");
    Err(Error::new(ErrorCode::InvalidRequest, message))
}

pub(crate) fn entry(id: &SandboxId, reply: Reply) -> Result<FileStat, Error> {
    match reply {
        Reply::Entry(entry) => Ok(stat_of(entry)),
        other => Err(failed(id, unexpected(&other))),
    }
}

pub(crate) fn failed(id: &SandboxId, e: crate::channel::ChannelError) -> Error {
    crate::errors::channel(id, e)
}

pub(crate) fn stat_of(entry: Entry) -> FileStat {
    FileStat {
        path: entry.path,
        kind: match entry.kind {
            EntryKind::File => FileKind::File,
            EntryKind::Directory => FileKind::Directory,
            EntryKind::Symlink => FileKind::Symlink,
            EntryKind::Other => FileKind::Other,
        },
        size: entry.size,
        mode: entry.mode,
        uid: entry.uid,
        gid: entry.gid,
        modified_at_ms: entry.modified_ms,
        target: entry.target,
        // As a guest says it: what is no digest is none.
        digest: entry.digest.and_then(|hex| shown_digest(&hex)),
    }
}
