//! `file`: single files of a sandbox, through the files API. Whole trees are `cp`'s.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;

use remuda_client::wire::FileStat;
use remuda_client::{Body, FindText, MoveFile, OnlyIf, ReadFile, SetAttributes, WriteFile};

use super::{DONE, search};
use crate::args::Global;
use crate::args::file::FileCommand;
use crate::connection::{connect, connect_for};
use crate::failure::{Failure, USAGE};
use crate::print;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

pub async fn run(global: &Global, command: FileCommand) -> anyhow::Result<u8> {
    match command {
        FileCommand::Stat { place } => {
            let stat = connect(global)?.digest_file(&place.id, &place.path).await?;
            told(global, &stat)?;
        }
        FileCommand::Ls { place } => {
            let list = connect(global)?.list_files(&place.id, &place.path).await?;
            if global.json {
                print::json(&list)?
            } else {
                table(&list.entries)?
            }
            if list.truncated {
                let message = format!("{} has more entries than one listing shows", place.path);
                return Err(Failure::new(crate::failure::NEGATIVE, message).into());
            }
        }
        FileCommand::Cat { at, range, if_match } => {
            let only_if = if_match.map_or(OnlyIf::Always, OnlyIf::Digest);
            let options = ReadFile { user: at.user, range, only_if };
            let mut file = connect(global)?.read_file_with(&at.place.id, &at.place.path, &options).await?;
            let mut out = std::io::stdout();
            while let Some(bytes) = file.body.chunk().await? {
                out.write_all(&bytes)?;
            }
            out.flush()?;
        }
        FileCommand::Write { at, mode, parents, if_match, new, key } => {
            let only_if = match if_match {
                Some(digest) => OnlyIf::Digest(digest),
                None if new => OnlyIf::New,
                None => OnlyIf::Always,
            };
            let options = WriteFile { mode, user: at.user, parents, only_if };
            let input = tokio_util::io::ReaderStream::with_capacity(stdin()?, PIECE_BYTES);
            let client = connect_for(global, key.key)?;
            let stat = client.write_file(&at.place.id, &at.place.path, &options, Body::wrap_stream(input)).await?;
            told(global, &stat)?;
        }
        FileCommand::Glob { at, pattern } => return search::glob(global, at, pattern).await,
        FileCommand::Grep { at, pattern, literal, ignore_case, include } => {
            let find = FindText { pattern, literal, ignore_case, include, ..FindText::default() };
            return search::grep(global, at, find).await;
        }
        FileCommand::Watch { at, recursive } => return search::watch(global, at, recursive).await,
        FileCommand::Batch { sandbox, key } => return search::batch(global, &sandbox.id, key).await,
        FileCommand::Mv { at, to, force, key } => {
            let options = MoveFile { user: at.user, overwrite: force };
            let client = connect_for(global, key.key)?;
            told(global, &client.move_file(&at.place.id, &at.place.path, &to, &options).await?)?;
        }
        FileCommand::Chmod { at, mode, owner, key } => {
            if mode.is_none() && owner.is_none() {
                let failure = Failure::new(USAGE, "there is nothing to change");
                return Err(failure.remedy("give permission bits, or --owner, or both").into());
            }
            let options = SetAttributes { user: at.user, mode, owner };
            let client = connect_for(global, key.key)?;
            told(global, &client.set_attributes(&at.place.id, &at.place.path, &options).await?)?;
        }
    }
    Ok(DONE)
}

/// Standard input as a file, which may be read as far as the connection takes.
fn stdin() -> anyhow::Result<tokio::fs::File> {
    let input = std::io::stdin();
    if input.is_terminal() {
        let failure = Failure::new(USAGE, "the file's contents are piped in, and standard input is a terminal");
        return Err(failure.remedy("pipe them in, as in: echo hello | remuda file write ID:/path").into());
    }
    Ok(tokio::fs::File::from_std(std::fs::File::from(input.as_fd().try_clone_to_owned()?)))
}

fn told(global: &Global, stat: &FileStat) -> anyhow::Result<()> {
    if global.json {
        return print::json(stat);
    }
    let mut rows = vec![
        ("path", stat.path.clone()),
        ("kind", stat.kind.to_string()),
        ("size", stat.size.to_string()),
        ("mode", format!("{:04o}", stat.mode)),
        ("owner", format!("{}:{}", stat.uid, stat.gid)),
    ];
    rows.extend(stat.target.clone().map(|target| ("target", target)));
    rows.extend(stat.digest.clone().map(|digest| ("digest", digest)));
    Ok(print::pairs(&rows)?)
}

fn table(entries: &[FileStat]) -> std::io::Result<()> {
    print::table(
        ["MODE", "OWNER", "SIZE", "PATH"],
        entries.iter().map(|stat| {
            let letter = match stat.kind.as_str() {
                "directory" => 'd',
                "symlink" => 'l',
                "file" => '-',
                _ => '?',
            };
            let path = match &stat.target {
                Some(target) => format!("{} -> {target}", stat.path),
                None => stat.path.clone(),
            };
            // What a guest calls its files must not move a terminal's cursor.
            let path = path.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
            [format!("{letter}{:04o}", stat.mode), format!("{}:{}", stat.uid, stat.gid), stat.size.to_string(), path]
        }),
    )
}
