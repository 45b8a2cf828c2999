//! The agent of a machine: the guest's end of its control channel. Like the real one it drops what a dead server left
//! half said, and says nothing before it is bound.

use std::sync::{Arc, Mutex, PoisonError};

use remuda_guest_proto::{Frame, HEADER_BYTES, Header, Kind, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::watch;

use crate::mind::Mind;

/// What is read at once, in bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Serves the channel until the machine ends. While it stands still nothing is taken or said.
pub(crate) async fn run(
    mut ear: pipe::Receiver,
    mut mouth: pipe::Sender,
    mind: Arc<Mutex<Mind>>,
    mut halted: watch::Receiver<bool>,
) {
    let mut heard = Heard::default();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        while let Some(frame) = heard.frame() {
            if halted.wait_for(|halted| !*halted).await.is_err() {
                return;
            }
            let answer = match frame.kind {
                Kind::Request => match serde_json::from_slice(&frame.payload) {
                    Ok(request) => {
                        heard.bound |= matches!(request, Request::Bind { .. });
                        if !heard.bound {
                            continue;
                        }
                        mind.lock().unwrap_or_else(PoisonError::into_inner).obey(frame.channel, request)
                    }
                    Err(_) => return,
                },
                Kind::Quiesce if heard.bound => vec![Frame::new(Kind::Quiesced, 0, Vec::new())],
                _ => continue,
            };
            let bytes: Vec<u8> = answer.iter().flat_map(Frame::encode).collect();
            if mouth.write_all(&bytes).await.is_err() {
                return;
            }
        }
        match ear.read(&mut piece).await {
            Ok(got) if got > 0 => heard.bytes.extend_from_slice(&piece[..got]),
            _ => return,
        }
    }
}

/// What was heard and not understood yet.
#[derive(Debug, Default)]
struct Heard {
    bytes: Vec<u8>,
    bound: bool,
}

impl Heard {
    fn frame(&mut self) -> Option<Frame> {
        loop {
            let zeros = self.bytes.iter().take_while(|byte| **byte == 0).count();
            if zeros > 0 {
                self.bytes.drain(..zeros);
                self.bound = false;
            }
            let header: [u8; HEADER_BYTES] = self.bytes.get(..HEADER_BYTES)?.try_into().ok()?;
            let Ok(header) = Header::decode(&header) else {
                // The rest of a half frame, or padding behind it.
                self.bytes.drain(..1);
                self.bound = false;
                continue;
            };
            let end = HEADER_BYTES + header.rest_bytes();
            let rest = self.bytes.get(HEADER_BYTES..end)?.to_vec();
            self.bytes.drain(..end);
            match Frame::decode(header, rest) {
                Ok(frame) => return Some(frame),
                // Padding completed it.
                Err(_) => self.bound = false,
            }
        }
    }
}
