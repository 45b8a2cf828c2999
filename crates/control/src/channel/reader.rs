//! Reads what the guest says. All of it is hostile input: a frame that makes no sense ends the channel.

use std::sync::Weak;

use futures_util::FutureExt;
use remuda_engine::OomAlarm;
use remuda_guest_proto::{
    AgentError, Event, Frame, FrameError, HEADER_BYTES, Header, Kind, ReplyResult, decode_credit,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::intake::Incoming;

/// What the reading task owns.
pub(super) struct Ear {
    pub(super) fifo: pipe::Receiver,
    pub(super) oom: OomAlarm,
    pub(super) ended: CancellationToken,
}

pub(super) async fn run(ear: Ear, shared: Weak<Shared>, closing: CancellationToken) {
    let Ear { fifo, oom, ended } = ear;
    let mut fifo = tokio::io::BufReader::with_capacity(256 << 10, fifo);
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

async fn next(fifo: &mut (impl AsyncReadExt + Unpin)) -> Result<Frame, FrameError> {
    let mut bytes = [0; HEADER_BYTES];
    fifo.read_exact(&mut bytes).await?;
    let header = Header::decode(&bytes)?;
    if !header.kind.is_from_guest() {
        return Err(FrameError::Payload { kind: header.kind, why: "it is the host's to say".into() });
    }
    let mut payload = vec![0; header.length as usize];
    fifo.read_exact(&mut payload).await?;
    Ok(Frame { kind: header.kind, channel: header.channel, payload })
}

/// Hands a frame to whoever waits for it. One that nobody waits for is dropped: its caller may have gone away.
fn take(shared: &Shared, frame: Frame, oom: &OomAlarm) -> Result<(), FrameError> {
    let kind = frame.kind;
    let bad = |e: serde_json::Error| FrameError::Payload { kind, why: e.to_string() };
    match kind {
        Kind::Reply => {
            let reply: ReplyResult = serde_json::from_slice(&frame.payload).map_err(bad)?;
            if let Some(waiting) = shared.intake().calls.remove(&frame.channel) {
                let _ = waiting.send(reply);
            }
        }
        Kind::GuestData => {
            let mut intake = shared.intake();
            let credit = match intake.channels.get_mut(&frame.channel) {
                Some(incoming) => incoming.data(frame.payload)?,
                None => None,
            };
            drop(intake);
            if let Some(consumed) = credit {
                shared.credit(frame.channel, consumed);
            }
        }
        Kind::GuestEnd => {
            let error: Option<AgentError> = match frame.payload.as_slice() {
                [] => None,
                payload => Some(serde_json::from_slice(payload).map_err(bad)?),
            };
            let ended = shared.intake().channels.remove(&frame.channel);
            if let Some(Incoming::Download(download)) = ended {
                download.end(error);
            }
        }
        Kind::GuestCredit => {
            let consumed = decode_credit(kind, &frame.payload)?;
            if let Some(window) = shared.intake().windows.get(&frame.channel) {
                window.consumed(consumed)?;
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
        _ => return Err(FrameError::Payload { kind, why: "it is the host's to say".into() }),
    }
    Ok(())
}
