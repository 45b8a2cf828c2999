//! Files of a guest. Contents stream both ways and are never held whole unless the caller asks.

use http::header::{ETAG, IF_MATCH, IF_NONE_MATCH, RANGE};
use http::{HeaderMap, HeaderValue, Method};
use remuda_types::SandboxId;
use remuda_types::wire::{ChangeFiles, ChangedFiles, FileList, FileStat, FoundFiles, FoundText, UnpackedTree};

use crate::local_file::LocalFile;
use crate::sandboxes::sandbox_path;
use crate::{Client, ClientError, Incoming};

/// How a file is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteFile {
    /// Permission bits; the server's default when absent.
    pub mode: Option<u32>,
    /// Owner by name; `user` when absent.
    pub user: Option<String>,
    /// Whether missing directories above it are made.
    pub parents: bool,
    /// What must hold of the file that is replaced.
    pub only_if: OnlyIf,
}

/// What must hold of a file before anything is done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum OnlyIf {
    /// Nothing.
    #[default]
    Always,
    /// There is none yet.
    New,
    /// There is one, whatever it holds.
    Exists,
    /// Its contents have this digest, as a stat, a read or a write told it: `sha256:…`.
    Digest(String),
}

/// What is read of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadFile {
    /// Guest user whose permissions count; `user` when absent.
    pub user: Option<String>,
    /// Offsets of the first byte and of the last one, if it ends before the file does; the whole file when absent.
    pub range: Option<(u64, Option<u64>)>,
    /// What must hold of the file.
    pub only_if: OnlyIf,
}

/// How an archive is unpacked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriteTree {
    /// Guest user who unpacks and owns what is made; `user` when absent. `root` keeps the archive's owners.
    pub user: Option<String>,
    /// Whether missing directories above the one that is unpacked into are made.
    pub parents: bool,
}

/// Which paths are looked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FindFiles {
    /// What a path below the directory looks like, such as `**/*.rs`.
    pub pattern: String,
    /// Guest user whose permissions count; `user` when absent.
    pub user: Option<String>,
    /// Most finds of a page; the server's default when absent.
    pub limit: Option<u32>,
    /// Where to go on: `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// Which text is looked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FindText {
    /// A regular expression, or the text itself.
    pub pattern: String,
    /// Whether the pattern is the text itself.
    pub literal: bool,
    /// Whether upper and lower case are the same.
    pub ignore_case: bool,
    /// What the paths of files look like that are looked into.
    pub include: Option<String>,
    /// Guest user whose permissions count; `user` when absent.
    pub user: Option<String>,
    /// Most lines of a page; the server's default when absent.
    pub limit: Option<u32>,
    /// Where to go on: `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// How a path is given another name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MoveFile {
    /// Guest user whose permissions count; `user` when absent.
    pub user: Option<String>,
    /// Whether what is there may be replaced.
    pub overwrite: bool,
}

/// What is changed of a path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Guest user whose permissions count; `user` when absent.
    pub user: Option<String>,
    /// Permission bits; as they are when absent.
    pub mode: Option<u32>,
    /// Owner by name, with that user's group; as it is when absent.
    pub owner: Option<String>,
}

/// A file on its way out of a guest.
#[derive(Debug)]
pub struct FileDownload {
    /// Bytes that come, where the server said it.
    pub size: Option<u64>,
    /// Digest of the whole file's contents, where the server told it.
    pub digest: Option<String>,
    /// Permission bits, where the server said them.
    pub mode: Option<u32>,
    /// The contents.
    pub body: Incoming,
}

impl OnlyIf {
    fn headers(&self) -> Result<HeaderMap, ClientError> {
        let mut headers = HeaderMap::new();
        match self {
            OnlyIf::Always => {}
            OnlyIf::New => drop(headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"))),
            OnlyIf::Exists => drop(headers.insert(IF_MATCH, HeaderValue::from_static("*"))),
            OnlyIf::Digest(digest) => {
                let tag = HeaderValue::try_from(format!("\"{digest}\""))
                    .map_err(|_| ClientError::Input(format!("{digest:?} is no digest")))?;
                headers.insert(IF_MATCH, tag);
            }
        }
        Ok(headers)
    }
}

impl WriteFile {
    fn query(&self, path: &str) -> Vec<(&'static str, String)> {
        let mut query = vec![("path", path.to_owned())];
        if let Some(mode) = self.mode {
            query.push(("mode", format!("{mode:04o}")));
        }
        if let Some(user) = &self.user {
            query.push(("user", user.clone()));
        }
        if self.parents {
            query.push(("parents", "true".into()));
        }
        query
    }
}

fn files_path(id: &SandboxId, rest: &str) -> Result<String, ClientError> {
    Ok(format!("{}/files{rest}", sandbox_path(id)?))
}

impl Client {
    /// `GET /v1/sandboxes/{id}/files?path=…`
    ///
    /// # Errors
    /// `file_not_found`; otherwise as for every call.
    pub async fn read_file(&self, id: &SandboxId, path: &str) -> Result<FileDownload, ClientError> {
        self.read_file_with(id, path, &ReadFile::default()).await
    }

