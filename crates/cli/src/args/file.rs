//! The commands about single files, as types. A place in a sandbox is written ID:/path everywhere.

use clap::{Args, Subcommand};
use remuda_types::SandboxId;

use super::{KeyArg, One};
use crate::copy::Place;

/// A place in a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct InSandbox {
    pub id: SandboxId,
    pub path: String,
}

fn in_sandbox(text: &str) -> Result<InSandbox, String> {
    match Place::parse(text) {
        Ok(Place::Guest(id, path)) => Ok(InSandbox { id, path }),
        Ok(Place::Local(_)) => Err("it is no place in a sandbox; one looks like ID:/path".to_owned()),
        Err(failure) => Err(failure.to_string()),
    }
}

fn mode(text: &str) -> Result<u32, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o7777);
    mode.ok_or_else(|| "permission bits are octal, such as 644 or 0755".to_owned())
}

/// First offset, and last one if it is given.
pub type Range = (u64, Option<u64>);

fn range(text: &str) -> Result<Range, String> {
    let wrong = || "a range is FIRST-LAST or FIRST-, counted in bytes from 0".to_owned();
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let last = if last.is_empty() { None } else { Some(last.parse().map_err(|_| wrong())?) };
    let first = first.parse().map_err(|_| wrong())?;
    if last.is_some_and(|last| last < first) { Err(wrong()) } else { Ok((first, last)) }
}

fn digest(text: &str) -> Result<String, String> {
    let hex = text.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
    hex.map(|_| text.to_owned())
        .ok_or_else(|| "a digest looks like sha256: and 64 hex digits, as `file stat` prints it".to_owned())
}

/// A place, and who touches it.
#[derive(Debug, Args)]
pub struct At {
    /// Place in a sandbox
    #[arg(value_name = "ID:/PATH", value_parser = in_sandbox)]
    pub place: InSandbox,
    /// Guest user whose permissions count; `user` when not given
    #[arg(short, long)]
    pub user: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum FileCommand {
    /// Tell what a path is, with the digest of a file
    Stat {
        /// Place in a sandbox
        #[arg(value_name = "ID:/PATH", value_parser = in_sandbox)]
        place: InSandbox,
    },
    /// List a directory
    Ls {
        /// Place in a sandbox
        #[arg(value_name = "ID:/PATH", value_parser = in_sandbox)]
        place: InSandbox,
    },
    /// Print a file, or a part of it
    Cat {
        #[command(flatten)]
        at: At,
        /// Only these bytes
        #[arg(long, value_name = "FIRST-LAST", value_parser = range)]
        range: Option<Range>,
        /// Only if it has these contents
        #[arg(long, value_name = "DIGEST", value_parser = digest)]
        if_match: Option<String>,
    },
    /// Write a file whole or not at all, from standard input
    Write {
        #[command(flatten)]
        at: At,
        /// Permission bits, in octal; of the file that is replaced when not given, else 644
        #[arg(long, value_parser = mode)]
        mode: Option<u32>,
        /// Make missing directories
        #[arg(short, long)]
        parents: bool,
        /// Only if it replaces these contents
        #[arg(long, value_name = "DIGEST", value_parser = digest, conflicts_with = "new")]
        if_match: Option<String>,
        /// Only if there is no such file yet
        #[arg(long)]
        new: bool,
        #[command(flatten)]
        key: KeyArg,
    },
    /// Look for paths by their names; exit 1 where there are none
    Glob {
        #[command(flatten)]
        at: At,
        /// What a path below it looks like, such as '**/*.rs'
        pattern: String,
    },
    /// Look for text in files; exit 1 where there is none
    Grep {
        #[command(flatten)]
        at: At,
        /// A regular expression
        pattern: String,
        /// The pattern is the text itself
        #[arg(short = 'F', long)]
        literal: bool,
        /// Upper and lower case are the same
        #[arg(short, long)]
        ignore_case: bool,
        /// Only files whose path below it looks like this, such as '**/*.py'
        #[arg(long, value_name = "PATTERN")]
        include: Option<String>,
    },
    /// Print changes of files as they happen, until it is asked to end
    Watch {
        #[command(flatten)]
        at: At,
        /// Also of what lies in directories below
        #[arg(short, long)]
        recursive: bool,
    },
    /// Make several changes at once, from JSON on standard input; exit 1 where one was not made
    Batch {
        #[command(flatten)]
        sandbox: One,
        #[command(flatten)]
        key: KeyArg,
    },
    /// Give a path another name
    Mv {
        #[command(flatten)]
        at: At,
        /// The new name itself, in the same sandbox
        #[arg(value_name = "/PATH")]
        to: String,
        /// Replace what is there: a file by a file, an empty directory by a directory
        #[arg(short, long)]
        force: bool,
        #[command(flatten)]
        key: KeyArg,
    },
    /// Change permission bits and owner
    Chmod {
        #[command(flatten)]
        at: At,
        /// Permission bits, in octal
        #[arg(value_parser = mode)]
        mode: Option<u32>,
        /// Give it to this user; only with `--user root`
        #[arg(long)]
        owner: Option<String>,
        #[command(flatten)]
        key: KeyArg,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_modes_and_digests_are_read_exactly() {
        assert_eq!((range("0-9"), range("5-")), (Ok((0, Some(9))), Ok((5, None))));
        for wrong in ["", "5", "-5", "9-8", "a-b"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
        assert_eq!(mode("0755"), Ok(0o755));
        assert!(mode("u+x").is_err() && mode("10000").is_err());
        assert!(digest(&format!("sha256:{}", "a".repeat(64))).is_ok() && digest("aa").is_err());
        assert!(in_sandbox("/local").is_err() && in_sandbox("c1:/x").is_err());
    }
}
