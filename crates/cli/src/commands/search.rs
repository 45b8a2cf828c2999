//! `file glob`, `file grep`, `file batch`: looking through a sandbox's files, page after page, and several changes at once.

use std::io::{IsTerminal, Read};
use std::time::Duration;

use anyhow::Context;
use remuda_client::{ClientError, FindFiles, FindText, WatchFiles, Watched};
use remuda_types::SandboxId;
use remuda_types::limits::REQUEST_BODY_BYTES_MAX;
use remuda_types::wire::{ChangeFiles, FileEventKind, FoundFiles, FoundText, TextMatch};

use super::DONE;
use crate::args::file::At;
use crate::args::{Global, KeyArg};
use crate::connection::{connect, connect_for};
use crate::failure::{Failure, NEGATIVE, USAGE};
use crate::print;

/// Between two connections to a server that ended one.
const WATCH_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Prints what is found as it comes; as JSON, all of it at the end.
pub async fn glob(global: &Global, at: At, pattern: String) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let mut find = FindFiles { pattern, user: at.user, ..FindFiles::default() };
    let mut all =
        FoundFiles { path: at.place.path.clone(), entries: Vec::new(), next_cursor: None, skipped: Vec::new() };
    let mut found = false;
    loop {
        let page = client.find_files(&at.place.id, &at.place.path, &find).await?;
        found |= !page.entries.is_empty();
        if global.json {
            all.entries.extend(page.entries);
        } else {
            for entry in &page.entries {
                print::line(print::plain(&entry.path))?;
            }
        }
        all.skipped.extend(page.skipped);
        match page.next_cursor {
            Some(cursor) => find.cursor = Some(cursor),
            None => break,
        }
    }
    if global.json {
        print::json(&all)?;
    }
    concluded(found, &all.skipped)
}

/// The same for lines.
pub async fn grep(global: &Global, at: At, mut find: FindText) -> anyhow::Result<u8> {
    let client = connect(global)?;
    find.user = at.user;
    let mut all = FoundText {
        path: at.place.path.clone(),
        matches: Vec::new(),
        files_searched: 0,
        next_cursor: None,
        skipped: Vec::new(),
    };
    let mut found = false;
    loop {
        let page = client.find_text(&at.place.id, &at.place.path, &find).await?;
        found |= !page.matches.is_empty();
        all.files_searched += page.files_searched;
        if global.json {
            all.matches.extend(page.matches);
        } else {
            for one in &page.matches {
                print::line(line_of(one))?;
            }
        }
        all.skipped.extend(page.skipped);
        match page.next_cursor {
            Some(cursor) => find.cursor = Some(cursor),
            None => break,
        }
    }
    if global.json {
        print::json(&all)?;
    }
    concluded(found, &all.skipped)
}

fn line_of(found: &TextMatch) -> String {
    match &found.text {
        Some(text) => {
            print::plain(&format!("{}:{}:{text}{}", found.path, found.line, if found.cut { "…" } else { "" }))
        }
        None => print::plain(&format!("{}: matches, and is no text", found.path)),
    }
}

fn concluded(found: bool, skipped: &[String]) -> anyhow::Result<u8> {
    for sentence in skipped {
        eprintln!("not looked at: {}", print::plain(sentence));
    }
    Ok(if found { DONE } else { NEGATIVE })
}

/// Prints changes as they come, each as a line; as JSON, an object a line. A connection that is lost is made again where it
/// was.
pub async fn watch(global: &Global, at: At, recursive: bool) -> anyhow::Result<u8> {
    let client = connect(global)?;
    let mut asked = WatchFiles { recursive, user: at.user, after: None };
    loop {
        let mut watch = client.watch_files(&at.place.id, &at.place.path, &asked).await?;
        loop {
            let told = match watch.next().await {
                Ok(Some(told)) => told,
                // The next call says whether there is anything to go on with.
                Ok(None) | Err(ClientError::Transport { .. }) => break,
                Err(error) => return Err(error.into()),
            };
            print_change(global, &told)?;
            if matches!(&told, Watched::Event(event) if event.kind == FileEventKind::Gone) {
                return Ok(NEGATIVE);
            }
        }
        asked.after = watch.last().map(str::to_owned);
        // A server that is just being started anew.
        tokio::time::sleep(WATCH_AGAIN_AFTER).await;
    }
}

fn print_change(global: &Global, told: &Watched) -> anyhow::Result<()> {
    match told {
        Watched::Missed if global.json => print::line(r#"{"kind":"missed"}"#)?,
        Watched::Missed => print::line("missed      more happened than is told: look at all of it")?,
        Watched::Event(event) if global.json => print::line(serde_json::to_string(event)?)?,
        Watched::Event(event) => {
            let from = event.from.as_ref().map_or_else(String::new, |from| format!("{from} -> "));
            print::line(print::plain(&format!("{:<11} {from}{}", event.kind.as_str(), event.path)))?;
        }
    }
    Ok(())
}

/// Reads the changes from standard input.
pub async fn batch(global: &Global, id: &SandboxId, key: KeyArg) -> anyhow::Result<u8> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        let failure = Failure::new(USAGE, "the changes are piped in as JSON, and standard input is a terminal");
        let example = r#"echo '{"changes":[{"op":"mkdir","path":"/workspace/a"}]}' | remuda file batch ID"#;
        return Err(failure.remedy(format!("pipe them in, as in: {example}")).into());
    }
    let mut text = Vec::new();
    stdin
        .lock()
        .take(REQUEST_BODY_BYTES_MAX as u64 + 1)
        .read_to_end(&mut text)
        .context("failed to read standard input")?;
    if text.len() > REQUEST_BODY_BYTES_MAX {
        let message = format!("standard input is larger than {} MiB", REQUEST_BODY_BYTES_MAX >> 20);
        return Err(Failure::new(USAGE, message).remedy("send less at once, or a tree by `remuda cp -r`").into());
    }
    let changes: ChangeFiles = serde_json::from_slice(&text).map_err(|e| {
        let failure = Failure::new(USAGE, "standard input holds no changes of files").cause(e);
        failure.remedy("it is the JSON that POST …/files/batch takes; see docs/files.md")
    })?;
    let changed = connect_for(global, key.key)?.change_files(id, &changes).await?;
    if global.json {
        print::json(&changed)?;
    } else {
        for one in &changed.results {
            match &one.error {
                None => print::line(format!("done    {}", print::plain(&one.path)))?,
                Some(error) => print::line(print::plain(&format!("failed  {}: {error}", one.path)))?,
            }
        }
    }
    let all = changed.results.iter().all(|one| one.error.is_none());
    Ok(if all { DONE } else { NEGATIVE })
}
