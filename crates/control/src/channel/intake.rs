//! What comes in on a data channel, and how far each side may be ahead of the other.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use remuda_guest_proto::{
    AgentError, FRAME_PAYLOAD_BYTES_MAX, Frame, FrameError, Kind, OutputChunk, Reply, Request, WINDOW_BYTES,
};
use tokio::sync::{Notify, mpsc};

use super::{Channel, ChannelError};
use crate::executions::ExecutionCell;
use crate::stream::ByteStream;

/// Largest piece of an upload, in bytes.
const UPLOAD_CHUNK_BYTES: usize = 256 << 10;

/// Where a channel's frames go.
#[derive(Debug)]
pub(super) enum Incoming {
    /// An execution's output, into its log.
    Execution(Arc<ExecutionCell>),
    /// A file on its way out of the guest.
    Download(DownloadSink),
}

impl Incoming {
    /// Takes data in. What may be credited is told by whoever keeps it, when it is kept.
    pub(super) fn data(&mut self, payload: Vec<u8>) -> Result<(), FrameError> {
        match self {
            Incoming::Execution(execution) => execution.output(OutputChunk::decode(&payload)?),
            Incoming::Download(download) => download.data(payload),
        }
    }
}

/// The reader's end of a download.
#[derive(Debug)]
pub(super) struct DownloadSink {
    chunks: mpsc::UnboundedSender<Result<Bytes, AgentError>>,
    received: u64,
    credited: Arc<AtomicU64>,
}

impl DownloadSink {
    fn data(&mut self, payload: Vec<u8>) -> Result<(), FrameError> {
        self.received += payload.len() as u64;
        // The queue has no bound of its own: this is its bound.
        if self.received - self.credited.load(Ordering::Relaxed) > WINDOW_BYTES {
            return Err(FrameError::Payload { kind: Kind::GuestData, why: "more data than was asked for".into() });
        }
        // No bytes are no data; here they are the mark of the end.
        if payload.is_empty() {
            return Ok(());
        }
        // A reader that went away is noticed by the agent's window closing.
        let _ = self.chunks.send(Ok(payload.into()));
        Ok(())
    }

    pub(super) fn end(self, error: Option<AgentError>) {
        let _ = self.chunks.send(error.map_or(Ok(Bytes::new()), Err));
    }
}

/// A file on its way out. Bytes are credited as they are taken, so that a slow client slows the guest and fills
/// nothing.
#[derive(Debug)]
pub(crate) struct Download {
    channel: Channel,
    number: u32,
    chunks: mpsc::UnboundedReceiver<Result<Bytes, AgentError>>,
    taken: u64,
    credited: Arc<AtomicU64>,
    expected: u64,
    finished: bool,
}

impl Download {
    /// Asks for a file; the reply tells what it is, the stream brings it.
    pub(crate) async fn start(channel: &Channel, request: Request) -> Result<(Reply, Download), ChannelError> {
        let number = channel.new_channel();
        let (sender, chunks) = mpsc::unbounded_channel();
        let credited = Arc::new(AtomicU64::new(0));
        let sink = DownloadSink { chunks: sender, received: 0, credited: credited.clone() };
        channel.intake().channels.insert(number, Incoming::Download(sink));
        let mut download =
            Download { channel: channel.clone(), number, chunks, taken: 0, credited, expected: 0, finished: false };
        let reply = channel.call_on(number, request).await?;
        download.expected = match &reply {
            Reply::Entry(entry) => entry.size,
            Reply::Opened { length, .. } => *length,
            _ => 0,
        };
        Ok((reply, download))
    }
}

impl Stream for Download {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        match self.chunks.poll_recv(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(end))) if end.is_empty() => {
                let whole = self.finished || self.taken >= self.expected;
                self.finished = true;
                Poll::Ready((!whole).then(|| Err(stopped())))
            }
            Poll::Ready(Some(Ok(chunk))) => {
                self.taken += chunk.len() as u64;
                self.credited.store(self.taken, Ordering::Relaxed);
                self.channel.shared.credit(self.number, self.taken);
                Poll::Ready(Some(Ok(chunk)))
            }
            Poll::Ready(Some(Err(e))) => {
                self.finished = true;
                Poll::Ready(Some(Err(io::Error::other(e.message))))
            }
            // The channel broke before the end.
            Poll::Ready(None) if !self.finished => {
                self.finished = true;
                Poll::Ready(Some(Err(stopped())))
            }
            Poll::Ready(None) => Poll::Ready(None),
        }
    }
}

fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the sandbox stopped sending")
}

impl Drop for Download {
    fn drop(&mut self) {
        self.channel.detach(self.number);
        if !self.finished {
            self.channel.shared.abandon(self.number);
        }
    }
}

/// How much of the host's data the guest has taken in on one channel.
#[derive(Debug, Default)]
pub(super) struct UploadWindow {
    consumed: AtomicU64,
    sent: AtomicU64,
    closed: AtomicBool,
    moved: Notify,
}

impl UploadWindow {
    pub(super) fn consumed(&self, bytes: u64) -> Result<(), FrameError> {
        if bytes > self.sent.load(Ordering::Relaxed) {
            let why = "it took in more than was sent".into();
            return Err(FrameError::Payload { kind: Kind::GuestCredit, why });
        }
        self.consumed.fetch_max(bytes, Ordering::Relaxed);
        self.moved.notify_one();
        Ok(())
    }

    /// The channel broke: nothing more will be taken in.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.moved.notify_one();
    }

    /// Waits until `bytes` more may be sent, and counts them as sent. False when the channel broke.
    async fn room(&self, bytes: u64) -> bool {
        loop {
            let moved = self.moved.notified();
            let sent = self.sent.load(Ordering::Relaxed);
            if self.closed.load(Ordering::Relaxed) {
                return false;
            }
            if sent + bytes <= self.consumed.load(Ordering::Relaxed) + WINDOW_BYTES {
                self.sent.fetch_add(bytes, Ordering::Relaxed);
                return true;
            }
            moved.await;
        }
    }
}

/// Data on its way into the guest on one channel: a file's contents, or an execution's standard input.
#[derive(Debug)]
pub(crate) struct Feed {
    channel: Channel,
    number: u32,
    window: Arc<UploadWindow>,
    ended: bool,
}

impl Feed {
    fn open(channel: &Channel, number: u32) -> Feed {
        let window = Arc::new(UploadWindow::default());
        channel.intake().windows.insert(number, window.clone());
        Feed { channel: channel.clone(), number, window, ended: false }
    }

    /// Sends all of `bytes` on a channel and ends it.
    pub(crate) async fn run(channel: &Channel, number: u32, bytes: Bytes) -> Result<(), ChannelError> {
        let mut feed = Feed::open(channel, number);
        feed.send(&bytes).await?;
        feed.end().await
    }

    async fn send(&self, bytes: &[u8]) -> Result<(), ChannelError> {
        const { assert!(UPLOAD_CHUNK_BYTES <= FRAME_PAYLOAD_BYTES_MAX) };
        for piece in bytes.chunks(UPLOAD_CHUNK_BYTES) {
            if !self.window.room(piece.len() as u64).await {
                return Err(self.channel.end());
            }
            self.channel.send(Frame::new(Kind::HostData, self.number, piece.to_vec())).await?;
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<(), ChannelError> {
        self.channel.send(Frame::new(Kind::HostEnd, self.number, Vec::new())).await?;
        self.ended = true;
        Ok(())
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.channel.intake().windows.remove(&self.number);
        if !self.ended {
            self.channel.shared.abandon(self.number);
        }
    }
}

/// A call with a body behind it.
pub(crate) struct Upload;

impl Upload {
    /// Sends a whole body behind a call and waits for the call's answer. The agent may answer early, with a refusal.
    pub(crate) async fn run(channel: &Channel, request: Request, mut body: ByteStream) -> Result<Reply, UploadError> {
        let number = channel.new_channel();
        let mut feed = Feed::open(channel, number);
        let answer = channel.ask(number, request).await.map_err(UploadError::Channel)?.answer();
        tokio::pin!(answer);
        let sending = async {
            while let Some(chunk) = body.next().await {
                // Half a file must never look like a whole one: dropping the feed tells the agent to throw it away.
                feed.send(&chunk.map_err(UploadError::Body)?).await.map_err(UploadError::Channel)?;
            }
            feed.end().await.map_err(UploadError::Channel)
        };
        tokio::select! {
            biased;
            early = &mut answer => return early.map_err(UploadError::Channel),
            sent = sending => sent?,
        }
        answer.await.map_err(UploadError::Channel)
    }
}

/// Why an upload did not end in a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    /// The guest's side.
    #[error(transparent)]
    Channel(ChannelError),
    /// The client's side stopped sending.
    #[error("the request's body broke off")]
    Body(#[source] io::Error),
}
