//! A connection of which the first bytes were looked at: they come again to whoever reads it. Tells apart, by these bytes,
//! what a client is about to speak. Must wait for no byte longer than it is told to.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// What HTTP/2 begins with where both sides know that they speak it.
const HTTP2: &[u8] = b"PRI * HTTP/2.0";
/// What a handshake of TLS begins with.
const TLS_HANDSHAKE: u8 = 0x16;

/// What a client is about to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoken {
    Tls,
    Http1,
    Http2,
}

/// A connection whose first bytes come again.
#[derive(Debug)]
pub(crate) struct Begun<I> {
    first: [u8; HTTP2.len()],
    /// Of these, how many were read and how many have come again.
    read: usize,
    given: usize,
    io: I,
}

impl<I: AsyncRead + AsyncWrite + Unpin> Begun<I> {
    /// Reads as much as it takes to tell, and no more.
    pub(crate) async fn look(io: I) -> io::Result<(Spoken, Begun<I>)> {
        let mut begun = Begun { first: [0; HTTP2.len()], read: 0, given: 0, io };
        while begun.read < HTTP2.len() {
            let count = begun.io.read(&mut begun.first[begun.read..]).await?;
            begun.read += count;
            let seen = &begun.first[..begun.read];
            if seen.first() == Some(&TLS_HANDSHAKE) {
                return Ok((Spoken::Tls, begun));
            }
            if count == 0 || !HTTP2.starts_with(seen) {
                return Ok((Spoken::Http1, begun));
            }
        }
        Ok((Spoken::Http2, begun))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Begun<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.given < self.read {
            let count = (self.read - self.given).min(buf.remaining());
            let from = self.given;
            buf.put_slice(&self.first[from..from + count]);
            self.given += count;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Begun<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn what_is_spoken_is_told_by_its_first_bytes_and_nothing_is_lost() {
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], Spoken::Http1),
            (b"PROPFIND / HTTP/1.1\r\n", Spoken::Http1),
            (b"PRI * HTTP/1.1\r\n", Spoken::Http1),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Spoken::Http2),
            (b"\x16\x03\x01", Spoken::Tls),
            (b"", Spoken::Http1),
        ] {
            for piece in 1..4 {
                let (mut client, server) = tokio::io::duplex(8);
                let sending = tokio::spawn(async move {
                    for piece in bytes.chunks(piece) {
                        client.write_all(piece).await.unwrap();
                    }
                });
                let (spoken, mut begun) = Begun::look(server).await.unwrap();
                assert_eq!(spoken, expected, "{bytes:?}");
                let mut all = Vec::new();
                begun.read_to_end(&mut all).await.unwrap();
                assert_eq!(all, bytes);
                sending.await.unwrap();
            }
        }
    }
}