    /// As [`Client::read_file`], for a part of a file, or one that must be the one that is meant.
    ///
    /// # Errors
    /// `file_not_found`, `range_not_satisfiable`, `precondition_failed`; otherwise as for every call.
    pub async fn read_file_with(
        &self,
        id: &SandboxId,
        path: &str,
        options: &ReadFile,
    ) -> Result<FileDownload, ClientError> {
        let mut headers = options.only_if.headers()?;
        if let Some((first, last)) = options.range {
            let last = last.map(|last| last.to_string()).unwrap_or_default();
            let range = HeaderValue::try_from(format!("bytes={first}-{last}"));
            headers.insert(RANGE, range.map_err(|e| ClientError::Input(e.to_string()))?);
        }
        let mut query = vec![("path", path)];
        query.extend(options.user.as_deref().map(|user| ("user", user)));
        let body = self.call(Method::GET, files_path(id, "")?).query(&query).headers(headers).send().await?;
        let digest = body.headers().get(ETAG).and_then(|value| value.to_str().ok());
        let digest = digest.map(|tag| tag.trim_matches('"').to_owned());
        let mode = body.headers().get("x-remuda-mode").and_then(|value| value.to_str().ok());
        let mode = mode.and_then(|octal| u32::from_str_radix(octal, 8).ok());
        Ok(FileDownload { size: body.length(), digest, mode, body })
    }

    /// `PUT /v1/sandboxes/{id}/files?path=…`: writes a file whole or not at all. A stream goes in by
    /// [`Body::wrap_stream`](crate::Body::wrap_stream).
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn write_file(
        &self,
        id: &SandboxId,
        path: &str,
        options: &WriteFile,
        contents: impl Into<reqwest::Body>,
    ) -> Result<FileStat, ClientError> {
        let request = self.change("write_file", Some(id), Method::PUT, files_path(id, "")?);
        request.query(&options.query(path)).headers(options.only_if.headers()?).body(contents).read().await
    }

    /// As [`Client::write_file`], from a local file: it is read once for its digest, and again for each sending, so that
    /// a client which repeats its calls can repeat this one however long the file is.
    ///
    /// # Errors
    /// [`ClientError::Input`] if the file can't be read; otherwise as for every call.
    pub async fn write_file_from(
        &self,
        id: &SandboxId,
        path: &str,
        options: &WriteFile,
        local: &std::path::Path,
    ) -> Result<FileStat, ClientError> {
        let file = LocalFile::read(local).await?;
        let request = self.change("write_file", Some(id), Method::PUT, files_path(id, "")?);
        request.query(&options.query(path)).headers(options.only_if.headers()?).file(file).read().await
    }

    /// `GET /v1/sandboxes/{id}/files/list?path=…`
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn list_files(&self, id: &SandboxId, path: &str) -> Result<FileList, ClientError> {
        self.call(Method::GET, files_path(id, "/list")?).query(&[("path", path)]).read().await
    }

    /// `GET /v1/sandboxes/{id}/files/stat?path=…`
    ///
    /// # Errors
    /// `file_not_found`; otherwise as for every call.
    pub async fn stat_file(&self, id: &SandboxId, path: &str) -> Result<FileStat, ClientError> {
        self.call(Method::GET, files_path(id, "/stat")?).query(&[("path", path)]).read().await
    }

    /// As [`Client::stat_file`], with the digest of a regular file's contents.
    ///
    /// # Errors
    /// `file_not_found`; otherwise as for every call.
    pub async fn digest_file(&self, id: &SandboxId, path: &str) -> Result<FileStat, ClientError> {
        self.call(Method::GET, files_path(id, "/stat")?).query(&[("path", path), ("digest", "true")]).read().await
    }

    /// `GET /v1/sandboxes/{id}/files/tar?path=…`: a directory with all that is in it, as a tar archive.
    ///
    /// # Errors
    /// `file_not_found`; otherwise as for every call.
    pub async fn read_tree(&self, id: &SandboxId, path: &str, user: Option<&str>) -> Result<Incoming, ClientError> {
        let mut query = vec![("path", path)];
        query.extend(user.map(|user| ("user", user)));
        self.call(Method::GET, files_path(id, "/tar")?).query(&query).send().await
    }

