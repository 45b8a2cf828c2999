//! Calls about files of a guest, and the way to its ports.

use remuda_guest_proto::Watch;
use remuda_types::wire::{self, ChangedFiles, FileList, FileStat, FoundFiles, FoundText, UnpackedTree};
use remuda_types::{Error, SandboxId};

use super::Platform;
use crate::access::Action;
use crate::caller::Caller;
use crate::dial;
use crate::operation::{Answered, Call, operate};
use crate::operations::change_file::{MakeDirectory, RemoveFile, Rename, SetAttributes};
use crate::operations::change_files::ChangeFiles;
use crate::operations::unpack_tree::UnpackTree;
use crate::operations::write_file::WriteFile;
use crate::operations::{files, search};
use crate::stream::{
    Attributes, ByteStream, FileAt, FileRead, FindFiles, FindText, GuestStream, MoveFile, ReadOptions, WriteOptions,
};
use crate::watches::{FileWatcher, WatchPlace};

impl Platform {
    /// Reads a file of a guest, or a part of one, as a stream.
    ///
    /// # Errors
    /// `file_not_found`, `permission_denied`, `not_a_regular_file`, `precondition_failed`, `range_not_satisfiable`, and
    /// `agent_outdated` for more than a whole file.
    pub async fn read_file(
        &self,
        caller: &Caller,
        id: &SandboxId,
        at: &FileAt,
        options: ReadOptions,
    ) -> Result<FileRead, Error> {
        caller.may(Action::ReadFile)?;
        files::read(self, caller, id, at, options).await
    }

    /// Writes a file of a guest from a stream; it is replaced whole or not at all.
    ///
    /// # Errors
    /// As for [`Platform::read_file`], and `disk_full`; `agent_outdated` for a write with conditions.
    pub async fn write_file(
        &self,
        call: &Call,
        id: &SandboxId,
        path: &str,
        options: WriteOptions,
        body: ByteStream,
    ) -> Answered<FileStat> {
        operate(self, call, WriteFile::new(id.clone(), path, options, body)).await
    }

    /// Lists a directory of a guest.
    ///
    /// # Errors
    /// `file_not_found`, `permission_denied`, `not_a_directory`.
    pub async fn list_files(&self, caller: &Caller, id: &SandboxId, at: &FileAt) -> Result<FileList, Error> {
        caller.may(Action::ListFiles)?;
        files::list(self, caller, id, at).await
    }

    /// What a path of a guest is, with the digest of a regular file if that is wanted.
    ///
    /// # Errors
    /// `file_not_found`, `permission_denied`; `agent_outdated` for a digest.
    pub async fn stat_file(
        &self,
        caller: &Caller,
        id: &SandboxId,
        at: &FileAt,
        digest: bool,
    ) -> Result<FileStat, Error> {
        caller.may(Action::StatFile)?;
        files::stat(self, caller, id, at, digest).await
    }

    /// What a path of a guest leads to: where it is a link, what is behind that.
    ///
    /// # Errors
    /// As for [`Platform::stat_file`]; `file_not_found` too for a link that leads nowhere or in a circle.
    pub async fn stat_behind_links(&self, caller: &Caller, id: &SandboxId, at: &FileAt) -> Result<FileStat, Error> {
        caller.may(Action::StatFile)?;
        files::stat_behind_links(self, caller, id, at).await
    }

    /// Removes a path of a guest.
    ///
    /// # Errors
    /// `file_not_found`, `permission_denied`, `invalid_request` for a directory without `recursive`.
    pub async fn remove_file(&self, call: &Call, id: &SandboxId, at: FileAt, recursive: bool) -> Answered<()> {
        operate(self, call, RemoveFile { sandbox: id.clone(), at, recursive }).await
    }

    /// Makes a directory in a guest.
    ///
    /// # Errors
    /// `file_not_found` without its parents, `file_exists`, `permission_denied`.
    pub async fn make_directory(&self, call: &Call, id: &SandboxId, at: FileAt, parents: bool) -> Answered<FileStat> {
        operate(self, call, MakeDirectory { sandbox: id.clone(), at, parents }).await
    }

