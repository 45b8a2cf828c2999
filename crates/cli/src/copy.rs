//! Copies files and directories between this machine and a sandbox, over the files API: a file by itself, a directory as
//! an archive that is packed on one side while it is unpacked on the other.
//! A guest's names and links are hostile: what comes from it must never be written outside the destination.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use remuda_client::{Body, Client, ClientError, WriteFile, WriteTree};
use remuda_tree::{Counts, PackError, Source, Unpack, next_stretch, pack, unpack};
use remuda_types::wire::{FileKind, FileStat};
use remuda_types::{ErrorCode, Key, SandboxId};
use tokio::sync::mpsc;

use crate::failure::{Failure, NEGATIVE, USAGE};

/// Bytes of an archive that are handed on at once.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces of an archive that wait for the other side.
const PIECES_WAITING_MAX: usize = 8;

/// One side of a copy.
#[derive(Debug, PartialEq)]
pub enum Place {
    /// On this machine.
    Local(PathBuf),
    /// In a sandbox, by absolute path.
    Guest(SandboxId, String),
}

impl Place {
    /// `ID:/path` splits at the first `:/`; all else is a local path, but for what was meant as a place in a sandbox.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        if let Some((id, path)) = relative(text) {
            let failure = Failure::new(USAGE, format!("{text:?} names no place")).cause("its path is not absolute");
            // Commands begin in /workspace, and so does who writes such a path.
            return Err(failure.remedy(format!("write it from the root, as in {id}:/{}", inside(path))));
        }
        match text.split_once(":/") {
            Some((id, rest)) if !id.contains('/') => match id.parse() {
                Ok(id) => Ok(Place::Guest(id, format!("/{rest}"))),
                Err(e) => {
                    let failure = Failure::new(USAGE, format!("{text:?} names no place")).cause(e);
                    Err(failure.remedy(format!("for a local file of that name, write ./{text}")))
                }
            },
            _ => Ok(Place::Local(PathBuf::from(text))),
        }
    }
}

/// A sandbox and a path in it that does not begin at the root.
fn relative(text: &str) -> Option<(SandboxId, &str)> {
    // Generations have colons themselves.
    let cuts = text.match_indices(':').map(|(at, _)| (&text[..at], &text[at + 1..]));
    let (id, path) = cuts.filter_map(|(id, path)| Some((id.parse().ok()?, path))).next()?;
    (!path.starts_with('/')).then_some((id, path))
}

/// What was likely meant by a path that does not begin at the root.
fn inside(path: &str) -> String {
    let path = path.strip_prefix("./").unwrap_or(path);
    if path == "workspace" || path.starts_with("workspace/") { path.to_owned() } else { format!("workspace/{path}") }
}

/// What was copied, and what was not.
#[derive(Debug, Default, serde::Serialize)]
pub struct Copied {
    /// Regular files.
    pub files: u64,
    /// Directories, those that existed included.
    pub directories: u64,
    /// Symbolic links.
    pub links: u64,
    /// Bytes of regular files.
    pub bytes: u64,
    /// What was left out, one sentence each.
    pub skipped: Vec<String>,
}

/// An archive on its way from the thread that packs it.
struct Pieces {
    sender: mpsc::Sender<Vec<u8>>,
    waiting: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.waiting, Vec::with_capacity(PIECE_BYTES));
        self.sender.blocking_send(piece).map_err(|_| io::Error::other("nobody takes the archive any more"))
    }
}

/// An archive on its way to the thread that unpacks it.
struct Arriving {
    receiver: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.piece.len());
        buffer[..length].copy_from_slice(&self.piece.split_to(length));
        Ok(length)
    }
}

/// How far a copy has come, on a terminal; nowhere else.
#[derive(Clone)]
struct Progress(ProgressBar);

impl Progress {
    fn start() -> Progress {
        // Hidden by itself where standard error is no terminal.
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        Progress(bar)
    }

