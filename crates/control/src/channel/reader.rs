//! Reads what the guest says. All of it is hostile input: a frame that makes no sense ends the channel. What was meant
//! for an earlier server is dropped unread.

use std::sync::Weak;

use futures_util::FutureExt;
use remuda_engine::OomAlarm;
use remuda_guest_proto::{
    AgentError, Event, Frame, FrameError, HEADER_BYTES, Header, Kind, Nonce, ReplyResult, decode_credit,
};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::intake::Incoming;

/// What the reading task owns.
pub(super) struct Ear {
    pub(super) fifo: pipe::Receiver,
    /// Told when the channel is bound.
    pub(super) nonce: oneshot::Receiver<Nonce>,
    pub(super) oom: OomAlarm,
    pub(super) ended: CancellationToken,
}

pub(super) async fn run(ear: Ear, shared: Weak<Shared>, closing: CancellationToken) {
    let Ear { fifo, nonce, oom, ended } = ear;
    let mut fifo = tokio::io::BufReader::with_capacity(256 << 10, fifo);
    let synced = async {
        // Dropped when the channel goes without ever having been bound.
        let Ok(nonce) = nonce.await else { return std::future::pending().await };
        skip_to(&mut fifo, &Frame::new(Kind::Synced, 0, nonce.to_vec()).encode()).await
    };
    let synced = tokio::select! {
        biased;
        () = closing.cancelled() => return,
        synced = synced => synced.map_err(|e| FrameError::from(e).to_string()),
        () = ended.cancelled() => Err("the machine has ended".into()),
    };
    if let Err(why) = synced {
        let Some(shared) = shared.upgrade() else { return };
        shared.break_off(why);
        return;
    }
    loop {
        let frame = {
            let reading = next(&mut fifo);
            tokio::pin!(reading);
            tokio::select! {
                biased;
                () = closing.cancelled() => return,
                frame = &mut reading => Some(frame),
                // What was said before the end is still in the FIFO; when that is empty, it was all.
                () = ended.cancelled() => reading.now_or_never(),
            }
        };
        let Some(shared) = shared.upgrade() else { return };
        let taken = match frame {
            Some(frame) => frame.and_then(|frame| take(&shared, frame, &oom)).map_err(|e| e.to_string()),
            None => Err("the machine has ended".into()),
        };
        if let Err(why) = taken {
            shared.break_off(why);
            return;
        }
    }
}

