//! `snapshot export` and `import`: a snapshot as one file. Both go on where they were cut off, in the same command and in the
//! next one.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use remuda_client::{Client, ClientError};
use remuda_types::ErrorCode;
use remuda_types::wire::ImportSnapshot;

use super::DONE;
use crate::args::{Global, SnapshotImport};
use crate::connection::{connect, connect_for};
use crate::failure::{Failure, NEGATIVE, USAGE};
use crate::print;

/// How often one that was cut off is gone on with before the command gives up.
const ATTEMPTS_MAX: u32 = 5;
/// Wait before the next attempt.
const WAIT: Duration = Duration::from_millis(500);
/// Bytes of one piece of an import. What arrives of it is kept, but a piece is what a proxy may hold back.
const PIECE_BYTES: usize = 8 << 20;

/// What is beside a file that is not whole: of which export it is.
fn tag_of(part: &Path) -> PathBuf {
    part.with_extension("part-of")
}

/// How far it has come, on a terminal; nowhere else.
struct Progress(ProgressBar);

impl Progress {
    fn start() -> Progress {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        Progress(bar)
    }

    fn tell(&self, done: u64, of: Option<u64>) {
        if !self.0.is_hidden() {
            let of = of.map(|of| format!(" of {}", HumanBytes(of))).unwrap_or_default();
            self.0.set_message(format!("{}{of}", HumanBytes(done)));
            self.0.tick();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

pub async fn export(global: &Global, snapshot: &str, file: &Path) -> anyhow::Result<u8> {
    if file.exists() {
        let failure = Failure::new(USAGE, format!("{} is there already", file.display()));
        return Err(failure.remedy("choose another name, or remove it first").into());
    }
    let client = connect(global)?;
    // By its id: its name may go to another one meanwhile.
    let id = client.snapshot_info(snapshot).await?.id.to_string();
    let mut name = file.as_os_str().to_owned();
    name.push(".part");
    let part = PathBuf::from(name);
    let progress = Progress::start();
    let mut attempts = 0;
    while let Err(e) = receive(&client, &id, &part, &progress).await {
        attempts += 1;
        let again = match e.downcast_ref::<ClientError>() {
            Some(ClientError::Transport { .. }) => attempts < ATTEMPTS_MAX,
            // It is another file by now: from the beginning.
            Some(e) if e.api().is_some_and(|e| e.code == ErrorCode::PreconditionFailed) => {
                std::fs::remove_file(&part).context("failed to begin anew")?;
                attempts < ATTEMPTS_MAX
            }
            _ => false,
        };
        if !again {
            return Err(e);
        }
        tokio::time::sleep(WAIT).await;
    }
    drop(progress);
    std::fs::rename(&part, file).with_context(|| format!("failed to name the file {}", file.display()))?;
    let _ = std::fs::remove_file(tag_of(&part));
    let size = std::fs::metadata(file).map_or(0, |meta| meta.len());
    if global.json {
        print::json(&serde_json::json!({ "snapshot": id, "file": file, "bytes": size }))?;
    } else {
        print::line(format!("{id} is in {}, {}", file.display(), print::bytes(size)))?;
    }
    Ok(DONE)
}

/// Goes on with a file where it ends, until it is whole.
async fn receive(client: &Client, id: &str, part: &Path, progress: &Progress) -> anyhow::Result<()> {
    let known = std::fs::read_to_string(tag_of(part)).ok();
    let have = std::fs::metadata(part).map_or(0, |meta| meta.len());
    let (offset, tag) = match &known {
        Some(tag) => (have, Some(tag.as_str())),
        // Of which export it is, nobody knows.
        None => (0, None),
    };
    let mut export = client.export_snapshot(id, offset, tag).await?;
    let trying = || format!("failed to write {}", part.display());
    if let Some(tag) = &export.tag {
        std::fs::write(tag_of(part), tag).with_context(trying)?;
    }
    let mut file = std::fs::File::options().write(true).create(true).truncate(false).open(part).with_context(trying)?;
    file.set_len(offset).with_context(trying)?;
    file.seek(SeekFrom::Start(offset)).with_context(trying)?;
    let mut done = offset;
    while let Some(piece) = export.body.chunk().await? {
        file.write_all(&piece).with_context(trying)?;
        done += piece.len() as u64;
        progress.tell(done, None);
    }
    file.sync_all().with_context(trying)
}

pub async fn import(global: &Global, args: SnapshotImport) -> anyhow::Result<u8> {
    let client = connect_for(global, args.key.key)?;
    let unreadable = || format!("failed to read {}", args.file.display());
    let (path, progress) = (args.file.clone(), Progress::start());
    let reading = tokio::task::spawn_blocking(move || digest(&path)).await.context("a task ended")?;
    let (digest, size) = reading.with_context(unreadable)?;
    let mut file = std::fs::File::open(&args.file).with_context(unreadable)?;
    let mut attempts = 0;
    loop {
        let sent = send(&client, &digest, &mut file, size, &progress).await;
        match sent {
            Ok(()) => break,
            Err(e) => {
                attempts += 1;
                let passes = match e.downcast_ref::<ClientError>() {
                    Some(ClientError::Transport { .. }) => true,
                    // It was asked again where it ends, and somebody else sends it too.
                    Some(e) => {
                        e.api().is_some_and(|e| matches!(e.code, ErrorCode::InputGap | ErrorCode::OperationInProgress))
                    }
                    None => false,
                };
                if !passes || attempts >= ATTEMPTS_MAX {
                    return Err(e);
                }
                tokio::time::sleep(WAIT).await;
            }
        }
    }
    drop(progress);
    let labels = args.labels.labels;
    let request = ImportSnapshot {
        name: args.name,
        mode: args.mode.map(Into::into),
        labels: (!labels.is_empty()).then(|| labels.into_iter().collect()),
    };
    let snapshot = client.import_snapshot(&digest, &request).await?;
    if global.json {
        print::json(&snapshot)?;
    } else {
        print::line(&snapshot.id)?;
    }
    Ok(DONE)
}

/// Sends what the server has not yet.
async fn send(
    client: &Client,
    digest: &str,
    file: &mut std::fs::File,
    size: u64,
    progress: &Progress,
) -> anyhow::Result<()> {
    let mut received = client.import_state(digest).await?.received;
    if received > size {
        let failure = Failure::new(NEGATIVE, "the server has more of this file than there is");
        return Err(failure.remedy("its staging is damaged; try again when that is removed, after a day").into());
    }
    while received < size {
        progress.tell(received, Some(size));
        let mut piece = vec![0; usize::try_from(size - received).unwrap_or(PIECE_BYTES).min(PIECE_BYTES)];
        file.seek(SeekFrom::Start(received)).context("failed to read the file")?;
        file.read_exact(&mut piece).context("failed to read the file")?;
        received = client.import_piece(digest, received, Bytes::from(piece)).await?.received;
    }
    Ok(())
}

/// BLAKE3 digest and length of a file.
fn digest(path: &Path) -> std::io::Result<(String, u64)> {
    let (mut file, mut hasher, mut piece) = (std::fs::File::open(path)?, blake3::Hasher::new(), vec![0; 1 << 20]);
    let mut length = 0;
    loop {
        match file.read(&mut piece)? {
            0 => return Ok((hasher.finalize().to_hex().to_string(), length)),
            n => {
                hasher.update(&piece[..n]);
                length += n as u64;
            }
        }
    }
}
