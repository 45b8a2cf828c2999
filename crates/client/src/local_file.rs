//! A local file as the body of a call: read from its beginning each time the call is sent, and told apart by its digest.
//! Never held whole.

use std::io::Read;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;

use crate::ClientError;

/// Bytes that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// A file that can be sent more than once.
#[derive(Debug, Clone)]
pub(crate) struct LocalFile {
    /// Absolute.
    pub(crate) path: PathBuf,
    /// As `Content-Digest` says it (RFC 9530).
    pub(crate) digest: String,
}

impl LocalFile {
    /// Reads it once for its digest: the server then tells a repeated sending from another file without its bytes.
    pub(crate) async fn read(path: &Path) -> Result<LocalFile, ClientError> {
        let wanted = path.to_owned();
        let read = tokio::task::spawn_blocking(move || {
            let path = std::path::absolute(&wanted)?;
            let digest = digest_of(std::fs::File::open(&path)?)?;
            Ok(LocalFile { path, digest })
        });
        read.await.map_err(std::io::Error::other).and_then(|read| read).map_err(|e| unreadable(path, &e))
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

fn digest_of(mut file: impl Read) -> std::io::Result<String> {
    let (mut hasher, mut piece) = (Sha256::new(), vec![0; PIECE_BYTES]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(format!("sha-256=:{}:", BASE64.encode(hasher.finalize()))),
            count => hasher.update(&piece[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_digest_is_the_standards_own_example() {
        let digest = super::digest_of(&b"{\"hello\": \"world\"}\n"[..]).unwrap();
        assert_eq!(digest, "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:");
    }
}
