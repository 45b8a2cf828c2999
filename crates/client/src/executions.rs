//! Executions: starting, watching and ending commands. One method for each route; a key is `request`'s matter.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use remuda_types::wire::{
    Execution, ExecutionList, InputTaken, OutputPage, OutputStream, SendSignal, StartExecution, TerminalSize,
};
use remuda_types::{ExecutionId, SandboxId};

use crate::address::segment;
use crate::sandboxes::sandbox_path;
use crate::{ANSWER_BYTES_MAX, Client, ClientError};

/// Which output is read and how long the call waits for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutputQuery {
    /// Place in the log to begin at, in bytes.
    pub offset: u64,
    /// Begin with what came in at this moment or later instead, in Unix milliseconds.
    pub since_ms: Option<i64>,
    /// How long to wait for output where there is none yet.
    pub wait: Duration,
    /// One stream only; both when absent.
    pub stream: Option<OutputStream>,
}

/// A piece of an execution's standard input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InputPiece {
    /// Who writes; each writer counts its own bytes.
    pub writer: String,
    /// Where the first byte stands among all bytes of this writer.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
    /// Whether the input is closed behind them.
    pub close: bool,
}

/// A piece of output as it came from the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputBytes {
    /// The bytes.
    pub bytes: Bytes,
    /// Where to go on.
    pub next_offset: u64,
    /// Bytes between the asked offset and the first one here that were dropped at the retention limit.
    pub skipped_bytes: u64,
    /// Whether the execution has ended and nothing comes after `next_offset`.
    pub complete: bool,
}

/// Gives a command these bytes as its standard input, in the shorter of the two forms that a request has for them.
#[must_use]
pub fn with_stdin(request: StartExecution, bytes: Vec<u8>) -> StartExecution {
    // What JSON writes longer: `\n` in two characters, control characters without a short form in six.
    let escaped = |bytes: &[u8]| bytes.iter().filter(|b| b.is_ascii_control() || matches!(b, b'"' | b'\\')).count();
    let encoded_bytes = bytes.len().div_ceil(3) * 4;
    match String::from_utf8(bytes) {
        Ok(text) if text.len() + 5 * escaped(text.as_bytes()) <= encoded_bytes.max(SHORT_INPUT_BYTES) => {
            StartExecution { stdin: Some(text), ..request }
        }
        Ok(text) => StartExecution { stdin_base64: Some(BASE64.encode(text)), ..request },
        Err(e) => StartExecution { stdin_base64: Some(BASE64.encode(e.as_bytes())), ..request },
    }
}

fn executions_path(sandbox: &SandboxId) -> Result<String, ClientError> {
    Ok(format!("{}/executions", sandbox_path(sandbox)?))
}

fn execution_path(sandbox: &SandboxId, id: &ExecutionId) -> Result<String, ClientError> {
    Ok(format!("{}/{}", executions_path(sandbox)?, segment(id.as_str())?))
}

/// Input up to this size stays text where it is text, so that a request can be read by people, in bytes.
const SHORT_INPUT_BYTES: usize = 64 << 10;

fn milliseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

impl OutputQuery {
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = vec![("offset", self.offset.to_string()), ("wait_ms", milliseconds(self.wait).to_string())];
        pairs.extend(self.since_ms.map(|since| ("since_ms", since.to_string())));
        if let Some(stream) = self.stream {
            let word = match stream {
                OutputStream::Stdout => "stdout",
                OutputStream::Stderr => "stderr",
            };
            pairs.push(("stream", word.into()));
        }
        pairs
    }
}

impl Client {
    /// `POST /v1/sandboxes/{id}/executions`: runs one command and waits for its end as long as the request says.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`]. A command that fails is no error.
    pub async fn execute(&self, sandbox: &SandboxId, request: &StartExecution) -> Result<Execution, ClientError> {
        self.change("execute", Some(sandbox), Method::POST, executions_path(sandbox)?).json(request).read().await
    }

