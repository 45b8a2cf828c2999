//! What is piped into this program, for a command in a sandbox. Must never wait for a person: a terminal is no input.

use std::io::{self, IsTerminal, Read};

use anyhow::Context;
use remuda_types::limits::STDIN_BYTES_MAX;

use crate::failure::{Failure, USAGE};

/// All of standard input, to its end.
pub fn read() -> anyhow::Result<Vec<u8>> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return Err(Failure::new(USAGE, "-i sends what is piped in, and standard input is a terminal")
            .remedy("pipe something in, as in: echo hello | remuda exec -i ID -- cat; or leave -i out")
            .into());
    }
    let mut bytes = Vec::new();
    // One byte more than is allowed tells that there is more.
    stdin.lock().take(STDIN_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).context("failed to read standard input")?;
    if bytes.len() > STDIN_BYTES_MAX {
        let message =
            format!("standard input is larger than {} MiB, which is all that -i sends", STDIN_BYTES_MAX >> 20);
        let remedy = "copy it into the sandbox first with `remuda cp`, and let the command read it there";
        return Err(Failure::new(USAGE, message).cause("the command was not started").remedy(remedy).into());
    }
    Ok(bytes)
}
