//! What a client is told whose request is none: hyper answers it with a status alone, and here that gets a body that names
//! the case. Only where a connection has carried no request yet, since until then nothing but such an answer can be written
//! to it; must change nothing that a handler or an application says.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use remuda_types::error::ErrorBody;
use remuda_types::{Error, ErrorCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::errors::{ERROR_HEADER, invalid};
use crate::limits::HTTP_HEAD_BYTES_MAX;

/// A connection of which it is known whether a request has come by it.
#[derive(Debug)]
pub(crate) struct Telling<I> {
    io: I,
    served: Arc<AtomicBool>,
    /// What is said instead, and how much of it was.
    instead: Vec<u8>,
    said: usize,
}

impl<I: AsyncWrite + Unpin> Telling<I> {
    /// `served` is to be set when the first request comes.
    pub(crate) fn new(io: I, served: Arc<AtomicBool>) -> Telling<I> {
        Telling { io, served, instead: Vec::new(), said: 0 }
    }

    fn say(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.said < self.instead.len() {
            match ready!(Pin::new(&mut self.io).poll_write(cx, &self.instead[self.said..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.said += count,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Takes an answer of hyper's own to be said in our words.
    fn take(&mut self, answer: &[u8]) -> bool {
        if self.served.load(Ordering::Relaxed) {
            return false;
        }
        let Some(words) = words(answer) else { return false };
        (self.instead, self.said) = (words, 0);
        true
    }
}

/// Our words for an answer of hyper's own; none for what is no such answer.
fn words(answer: &[u8]) -> Option<Vec<u8>> {
    let head = std::str::from_utf8(answer).ok()?;
    let line = head.strip_prefix("HTTP/1.1 ").filter(|_| head.ends_with("\r\n\r\n"))?.lines().next()?;
    let error = match line.get(..3)? {
        "400" => invalid("the request is no HTTP/1.1 as it should be")
            .cause("its first line or one of its headers can't be read, or its length is told in two ways")
            .remedy("send it with an HTTP client, or look at its line ends, header names and Content-Length"),
        "414" | "431" => Error::new(
            ErrorCode::HeadTooLarge,
            format!("the head of the request has more than {HTTP_HEAD_BYTES_MAX} bytes"),
        )
        .remedy("send fewer or shorter headers; what is long goes into the body")
        .detail("limit", "http_head_bytes_max")
        .detail("maximum", HTTP_HEAD_BYTES_MAX as u64),
        _ => return None,
    };
    let code = error.code.as_str();
    let body = serde_json::to_vec(&ErrorBody { error }).ok()?;
    let mut whole = format!(
        "HTTP/1.1 {line}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{ERROR_HEADER}: \
         {code}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    whole.extend(body);
    Some(whole)
}

impl<I: AsyncRead + Unpin> AsyncRead for Telling<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Telling<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.say(cx))?;
        if self.take(buf) {
            return Poll::Ready(Ok(buf.len()));
        }
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.say(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.say(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.say(cx))?;
        let first = bufs.iter().find(|buf| !buf.is_empty());
        if let Some(first) = first
            && self.take(first)
        {
            return Poll::Ready(Ok(first.len()));
        }
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn written(served: bool, bytes: &[u8]) -> String {
        // Narrower than what is said.
        let (mut client, server) = tokio::io::duplex(16);
        let mut telling = Telling::new(server, Arc::new(AtomicBool::new(served)));
        let writing = async {
            telling.write_all(bytes).await.unwrap();
            telling.flush().await.unwrap();
            telling.shutdown().await.unwrap();
        };
        let mut all = String::new();
        let (read, ()) = tokio::join!(client.read_to_string(&mut all), writing);
        read.unwrap();
        all
    }

    #[tokio::test]
    async fn an_answer_without_a_request_gets_a_body_and_nothing_else_does() {
        let bare = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let said = written(false, bare.as_bytes()).await;
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n") && head.contains("x-remuda-error: invalid_request"));
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        assert_eq!(length.parse(), Ok(body.len()));
        let body: ErrorBody = serde_json::from_str(body).unwrap();
        assert!(body.error.cause.is_some() && body.error.remedy.is_some());
        assert!(written(false, b"HTTP/1.1 431 x\r\n\r\n").await.contains("http_head_bytes_max"));
        for (served, bytes) in
            [(true, bare), (false, "HTTP/1.1 200 OK\r\n\r\n"), (false, "HTTP/1.1 400"), (false, "other")]
        {
            assert_eq!(written(served, bytes.as_bytes()).await, bytes);
        }
    }
}
