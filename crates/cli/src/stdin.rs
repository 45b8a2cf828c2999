//! What is piped into this program, for a command in a sandbox: piece by piece while the command runs, or all of it before
//! one that is not waited for. Must never wait for a person: a terminal is no input.

use std::io::{self, IsTerminal, Read};

use anyhow::Context;
use bytes::Bytes;
use remuda_client::{Client, ClientError, InputPiece};
use remuda_types::limits::STDIN_BYTES_MAX;
use remuda_types::{ErrorCode, ExecutionId, SandboxId};
use tokio::sync::mpsc;

use crate::failure::{Failure, USAGE};

/// What one read takes, in bytes.
const READ_BYTES: usize = 128 << 10;
/// Reads that wait to be sent; whoever pipes in faster waits.
const READS_MAX: usize = 4;

/// An error where standard input is no input.
pub fn needs_input() -> anyhow::Result<()> {
    if io::stdin().is_terminal() {
        return Err(Failure::new(USAGE, "-i sends what is piped in, and standard input is a terminal")
            .remedy("pipe something in, as in: echo hello | remuda exec -i ID -- cat; or leave -i out")
            .into());
    }
    Ok(())
}

/// Sends standard input to a command as it comes, to its end or until nobody there wants more. A piece whose answer is lost
/// is sent again as it was, and is taken once.
pub async fn feed(client: &Client, id: &SandboxId, execution: &ExecutionId) -> anyhow::Result<()> {
    let mut pieces = pieces();
    let mut offset = 0;
    loop {
        let (mut rest, close) = match pieces.recv().await {
            Some(Ok(bytes)) => (Bytes::from(bytes), false),
            Some(Err(error)) => return Err(anyhow::Error::from(error).context("failed to read standard input")),
            None => (Bytes::new(), true),
        };
        loop {
            let piece = InputPiece { writer: String::new(), offset, bytes: rest.clone(), close };
            let taken = match client.write_input(id, execution, &piece).await {
                Ok(taken) => taken,
                // It did not want the rest; its end is told by what it prints.
                Err(ClientError::Api { error, .. }) if error.code == ErrorCode::ExecutionNotRunning => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let fresh = usize::try_from(taken.taken.saturating_sub(offset))?.min(rest.len());
            rest = rest.slice(fresh..);
            offset += fresh as u64;
            if taken.closed {
                return Ok(());
            }
            if rest.is_empty() && !close {
                break;
            }
        }
    }
}

/// What is piped in, read by a thread of its own.
fn pieces() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (tell, told) = mpsc::channel(READS_MAX);
    std::thread::spawn(move || {
        loop {
            let mut buffer = vec![0; READ_BYTES];
            let read = match io::stdin().read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => {
                    buffer.truncate(count);
                    Ok(buffer)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let failed = read.is_err();
            if tell.blocking_send(read).is_err() || failed {
                return;
            }
        }
    });
    told
}

/// All of standard input, to its end.
pub fn read() -> anyhow::Result<Vec<u8>> {
    needs_input()?;
    let stdin = io::stdin();
    let mut bytes = Vec::new();
    // One byte more than is allowed tells that there is more.
    stdin.lock().take(STDIN_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).context("failed to read standard input")?;
    if bytes.len() > STDIN_BYTES_MAX {
        let message =
            format!("standard input is larger than {} MiB, which is all that -i sends with -d", STDIN_BYTES_MAX >> 20);
        let remedy = "copy it into the sandbox first with `remuda cp`, and let the command read it there";
        return Err(Failure::new(USAGE, message).cause("the command was not started").remedy(remedy).into());
    }
    Ok(bytes)
}
