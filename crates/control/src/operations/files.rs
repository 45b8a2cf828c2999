//! Files of a guest: each call is one call to the agent, contents are streamed through it.

use std::sync::Arc;

use futures_util::StreamExt;
use remuda_guest_proto::{Entry, EntryKind, Reply, Request};
use remuda_journal::Reservation;
use remuda_types::limits::{DIRECTORY_ENTRIES_MAX, PATH_BYTES_MAX};
use remuda_types::wire::{FileKind, FileList, FileStat};
use remuda_types::{Error, ErrorCode, SandboxId};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::channel::{Download, unexpected};
use crate::deadlines::Working;
use crate::driver::Live;
use crate::operation::{Ended, Operation, Work};
use crate::operations::execute::{USER_DEFAULT, handed_over};
use crate::platform::Platform;
use crate::stream::ByteStream;

pub(crate) async fn read(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    path: &str,
) -> Result<(FileStat, ByteStream), Error> {
    let request = Request::ReadFile { path: checked(path)?, user: USER_DEFAULT.into() };
    let cell = platform.living(caller, id).await?;
    let working = cell.life.work().begin();
    let (reply, download) = Download::start(&cell.live()?.channel, request).await.map_err(|e| failed(id, e))?;
    // It is under way until it was read.
    let download = download.inspect(move |_| working.goes_on());
    Ok((entry(id, reply)?, Box::pin(download)))
}

pub(crate) async fn list(platform: &Platform, caller: &Caller, id: &SandboxId, path: &str) -> Result<FileList, Error> {
    let request =
        Request::List { path: checked(path)?, user: USER_DEFAULT.into(), limit: DIRECTORY_ENTRIES_MAX as u32 };
    match call(platform, caller, id, request).await? {
        Reply::Entries { entries, truncated } => {
            let mut entries: Vec<FileStat> = entries.into_iter().map(stat_of).collect();
            entries.sort_by(|a, b| a.path.cmp(&b.path));
            Ok(FileList { path: path.to_owned(), entries, truncated })
        }
        other => Err(failed(id, unexpected(&other))),
    }
}

pub(crate) async fn stat(platform: &Platform, caller: &Caller, id: &SandboxId, path: &str) -> Result<FileStat, Error> {
    let request = Request::Stat { path: checked(path)?, user: USER_DEFAULT.into() };
    entry(id, call(platform, caller, id, request).await?)
}

/// Makes a directory.
pub(crate) struct MakeDirectory {
    pub(crate) sandbox: SandboxId,
    pub(crate) path: String,
    pub(crate) parents: bool,
}

impl Operation for MakeDirectory {
    const KIND: &'static str = "make_directory";
    const ACTION: Action = Action::MakeDirectory;
    const ALWAYS: bool = false;
    type Plan = Reached;
    type Output = FileStat;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        json!({ "path": self.path, "parents": self.parents })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Reached, Reservation), Error> {
        judged(platform, caller, &self.sandbox, &self.path).await
    }

    async fn run(self, _: &Platform, reached: Reached, _: &Work) -> Ended<FileStat> {
        let Self { sandbox, path, parents } = self;
        let request = Request::MakeDirectory { path, user: USER_DEFAULT.into(), parents };
        let reply = reached.live.channel.call(request).await;
        reply.map_err(|e| handed_over(&sandbox, e)).and_then(|reply| Ok(entry(&sandbox, reply)?)).into()
    }
}

/// Removes a path.
pub(crate) struct RemoveFile {
    pub(crate) sandbox: SandboxId,
    pub(crate) path: String,
    pub(crate) recursive: bool,
}

impl Operation for RemoveFile {
    const KIND: &'static str = "remove_file";
    const ACTION: Action = Action::RemoveFile;
    const ALWAYS: bool = false;
    type Plan = Reached;
    type Output = ();

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        json!({ "path": self.path, "recursive": self.recursive })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Reached, Reservation), Error> {
        judged(platform, caller, &self.sandbox, &self.path).await
    }

    async fn run(self, _: &Platform, reached: Reached, _: &Work) -> Ended<()> {
        let Self { sandbox, path, recursive } = self;
        let request = Request::Remove { path, user: USER_DEFAULT.into(), recursive };
        reached.live.channel.call(request).await.map(drop).map_err(|e| handed_over(&sandbox, e)).into()
    }
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

async fn call(platform: &Platform, caller: &Caller, id: &SandboxId, request: Request) -> Result<Reply, Error> {
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

fn stat_of(entry: Entry) -> FileStat {
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
    }
}
