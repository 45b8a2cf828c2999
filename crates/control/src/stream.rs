//! Plain data of the data plane: what is read, how files are written, and streams of bytes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use remuda_types::ExecutionState;
use remuda_types::wire::OutputStream;
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
