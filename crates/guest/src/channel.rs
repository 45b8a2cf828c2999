//! The two ends of the channel: one thread reads frames from stdin and has them carried out, one writes frames to
//! stdout. Frames the host can't have meant are said on stderr; after bytes that are no frame only a `Bind` is heard. So
//! it is after the half frame of a host that died, which its successor completed with padding.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use remuda_guest_proto::{FRAME_BEGIN, FRAME_END, Frame, FrameError, HEADER_BYTES, Header, Kind, Request, read_frame};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::io::Errno;

use crate::agent::Agent;
use crate::dispatch::dispatch;
use crate::errors::{reason, say};
use crate::limits::{CHUNK_BYTES, PUMP_BUFFER_BYTES};

/// Pause before another attempt on a channel whose other end is gone, which a FIFO opened for both never is.
const RETRY: Duration = Duration::from_millis(500);

/// The reader's life: ends only if the channel does and the agent is not PID 1.
pub fn read_all(agent: &Arc<Agent>) {
    let mut input = BufReader::with_capacity(PUMP_BUFFER_BYTES, Input { ends: !agent.inherited.is_init });
    loop {
        match read_frame(&mut input) {
            Ok(Some(frame)) => dispatch(agent, frame),
            Ok(None) => return,
            Err(FrameError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                say(format_args!("the channel ended in the middle of a frame"));
                return;
            }
            Err(error) => {
                say(format_args!("nothing but a bind is heard from here on: {}", chain(&error)));
                crate::bind::unbind(agent);
                match find_bind(&mut input) {
                    Ok(frame) => dispatch(agent, frame),
                    Err(_) => return,
                }
            }
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Skips bytes until there is a whole frame that is a `Bind`; what follows it stays unread.
fn find_bind(input: &mut impl BufRead) -> io::Result<Frame> {
    /// A bind is small; a longer payload that merely looks like one would swallow the one that comes.
    const BIND_BYTES_MAX: usize = 256 << 10;
    let mut seen: Vec<u8> = Vec::new();
    loop {
        let before = seen.len();
        seen.extend_from_slice(match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        });
        let got = seen.len() - before;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // Every position may be the beginning of the frame.
        let mut at = 0;
        let mut kept = seen.len();
        while let Some(header) = seen.get(at..at + HEADER_BYTES).and_then(|bytes| bytes.try_into().ok()) {
            if let Ok(header @ Header { kind: Kind::Request, .. }) = Header::decode(header)
                && header.rest_bytes() <= BIND_BYTES_MAX
            {
                let from = at + HEADER_BYTES;
                let to = from + header.rest_bytes();
                match seen.get(from..to).map(|rest| Frame::decode(header, rest.to_vec())) {
                    // Not all there yet: it stays, and so does what follows.
                    None => kept = kept.min(at),
                    Some(Ok(frame)) if is_bind(&frame.payload) => {
                        input.consume(to.saturating_sub(before));
                        return Ok(frame);
                    }
                    Some(_) => {}
                }
            }
            // Padding is long, and none of it begins a header.
            let next = seen.get(at + 1..).unwrap_or_default();
            at += 1 + next.iter().position(|byte| *byte == FRAME_BEGIN).unwrap_or(next.len());
        }
        input.consume(got);
        seen.drain(..kept.min(at));
    }
}

fn is_bind(payload: &[u8]) -> bool {
    matches!(serde_json::from_slice(payload), Ok(Request::Bind { .. }))
}

/// Standard input, which blocks whatever its flags are and ends only if `ends`.
struct Input {
    ends: bool,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::io::read(rustix::stdio::stdin(), &mut *buffer) {
                Ok(0) if !self.ends && !buffer.is_empty() => std::thread::sleep(RETRY),
                Ok(read) => return Ok(read),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_for(rustix::stdio::stdin(), PollFlags::IN)?,
                Err(errno) if self.ends => return Err(errno.into()),
                Err(errno) => {
                    say(format_args!("cannot read from the channel: {}", reason(errno)));
                    std::thread::sleep(RETRY);
                }
            }
        }
    }
}

/// The writer's life.
pub fn write_all(agent: Arc<Agent>) {
    let mut buffer = Vec::new();
    loop {
        let frame = agent.outbox.next_now(&mut buffer).unwrap_or_else(|| {
            if agent.is_idle() {
                buffer = Vec::new();
            }
            agent.outbox.next(&mut buffer)
        });
        agent.moved_bytes.fetch_add(frame.payload.len(), Ordering::Relaxed);
        if let Err(error) = write(&frame) {
            say(format_args!("cannot write to the channel: {error}"));
            if !agent.inherited.is_init {
                agent.kill_executions();
                std::process::exit(1);
            }
            // Nobody will make sense of half a frame: the next host binds anew.
            crate::bind::unbind(&agent);
        }
        if frame.payload.capacity() <= CHUNK_BYTES * 2 {
            buffer = frame.payload;
        }
    }
}

fn write(frame: &Frame) -> io::Result<()> {
    let header = frame.header().encode();
    let mut written = 0;
    let length = HEADER_BYTES + frame.header().rest_bytes();
    while written < length {
        let head = header.get(written..).unwrap_or_default();
        let body = frame.payload.get(written.saturating_sub(HEADER_BYTES)..).unwrap_or_default();
        let parts = [head, body, &[FRAME_END]].map(io::IoSlice::new);
        match rustix::io::writev(rustix::stdio::stdout(), &parts) {
            Ok(more) => written += more,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for(rustix::stdio::stdout(), PollFlags::OUT)?,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn wait_for(fd: impl AsFd, flags: PollFlags) -> io::Result<()> {
    match poll(&mut [PollFd::new(&fd, flags)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use remuda_guest_proto::Bind;

    use super::*;

    fn bind() -> Frame {
        let identity = Bind {
            sandbox: "a@b".to_owned(),
            uid: "u".to_owned(),
            hostname: "h".to_owned(),
            machine_id: "0".repeat(32),
            snapshot: None,
            now_unix_ms: 0,
            executions: Vec::new(),
            processes_max: 5,
        };
        let bind = Request::Bind { nonce: [7; 16], identity };
        Frame::new(Kind::Request, 9, serde_json::to_vec(&bind).unwrap())
    }

    proptest! {
        #[test]
        fn a_bind_is_found_behind_any_nonsense(nonsense in proptest::collection::vec(any::<u8>(), 0..9000)) {
            let mut bytes = nonsense;
            bytes.extend(bind().encode());
            bytes.extend(b"rest");
            let mut input = BufReader::with_capacity(1000, bytes.as_slice());
            prop_assert_eq!(find_bind(&mut input).unwrap(), bind());
            let mut rest = Vec::new();
            input.read_to_end(&mut rest).unwrap();
            prop_assert_eq!(rest, b"rest");
        }
    }

    #[test]
    fn a_bind_is_found_behind_padding_and_behind_a_bind_that_was_cut() {
        let whole = bind().encode();
        for cut in 0..whole.len() {
            let mut bytes = whole.get(..cut).unwrap().to_vec();
            bytes.resize(cut + 300_000, 0);
            bytes.extend(&whole);
            assert_eq!(find_bind(&mut bytes.as_slice()).unwrap(), bind(), "{cut}");
        }
    }

    #[test]
    fn other_calls_and_half_frames_are_not_heard() {
        let mut bytes = Frame::new(Kind::Request, 1, br#"{"call":"ping"}"#.to_vec()).encode();
        bytes.extend(bind().encode().get(..30).unwrap());
        bytes.extend(bind().encode());
        assert_eq!(find_bind(&mut bytes.as_slice()).unwrap(), bind());
    }
}
