//! A way to a server that loses answers: it passes requests on, waits until the server has answered, and cuts the
//! connection before the answer or in its body. Never changes a byte that it passes on.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// Largest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// How an answer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// Nothing of it arrives.
    Whole,
    /// It breaks off in its body.
    InBody,
}

/// A running proxy; it ends when it is dropped.
pub(super) struct Proxy {
    socket: PathBuf,
    _task: JoinSet<()>,
}

impl Proxy {
    /// Listens on `socket` for a server on `target`. The first connections lose the answers to their first requests as
    /// told; what comes after them passes.
    pub(super) fn start(socket: PathBuf, target: &Path, losses: &[Loss]) -> std::io::Result<Proxy> {
        let listener = UnixListener::bind(&socket)?;
        let losses = Arc::new(Mutex::new(losses.iter().copied().collect::<VecDeque<_>>()));
        let (target, mut task) = (target.to_owned(), JoinSet::new());
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((inward, _)) = listener.accept().await {
                let (target, losses) = (target.clone(), losses.clone());
                connections.spawn(async move {
                    // A broken connection is what this is for.
                    let _ = pass(inward, &target, &losses).await;
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Proxy { socket, _task: task })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }
}

async fn pass(mut inward: UnixStream, target: &Path, losses: &Mutex<VecDeque<Loss>>) -> std::io::Result<()> {
    let mut outward = UnixStream::connect(target).await?;
    let loss = losses.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let Some(loss) = loss else {
        tokio::io::copy_bidirectional(&mut inward, &mut outward).await?;
        return Ok(());
    };
    let (mut from, mut to) = inward.split();
    let (mut back, mut forth) = outward.split();
    let lose = async {
        // Read up to the body, so that whatever was asked has certainly been done.
        let (mut answer, mut body) = (Vec::new(), None);
        while answer.len() < HEAD_BYTES_MAX && body.is_none_or(|begin| answer.len() < begin + 2) {
            if back.read_buf(&mut answer).await? == 0 {
                break;
            }
            body = answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        }
        if let (Loss::InBody, Some(begin)) = (loss, body) {
            // At least its last byte is missing.
            let cut = begin + (answer.len() - begin) / 2;
            to.write_all(&answer[..cut]).await?;
        }
        Ok::<_, std::io::Error>(())
    };
    tokio::select! {
        lost = lose => lost,
        passed = async { tokio::io::copy(&mut from, &mut forth).await } => passed.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_are_lost_as_told_and_the_requests_have_arrived() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        let listener = UnixListener::bind(&target).unwrap();
        let server = tokio::spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..3 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4];
                stream.read_exact(&mut request).await.unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbody").await.unwrap();
                seen.push(request);
            }
            seen
        });
        let losses = [Loss::Whole, Loss::InBody];
        let proxy = Proxy::start(directory.path().join("proxy"), &target, &losses).unwrap();
        let mut answers = Vec::new();
        for _ in 0..3 {
            let mut stream = UnixStream::connect(proxy.socket()).await.unwrap();
            stream.write_all(b"ping").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answers.push(answer);
        }
        assert_eq!(server.await.unwrap(), [*b"ping"; 3]);
        assert_eq!(answers[0], "");
        assert!(answers[1].ends_with("\r\n\r\nbo"), "{answers:?}");
        assert!(answers[2].ends_with("\r\n\r\nbody"), "{answers:?}");
    }
}
