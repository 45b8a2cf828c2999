//! Digests of files and trees: the names under which the machine-wide cache keeps things.
//! Must never follow a symlink, and must never let anything but content decide a digest (no times, no inode numbers).

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A BLAKE3 digest as 64 lower-case hexadecimal digits. Safe to use as one path component.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// The 64 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The digest of bytes in memory.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self(blake3::hash(bytes).to_hex().to_string())
    }

    /// The digest of a regular file's content.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of_file(path: &Path) -> io::Result<Self> {
        Ok(Self(hash_file(path)?.to_hex().to_string()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Self, BadDigest> {
        let hex = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if text.len() == 64 && hex { Ok(Self(text)) } else { Err(BadDigest) }
    }
}

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        Self::try_from(text.to_owned())
    }
}

/// The text is not 64 lower-case hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("not a digest: expected 64 lower-case hexadecimal digits")]
pub struct BadDigest;

/// A tree's digest and what was counted on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeDigest {
    /// BLAKE3 over the canonical listing.
    pub digest: Digest,
    /// Number of entries, the root directory included.
    pub entries: u64,
    /// Sum of the regular files' sizes in bytes; a file with several names counts once for each.
    pub bytes: u64,
}

/// Digests a directory tree: for every entry, in byte order of names, its path, type, mode, uid, gid, size and its
/// content's digest, link target or device number. Each field is preceded by its length, so that no two trees share a
/// listing.
///
/// # Errors
/// When an entry cannot be read; the error's text names it.
pub fn digest_tree(root: &Path) -> io::Result<TreeDigest> {
    let mut walk = Walk { hasher: blake3::Hasher::new(), entries: 0, bytes: 0, content: hash_file };
    walk.hasher.update(b"remuda tree listing 1\n");
    walk.entry(root, b"")?;
    Ok(TreeDigest {
        digest: Digest(walk.hasher.finalize().to_hex().to_string()),
        entries: walk.entries,
        bytes: walk.bytes,
    })
}

/// The same for a tree that a guest has made: contents count by what is not zero in them, so that a file takes as long
/// as the data it holds, and not as its size, which costs a guest nothing.
///
/// # Errors
/// When an entry cannot be read; the error's text names it.
pub fn digest_of_guest(root: &Path) -> io::Result<Digest> {
    let mut walk = Walk { hasher: blake3::Hasher::new(), entries: 0, bytes: 0, content: hash_data };
    walk.hasher.update(b"remuda guest tree listing 1\n");
    walk.entry(root, b"")?;
    Ok(Digest(walk.hasher.finalize().to_hex().to_string()))
}

/// What is looked at as one piece of a file, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Digests a file's chunks that are not all zero, each with its place. Where the file system keeps no data nothing is
/// read; what it keeps there is all zero, so that only content decides.
fn hash_data(path: &Path) -> io::Result<blake3::Hash> {
    use std::os::unix::fs::FileExt as _;
    let (file, mut hasher, mut chunk) = (File::open(path)?, blake3::Hasher::new(), vec![0; CHUNK_BYTES]);
    let mut at = 0;
    loop {
        match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
            // Nothing but a hole up to the end.
            Err(rustix::io::Errno::NXIO) => return Ok(hasher.finalize()),
            Err(e) => return Err(e.into()),
            Ok(data) => at = data - data % CHUNK_BYTES as u64,
        }
        let mut filled = 0;
        while filled < CHUNK_BYTES {
            match file.read_at(&mut chunk[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        if chunk[..filled].iter().any(|byte| *byte != 0) {
            hasher.update(&at.to_le_bytes());
            hasher.update(&(filled as u64).to_le_bytes());
            hasher.update(&chunk[..filled]);
        }
        at += CHUNK_BYTES as u64;
    }
}

struct Walk {
    /// Digests a file's content.
    content: fn(&Path) -> io::Result<blake3::Hash>,
    hasher: blake3::Hasher,
    entries: u64,
    bytes: u64,
}

impl Walk {
    fn field(&mut self, bytes: &[u8]) {
        self.hasher.update(&(bytes.len() as u64).to_le_bytes());
        self.hasher.update(bytes);
    }

    fn entry(&mut self, path: &Path, listed_as: &[u8]) -> io::Result<()> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let meta = fs::symlink_metadata(path).map_err(named)?;
        let kind = meta.file_type();
        self.entries += 1;
        self.field(listed_as);
        for number in [meta.mode() & 0o7777, meta.uid(), meta.gid()] {
            self.hasher.update(&number.to_le_bytes());
        }
        if kind.is_dir() {
            self.field(b"dir");
            let mut names = fs::read_dir(path)
                .and_then(|entries| {
                    entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>()
                })
                .map_err(named)?;
            names.sort_unstable();
            for name in names {
                let mut child = listed_as.to_vec();
                child.push(b'/');
                child.extend_from_slice(name.as_bytes());
                self.entry(&path.join(&name), &child)?;
            }
        } else if kind.is_file() {
            self.field(b"file");
            self.hasher.update(&meta.len().to_le_bytes());
            let content = (self.content)(path).map_err(named)?;
            self.hasher.update(content.as_bytes());
            self.bytes = self.bytes.saturating_add(meta.len());
        } else if kind.is_symlink() {
            self.field(b"link");
            let target = fs::read_link(path).map_err(named)?;
            self.field(target.as_os_str().as_bytes());
        } else {
            self.field(match () {
                () if kind.is_char_device() => b"char",
                () if kind.is_block_device() => b"block",
                () if kind.is_fifo() => b"fifo",
                () => b"socket",
            });
            self.hasher.update(&meta.rdev().to_le_bytes());
        }
        Ok(())
    }
}

fn hash_file(path: &Path) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn plant(root: &Path, order: &[&str]) {
        for name in order {
            fs::write(root.join(name), format!("content of {name}")).unwrap();
        }
        fs::create_dir(root.join("d")).unwrap();
        symlink("a", root.join("d/link")).unwrap();
    }

    #[test]
    fn equal_trees_have_equal_digests_whatever_the_order_of_making() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        plant(one.path(), &["a", "b", "c"]);
        plant(two.path(), &["c", "b", "a"]);
        let first = digest_tree(one.path()).unwrap();
        assert_eq!(first, digest_tree(two.path()).unwrap());
        assert_eq!(first.entries, 6);
        assert_eq!(first.bytes, 3 * "content of a".len() as u64);
    }

    #[test]
    fn content_mode_name_and_target_each_change_the_digest() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        plant(root, &["a", "b"]);
        let mut seen = vec![digest_tree(root).unwrap().digest];
        let mut note = |what: &str| {
            let digest = digest_tree(root).unwrap().digest;
            assert!(!seen.contains(&digest), "{what} left the digest unchanged");
            seen.push(digest);
        };
        fs::write(root.join("a"), "Content of a").unwrap();
        note("content");
        fs::set_permissions(root.join("a"), fs::Permissions::from_mode(0o4755)).unwrap();
        note("mode");
        fs::rename(root.join("b"), root.join("b2")).unwrap();
        note("name");
        fs::remove_file(root.join("d/link")).unwrap();
        symlink("b", root.join("d/link")).unwrap();
        note("target");
    }

    #[test]
    fn only_hexadecimal_of_the_right_length_is_a_digest() {
        assert!("../../etc".parse::<Digest>().is_err());
        assert!("A".repeat(64).parse::<Digest>().is_err());
        assert!("a".repeat(63).parse::<Digest>().is_err());
        assert!(Digest::of_bytes(b"x").as_str().parse::<Digest>().is_ok());
    }
}
