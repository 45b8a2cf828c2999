//! Files of a guest. Contents stream both ways and are never held whole unless the caller asks.

use http::Method;
use remuda_types::SandboxId;
use remuda_types::wire::{FileList, FileStat};

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
}

/// A file on its way out of a guest.
#[derive(Debug)]
pub struct FileDownload {
    /// Size in bytes, where the server said it.
    pub size: Option<u64>,
    /// Permission bits, where the server said them.
    pub mode: Option<u32>,
    /// The contents.
    pub body: Incoming,
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
        let body = self.call(Method::GET, files_path(id, "")?).query(&[("path", path)]).send().await?;
        let mode = body.headers().get("x-remuda-mode").and_then(|value| value.to_str().ok());
        let mode = mode.and_then(|octal| u32::from_str_radix(octal, 8).ok());
        Ok(FileDownload { size: body.length(), mode, body })
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
        request.query(&options.query(path)).body(contents).read().await
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
        request.query(&options.query(path)).file(file).read().await
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