    fn tell(&self, counts: Counts) {
        if !self.0.is_hidden() {
            self.0.set_message(format!("{} files, {}", counts.files, HumanBytes(counts.bytes)));
            self.0.tick();
        }
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// A copy under way.
pub struct Copy<'a> {
    pub client: Client,
    pub id: &'a SandboxId,
    /// The key of the one call that writes.
    pub key: Option<Key>,
    /// Guest user who reads or writes there, and owns what is written.
    pub user: Option<String>,
    pub copied: Copied,
}

impl Copy<'_> {
    /// From this machine into the guest.
    pub async fn put(&mut self, source: &Path, destination: &str) -> anyhow::Result<()> {
        let metadata = fs::metadata(source).map_err(|e| wrong(source, e))?;
        let named = source.file_name().and_then(|name| name.to_str()).filter(|_| !is_its_contents(source));
        let place = self.inside_guest(destination, named).await?;
        if metadata.is_dir() {
            return self.put_tree(source, &place).await;
        }
        if place == destination && destination.ends_with('/') {
            let failure = Failure::new(NEGATIVE, format!("{destination} is no directory"));
            return Err(failure.remedy(format!("make it first, or name the file itself: {destination}NAME")).into());
        }
        self.put_file(source, &place).await
    }

    /// A directory with all that is in it, as one archive that is made while it is sent.
    async fn put_tree(&mut self, source: &Path, destination: &str) -> anyhow::Result<()> {
        let tree = Source::open(source).map_err(|e| packing(source, e))?;
        let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
        let bar = Progress::start();
        let telling = bar.clone();
        let packing_thread = tokio::task::spawn_blocking(move || {
            let mut out = Pieces { sender, waiting: Vec::with_capacity(PIECE_BYTES) };
            let packed = pack(tree, &mut out, &mut |_, counts| telling.tell(counts));
            packed.and_then(|_| out.flush().map_err(PackError::Output))
        });
        let body = Body::wrap_stream(futures_util::stream::unfold(receiver, async |mut receiver| {
            let piece: Vec<u8> = receiver.recv().await?;
            Some((Ok::<_, std::io::Error>(piece), receiver))
        }));
        // The archive can't be sent a second time as it was: whoever was interrupted copies the tree again.
        let client = self.keyed().repeating();
        let options = WriteTree { user: self.user.clone(), parents: true };
        let answer = client.write_tree(self.id, destination, &options, body).await;
        let packed = packing_thread.await?;
        bar.end();
        // A server that refuses stops reading; then its word counts and not that nobody reads.
        if let Err(PackError::Source(e)) = packed {
            return Err(wrong(source, e));
        }
        let unpacked = answer?;
        self.copied.files += unpacked.files;
        self.copied.directories += unpacked.directories;
        self.copied.links += unpacked.links;
        self.copied.bytes += unpacked.bytes;
        self.copied.skipped.extend(unpacked.skipped);
        Ok(())
    }

    async fn put_file(&mut self, source: &Path, destination: &str) -> anyhow::Result<()> {
        let metadata = tokio::fs::metadata(source).await.map_err(|e| wrong(source, e))?;
        let mode = metadata.permissions().mode() & 0o777;
        let options = WriteFile { mode: Some(mode), user: self.user.clone(), parents: false, ..WriteFile::default() };
        let stat = self.keyed().write_file_from(self.id, destination, &options, source).await?;
        self.copied.files += 1;
        self.copied.bytes += stat.size;
        Ok(())
    }

    /// A client for the one call that writes.
    fn keyed(&self) -> Client {
        match &self.key {
            Some(key) => self.client.with_key(key.clone()),
            None => self.client.clone(),
        }
    }

    /// Where in the guest a thing of that name goes: into the destination if that is a directory, else to its place.
    async fn inside_guest(&self, destination: &str, name: Option<&str>) -> anyhow::Result<String> {
        let is_directory = match self.client.stat_file(self.id, destination).await {
            Ok(stat) => stat.kind == FileKind::Directory,
            Err(ClientError::Api { error, .. }) if error.code == ErrorCode::FileNotFound => false,
            Err(e) => return Err(e.into()),
        };
        match name {
            Some(name) if is_directory => Ok(join(destination, name)),
            // The source is `.` or the like, whose name says nothing: its entries go into the destination.
            _ => Ok(destination.to_owned()),
        }
    }

