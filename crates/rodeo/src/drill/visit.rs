//! A visitor of a preview, as anybody outside is: plain HTTP to the server's address with the credential in the header,
//! and no access key.

use std::time::Duration;

use remuda_client::wire;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::DrillError;

/// How long an answer, or the end of one that is cut off, may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest answer that is read whole, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// An address below the server's, with its credential. The credential is never written down.
pub(super) struct Visitor {
    authority: String,
    path: String,
    token: String,
}

/// An answer that goes on.
pub(super) struct Open(TcpStream);

impl Visitor {
    /// By this preview's way for programs.
    pub(super) fn of(made: &wire::MadePreview) -> Result<Visitor, DrillError> {
        let none = || DrillError::Server("a preview has no address: the server listens nowhere".into());
        let uri: http::Uri = made.header_url.as_deref().ok_or_else(none)?.parse().map_err(|_| none())?;
        let authority = uri.authority().ok_or_else(none)?.to_string();
        let path = uri.path().trim_end_matches('/').to_owned();
        Ok(Visitor { authority, path, token: made.token.clone() })
    }

    async fn ask(&self, path: &str) -> Result<TcpStream, DrillError> {
        let mut stream = TcpStream::connect(&self.authority).await?;
        let head = format!(
            "GET {}{path} HTTP/1.1\r\nHost: {}\r\nX-Remuda-Preview-Token: {}\r\nConnection: close\r\n\r\n",
            self.path, self.authority, self.token
        );
        stream.write_all(head.as_bytes()).await?;
        Ok(stream)
    }

    /// Status of a short answer, and the answer with its head.
    pub(super) async fn get(&self, path: &str) -> Result<(u16, String), DrillError> {
        let mut answer = Vec::new();
        let read = self.ask(path).await?.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await;
        // A server that refuses may close before it has read everything.
        if answer.is_empty() {
            read?;
        }
        let text = String::from_utf8_lossy(&answer).into_owned();
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| DrillError::Server("a preview gave no answer of HTTP".into()))?;
        Ok((status, text))
    }

    /// Opens an answer that never ends by itself, and waits for its first bytes.
    pub(super) async fn open(&self, path: &str) -> Result<Open, DrillError> {
        let mut stream = self.ask(path).await?;
        let mut first = [0; 12];
        stream.read_exact(&mut first).await?;
        if &first != b"HTTP/1.1 200" {
            return Err(DrillError::Server("a stream of a preview did not begin".into()));
        }
        Ok(Open(stream))
    }
}

impl Open {
    /// Whether it ends, though its application would go on for ever.
    pub(super) async fn is_cut_off(&mut self) -> bool {
        let end = async {
            let mut piece = [0; 4096];
            while !matches!(self.0.read(&mut piece).await, Ok(0) | Err(_)) {}
        };
        tokio::time::timeout(PATIENCE, end).await.is_ok()
    }

    /// Whether more of it comes.
    pub(super) async fn goes_on(&mut self) -> bool {
        let mut piece = [0; 4096];
        matches!(tokio::time::timeout(PATIENCE, self.0.read(&mut piece)).await, Ok(Ok(1..)))
    }
}