/// Drops everything up to and with `mark`.
async fn skip_to(fifo: &mut (impl AsyncBufRead + Unpin), mark: &[u8]) -> std::io::Result<()> {
    // What was read last and may be the mark's beginning.
    let mut tail: Vec<u8> = Vec::new();
    loop {
        let piece = fifo.fill_buf().await?;
        if piece.is_empty() {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (before, got) = (tail.len(), piece.len());
        tail.extend_from_slice(piece);
        if let Some(at) = tail.windows(mark.len()).position(|window| window == mark) {
            // It was not all in what came before, so its end lies in this piece.
            fifo.consume(at + mark.len() - before);
            return Ok(());
        }
        fifo.consume(got);
        tail.drain(..tail.len().saturating_sub(mark.len() - 1));
    }
}

async fn next(fifo: &mut (impl AsyncReadExt + Unpin)) -> Result<Frame, FrameError> {
    let mut bytes = [0; HEADER_BYTES];
    fifo.read_exact(&mut bytes).await?;
    let header = Header::decode(&bytes)?;
    if !header.kind.is_from_guest() {
        return Err(FrameError::Payload { kind: header.kind, why: "it is the host's to say".into() });
    }
    let mut rest = vec![0; header.rest_bytes()];
    fifo.read_exact(&mut rest).await?;
    Frame::decode(header, rest)
}

/// Hands a frame to whoever waits for it. One that nobody waits for is dropped: its caller may have gone away.
fn take(shared: &Shared, frame: Frame, oom: &OomAlarm) -> Result<(), FrameError> {
    let kind = frame.kind;
    let bad = |e: serde_json::Error| FrameError::Payload { kind, why: e.to_string() };
    match kind {
        Kind::Reply => {
            let reply: ReplyResult = serde_json::from_slice(&frame.payload).map_err(bad)?;
            let mut intake = shared.intake();
            intake.file_call_said(frame.channel, kind, reply.is_err());
            if let Some(waiting) = intake.calls.remove(&frame.channel) {
                let _ = waiting.send(reply);
            }
        }
        Kind::GuestData => {
            if let Some(incoming) = shared.intake().channels.get_mut(&frame.channel) {
                incoming.data(frame.payload)?;
            }
        }
        Kind::GuestEnd => {
            let error: Option<AgentError> = match frame.payload.as_slice() {
                [] => None,
                payload => Some(serde_json::from_slice(payload).map_err(bad)?),
            };
            let mut intake = shared.intake();
            intake.file_call_said(frame.channel, kind, false);
            let ended = intake.channels.remove(&frame.channel);
            drop(intake);
            if let Some(Incoming::Download(download)) = ended {
                download.end(error);
            }
        }
        Kind::GuestCredit => {
            let consumed = decode_credit(kind, &frame.payload)?;
            let intake = shared.intake();
            if let Some(window) = intake.windows.get(&frame.channel) {
                window.consumed(consumed)?;
            } else if let Some(Incoming::Execution(execution)) = intake.channels.get(&frame.channel) {
                execution.input_consumed();
            }
        }
        Kind::Quiesced => {
            if let Some(waiting) = shared.intake().quiesced.take() {
                let _ = waiting.send(());
            }
        }
        Kind::Event => match serde_json::from_slice(&frame.payload).map_err(bad)? {
            Event::Exited { channel, code, signal, produced, pipes_held } => {
                let ended = shared.intake().channels.remove(&channel);
                if let Some(Incoming::Execution(execution)) = ended {
                    // A program that the kernel killed for want of memory looks as if it had ended by itself.
                    if oom.has_rung() {
                        execution.sandbox_ended(true);
                    } else {
                        execution.exited(code, signal, produced, pipes_held);
                    }
                }
            }
        },
        Kind::Synced => return Err(FrameError::Payload { kind, why: "the conversation has begun before".into() }),
        _ => return Err(FrameError::Payload { kind, why: "it is the host's to say".into() }),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> Vec<u8> {
        Frame::new(Kind::Synced, 0, vec![9; 16]).encode()
    }

    /// What is left of these bytes, read in small pieces, behind the mark.
    async fn behind(bytes: &[u8], piece: usize) -> Option<Vec<u8>> {
        let mut fifo = tokio::io::BufReader::with_capacity(piece, bytes);
        skip_to(&mut fifo, &mark()).await.ok()?;
        let mut rest = Vec::new();
        fifo.read_to_end(&mut rest).await.unwrap();
        Some(rest)
    }

    #[tokio::test]
    async fn the_mark_is_found_wherever_an_earlier_frame_was_cut() {
        let frame = Frame::new(Kind::GuestData, 3, b"output of a program, and then some".to_vec()).encode();
        for cut in 0..=frame.len() {
            let bytes = [&frame[cut..], &frame, &mark(), b"rest"].concat();
            for piece in [1, 7, 34, 4096] {
                assert_eq!(behind(&bytes, piece).await.as_deref(), Some(&b"rest"[..]), "{cut} {piece}");
            }
        }
    }

    #[tokio::test]
    async fn a_forged_mark_is_none() {
        let forged = Frame::new(Kind::Synced, 0, vec![8; 16]).encode();
        let whole = mark();
        for piece in [1, 7, 4096] {
            // Beginnings of the right one count as little: up to its last byte it may be chance.
            let bytes = [&forged[..], &whole[..30], &forged, &whole[..1], &whole, b"rest"].concat();
            assert_eq!(behind(&bytes, piece).await.as_deref(), Some(&b"rest"[..]));
            assert_eq!(behind(&[&forged[..], &whole[..32]].concat(), piece).await, None);
        }
    }
}