    /// From the guest to this machine.
    pub async fn get(&mut self, source: &str, destination: &Path) -> anyhow::Result<()> {
        let stat = self.client.stat_file(self.id, source).await?;
        let name = source.trim_end_matches('/').rsplit('/').next().filter(|name| is_plain(name));
        let destination = match name {
            Some(name) if destination.is_dir() && !source.ends_with("/.") => destination.join(name),
            _ => destination.to_owned(),
        };
        match stat.kind {
            FileKind::File => self.get_file(&stat, &destination).await?,
            FileKind::Symlink if !source.ends_with('/') => self.get_link(&stat, &destination)?,
            FileKind::Directory | FileKind::Symlink => self.get_tree(source, &destination).await?,
            FileKind::Other => self.skip(&stat.path, "no regular file, directory or symbolic link"),
        }
        Ok(())
    }

    /// A directory with all that is in it, as one archive that is unpacked while it comes.
    async fn get_tree(&mut self, source: &str, to: &Path) -> anyhow::Result<()> {
        let mut archive = self.client.read_tree(self.id, source, self.user.as_deref()).await?;
        let itself = match fs::metadata(to) {
            Ok(metadata) if metadata.is_dir() => false,
            Ok(_) => return Err(Failure::new(NEGATIVE, format!("{} is in the way: no directory", to.display())).into()),
            Err(_) => fs::create_dir(to).map(|()| true).map_err(|e| wrong(to, e))?,
        };
        let directory = File::open(to).map_err(|e| wrong(to, e))?;
        let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
        let bar = Progress::start();
        let telling = bar.clone();
        let unpacking = tokio::task::spawn_blocking(move || {
            let input = Arriving { receiver, piece: Bytes::new() };
            // Never owners, nor set-id bits: whose program it would be here is not the guest's to say.
            let how = Unpack { owners: false, itself };
            unpack(input, directory.into(), how, &mut |_, counts| telling.tell(counts))
        });
        let mut broke = None;
        loop {
            match archive.chunk().await {
                Ok(None) => break,
                Ok(Some(piece)) => {
                    // Whoever unpacks has ended, and says why.
                    if sender.send(piece).await.is_err() {
                        break;
                    }
                }
                Err(e) => {
                    broke = Some(e);
                    break;
                }
            }
        }
        drop(sender);
        let unpacked = unpacking.await?;
        bar.end();
        if let Some(e) = broke {
            return Err(e.into());
        }
        let unpacked = unpacked.map_err(|e| {
            let what = e.entry.clone().map_or_else(|| source.to_owned(), |entry| format!("{entry} of {source}"));
            let failure = Failure::new(NEGATIVE, format!("failed to copy {what} to {}", to.display())).cause(&e.cause);
            failure.remedy(format!("{} entries were copied before it and stay", e.done.entries()))
        })?;
        let Counts { files, directories, links, bytes } = unpacked.counts;
        self.copied.files += files;
        self.copied.directories += directories;
        self.copied.links += links;
        self.copied.bytes += bytes;
        self.copied.skipped.extend(unpacked.skipped);
        Ok(())
    }

