//! `cp`: files and directories from or to a sandbox.

use super::DONE;
use crate::args::{Cp, Global};
use crate::connection::{connect, connect_for};
use crate::copy::{Copied, Copy, Place};
use crate::failure::{Failure, NEGATIVE, USAGE};
use crate::print;

pub async fn copy(global: &Global, args: Cp) -> anyhow::Result<u8> {
    let (source, destination) = (Place::parse(&args.source)?, Place::parse(&args.destination)?);
    let copied = match (&source, &destination) {
        (Place::Local(from), Place::Guest(id, to)) => {
            let client = connect(global)?;
            let mut copy = Copy { client, id, user: args.user, key: args.key.key, copied: Copied::default() };
            copy.put(from, to).await?;
            copy.copied
        }
        (Place::Guest(id, from), Place::Local(to)) => {
            let client = connect_for(global, args.key.key)?;
            let mut copy = Copy { client, id, user: args.user, key: None, copied: Copied::default() };
            copy.get(from, to).await?;
            copy.copied
        }
        _ => {
            let failure = Failure::new(USAGE, "cp copies between this machine and a sandbox");
            return Err(failure.remedy("write one side as ID:/path, and the other as a local path").into());
        }
    };
    if global.json {
        print::json(&copied)?;
    }
    if copied.skipped.is_empty() {
        return Ok(DONE);
    }
    // What is left out is told, and is no success.
    let failure = Failure::new(NEGATIVE, format!("{} were not copied; all else was", count(copied.skipped.len())));
    Err(failure.cause(copied.skipped.join("\n")).into())
}

fn count(entries: usize) -> String {
    if entries == 1 { "one entry".to_owned() } else { format!("{entries} entries") }
}
