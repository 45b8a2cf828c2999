//! What must hold of a file before it is read or replaced. Whoever replaces one looks twice: before anything is received,
//! and again with [`crate::agent::Agent::placing`] held, just before the rename. Programs of the guest don't take that
//! lock; what they do in this last moment is not noticed, unless there must be no file at all.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use remuda_guest_proto::{AgentError, AgentErrorKind, Conditions, Contents};

use super::{digest, named, read};
use crate::errors::{failed_io, refusal};

/// What tells whether a file is the one whose digest was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Stamp {
        Stamp {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// Conditions on the file at a path, and what is known of it.
pub struct Guard<'a> {
    conditions: &'a Conditions,
    path: PathBuf,
    seen: Option<(Stamp, Option<String>)>,
}

impl<'a> Guard<'a> {
    /// Nothing is known yet.
    pub fn new(conditions: &'a Conditions, path: PathBuf) -> Guard<'a> {
        Guard { conditions, path, seen: None }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there must be no file.
    pub fn must_be_new(&self) -> bool {
        self.conditions.matches_not == Some(Contents::Any)
    }

    /// An error unless they hold now.
    pub fn check(&mut self) -> Result<(), AgentError> {
        if self.conditions.is_empty() {
            return Ok(());
        }
        let found = match read::open_regular(&self.path) {
            Ok((file, _)) => Some(self.digest(&file)?),
            Err(error) if error.kind == AgentErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        judge(self.conditions, &self.path, found.as_ref().map(Option::as_deref))
    }

    fn digest(&mut self, file: &File) -> Result<Option<String>, AgentError> {
        let conditions = [&self.conditions.matches, &self.conditions.matches_not];
        if !conditions.iter().any(|contents| matches!(contents, Some(Contents::OneOf(_)))) {
            return Ok(None);
        }
        let cannot = |error| failed_io(format!("read {}", named(&self.path)), &error);
        let stamp = Stamp::of(&file.metadata().map_err(cannot)?);
        match &self.seen {
            Some((seen, digest)) if *seen == stamp => Ok(digest.clone()),
            _ => {
                let digest = digest::of(file).map_err(cannot)?;
                self.seen = Some((stamp, digest.clone()));
                Ok(digest)
            }
        }
    }
}

/// An error unless they hold of what was found: no file, or one with a digest that may not be known.
pub fn judge(conditions: &Conditions, path: &Path, found: Option<Option<&str>>) -> Result<(), AgentError> {
    let refused = |message: String| Err(refusal(AgentErrorKind::Condition, message));
    // Contents that can't be told are none of those that were named.
    let is = |contents: &Contents| found.is_some_and(|digest| contents.is(Some(digest.unwrap_or_default())));
    let shown =
        |digest: Option<&str>| digest.map_or("contents that keep changing".into(), |it| format!("the digest {it}"));
    if let Some(wanted) = &conditions.matches
        && !is(wanted)
    {
        return match found {
            None => refused(format!("there is no file {}", named(path))),
            Some(digest) => refused(format!("{} has {}, not what it must have", named(path), shown(digest))),
        };
    }
    if let Some(unwanted) = &conditions.matches_not
        && is(unwanted)
    {
        return match unwanted {
            Contents::Any => refused(format!("{} exists", named(path))),
            Contents::OneOf(_) => {
                refused(format!("{} has {}, which it must not have", named(path), shown(found.flatten())))
            }
        };
    }
    Ok(())
}
