//! The terminal of an execution as a WebSocket: what it prints comes as binary messages, what is typed goes as binary
//! messages, and everything else is said in JSON as text messages. The terminal lives in the guest: a socket is one look
//! at it, and whoever comes back goes on where they were. Never holds output for a slow reader.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use remuda_control::{Caller, ExecutionInput, OutputFollower, OutputQuery, Platform};
use remuda_types::error::ErrorBody;
use remuda_types::limits::{
    EVENTS_HEARTBEAT_MS, FOLLOW_PIECE_BYTES_MAX, INPUT_WAIT_MS_DEFAULT, TERMINAL_MESSAGE_BYTES_MAX,
};
use remuda_types::wire::{TerminalSaid, TerminalSize, TerminalTold};
use remuda_types::{Error, ErrorCode};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use crate::calling::By;
use crate::errors::{Answer, invalid};
use crate::extract::{OfExecution, QueryOf};
use crate::serve::Connection;

/// The route, as it is matched.
pub(crate) const PATH: &str = "/v1/sandboxes/{id}/executions/{execution}/terminal";
/// The protocol that is agreed on.
pub(crate) const PROTOCOL: &str = "remuda.terminal";
/// What a browser, which can set no header of a WebSocket but this, offers its access key behind, as another protocol.
pub(crate) const KEY_PROTOCOL: &str = "remuda.key.";
/// Words to the other side that wait to be sent.
const WORDS_MAX: usize = 16;

/// Where to go on.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Place {
    /// Where its output is shown from, in bytes.
    #[serde(default)]
    #[param(required = false)]
    offset: u64,
    /// Who types, as for `stdin`; another one for each socket when absent.
    writer: Option<String>,
    /// How many bytes of this writer are known to be taken: the first that is typed here stands there.
    #[serde(default)]
    #[param(required = false)]
    typed: u64,
}

