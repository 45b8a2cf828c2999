//! Calls that were about to be sent, on disk until their outcome is known: key and exact request, so that whoever comes
//! after a crash can ask what became of them, or send them again. Never holds the API key of the server; what a request
//! itself holds (such as environment variables) is in it, and only its owner can read it.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use remuda_types::{Key, SandboxId};
use serde::{Deserialize, Serialize};

use crate::ClientError;

/// Version of a file's form. One with conditions has the next, so that a program which doesn't know of them sends no
/// call without.
const VERSION: u32 = 1;
/// Version of a file's form with conditions.
const VERSION_WITH_CONDITIONS: u32 = 2;
/// How the files' names end.
const SUFFIX: &str = ".json";
/// Largest file that is read back, in bytes: any body that is kept whole fits, as base64 too.
const FILE_BYTES_MAX: u64 = 4 * KEPT_BODY_BYTES_MAX as u64;
/// Largest body that is kept, in bytes. A longer one must be a file that can be read again.
pub(crate) const KEPT_BODY_BYTES_MAX: usize = 8 << 20;

/// The body of a kept call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeptBody {
    /// None.
    Nothing,
    /// Text, byte for byte.
    Text(String),
    /// Bytes that are no text, as base64.
    Base64(String),
    /// A local file, which is read again.
    File {
        /// Its absolute path.
        path: PathBuf,
        /// `Content-Digest` of what was to be sent.
        digest: String,
    },
    /// A stream, which is gone: the call can be asked about by its key, and not sent again.
    Stream,
}

/// A call whose outcome is not known here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingCall {
    /// Version of this form.
    pub version: u32,
    /// The key it was sent with.
    pub key: Key,
    /// Kind of the operation: `create`, `capture`, …
    pub kind: String,
    /// The sandbox that it addresses, if it addresses one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// Where it goes: a URL or the path of a socket.
    pub target: String,
    /// HTTP method.
    pub method: String,
    /// Path and query, encoded.
    pub path: String,
    /// Its `Content-Type`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Headers that are conditions of it, by name: without them it would be another call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub conditions: BTreeMap<String, String>,
    /// Its body.
    pub body: KeptBody,
    /// When it was written down, in Unix milliseconds by this machine's clock.
    pub kept_at_ms: i64,
}

/// A kept call and where it lies.
#[derive(Debug)]
pub struct FoundCall {
    /// The file.
    pub path: PathBuf,
    /// What it holds. A file that was not written to its end is an error: its call was never sent.
    pub call: io::Result<PendingCall>,
}

impl FoundCall {
    /// Removes it, when the outcome of its call is known.
    ///
    /// # Errors
    /// As for removing a file; one that is gone is no error.
    pub fn forget(&self) -> io::Result<()> {
        remove(&self.path)
    }
}

/// A directory of kept calls. Any number of processes may share it.
#[derive(Debug, Clone)]
pub struct Pending {
    directory: Arc<Path>,
}

impl Pending {
    /// The directory at this path; it is made, for its owner alone, when the first call is kept.
    pub fn at(directory: impl Into<PathBuf>) -> Pending {
        Pending { directory: directory.into().into() }
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes a call down. It is on the disk when this returns.
    ///
    /// # Errors
    /// [`ClientError::NotKept`].
    pub async fn keep(&self, call: &PendingCall) -> Result<KeptCall, ClientError> {
        let directory = self.directory.clone();
        let failed = |cause: io::Error| ClientError::NotKept {
            call: format!("{} {}", call.method, call.path),
            directory: self.directory.to_path_buf(),
            cause: cause.to_string(),
        };
        let text = serde_json::to_vec(call).map_err(|e| failed(e.into()))?;
        let name = format!("{:013}-{}{SUFFIX}", call.kept_at_ms, crate::keys::random_hex(8)?);
        // The disk may take its time, and others of this process have work.
        let written = tokio::task::spawn_blocking(move || write(&directory, &name, &text)).await;
        let path = written.map_err(io::Error::other).and_then(|path| path).map_err(failed)?;
        Ok(KeptCall { path })
    }

    /// All calls that are kept, oldest first. A directory that was never made holds none.
    ///
    /// # Errors
    /// As for reading a directory.
    pub fn list(&self) -> io::Result<Vec<FoundCall>> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e),
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(SUFFIX)) {
                paths.push(path);
            }
        }
        paths.sort();
        let found = paths.into_iter().map(|path| FoundCall { call: read(&path), path });
        // One that was there a moment ago and is gone has just got its outcome.
        Ok(found.filter(|found| !matches!(&found.call, Err(e) if e.kind() == io::ErrorKind::NotFound)).collect())
    }

    /// The kept calls with this key: one for each kind and sandbox that it was used with.
    ///
    /// # Errors
    /// As for [`Pending::list`].
    pub fn of_key(&self, key: &Key) -> io::Result<Vec<FoundCall>> {
        let mut found = self.list()?;
        found.retain(|found| found.call.as_ref().is_ok_and(|call| call.key == *key));
        Ok(found)
    }
}

