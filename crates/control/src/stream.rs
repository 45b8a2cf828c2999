//! Plain data of the data plane: what is read, how files are written, and streams of bytes.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use remuda_types::ExecutionState;
use remuda_types::wire::OutputStream;

/// Bytes on their way from or to a guest.
pub type ByteStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// What to read of an execution's output.
#[derive(Debug, Clone, Copy)]
pub struct OutputQuery {
    /// Where to begin, in bytes of the one log of both streams.
    pub offset: u64,
    /// Only this stream; both when `None`.
    pub stream: Option<OutputStream>,
    /// At most so many bytes.
    pub max_bytes: usize,
    /// How long to wait for the first byte or the end when there is nothing yet.
    pub wait: Duration,
}

/// A piece of an execution's output.
#[derive(Debug, Clone)]
pub struct OutputSlice {
    /// Offset, stream and bytes of each record.
    pub records: Vec<(u64, OutputStream, Bytes)>,
    /// Where to go on.
    pub next_offset: u64,
    /// Bytes that were dropped at the retention limit between the asked offset and the first record.
    pub skipped_bytes: u64,
    /// Whether the execution has ended and nothing comes after `next_offset`.
    pub complete: bool,
    /// Its state at this moment.
    pub state: ExecutionState,
    /// Its exit code, once it has one.
    pub exit_code: Option<i32>,
}

/// How to write a file.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// Permission bits; of the file that is replaced, else 0644.
    pub mode: Option<u32>,
    /// Owner by name; `user` when absent.
    pub user: Option<String>,
    /// Whether missing directories are made.
    pub parents: bool,
    /// What the caller says of the body, as the text of its `Content-Digest` header: with it, a keyed call is told from
    /// another one without its body being read.
    pub content_digest: Option<String>,
}
