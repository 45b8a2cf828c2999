//! A terminal here joined to a terminal in a guest: what is typed goes there, what it prints comes here, and its size
//! follows. Must leave this terminal as it was, however it ends, and never starts anything.

use std::io::{self, IsTerminal, Read, Write};
use std::time::Duration;

use bytes::Bytes;
use remuda_client::{Client, ClientError, InputPiece, OutputQuery, new_key};
use remuda_types::wire::TerminalSize;
use remuda_types::{ErrorCode, ExecutionId, SandboxId};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::failure::{Failure, USAGE};
use crate::follow::Stand;

/// How long one call waits for more output, in seconds.
const WAIT_SECONDS: u64 = 30;
/// What is typed and not sent yet, in reads; whoever pastes more waits.
const TYPED_MAX: usize = 64;
/// What one read of the terminal takes, in bytes.
const READ_BYTES: usize = 4096;

/// How a session ended.
pub enum Left {
    /// The execution has ended.
    Ended(Stand),
    /// Whoever typed has left it: it goes on.
    Detached,
}

/// An error unless somebody sits here.
pub fn needs_terminal() -> anyhow::Result<()> {
    if io::stdin().is_terminal() && io::stdout().is_terminal() {
        return Ok(());
    }
    let failure = Failure::new(USAGE, "a terminal can only be joined to a terminal, and here is none");
    Err(failure.remedy("leave -t out where input is piped in or output goes into a file").into())
}

/// The size of the terminal here.
pub fn size() -> TerminalSize {
    let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or(TerminalSize { cols: 80, rows: 24 }, |size| TerminalSize { cols: size.ws_col, rows: size.ws_row })
}

/// The terminal here, passing every character on, until this is dropped.
struct Raw(Termios);

impl Raw {
    fn set() -> io::Result<Raw> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        Ok(Raw(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.0);
    }
}

/// Joins the two, from this place of its output on. Without `types` nothing that is typed here goes there.
pub async fn join(
    client: &Client,
    sandbox: &SandboxId,
    execution: &ExecutionId,
    offset: u64,
    types: bool,
) -> anyhow::Result<Left> {
    // Before its first line is printed: what is typed from here on is the guest's.
    let _raw = Raw::set()?;
    let printing = print(client, sandbox, execution, offset);
    let typing = async { if types { type_in(client, sandbox, execution).await } else { std::future::pending().await } };
    let resizing = resize(client, sandbox, execution);
    tokio::select! {
        biased;
        stand = printing => Ok(Left::Ended(stand?)),
        left = typing => left.map(|()| Left::Detached),
        resized = resizing => resized.map(|()| Left::Detached),
    }
}

async fn print(client: &Client, id: &SandboxId, execution: &ExecutionId, mut offset: u64) -> anyhow::Result<Stand> {
    let wait = Duration::from_secs(WAIT_SECONDS);
    loop {
        let page = client.output_bytes(id, execution, &OutputQuery { offset, wait, ..OutputQuery::default() }).await?;
        io::stdout().write_all(&page.bytes)?;
        io::stdout().flush()?;
        offset = page.next_offset;
        if page.complete {
            let now = client.execution(id, execution, Duration::ZERO).await?;
            // What a terminal showed is gone when it has scrolled away; nobody counts on all of it.
            return Ok(Stand { state: now.state, exit_code: now.exit_code, dropped: 0 });
        }
    }
}

/// Sends what is typed until the keys to leave are; a call that brings no answer is sent again as it was.
async fn type_in(client: &Client, id: &SandboxId, execution: &ExecutionId) -> anyhow::Result<()> {
    // Another one for each session: what another terminal types is not taken for this one's.
    let writer = new_key()?.to_string();
    let mut typed = read_keys();
    let (mut leaving, mut offset) = (Leaving::default(), 0);
    while let Some(mut bytes) = typed.recv().await {
        while let Ok(more) = typed.try_recv() {
            bytes.extend_from_slice(&more);
        }
        let (bytes, leaves) = leaving.pass(&bytes);
        let mut rest = Bytes::from(bytes);
        while !rest.is_empty() {
            let piece = InputPiece { writer: writer.clone(), offset, bytes: rest.clone(), close: false };
            match client.write_input(id, execution, &piece).await {
                Ok(taken) if taken.closed => return std::future::pending().await,
                Ok(taken) => {
                    let fresh = usize::try_from(taken.taken.saturating_sub(offset))?.min(rest.len());
                    rest = rest.slice(fresh..);
                    offset += fresh as u64;
                }
                // Its end is told by what it prints.
                Err(error) if has_ended(&error) => return std::future::pending().await,
                Err(error) => return Err(error.into()),
            }
        }
        if leaves {
            return Ok(());
        }
    }
    // Nobody types any more: the terminal here is gone.
    Ok(())
}

fn has_ended(error: &ClientError) -> bool {
    matches!(error, ClientError::Api { error, .. } if error.code == ErrorCode::ExecutionNotRunning)
}

/// What is typed, read by a thread of its own: a terminal can't be waited for otherwise.
fn read_keys() -> mpsc::Receiver<Vec<u8>> {
    let (tell, told) = mpsc::channel(TYPED_MAX);
    std::thread::spawn(move || {
        let mut buffer = [0; READ_BYTES];
        while let Ok(count) = io::stdin().read(&mut buffer) {
            if count == 0 || tell.blocking_send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    told
}

/// Gives the guest's terminal the size of the one here, now and whenever that changes.
async fn resize(client: &Client, id: &SandboxId, execution: &ExecutionId) -> anyhow::Result<()> {
    let mut changes = signal(SignalKind::window_change())?;
    let mut last = None;
    loop {
        let now = size();
        if last.replace(now) != Some(now)
            && let Err(error) = client.resize(id, execution, now).await
        {
            if has_ended(&error) {
                return std::future::pending().await;
            }
            tracing::warn!(%error, "the size of the terminal could not be passed on");
        }
        if changes.recv().await.is_none() {
            return std::future::pending().await;
        }
    }
}

/// Looks for the keys by which one leaves: Ctrl-P, Ctrl-Q.
#[derive(Default)]
struct Leaving {
    /// Ctrl-P was typed, and waits for what comes next.
    held: bool,
}

const CTRL_P: u8 = 0x10;
const CTRL_Q: u8 = 0x11;

impl Leaving {
    /// What goes on to the guest, and whether the keys to leave came behind it.
    fn pass(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut on = Vec::with_capacity(typed.len() + 1);
        for &key in typed {
            match (std::mem::take(&mut self.held), key) {
                (true, CTRL_Q) => return (on, true),
                (true, CTRL_P) => {
                    on.push(CTRL_P);
                    self.held = true;
                }
                (held, key) => {
                    on.extend(held.then_some(CTRL_P));
                    if key == CTRL_P {
                        self.held = true;
                    } else {
                        on.push(key);
                    }
                }
            }
        }
        (on, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_both_keys_in_turn_leave_and_nothing_typed_is_lost() {
        let mut leaving = Leaving::default();
        assert_eq!(leaving.pass(b"ab\x10"), (b"ab".to_vec(), false));
        assert_eq!(leaving.pass(b"c\x11"), (b"\x10c\x11".to_vec(), false));
        assert_eq!(leaving.pass(b"\x10\x10"), (b"\x10".to_vec(), false));
        assert_eq!(leaving.pass(b"\x11lost"), (Vec::new(), true));
    }
}
