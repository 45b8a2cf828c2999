//! Receipts and events: what has been. Reads only.

use http::{HeaderMap, HeaderValue, Method, header};
use remuda_types::wire::{Event, EventList, Receipt, ReceiptList};
use remuda_types::{ReceiptId, SandboxId};
use serde::Deserialize;

use crate::address::segment;
use crate::{Client, ClientError, Incoming};

/// Longest line of an event stream that is read, in bytes.
const LINE_BYTES_MAX: usize = 256 << 10;

/// What a stream of events says.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time, and none is kept in a list")]
pub enum Told {
    /// Something happened.
    Event(Event),
    /// Events that are no longer kept.
    Gap {
        /// How many.
        missed: u64,
    },
}

#[derive(Deserialize)]
struct Gap {
    missed: u64,
}

/// Events as they come. It ends when the server does.
#[derive(Debug)]
pub struct EventStream {
    body: Incoming,
    /// What was read and is not yet a line.
    buffer: Vec<u8>,
    kind: String,
    data: String,
}

impl EventStream {
    /// The next one, however long it takes; `None` when the server ended the stream.
    ///
    /// # Errors
    /// [`ClientError::Transport`] if it breaks off, [`ClientError::Protocol`] if it is no stream of events.
    pub async fn next(&mut self) -> Result<Option<Told>, ClientError> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let line = String::from_utf8_lossy(&line[..end]).into_owned();
                if let Some(told) = self.line(&line)? {
                    return Ok(Some(told));
                }
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(self.body.unexpected("a line of the event stream is too long"));
            }
            match self.body.chunk().await? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }

    fn line(&mut self, line: &str) -> Result<Option<Told>, ClientError> {
        if line.is_empty() {
            let (kind, data) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
            return if data.is_empty() { Ok(None) } else { self.message(&kind, &data).map(Some) };
        }
        match line.split_once(": ") {
            Some(("event", kind)) => kind.clone_into(&mut self.kind),
            Some(("data", data)) => data.clone_into(&mut self.data),
            // The number is in the data too; what begins with a colon only says that the server is there.
            _ => {}
        }
        Ok(None)
    }

    fn message(&self, kind: &str, data: &str) -> Result<Told, ClientError> {
        let told = match kind {
            "gap" => serde_json::from_str(data).map(|Gap { missed }| Told::Gap { missed }),
            _ => serde_json::from_str(data).map(Told::Event),
        };
        told.map_err(|e| self.body.unexpected(&format!("an event is not what this client expects: {e}")))
    }
}

impl Client {
    /// `GET /v1/receipts/{id}`
    ///
    /// # Errors
    /// `receipt_not_found`; otherwise as for every call: see [`ClientError`].
    pub async fn receipt(&self, id: &ReceiptId) -> Result<Receipt, ClientError> {
        self.call(Method::GET, format!("/v1/receipts/{}", segment(id.as_str())?)).read().await
    }

    /// `GET /v1/receipts?sandbox=…`: of one generation or of all, oldest first, a page after the one that gave `after`.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn receipts(&self, sandbox: Option<&SandboxId>, after: Option<&str>) -> Result<ReceiptList, ClientError> {
        let mut query: Vec<(&str, String)> = Vec::new();
        query.extend(sandbox.map(|id| ("sandbox", id.to_string())));
        query.extend(after.map(|after| ("after", after.to_owned())));
        self.call(Method::GET, "/v1/receipts").query(&query).read().await
    }

    /// `GET /v1/events`: a page of events above a number.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn events(&self, after: u64) -> Result<EventList, ClientError> {
        self.call(Method::GET, "/v1/events").query(&[("after", after)]).read().await
    }

    /// `GET /v1/events` as a stream: events above a number, and all that come from then on.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn follow_events(&self, after: u64) -> Result<EventStream, ClientError> {
        let mut accept = HeaderMap::new();
        accept.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        let request = self.call(Method::GET, "/v1/events").query(&[("after", after)]).headers(accept);
        let body = request.send().await?;
        Ok(EventStream { body, buffer: Vec::new(), kind: String::new(), data: String::new() })
    }
}