    /// Packs a directory of a guest with all that is in it, or a file, as a tar archive.
    ///
    /// # Errors
    /// As for [`Platform::read_file`].
    pub async fn read_tree(&self, caller: &Caller, id: &SandboxId, at: &FileAt) -> Result<ByteStream, Error> {
        caller.may(Action::ReadTree)?;
        files::read_tree(self, caller, id, at).await
    }

    /// Unpacks a tar archive from a stream into a directory of a guest, entry by entry into place.
    ///
    /// # Errors
    /// `archive_refused`, `permission_denied`, `disk_full`, `agent_outdated`; what was unpacked until then stays.
    pub async fn write_tree(
        &self,
        call: &Call,
        id: &SandboxId,
        at: FileAt,
        parents: bool,
        body: ByteStream,
    ) -> Answered<UnpackedTree> {
        operate(self, call, UnpackTree::new(id.clone(), at, parents, body)).await
    }

    /// Gives a path of a guest another name.
    ///
    /// # Errors
    /// `file_not_found`, `file_exists` where something is there that may not be replaced, `permission_denied`,
    /// `agent_outdated`.
    pub async fn move_file(&self, call: &Call, id: &SandboxId, moving: MoveFile) -> Answered<FileStat> {
        operate(self, call, Rename { sandbox: id.clone(), moving }).await
    }

    /// Changes permission bits and owner of what a path leads to.
    ///
    /// # Errors
    /// `file_not_found`, `permission_denied`, `agent_outdated`.
    pub async fn set_attributes(
        &self,
        call: &Call,
        id: &SandboxId,
        at: FileAt,
        attributes: Attributes,
    ) -> Answered<FileStat> {
        operate(self, call, SetAttributes { sandbox: id.clone(), at, attributes }).await
    }

    /// Looks for paths below a directory of a guest; a page of them.
    ///
    /// # Errors
    /// `file_not_found`, `permission_denied`, `not_a_directory`, `limit_reached`, `agent_outdated`.
    pub async fn find_files(
        &self,
        caller: &Caller,
        id: &SandboxId,
        at: &FileAt,
        find: FindFiles,
    ) -> Result<FoundFiles, Error> {
        caller.may(Action::FindFiles)?;
        search::glob(self, caller, id, at, find).await
    }

    /// Looks for text in files of a guest; a page of lines.
    ///
    /// # Errors
    /// As for [`Platform::find_files`].
    pub async fn find_text(
        &self,
        caller: &Caller,
        id: &SandboxId,
        at: &FileAt,
        find: FindText,
    ) -> Result<FoundText, Error> {
        caller.may(Action::FindText)?;
        search::grep(self, caller, id, at, find).await
    }

    /// Watches files of a guest, from now on or from where a reader was.
    ///
    /// # Errors
    /// `file_not_found`, `permission_denied`, `limit_reached`, `agent_outdated`.
    pub async fn watch_files(
        &self,
        caller: &Caller,
        id: &SandboxId,
        at: &FileAt,
        recursive: bool,
        place: Option<WatchPlace>,
    ) -> Result<FileWatcher, Error> {
        caller.may(Action::WatchFiles)?;
        let asked = Watch { path: files::checked(&at.path)?, user: files::user_of(&at.user), recursive };
        let cell = self.living(caller, id).await?;
        cell.watches.read(&cell.live()?.channel, caller, id, asked, place).await
    }

    /// Makes several changes of files of a guest, with a result for each.
    ///
    /// # Errors
    /// `too_large`, `invalid_request`, `agent_outdated`: then none was made.
    pub async fn change_files(&self, call: &Call, id: &SandboxId, wanted: wire::ChangeFiles) -> Answered<ChangedFiles> {
        operate(self, call, ChangeFiles { sandbox: id.clone(), wanted }).await
    }

    /// Connects to a TCP port of a guest.
    ///
    /// # Errors
    /// `port_unreachable` when nothing listens there, neither on the guest's own address nor on 127.0.0.1.
    pub async fn dial(&self, caller: &Caller, id: &SandboxId, port: u16) -> Result<GuestStream, Error> {
        caller.may(Action::Port)?;
        let cell = self.living(caller, id).await?;
        dial::dial(&cell, cell.live()?, port).await
    }
}
