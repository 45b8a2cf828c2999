//! What the port route and previews share: how a request is passed on to an application in a guest, and its answer back.
//! Must know nothing of who was let in, nor why.

pub(crate) mod activity;
pub(crate) mod frames;
pub(crate) mod headers;
pub(crate) mod pool;
pub(crate) mod send;
pub(crate) mod tunnel;

use tokio::io::{AsyncRead, AsyncWrite};

/// A connection to an application.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for T {}
