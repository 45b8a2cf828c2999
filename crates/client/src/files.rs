//! Files of a guest. Contents stream both ways and are never held whole unless the caller asks.

use http::Method;
use remuda_types::SandboxId;
use remuda_types::wire::{FileList, FileStat};

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
        let mut query = vec![("path", path.to_owned())];
        if let Some(mode) = options.mode {
            query.push(("mode", format!("{mode:04o}")));
        }
        if let Some(user) = &options.user {
            query.push(("user", user.clone()));
        }
        if options.parents {
            query.push(("parents", "true".into()));
        }
        self.call(Method::PUT, files_path(id, "")?).query(&query).body(contents).read().await
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
        self.call(Method::DELETE, files_path(id, "")?).query(&query).done().await
    }

    /// `POST /v1/sandboxes/{id}/files/mkdir?path=…`
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn make_directory(&self, id: &SandboxId, path: &str, parents: bool) -> Result<FileStat, ClientError> {
        let query = [("path", path), ("parents", if parents { "true" } else { "false" })];
        self.call(Method::POST, files_path(id, "/mkdir")?).query(&query).read().await
    }
}
