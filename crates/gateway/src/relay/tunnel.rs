//! Two connections that have switched to another protocol, joined: bytes go both ways until one side ends, nothing moves
//! for too long, or whoever joined them says that it is over. Must keep nothing of what goes through.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::activity::Activity;
use super::frames::{Frames, close};

/// Bytes of each direction that are under way in the server, at first and at most: who says much gets more, since most of
/// those that are open say little.
const PIECE_BYTES: usize = 2 << 10;
const PIECE_BYTES_MAX: usize = 64 << 10;
/// How long saying that it is over may take.
const FAREWELL_WAIT_MAX: Duration = Duration::from_secs(2);

/// What holds for what goes through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// How long nothing may move.
    pub(crate) idle: Option<Duration>,
    /// Longest frame of a WebSocket, in bytes; no WebSocket where there is none.
    pub(crate) frame_bytes_max: Option<u64>,
}

/// What a WebSocket is closed with.
pub(crate) type Farewell = (u16, &'static str);

/// Why bytes stopped.
enum Stopped {
    /// This side ended.
    End,
    TooLong,
}

/// Joins what both sides have switched to. `over` ends it, with what a WebSocket is told then.
pub(crate) async fn join(
    client: hyper::upgrade::OnUpgrade,
    guest: hyper::upgrade::OnUpgrade,
    limits: Limits,
    over: impl Future<Output = Farewell>,
) {
    let Ok((client, guest)) = tokio::try_join!(client, guest) else { return };
    let (mut from_client, mut to_client) = tokio::io::split(TokioIo::new(client));
    let (mut from_guest, mut to_guest) = tokio::io::split(TokioIo::new(guest));
    let (activity, between) = (Activity::begin(), AtomicBool::new(true));
    let idle = async {
        match limits.idle {
            Some(limit) => activity.idle_for(limit).await,
            None => std::future::pending().await,
        }
    };
    let watch = || limits.frame_bytes_max.map(Frames::new);
    // Each side that ends is told to the other, which may still have something to say.
    let both = async {
        let up = pump(&mut from_client, &mut to_guest, watch(), &activity, None);
        let down = pump(&mut from_guest, &mut to_client, watch(), &activity, Some(&between));
        match tokio::try_join!(ends(up), ends(down)) {
            Ok(_) => None,
            Err(TooLong) => Some((1009, "a frame is larger than it may be")),
        }
    };
    let farewell = tokio::select! {
        biased;
        farewell = over => Some(farewell),
        () = idle => Some((1001, "nothing moved for too long")),
        farewell = both => farewell,
    };
    // A word in the middle of a frame would be taken for a part of it.
    if let Some((code, reason)) =
        farewell.filter(|_| limits.frame_bytes_max.is_some() && between.load(Ordering::Relaxed))
    {
        let telling = async {
            let told = to_client.write_all(&close(code, reason)).await;
            told.and(to_client.shutdown().await)
        };
        // Whoever is gone needs no word.
        let _ = tokio::time::timeout(FAREWELL_WAIT_MAX, telling).await;
    }
}

struct TooLong;

async fn ends(pump: impl Future<Output = std::io::Result<Stopped>>) -> Result<(), TooLong> {
    match pump.await {
        Ok(Stopped::TooLong) => Err(TooLong),
        Ok(Stopped::End) | Err(_) => Ok(()),
    }
}

/// Carries bytes one way until they end, and tells the other side. `between` is kept at whether a frame has just ended.
async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut frames: Option<Frames>,
    activity: &Activity,
    between: Option<&AtomicBool>,
) -> std::io::Result<Stopped> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = from.read(&mut piece).await;
        let count = match read {
            Ok(0) | Err(_) => {
                // One that was cut is not the other's fault: it may say what it still has to say.
                to.shutdown().await?;
                return Ok(Stopped::End);
            }
            Ok(count) => count,
        };
        let bytes = &piece[..count];
        activity.touch();
        if let Some(frames) = &mut frames {
            let begun = frames.between();
            if frames.see(bytes).is_err() {
                // Of what came together with its head nothing goes through, so that a frame before it is cut as well.
                if let Some(between) = between {
                    between.store(begun, Ordering::Relaxed);
                }
                return Ok(Stopped::TooLong);
            }
        }
        if let Some(between) = between {
            between.store(false, Ordering::Relaxed);
        }
        to.write_all(bytes).await?;
        to.flush().await?;
        if let (Some(between), Some(frames)) = (between, &frames) {
            between.store(frames.between(), Ordering::Relaxed);
        }
        activity.touch();
        if count == piece.len() && count < PIECE_BYTES_MAX {
            piece.resize(2 * count, 0);
        }
    }
}