/// A call on disk. Dropping it leaves it there: whoever does not know the outcome must not forget the call.
#[derive(Debug)]
#[must_use = "it stays on disk until it is forgotten"]
pub struct KeptCall {
    path: PathBuf,
}

impl KeptCall {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes it: its outcome is known. Where that fails the call is only asked about once more than needed.
    pub fn forget(self) {
        drop(remove(&self.path));
    }
}

impl PendingCall {
    /// The form that is written of a call with these conditions.
    pub fn version(conditions: &BTreeMap<String, String>) -> u32 {
        if conditions.is_empty() { VERSION } else { VERSION_WITH_CONDITIONS }
    }
}

fn write(directory: &Path, name: &str, text: &[u8]) -> io::Result<PathBuf> {
    let path = directory.join(name);
    let open = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = match open() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            open()?
        }
        opened => opened?,
    };
    let kept = file.write_all(text).and_then(|()| file.sync_all());
    // The name too: without it the file would be lost with the power. There is nothing left to write by then but that.
    let kept = kept.and_then(|()| File::open(directory)?.sync_all());
    if let Err(e) = kept {
        drop(fs::remove_file(&path));
        return Err(e);
    }
    Ok(path)
}

fn read(path: &Path) -> io::Result<PendingCall> {
    let mut text = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    let call: PendingCall = serde_json::from_slice(&text).map_err(io::Error::from)?;
    if ![VERSION, VERSION_WITH_CONDITIONS].contains(&call.version) {
        let problem = format!("it has version {}, and this program reads {VERSION_WITH_CONDITIONS}", call.version);
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(call)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn call(key: &str, kept_at_ms: i64) -> PendingCall {
        PendingCall {
            version: VERSION,
            key: key.parse().unwrap(),
            kind: "create".into(),
            sandbox: None,
            target: "/run/remuda.sock".into(),
            method: "POST".into(),
            path: "/v1/sandboxes".into(),
            content_type: Some("application/json".into()),
            conditions: BTreeMap::new(),
            body: KeptBody::Text("{\"slot\": \"ä\"}".into()),
            kept_at_ms,
        }
    }

    #[tokio::test]
    async fn a_kept_call_is_its_owners_alone_and_comes_back_as_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let pending = Pending::at(temp.path().join("a/pending"));
        assert_eq!(pending.list().unwrap().len(), 0);
        let second = pending.keep(&call("b", 2)).await.unwrap();
        let first = pending.keep(&call("a", 1)).await.unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(first.path()), mode(pending.directory())), (0o600, 0o700));
        let found: Vec<_> = pending.list().unwrap().into_iter().map(|found| found.call.unwrap()).collect();
        assert_eq!(found, [call("a", 1), call("b", 2)]);
        assert_eq!(pending.of_key(&"b".parse().unwrap()).unwrap().len(), 1);
        second.forget();
        drop(first);
        let left = pending.list().unwrap();
        assert_eq!(left.len(), 1, "dropped is not forgotten");
        left[0].forget().unwrap();
        left[0].forget().unwrap();
        assert_eq!(pending.list().unwrap().len(), 0);
    }

    #[tokio::test]
    async fn half_a_file_is_told_and_hides_no_other() {
        let temp = tempfile::tempdir().unwrap();
        let pending = Pending::at(temp.path());
        let kept = pending.keep(&call("a", 5)).await.unwrap();
        let whole = fs::read(kept.path()).unwrap();
        fs::write(temp.path().join("0000000000001-x.json"), &whole[..whole.len() / 2]).unwrap();
        fs::write(temp.path().join("other"), "no call").unwrap();
        let found = pending.list().unwrap();
        assert_eq!(found.iter().map(|found| found.call.is_ok()).collect::<Vec<_>>(), [false, true]);
    }

    #[tokio::test]
    async fn what_cannot_be_kept_is_said() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Pending::at(file.join("pending")).keep(&call("a", 1)).await.unwrap_err();
        assert!(matches!(error, ClientError::NotKept { .. }), "{error:?}");
        assert!(error.to_string().contains("was not sent"), "{error}");
    }
}
