//! Files of a guest: each call is one call to the agent, contents are streamed through it.

use remuda_guest_proto::{Entry, EntryKind, Reply, Request};
use remuda_types::limits::{DIRECTORY_ENTRIES_MAX, PATH_BYTES_MAX};
use remuda_types::wire::{FileKind, FileList, FileStat};
use remuda_types::{Error, ErrorCode, SandboxId};

use crate::boot::next_effect;
use crate::caller::Caller;
use crate::channel::{Download, Upload, UploadError, unexpected};
use crate::operations::execute::USER_DEFAULT;
use crate::platform::Platform;
use crate::stream::{ByteStream, WriteOptions};

pub(crate) async fn read(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    path: &str,
) -> Result<(FileStat, ByteStream), Error> {
    let request = Request::ReadFile { path: checked(path)?, user: USER_DEFAULT.into() };
    let cell = platform.living(&caller.account, id).await?;
    let (reply, download) = Download::start(&cell.live()?.channel, request).await.map_err(|e| failed(id, e))?;
    Ok((entry(id, reply)?, Box::pin(download)))
}

pub(crate) async fn write(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    path: &str,
    options: WriteOptions,
    body: ByteStream,
) -> Result<FileStat, Error> {
    let request = Request::WriteFile {
        path: checked(path)?,
        user: options.user.unwrap_or_else(|| USER_DEFAULT.into()),
        mode: options.mode,
        parents: options.parents,
        effect: next_effect(),
    };
    let cell = platform.living(&caller.account, id).await?;
    match Upload::run(&cell.live()?.channel, request, body).await {
        Ok(reply) => entry(id, reply),
        Err(UploadError::Channel(e)) => Err(failed(id, e)),
        Err(e @ UploadError::Body(_)) => {
            Err(Error::new(ErrorCode::InvalidRequest, format!("{path} was not written: {e}"))
                .cause(crate::errors::chain(&e)))
        }
    }
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

pub(crate) async fn make_directory(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    path: &str,
    parents: bool,
) -> Result<FileStat, Error> {
    let request = Request::MakeDirectory { path: checked(path)?, user: USER_DEFAULT.into(), parents };
    entry(id, call(platform, caller, id, request).await?)
}

pub(crate) async fn remove(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    path: &str,
    recursive: bool,
) -> Result<(), Error> {
    let request = Request::Remove { path: checked(path)?, user: USER_DEFAULT.into(), recursive };
    call(platform, caller, id, request).await.map(drop)
}

async fn call(platform: &Platform, caller: &Caller, id: &SandboxId, request: Request) -> Result<Reply, Error> {
    let cell = platform.living(&caller.account, id).await?;
    cell.live()?.channel.call(request).await.map_err(|e| failed(id, e))
}

/// On the way to the guest a path is only text; what it means is decided there.
fn checked(path: &str) -> Result<String, Error> {
    if path.starts_with('/') && path.len() <= PATH_BYTES_MAX && !path.contains('\0') {
        return Ok(path.to_owned());
    }
    let shown: String = path.chars().take(80).collect();
    let message = format!("{shown:?} is not an absolute path of at most {PATH_BYTES_MAX} bytes");
    Err(Error::new(ErrorCode::InvalidRequest, message))
}

fn entry(id: &SandboxId, reply: Reply) -> Result<FileStat, Error> {
    match reply {
        Reply::Entry(entry) => Ok(stat_of(entry)),
        other => Err(failed(id, unexpected(&other))),
    }
}

fn failed(id: &SandboxId, e: crate::channel::ChannelError) -> Error {
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
