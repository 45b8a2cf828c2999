//! Executions on the wire.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::Error;
use crate::ids::{ExecutionId, SandboxId};
use crate::states::ExecutionState;

/// `POST /v1/sandboxes/{id}/executions`: run one command. Exactly one of `command` and `argv` is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartExecution {
    /// A script for `/bin/sh`; it never travels in an argument vector, so it may be long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Whether `command` finds what a login shell has: `/etc/profile` and the user's own `.profile` are read before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub login: bool,
    /// Program and arguments, started without a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Working directory; `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Environment variables beside PATH, HOME and LANG.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Guest user by name; `user` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Time limit in milliseconds of running time; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Bytes that it may print, both streams together; comes with `on_output_limit`. How much is kept does not depend on
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_limit: Option<u64>,
    /// What becomes of it when it has printed more than `output_limit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_output_limit: Option<OnOutputLimit>,
    /// How long this call waits for the end, in milliseconds; 0 or absent returns at once. The execution goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Text given to its standard input, which is `/dev/null` when absent; at most 2 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// The same in base64, for input that is no text; at most 2 MiB once decoded. Give one of the two at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// Whether its standard input stays open and comes in pieces, by `POST …/executions/{execution}/stdin`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin_open: bool,
    /// A terminal of this size: its output is one stream, and its input comes in pieces. `TERM` is `xterm-256color`
    /// unless `env` says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
}

/// What becomes of an execution that has printed more than its `output_limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnOutputLimit {
    /// It is killed, and ends as `cancelled` with `output_exceeded`. What was under way by then still comes.
    Kill,
}

/// Size of a terminal, in characters. `POST …/executions/{id}/resize` takes it too; to give the same size twice is to
/// give it once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Columns, at least 1.
    pub cols: u16,
    /// Rows, at least 1.
    pub rows: u16,
}

/// `POST …/executions/{id}/stdin`: how much of the input was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InputTaken {
    /// Bytes of this writer that the guest has: where the next piece begins.
    pub taken: u64,
    /// Whether no more is wanted: the input was closed, or the execution has ended.
    pub closed: bool,
}

/// One execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Execution {
    /// Its id.
    pub id: ExecutionId,
    /// The sandbox it runs in.
    pub sandbox: SandboxId,
    /// What runs: the script, or the argument vector.
    pub command: Vec<String>,
    /// Where it stands.
    pub state: ExecutionState,
    /// Exit code of the leader: 0–255, 128+N for signal N, 124 after a time-out, 137 after a cancel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The leader's pid in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Whether its end is the server's word alone: it was killed, and the guest has not confirmed it in time, as where it
    /// is starved. Its processes may still be there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unconfirmed: bool,
    /// Whether processes that it started held its output when it ended, such as one in the background: they go on, and what
    /// they print from then on is not kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_running: bool,
    /// When it was admitted, in Unix milliseconds.
    pub started_at_ms: i64,
    /// When its end was seen, in Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at_ms: Option<i64>,
    /// Bytes of output so far, standard output and error together.
    pub output_bytes: u64,
    /// Whether the middle of the output was dropped at the retention limit.
    pub output_truncated: bool,
    /// Whether it printed more than its `output_limit`, and was killed for that unless it ended by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_exceeded: bool,
    /// Whether its standard input comes in pieces.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin_open: bool,
    /// Size of its terminal, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<TerminalSize>,
    /// In a branch: the execution of the source that this one goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<ExecutionId>,
    /// Standard output, where the call waited and the execution ended; invalid UTF-8 is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// Standard error, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
}

/// `GET /v1/sandboxes/{id}/executions`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExecutionList {
    /// Oldest first.
    pub executions: Vec<Execution>,
}

/// Which of its two outputs a record belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One piece of output, in the order the agent read it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputRecord {
    /// Place in the one log of both streams, in bytes.
    pub offset: u64,
    /// Which stream it came from.
    pub stream: OutputStream,
    /// The bytes as text; invalid UTF-8 is replaced.
    pub text: String,
}

/// `GET …/executions/{id}/output?offset=N&wait_ms=M`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutputPage {
    /// Records from the asked offset on, at most a page.
    pub records: Vec<OutputRecord>,
    /// Where to go on.
    pub next_offset: u64,
    /// Bytes between the asked offset and the first record that were dropped at the retention limit.
    pub skipped_bytes: u64,
    /// Whether the execution has ended and nothing comes after `next_offset`.
    pub complete: bool,
    /// The execution's state when the page was made.
    pub state: ExecutionState,
    /// Its exit code, once it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}

/// Data of an `output` event of `GET …/executions/{id}/events`: one of `text` and `base64`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FollowedOutput {
    /// Place of the first byte in the one log of both streams.
    pub offset: u64,
    /// Which stream it came from.
    pub stream: OutputStream,
    /// The bytes, where they are text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The bytes in base64, where they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// Data of a `gap` event: output that was dropped at the retention limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct FollowedGap {
    /// Place of the first byte that is missing.
    pub offset: u64,
    /// Bytes that are missing.
    pub missed: u64,
}

/// A text message to `GET …/executions/{id}/terminal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum TerminalSaid {
    /// The terminal is to have another size.
    Resize {
        /// Columns, at least 1.
        cols: u16,
        /// Rows, at least 1.
        rows: u16,
    },
}

/// A text message from `GET …/executions/{id}/terminal`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TerminalTold {
    /// The first message: binary ones from here on are output from this place.
    Begin {
        /// Place of the first byte that comes.
        offset: u64,
        /// The execution as it stands.
        execution: Box<Execution>,
    },
    /// Output that is no longer kept.
    Gap {
        /// Place of the first byte that is missing.
        offset: u64,
        /// Bytes that are missing.
        missed: u64,
    },
    /// The guest has what was typed, so far. Whoever comes back with this as `typed` and with the same `writer` sends
    /// what came behind it again.
    Taken {
        /// Bytes of this writer.
        typed: u64,
    },
    /// Something was refused; the socket closes.
    Error {
        /// Why.
        error: Error,
    },
    /// The execution has ended, and all of its output was sent; the socket closes.
    End {
        /// The execution at its end.
        execution: Box<Execution>,
    },
}

/// `POST …/executions/{id}/signal`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SendSignal {
    /// Signal number, 1–64; sent to the whole process group.
    pub signal: i32,
}
