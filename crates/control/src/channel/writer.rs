//! Writes frames to the guest, one after another, and falls silent on demand.

use std::sync::{Arc, Weak};

use remuda_guest_proto::{Frame, Kind, PADDING_BYTES, encode_credit};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Shared, Urgent};

/// What the writer is asked to do.
#[derive(Debug)]
pub(super) enum Order {
    /// Send this.
    Frame(Frame),
    /// Complete whatever half frame an earlier server left.
    Padding,
    /// Ask the guest for silence and send nothing until `opened` is told or dropped.
    Quiesce {
        /// Whether the guest flushes its file system first.
        sync: bool,
        /// Told or dropped when the guest may go on.
        opened: oneshot::Receiver<()>,
    },
}

/// What the writing task owns.
pub(super) struct Pen {
    pub(super) fifo: pipe::Sender,
    pub(super) inbox: mpsc::Receiver<Order>,
    pub(super) urgent: Arc<Urgent>,
}

/// Writes until the channel is closed. Holds no more than a weak reference to the channel: the channel ends when its
/// last user goes, not when its writer does.
pub(super) async fn run(mut pen: Pen, shared: Weak<Shared>, closing: CancellationToken) {
    // A full FIFO must not outlive the machine behind it.
    tokio::select! {
        () = closing.cancelled() => {}
        result = pen.write_all() => {
            if let (Err(e), Some(shared)) = (result, shared.upgrade()) {
                shared.break_off(format!("writing to the guest failed: {e}"));
            }
        }
    }
}

impl Pen {
    async fn write_all(&mut self) -> std::io::Result<()> {
        loop {
            let news = self.urgent.take();
            for (channel, consumed) in news.credits {
                self.write(Frame::new(Kind::HostCredit, channel, encode_credit(consumed))).await?;
            }
            let order = tokio::select! {
                biased;
                () = self.urgent.waiting.notified() => continue,
                order = self.inbox.recv() => order,
            };
            match order {
                None => return Ok(()),
                Some(Order::Frame(frame)) => self.write(frame).await?,
                Some(Order::Padding) => self.pad().await?,
                Some(Order::Quiesce { sync, opened }) => {
                    self.write(Frame::new(Kind::Quiesce, 0, vec![u8::from(sync)])).await?;
                    // Dropped or told: either way the guest goes on.
                    let _ = opened.await;
                    self.write(Frame::new(Kind::Proceed, 0, Vec::new())).await?;
                }
            }
        }
    }

    async fn pad(&mut self) -> std::io::Result<()> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let mut left = PADDING_BYTES;
        while left > 0 {
            let piece = &ZEROS[..left.min(ZEROS.len())];
            self.fifo.write_all(piece).await?;
            left -= piece.len();
        }
        Ok(())
    }

    async fn write(&mut self, frame: Frame) -> std::io::Result<()> {
        self.fifo.write_all(&frame.encode()).await
    }
}