/// Joins the terminal of an execution as a WebSocket. Binary messages from the server are its output from `offset` on, and
/// binary messages to it are typed. Text messages are JSON: to the server a `TerminalSaid`, from it a `TerminalTold`. The
/// protocol is `remuda.terminal`. A browser gives its access key as another protocol, `remuda.key.` and the key.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/executions/{execution}/terminal", operation_id = "join_terminal", tag = "executions",
    params(OfExecution, Place), responses(
    (status = 101, description = "It is a WebSocket from here on."),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn join(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfExecution,
    QueryOf(place): QueryOf<Place>,
    connection: Option<Extension<Connection>>,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Answer<Response> {
    // Whoever may not join learns that first.
    let output = platform.join_terminal(&caller, &of.id, &of.execution).await?;
    let upgrade = upgrade.map_err(|e| {
        invalid("this is no WebSocket")
            .cause(e.body_text())
            .remedy("open it as a WebSocket, or use …/stdin and …/events")
    })?;
    if output.show().pty.is_none() {
        let message = format!("execution {} has no terminal", of.execution);
        return Err(Error::new(ErrorCode::InvalidRequest, message).remedy("start one with `pty`").into());
    }
    let writer = match place.writer {
        Some(writer) => writer,
        None => random_name()?,
    };
    let typist = Typist { platform, caller, of, writer, typed: place.typed };
    let upgrade = upgrade.protocols([PROTOCOL]).max_message_size(TERMINAL_MESSAGE_BYTES_MAX);
    Ok(upgrade.on_upgrade(move |socket| carry(socket, output, place.offset, typist, connection.map(|c| c.0))))
}

fn random_name() -> Result<String, Error> {
    let mut bytes = [0; 12];
    getrandom::fill(&mut bytes).map_err(|e| Error::new(ErrorCode::Internal, "no random bytes").cause(e))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Carries both ways until the execution has ended, one side goes, or the server ends. It counts as the connection it
/// came by.
async fn carry(socket: WebSocket, output: OutputFollower, offset: u64, typist: Typist, connection: Option<Connection>) {
    let shutdown = connection.as_ref().map_or_else(CancellationToken::new, |c| c.shutdown.clone());
    let (mut to, from) = socket.split();
    let (words, told) = mpsc::channel(WORDS_MAX);
    let farewell = tokio::select! {
        () = shutdown.cancelled() => Some((close_code::RESTART, "the server is ending")),
        shown = show(&mut to, output, offset, told) => shown,
        () = typist.listen(from, words) => None,
    };
    if let Some((code, reason)) = farewell {
        // Whoever is gone needs no word.
        let _ = to.send(Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await;
    }
    drop(connection);
}

type Farewell = Option<(u16, &'static str)>;

/// Sends what the terminal prints, and words. Answers what is said at the end; nothing where nobody is there.
async fn show(
    to: &mut SplitSink<WebSocket, Message>,
    mut output: OutputFollower,
    mut offset: u64,
    mut words: mpsc::Receiver<TerminalTold>,
) -> Farewell {
    to.send(told(&TerminalTold::Begin { offset, execution: Box::new(output.show()) })).await.ok()?;
    loop {
        let query = OutputQuery {
            offset,
            since_ms: None,
            stream: None,
            max_bytes: FOLLOW_PIECE_BYTES_MAX,
            wait: Duration::from_millis(EVENTS_HEARTBEAT_MS),
        };
        let slice = tokio::select! {
            word = words.recv() => {
                let word = word?;
                let ends = matches!(word, TerminalTold::Error { .. });
                to.send(told(&word)).await.ok()?;
                if ends {
                    return Some((close_code::POLICY, "see the error"));
                }
                continue;
            }
            slice = output.read(query) => slice,
        };
        let slice = match slice {
            Ok(slice) => slice,
            Err(error) => {
                to.send(told(&TerminalTold::Error { error })).await.ok()?;
                return Some((close_code::POLICY, "see the error"));
            }
        };
        let quiet = slice.records.is_empty();
        // What is missing is told where it is missing: a piece may have some of what comes before it.
        let end = (slice.next_offset, Bytes::new());
        let pieces = slice.records.into_iter().map(|(place, _, bytes)| (place, bytes)).chain([end]);
        for (place, bytes) in pieces {
            if place > offset {
                to.send(told(&TerminalTold::Gap { offset, missed: place - offset })).await.ok()?;
            }
            offset = place + bytes.len() as u64;
            if !bytes.is_empty() {
                to.send(Message::Binary(bytes)).await.ok()?;
            }
        }
        if slice.complete {
            to.send(told(&TerminalTold::End { execution: Box::new(output.show()) })).await.ok()?;
            return Some((close_code::NORMAL, "it has ended"));
        }
        if quiet {
            to.send(Message::Ping(Bytes::new())).await.ok()?;
        }
    }
}

fn told(word: &TerminalTold) -> Message {
    // What is told here has no maps with keys that JSON lacks.
    Message::Text(serde_json::to_string(word).unwrap_or_default().into())
}

/// Whoever types, and how far they are.
struct Typist {
    platform: Platform,
    caller: Caller,
    of: OfExecution,
    writer: String,
    typed: u64,
}

impl Typist {
    /// Takes what comes, one message after another: whoever types faster than is read waits. Ends when the other side
    /// goes.
    async fn listen(mut self, mut from: SplitStream<WebSocket>, words: mpsc::Sender<TerminalTold>) {
        while let Some(Ok(message)) = from.next().await {
            let done = match message {
                Message::Binary(bytes) => self.type_in(bytes, &words).await,
                Message::Text(text) => self.hear(&text).await,
                Message::Close(_) => return,
                Message::Ping(_) | Message::Pong(_) => Ok(()),
            };
            match done {
                Ok(()) => {}
                // Its end is told by what it prints.
                Err(error) if error.code == ErrorCode::ExecutionNotRunning => {}
                Err(error) => {
                    let _ = words.send(TerminalTold::Error { error }).await;
                    // The word ends the socket.
                    return std::future::pending().await;
                }
            }
        }
    }

    async fn type_in(&mut self, mut bytes: Bytes, words: &mpsc::Sender<TerminalTold>) -> Result<(), Error> {
        while !bytes.is_empty() {
            let input = ExecutionInput {
                writer: self.writer.clone(),
                offset: self.typed,
                bytes: bytes.clone(),
                close: false,
                wait: Duration::from_millis(INPUT_WAIT_MS_DEFAULT),
            };
            let taken = self.platform.write_input(&self.caller, &self.of.id, &self.of.execution, input).await?;
            let fresh = usize::try_from(taken.taken.saturating_sub(self.typed)).unwrap_or(usize::MAX).min(bytes.len());
            bytes = bytes.slice(fresh..);
            self.typed += fresh as u64;
            if taken.closed {
                break;
            }
        }
        let _ = words.send(TerminalTold::Taken { typed: self.typed }).await;
        Ok(())
    }

    async fn hear(&self, text: &str) -> Result<(), Error> {
        let said: TerminalSaid = serde_json::from_str(text)
            .map_err(|e| invalid("a text message is not understood").cause(e).remedy("what is typed goes as binary"))?;
        let TerminalSaid::Resize { cols, rows } = said;
        let size = TerminalSize { cols, rows };
        self.platform.resize(&self.caller, &self.of.id, &self.of.execution, size).await.map(|_| ())
    }
}