    async fn get_file(&mut self, stat: &FileStat, to: &Path) -> anyhow::Result<()> {
        let mut download = self.client.read_file(self.id, &stat.path).await?;
        let directory = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Renamed into its place when complete: half a file is never left, and a link in its place is not followed.
        let mut file = tempfile::NamedTempFile::new_in(directory).map_err(|e| wrong(to, e))?;
        let mut length = 0;
        while let Some(bytes) = download.body.chunk().await? {
            let mut rest = bytes.as_ref();
            while !rest.is_empty() {
                // What is sparse there stays so here.
                let (zeros, data) = next_stretch(rest);
                if zeros > 0 {
                    file.seek_relative(i64::try_from(zeros)?).map_err(|e| wrong(to, e))?;
                }
                file.write_all(&rest[zeros..zeros + data]).map_err(|e| wrong(to, e))?;
                rest = &rest[zeros + data..];
            }
            self.copied.bytes += bytes.len() as u64;
            length += bytes.len() as u64;
        }
        // Where it ends in a hole.
        file.as_file().set_len(length).map_err(|e| wrong(to, e))?;
        // Never setuid: whose program it would be here is not the guest's to say.
        let mode = download.mode.unwrap_or(stat.mode) & 0o777;
        file.as_file().set_permissions(Permissions::from_mode(mode)).map_err(|e| wrong(to, e))?;
        let _: File = file.persist(to).map_err(|e| wrong(to, e.error))?;
        self.copied.files += 1;
        Ok(())
    }

    fn get_link(&mut self, stat: &FileStat, to: &Path) -> anyhow::Result<()> {
        let Some(target) = &stat.target else {
            self.skip(&stat.path, "a symbolic link whose target is not known");
            return Ok(());
        };
        if fs::symlink_metadata(to).is_ok_and(|found| !found.is_dir()) {
            fs::remove_file(to).map_err(|e| wrong(to, e))?;
        }
        symlink(target, to).map_err(|e| wrong(to, e))?;
        self.copied.links += 1;
        Ok(())
    }

    fn skip(&mut self, what: &(impl std::fmt::Display + ?Sized), why: &str) {
        self.copied.skipped.push(format!("{what}: {why}"));
    }
}

fn join(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

/// Whether a name stays in its directory.
fn is_plain(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

/// Whether what is in a directory is meant, and not the directory by its name, as by `.` or `directory/.`.
fn is_its_contents(source: &Path) -> bool {
    let text = source.as_os_str().as_encoded_bytes();
    text == b"." || text.ends_with(b"/.")
}

fn packing(path: &Path, error: PackError) -> anyhow::Error {
    match error {
        PackError::Source(e) | PackError::Output(e) => wrong(path, e),
        e @ PackError::Kind => Failure::new(NEGATIVE, format!("failed to copy {}", path.display())).cause(e).into(),
    }
}

fn wrong(path: &Path, error: std::io::Error) -> anyhow::Error {
    let exit = if error.kind() == std::io::ErrorKind::NotFound { USAGE } else { NEGATIVE };
    Failure::new(exit, format!("failed to copy {}", path.display())).cause(error).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_sandbox_splits_at_the_first_colon_and_slash() {
        let id = "c1@2026-10-08T12:00:00.000Z";
        let guest = |path: &str| Place::Guest(id.parse().unwrap(), path.to_owned());
        assert_eq!(Place::parse(&format!("{id}:/a:/b")).unwrap(), guest("/a:/b"));
        assert_eq!(Place::parse(&format!("{id}:/")).unwrap(), guest("/"));
        for local in ["a", "a:b", "./a:/b", "/x:/y", "", id] {
            assert_eq!(Place::parse(local).unwrap(), Place::Local(local.into()), "{local}");
        }
        assert!(Place::parse("c1:/a").is_err(), "a bare slot");
        for (relative, absolute) in [("a/b", "workspace/a/b"), ("./a", "workspace/a"), ("workspace/a", "workspace/a")] {
            let failure = Place::parse(&format!("{id}:{relative}")).unwrap_err();
            assert_eq!(failure.remedy_text(), Some(&*format!("write it from the root, as in {id}:/{absolute}")));
        }
        assert!(Place::parse(&format!("{id}:")).is_err() && Place::parse(&format!("{id}:a:/b")).is_err());
    }

    #[test]
    fn names_that_lead_out_are_not_plain() {
        assert!(is_plain("a") && is_plain("...") && is_plain(".a"));
        for wrong in ["", ".", "..", "a/b", "a\0"] {
            assert!(!is_plain(wrong), "{wrong:?}");
        }
    }
}