    /// `GET /v1/sandboxes/{id}/executions`, oldest first.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn executions(&self, sandbox: &SandboxId) -> Result<Vec<Execution>, ClientError> {
        let list: ExecutionList = self.call(Method::GET, executions_path(sandbox)?).read().await?;
        Ok(list.executions)
    }

    /// `GET /v1/sandboxes/{id}/executions/{exec}`: waits for its end at most `wait`.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn execution(
        &self,
        sandbox: &SandboxId,
        id: &ExecutionId,
        wait: Duration,
    ) -> Result<Execution, ClientError> {
        let query = [("wait_ms", milliseconds(wait))];
        self.call(Method::GET, execution_path(sandbox, id)?).query(&query).read().await
    }

    /// `GET …/executions/{exec}/output` as records of text.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn output(
        &self,
        sandbox: &SandboxId,
        id: &ExecutionId,
        query: &OutputQuery,
    ) -> Result<OutputPage, ClientError> {
        self.call(Method::GET, format!("{}/output", execution_path(sandbox, id)?)).query(&query.pairs()).read().await
    }

    /// `GET …/executions/{exec}/output` as raw bytes.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn output_bytes(
        &self,
        sandbox: &SandboxId,
        id: &ExecutionId,
        query: &OutputQuery,
    ) -> Result<OutputBytes, ClientError> {
        let mut accept = HeaderMap::new();
        accept.insert(header::ACCEPT, HeaderValue::from_static("application/octet-stream"));
        let request = self.call(Method::GET, format!("{}/output", execution_path(sandbox, id)?));
        let call = request.name();
        let incoming = request.query(&query.pairs()).headers(accept).send().await?;
        let status = incoming.status();
        let header = |name: &str| incoming.headers().get(name).and_then(|value| value.to_str().ok());
        let next_offset = header("x-remuda-next-offset").and_then(|text| text.parse().ok());
        let skipped_bytes = header("x-remuda-skipped-bytes").and_then(|text| text.parse().ok());
        let complete = header("x-remuda-complete").and_then(|text| text.parse().ok());
        let (Some(next_offset), Some(skipped_bytes), Some(complete)) = (next_offset, skipped_bytes, complete) else {
            let problem = "X-Remuda-Next-Offset, -Skipped-Bytes or -Complete is missing or malformed";
            return Err(call.protocol(status, problem.into()));
        };
        let bytes = incoming.collect(ANSWER_BYTES_MAX).await?;
        Ok(OutputBytes { bytes, next_offset, skipped_bytes, complete })
    }

    /// `POST …/executions/{exec}/signal`: sends a signal to its process group.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn signal(&self, sandbox: &SandboxId, id: &ExecutionId, signal: i32) -> Result<Execution, ClientError> {
        self.change("signal", Some(sandbox), Method::POST, format!("{}/signal", execution_path(sandbox, id)?))
            .json(&SendSignal { signal })
            .read()
            .await
    }

    /// `POST …/executions/{exec}/stdin`: a piece of standard input, which may be sent again as it was.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn write_input(
        &self,
        sandbox: &SandboxId,
        id: &ExecutionId,
        piece: &InputPiece,
    ) -> Result<InputTaken, ClientError> {
        let query = [
            ("offset", piece.offset.to_string()),
            ("writer", piece.writer.clone()),
            ("close", piece.close.to_string()),
        ];
        self.call(Method::POST, format!("{}/stdin", execution_path(sandbox, id)?))
            .query(&query)
            .body(piece.bytes.clone())
            .read()
            .await
    }

    /// `POST …/executions/{exec}/resize`: gives its terminal another size.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn resize(
        &self,
        sandbox: &SandboxId,
        id: &ExecutionId,
        size: TerminalSize,
    ) -> Result<Execution, ClientError> {
        self.call(Method::POST, format!("{}/resize", execution_path(sandbox, id)?)).json(&size).read().await
    }

    /// `DELETE …/executions/{exec}`: kills its process group.
    ///
    /// # Errors
    /// As for every call: see [`ClientError`].
    pub async fn cancel(&self, sandbox: &SandboxId, id: &ExecutionId) -> Result<Execution, ClientError> {
        self.change("cancel", Some(sandbox), Method::DELETE, execution_path(sandbox, id)?).read().await
    }
}