    /// `PUT /v1/sandboxes/{id}/files/tar?path=…`: unpacks a tar archive into a directory, entry by entry.
    ///
    /// # Errors
    /// `archive_refused`; otherwise as for every call. What was unpacked until then stays.
    pub async fn write_tree(
        &self,
        id: &SandboxId,
        path: &str,
        options: &WriteTree,
        archive: impl Into<reqwest::Body>,
    ) -> Result<UnpackedTree, ClientError> {
        let mut query = vec![("path", path), ("parents", if options.parents { "true" } else { "false" })];
        query.extend(options.user.as_deref().map(|user| ("user", user)));
        let request = self.change("unpack_tree", Some(id), Method::PUT, files_path(id, "/tar")?);
        request.query(&query).body(archive).read().await
    }

    /// `GET /v1/sandboxes/{id}/files/glob?path=…&pattern=…`: one page of paths below a directory.
    ///
    /// # Errors
    /// `file_not_found`, `not_a_directory`; otherwise as for every call.
    pub async fn find_files(&self, id: &SandboxId, path: &str, find: &FindFiles) -> Result<FoundFiles, ClientError> {
        let mut query = vec![("path", path.to_owned()), ("pattern", find.pattern.clone())];
        query.extend(find.user.clone().map(|user| ("user", user)));
        query.extend(find.limit.map(|limit| ("limit", limit.to_string())));
        query.extend(find.cursor.clone().map(|cursor| ("cursor", cursor)));
        self.call(Method::GET, files_path(id, "/glob")?).query(&query).read().await
    }

    /// `GET /v1/sandboxes/{id}/files/grep?path=…&pattern=…`: one page of matching lines.
    ///
    /// # Errors
    /// `file_not_found`; otherwise as for every call.
    pub async fn find_text(&self, id: &SandboxId, path: &str, find: &FindText) -> Result<FoundText, ClientError> {
        let mut query = vec![("path", path.to_owned()), ("pattern", find.pattern.clone())];
        query.extend(find.literal.then(|| ("literal", "true".to_owned())));
        query.extend(find.ignore_case.then(|| ("ignore_case", "true".to_owned())));
        query.extend(find.include.clone().map(|include| ("include", include)));
        query.extend(find.user.clone().map(|user| ("user", user)));
        query.extend(find.limit.map(|limit| ("limit", limit.to_string())));
        query.extend(find.cursor.clone().map(|cursor| ("cursor", cursor)));
        self.call(Method::GET, files_path(id, "/grep")?).query(&query).read().await
    }

    /// `POST /v1/sandboxes/{id}/files/batch`: several changes, with a result for each.
    ///
    /// # Errors
    /// `too_large`; otherwise as for every call. That some changes were not made is no error of the call.
    pub async fn change_files(&self, id: &SandboxId, changes: &ChangeFiles) -> Result<ChangedFiles, ClientError> {
        self.change("change_files", Some(id), Method::POST, files_path(id, "/batch")?).json(changes).read().await
    }

    /// `POST /v1/sandboxes/{id}/files/move?path=…&to=…`
    ///
    /// # Errors
    /// `file_not_found`, `file_exists`; otherwise as for every call.
    pub async fn move_file(
        &self,
        id: &SandboxId,
        from: &str,
        to: &str,
        options: &MoveFile,
    ) -> Result<FileStat, ClientError> {
        let overwrite = if options.overwrite { "true" } else { "false" };
        let mut query = vec![("path", from), ("to", to), ("overwrite", overwrite)];
        query.extend(options.user.as_deref().map(|user| ("user", user)));
        self.change("move_file", Some(id), Method::POST, files_path(id, "/move")?).query(&query).read().await
    }

    /// `POST /v1/sandboxes/{id}/files/attributes?path=…`
    ///
    /// # Errors
    /// `file_not_found`, `permission_denied`; otherwise as for every call.
    pub async fn set_attributes(
        &self,
        id: &SandboxId,
        path: &str,
        options: &SetAttributes,
    ) -> Result<FileStat, ClientError> {
        let mut query = vec![("path", path.to_owned())];
        query.extend(options.user.clone().map(|user| ("user", user)));
        query.extend(options.mode.map(|mode| ("mode", format!("{mode:04o}"))));
        query.extend(options.owner.clone().map(|owner| ("owner", owner)));
        self.change("set_attributes", Some(id), Method::POST, files_path(id, "/attributes")?).query(&query).read().await
    }

    /// `DELETE /v1/sandboxes/{id}/files?path=…`
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn remove_file(&self, id: &SandboxId, path: &str, recursive: bool) -> Result<(), ClientError> {
        let query = [("path", path), ("recursive", if recursive { "true" } else { "false" })];
        self.change("remove_file", Some(id), Method::DELETE, files_path(id, "")?).query(&query).done().await
    }

    /// `POST /v1/sandboxes/{id}/files/mkdir?path=…`
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn make_directory(&self, id: &SandboxId, path: &str, parents: bool) -> Result<FileStat, ClientError> {
        let query = [("path", path), ("parents", if parents { "true" } else { "false" })];
        self.change("make_directory", Some(id), Method::POST, files_path(id, "/mkdir")?).query(&query).read().await
    }
}
