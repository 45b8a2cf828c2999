//! Copies files and directories between this machine and a sandbox, over the files API.
//! A guest's names and links are hostile: what comes from it must never be written outside the destination.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use remuda_client::{Client, ClientError, WriteFile, part_key};
use remuda_types::wire::{FileKind, FileStat};
use remuda_types::{ErrorCode, Key, SandboxId};

use crate::failure::{Failure, NEGATIVE, USAGE};

/// Deepest directory that is copied, counted from the one that was named.
const DEPTH_MAX: usize = 256;

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

/// A copy under way.
pub struct Copy<'a> {
    pub client: Client,
    pub id: &'a SandboxId,
    /// The key of the whole; each file and directory that is written has one of its own, which derives from it.
    pub key: Option<Key>,
    /// Owner of what is written into the guest.
    pub user: Option<String>,
    pub copied: Copied,
}

impl Copy<'_> {
    /// From this machine into the guest.
    pub async fn put(&mut self, source: &Path, destination: &str) -> anyhow::Result<()> {
        let metadata = fs::metadata(source).map_err(|e| wrong(source, e))?;
        let destination = self.inside_guest(destination, source.file_name().and_then(|name| name.to_str())).await?;
        let mut waiting = vec![(source.to_owned(), destination, 0)];
        if !metadata.is_dir() {
            return self.put_file(source, &waiting.remove(0).1).await;
        }
        // A tree is not written down file by file before it is sent: each file is replaced whole or not at all, and
        // whoever was interrupted copies the tree again. A lost answer is still asked for with the same key.
        self.client = self.client.clone().repeating();
        while let Some((from, to, depth)) = waiting.pop() {
            check_depth(depth, &to)?;
            self.part(&to)?.make_directory(self.id, &to, true).await?;
            self.copied.directories += 1;
            for entry in fs::read_dir(&from).map_err(|e| wrong(&from, e))? {
                let entry = entry.map_err(|e| wrong(&from, e))?;
                let (path, kind) = (entry.path(), entry.file_type()?);
                let name = entry.file_name();
                match name.to_str() {
                    Some(name) if kind.is_dir() => waiting.push((path, join(&to, name), depth + 1)),
                    Some(name) if kind.is_file() => self.put_file(&path, &join(&to, name)).await?,
                    Some(_) if kind.is_symlink() => self.skip(&path.display(), "a symbolic link"),
                    Some(_) => self.skip(&path.display(), "no regular file or directory"),
                    None => self.skip(&path.display(), "its name is not UTF-8"),
                }
            }
        }
        Ok(())
    }

    async fn put_file(&mut self, source: &Path, destination: &str) -> anyhow::Result<()> {
        let metadata = tokio::fs::metadata(source).await.map_err(|e| wrong(source, e))?;
        let mode = metadata.permissions().mode() & 0o777;
        let options = WriteFile { mode: Some(mode), user: self.user.clone(), parents: false, ..WriteFile::default() };
        let stat = self.part(destination)?.write_file_from(self.id, destination, &options, source).await?;
        self.copied.files += 1;
        self.copied.bytes += stat.size;
        Ok(())
    }

    /// A client for the call that writes this place.
    fn part(&self, destination: &str) -> Result<Client, ClientError> {
        Ok(match &self.key {
            Some(key) => self.client.with_key(part_key(key, destination)?),
            None => self.client.clone(),
        })
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
            Some(name) if destination.is_dir() => destination.join(name),
            _ => destination.to_owned(),
        };
        let mut waiting = vec![(stat, destination, 0)];
        while let Some((stat, to, depth)) = waiting.pop() {
            check_depth(depth, &stat.path)?;
            match stat.kind {
                FileKind::File => self.get_file(&stat, &to).await?,
                FileKind::Symlink => self.get_link(&stat, &to)?,
                FileKind::Other => self.skip(&stat.path, "no regular file, directory or symbolic link"),
                FileKind::Directory => {
                    let entries = self.get_directory(&stat, &to, source, depth).await?;
                    waiting.extend(entries.into_iter().map(|(stat, to)| (stat, to, depth + 1)));
                }
            }
        }
        Ok(())
    }

    async fn get_directory(
        &mut self,
        stat: &FileStat,
        to: &Path,
        source: &str,
        depth: usize,
    ) -> anyhow::Result<Vec<(FileStat, PathBuf)>> {
        // A link here would lead what follows elsewhere. Only the place that the user named may be one.
        let found = if depth == 0 { fs::metadata(to) } else { fs::symlink_metadata(to) };
        match found {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(Failure::new(NEGATIVE, format!("{} is in the way: no directory", to.display())).into()),
            Err(_) => fs::create_dir(to).map_err(|e| wrong(to, e))?,
        }
        self.copied.directories += 1;
        let path = if depth == 0 { source } else { &stat.path };
        let list = self.client.list_files(self.id, path).await?;
        if list.truncated {
            self.skip(path, "the directory has more entries than one listing shows");
        }
        let mut entries = Vec::new();
        for entry in list.entries {
            match entry.path.rsplit('/').next().filter(|name| is_plain(name)).map(str::to_owned) {
                // The path is put together here and not taken from the guest, so that it can't lead elsewhere.
                Some(name) => entries.push((FileStat { path: join(path, &name), ..entry }, to.join(name))),
                None => self.skip(&entry.path, "its name is none for a file"),
            }
        }
        Ok(entries)
    }

    async fn get_file(&mut self, stat: &FileStat, to: &Path) -> anyhow::Result<()> {
        let mut download = self.client.read_file(self.id, &stat.path).await?;
        let directory = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // Renamed into its place when complete: half a file is never left, and a link in its place is not followed.
        let mut file = tempfile::NamedTempFile::new_in(directory).map_err(|e| wrong(to, e))?;
        while let Some(bytes) = download.body.chunk().await? {
            file.write_all(&bytes).map_err(|e| wrong(to, e))?;
            self.copied.bytes += bytes.len() as u64;
        }
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

fn check_depth(depth: usize, path: &str) -> anyhow::Result<()> {
    if depth <= DEPTH_MAX {
        return Ok(());
    }
    Err(Failure::new(NEGATIVE, format!("{path} lies more than {DEPTH_MAX} directories deep")).into())
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
