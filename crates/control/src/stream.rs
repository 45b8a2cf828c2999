//! Plain data of the data plane: what is read, how files are written, and streams of bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use remuda_guest_proto::{ByteRange, Conditions};
use remuda_types::ExecutionState;
use remuda_types::wire::{FileStat, OutputStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::deadlines::Work;

/// Bytes on their way from or to a guest.
pub type ByteStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// What to read of an execution's output.
#[derive(Debug, Clone, Copy)]
pub struct OutputQuery {
    /// Where to begin, in bytes of the one log of both streams.
    pub offset: u64,
    /// Begin with what came in at this moment or later instead, in Unix milliseconds.
    pub since_ms: Option<i64>,
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

/// Input for an execution.
#[derive(Debug, Clone, Default)]
pub struct ExecutionInput {
    /// Who writes; each writer counts its own bytes.
    pub writer: String,
    /// Where the first byte stands among all bytes of this writer.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
    /// Whether the input is closed behind them.
    pub close: bool,
    /// How long to wait for room where the program does not read.
    pub wait: Duration,
}

/// A path of a guest, and who touches it.
#[derive(Debug, Clone)]
pub struct FileAt {
    /// Absolute path.
    pub path: String,
    /// Guest user by name, whose permissions count; `user` when absent.
    pub user: Option<String>,
}

/// What to read of a file, and when.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Which bytes; all of them when absent.
    pub range: Option<ByteRange>,
    /// What must hold of the file.
    pub conditions: Conditions,
}

/// What a read of a file came to.
pub enum FileRead {
    /// Its contents, or a part of them.
    Contents(FileContents),
    /// The caller has these contents, as a condition says.
    Unchanged {
        /// Their digest.
        digest: String,
    },
}

/// A file on its way out.
pub struct FileContents {
    /// What it is.
    pub stat: FileStat,
    /// Offset of the first byte.
    pub first: u64,
    /// Bytes that come: exactly so many of a part.
    pub length: u64,
    /// The bytes.
    pub bytes: ByteStream,
}

/// Which paths to look for below a directory.
#[derive(Debug, Clone)]
pub struct FindFiles {
    /// What they look like.
    pub pattern: String,
    /// Most finds of a page.
    pub limit: u32,
    /// Where to go on, as the last page said.
    pub cursor: Option<String>,
}

/// Which text to look for in files.
#[derive(Debug, Clone)]
pub struct FindText {
    /// A regular expression, or the text itself.
    pub pattern: String,
    /// Whether the pattern is the text itself.
    pub literal: bool,
    /// Whether upper and lower case are the same.
    pub ignore_case: bool,
    /// What the paths of files look like that are looked into.
    pub include: Option<String>,
    /// Most finds of a page.
    pub limit: u32,
    /// Where to go on, as the last page said.
    pub cursor: Option<String>,
}

/// Which name a path is to have instead.
#[derive(Debug, Clone)]
pub struct MoveFile {
    /// Absolute path.
    pub from: String,
    /// Absolute path of the new name itself.
    pub to: String,
    /// Guest user by name, whose permissions count; `user` when absent.
    pub user: Option<String>,
    /// Whether what is there may be replaced.
    pub overwrite: bool,
}

/// What of a path is to be changed.
#[derive(Debug, Clone, Default)]
pub struct Attributes {
    /// Permission bits; as they are when absent.
    pub mode: Option<u32>,
    /// Owner by name, with that user's group; as it is when absent.
    pub owner: Option<String>,
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
    /// What must hold of the file that is replaced.
    pub conditions: Conditions,
}

/// A connection to a port of a guest. What goes through it counts as work in its sandbox; that it is open does not.
#[derive(Debug)]
pub struct GuestStream {
    stream: TcpStream,
    work: Arc<Work>,
}

impl GuestStream {
    pub(crate) fn new(stream: TcpStream, work: Arc<Work>) -> GuestStream {
        GuestStream { stream, work }
    }
}

impl AsyncRead for GuestStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.work.touch();
        }
        read
    }
}

impl AsyncWrite for GuestStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.work.touch();
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.work.touch();
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
