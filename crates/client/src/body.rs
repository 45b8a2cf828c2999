//! A body that is read as it arrives. Never holds more than the caller asked for.

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use http::{HeaderMap, StatusCode};

use crate::ClientError;
use crate::request::Call;

/// An answer whose body has not been read yet.
#[derive(Debug)]
pub struct Incoming {
    call: Call,
    response: reqwest::Response,
}

impl Incoming {
    pub(crate) fn new(call: Call, response: reqwest::Response) -> Self {
        Incoming { call, response }
    }

    /// Its HTTP status.
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Its headers.
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Length of the body in bytes, where the server said it.
    pub fn length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// The error of an answer that is not what this client expects.
    pub(crate) fn unexpected(&self, problem: &str) -> ClientError {
        self.call.protocol(self.status(), problem.to_owned())
    }

    /// The next piece of the body, or `None` at its end.
    ///
    /// # Errors
    /// [`ClientError::Transport`] if the body breaks off.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        self.response.chunk().await.map_err(|error| self.call.transport(error))
    }

    /// The whole body.
    ///
    /// # Errors
    /// [`ClientError::Protocol`] if it is longer than `bytes_max`, [`ClientError::Transport`] if it breaks off.
    pub async fn collect(mut self, bytes_max: usize) -> Result<Bytes, ClientError> {
        let mut all = BytesMut::new();
        while let Some(piece) = self.chunk().await? {
            if all.len() + piece.len() > bytes_max {
                let problem = format!("the body is longer than {bytes_max} bytes, which is all that is read here");
                return Err(self.call.protocol(self.status(), problem));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all.freeze())
    }

    /// The body as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, ClientError>> + Send {
        futures_util::stream::try_unfold(
            self,
            |mut body| async move { Ok(body.chunk().await?.map(|piece| (piece, body))) },
        )
    }
}
