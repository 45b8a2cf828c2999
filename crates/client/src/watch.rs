//! Changes of a guest's files as they come. Reads only.

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use remuda_types::SandboxId;
use remuda_types::wire::FileEvent;

use crate::sandboxes::sandbox_path;
use crate::{Client, ClientError, Incoming};

/// Longest line that is read, in bytes.
const LINE_BYTES_MAX: usize = 256 << 10;

/// What is watched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WatchFiles {
    /// Whether what lies in directories below is told of too.
    pub recursive: bool,
    /// Guest user whose permissions count; `user` when absent.
    pub user: Option<String>,
    /// The last id that was seen, to go on there.
    pub after: Option<String>,
}

/// What a watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    /// A change.
    Event(FileEvent),
    /// More happened than is told: whoever must know looks at all of it.
    Missed,
}

/// A watch that is under way. It ends with the server, or with what is watched.
#[derive(Debug)]
pub struct FileWatch {
    body: Incoming,
    /// What was read and is not yet a line.
    buffer: Vec<u8>,
    id: Option<String>,
    kind: String,
    data: String,
}

impl FileWatch {
    /// The place of the last that was told: [`WatchFiles::after`] of a call that goes on there.
    pub fn last(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The next change, however long it takes; `None` when there is none any more.
    ///
    /// # Errors
    /// [`ClientError::Transport`] if it breaks off, [`ClientError::Protocol`] if it is no stream of changes.
    pub async fn next(&mut self) -> Result<Option<Watched>, ClientError> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line[..end]).into_owned();
                if let Some(watched) = self.line(&line)? {
                    return Ok(Some(watched));
                }
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(self.body.unexpected("a line of the stream is too long"));
            }
            match self.body.chunk().await? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }

    fn line(&mut self, line: &str) -> Result<Option<Watched>, ClientError> {
        if let Some(id) = line.strip_prefix("id: ") {
            self.id = Some(id.to_owned());
        } else if let Some(kind) = line.strip_prefix("event: ") {
            self.kind = kind.to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            self.data = data.to_owned();
        } else if line.is_empty() && !self.kind.is_empty() {
            let (kind, data) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
            if kind == "missed" {
                return Ok(Some(Watched::Missed));
            }
            let event = serde_json::from_str(&data);
            return event
                .map(|event| Some(Watched::Event(event)))
                .map_err(|e| self.body.unexpected(&format!("an event {kind} is not understood: {e}")));
        }
        Ok(None)
    }
}

impl Client {
    /// `GET /v1/sandboxes/{id}/files/watch?path=…`: changes from now on, or from behind a place.
    ///
    /// # Errors
    /// `file_not_found`, `limit_reached`; otherwise as for every call.
    pub async fn watch_files(&self, id: &SandboxId, path: &str, watch: &WatchFiles) -> Result<FileWatch, ClientError> {
        let mut query = vec![("path", path), ("recursive", if watch.recursive { "true" } else { "false" })];
        query.extend(watch.user.as_deref().map(|user| ("user", user)));
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(after) = &watch.after {
            let after = HeaderValue::try_from(after).map_err(|e| ClientError::Input(e.to_string()))?;
            headers.insert(HeaderName::from_static("last-event-id"), after);
        }
        let request = self.call(Method::GET, format!("{}/files/watch", sandbox_path(id)?));
        let body = request.query(&query).headers(headers).send().await?;
        Ok(FileWatch { body, buffer: Vec::new(), id: watch.after.clone(), kind: String::new(), data: String::new() })
    }
}
