//! A local file as the body of a call: read from its beginning each time the call is sent, and told apart by its digest, or,
//! if it is large, by what the file system says of it. Never held whole.

use std::io::Read;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;

use crate::ClientError;

/// Files from this size on are not read once more for their digest before they are sent, in bytes: the server tells a
/// repeated sending from another file by all of its bytes then.
const LARGE_BYTES_MIN: u64 = 16 << 20;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// A file that can be sent more than once.
#[derive(Debug, Clone)]
pub(crate) struct LocalFile {
    /// Absolute.
    pub(crate) path: PathBuf,
    /// As `Content-Digest` says it (RFC 9530); of a large one, what would change with its contents.
    pub(crate) digest: String,
}

const DIGEST: &str = "sha-256=:";

impl LocalFile {
    /// Reads it once for its digest: the server then tells a repeated sending from another file without its bytes.
    pub(crate) async fn read(path: &Path) -> Result<LocalFile, ClientError> {
        let wanted = path.to_owned();
        let read = tokio::task::spawn_blocking(move || {
            let path = std::path::absolute(&wanted)?;
            let file = std::fs::File::open(&path)?;
            let meta = file.metadata()?;
            let digest = if meta.len() < LARGE_BYTES_MIN { digest_of(file)? } else { stamp_of(&meta) };
            Ok(LocalFile { path, digest })
        });
        read.await.map_err(std::io::Error::other).and_then(|read| read).map_err(|e| unreadable(path, &e))
    }

    /// What goes into the `Content-Digest` header, if it was made.
    pub(crate) fn content_digest(&self) -> Option<&str> {
        self.digest.starts_with(DIGEST).then_some(&self.digest)
    }

    /// Its bytes as a body, from the beginning.
    pub(crate) async fn open(&self) -> Result<reqwest::Body, ClientError> {
        let file = tokio::fs::File::open(&self.path).await.map_err(|e| unreadable(&self.path, &e))?;
        // In pieces that are worth the way to the thread that reads them: a body made of a file as it is has 4 KiB ones.
        let pieces = futures_util::stream::try_unfold(file, async |mut file| {
            let mut piece = bytes::BytesMut::with_capacity(PIECE_BYTES);
            let count = file.read_buf(&mut piece).await?;
            Ok::<_, std::io::Error>((count > 0).then(|| (piece.freeze(), file)))
        });
        Ok(reqwest::Body::wrap_stream(pieces))
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> ClientError {
    ClientError::Input(format!("{} can't be read: {error}", path.display()))
}

fn stamp_of(meta: &std::fs::Metadata) -> String {
    format!("file={}:{}:{}.{:09}", meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec())
}

fn digest_of(mut file: impl Read) -> std::io::Result<String> {
    let (mut hasher, mut piece) = (Sha256::new(), vec![0; PIECE_BYTES]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(format!("{DIGEST}{}:", BASE64.encode(hasher.finalize()))),
            count => hasher.update(&piece[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn a_large_file_is_told_apart_without_being_read_and_has_no_digest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("large");
        std::fs::File::create(&path).unwrap().set_len(super::LARGE_BYTES_MIN).unwrap();
        let first = super::LocalFile::read(&path).await.unwrap();
        assert_eq!(first.content_digest(), None);
        assert_eq!(super::LocalFile::read(&path).await.unwrap().digest, first.digest);
        std::fs::write(&path, vec![1; super::LARGE_BYTES_MIN as usize]).unwrap();
        std::fs::File::options().append(true).open(&path).unwrap().set_len(super::LARGE_BYTES_MIN + 1).unwrap();
        assert_ne!(super::LocalFile::read(&path).await.unwrap().digest, first.digest);
    }

    #[test]
    fn the_digest_is_the_standards_own_example() {
        let digest = super::digest_of(&b"{\"hello\": \"world\"}\n"[..]).unwrap();
        assert_eq!(digest, "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:");
    }
}
