//! write_file: stream the body to the agent → journal the digest of what was streamed → rename into place.
//!
//! The body is no part of a keyed call's request, since it may be long: its digest is journaled before the agent is
//! told that the body has ended, and nothing is in place before that. A repeated call is held against that digest by
//! hashing its body, which is not written, unless it says what its body is in `Content-Digest`.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use remuda_guest_proto::Request;
use remuda_journal::{Operation as Record, Reservation};
use remuda_types::wire::FileStat;
use remuda_types::{Error, ErrorCode, SandboxId};
use serde_json::{Value, json};

use crate::access::Action;
use crate::boot::next_effect;
use crate::caller::Caller;
use crate::channel::{Upload, UploadError};
use crate::operation::{Ended, Operation, Work, conflict};
use crate::operations::execute::{USER_DEFAULT, handed_over};
use crate::operations::files::{Reached, entry, judged};
use crate::platform::Platform;
use crate::stream::{ByteStream, WriteOptions};

/// The step that holds the digest of the body, and the number by which the agent knows the write.
pub(crate) const STREAMED: &str = "streamed";

/// Writes a file from a stream; it is replaced whole or not at all.
pub(crate) struct WriteFile {
    sandbox: SandboxId,
    path: String,
    options: WriteOptions,
    /// Taken by whoever reads it, once.
    body: Mutex<Option<ByteStream>>,
}

impl WriteFile {
    pub(crate) fn new(sandbox: SandboxId, path: &str, options: WriteOptions, body: ByteStream) -> Self {
        WriteFile { sandbox, path: path.to_owned(), options, body: Mutex::new(Some(body)) }
    }

    fn body(&self) -> ByteStream {
        let body = self.body.lock().unwrap_or_else(PoisonError::into_inner).take();
        body.unwrap_or_else(|| Box::pin(futures_util::stream::empty()))
    }
}

impl Operation for WriteFile {
    const KIND: &'static str = "write_file";
    const ACTION: Action = Action::WriteFile;
    const ALWAYS: bool = false;
    type Plan = Reached;
    type Output = FileStat;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        let WriteOptions { mode, user, parents, content_digest, conditions } = &self.options;
        let conditions = (!conditions.is_empty()).then_some(conditions);
        json!({
            "path": self.path, "mode": mode, "user": user, "parents": parents, "content_digest": content_digest,
            "conditions": conditions,
        })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Reached, Reservation), Error> {
        judged(platform, caller, &self.sandbox, &self.path).await
    }

    async fn run(self, _: &Platform, reached: Reached, work: &Work) -> Ended<FileStat> {
        let body = self.body();
        let effect = next_effect();
        let body = if work.id.is_some() { digested(body, effect, work.clone()) } else { body };
        let Self { sandbox, path, options, .. } = self;
        let request = Request::WriteFile {
            path: path.clone(),
            user: options.user.unwrap_or_else(|| USER_DEFAULT.into()),
            mode: options.mode,
            parents: options.parents,
            conditions: options.conditions,
            effect,
        };
        match Upload::run(&reached.live.channel, request, body).await {
            Ok(reply) => entry(&sandbox, reply).map_err(Into::into).into(),
            Err(UploadError::Channel(e)) => Err(handed_over(&sandbox, e)).into(),
            // The agent was never told that it had the whole of it.
            Err(e @ UploadError::Body(_)) => {
                let error = Error::new(ErrorCode::InvalidRequest, format!("{path} was not written: {e}"));
                Ended::failed(error.cause(crate::errors::chain(&e)), Vec::new())
            }
        }
    }

    async fn repeats(self, platform: &Platform, record: &Record) -> Result<(), Error> {
        if self.options.content_digest.is_some() {
            return Ok(());
        }
        same_body(platform, record, Self::KIND, self.body()).await
    }
}

/// Whether a call that repeats a finished one comes with the same body, which is hashed and not handed on.
pub(crate) async fn same_body(
    platform: &Platform,
    record: &Record,
    kind: &str,
    mut body: ByteStream,
) -> Result<(), Error> {
    let whole = platform.journal().operation(&record.account, &record.id).await;
    let whole = whole.map_err(|e| crate::errors::journal(&e))?;
    let steps = whole.map(|record| record.steps).unwrap_or_default();
    // One that failed before its body was whole, or of which only a tombstone is left, has none to compare with.
    let Some(step) = steps.iter().find(|step| step.name == STREAMED) else { return Ok(()) };
    let mut hasher = blake3::Hasher::new();
    while let Some(chunk) = body.next().await {
        let broke = |e| Error::new(ErrorCode::InvalidRequest, "the body could not be read to its end").cause(e);
        hasher.update(&chunk.map_err(broke)?);
    }
    if step.data["digest"] == digest_of(&hasher) { Ok(()) } else { Err(conflict(kind, record)) }
}

fn digest_of(hasher: &blake3::Hasher) -> String {
    format!("blake3:{}", hasher.finalize().to_hex())
}

/// The body as it comes; its end is held back until its digest is on record.
pub(crate) fn digested(body: ByteStream, effect: u64, work: Work) -> ByteStream {
    Box::pin(Digested { body, effect, hasher: blake3::Hasher::new(), work: Some(work), writing: None })
}

type Writing = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

struct Digested {
    body: ByteStream,
    effect: u64,
    hasher: blake3::Hasher,
    /// Taken at the end of the body.
    work: Option<Work>,
    writing: Option<Writing>,
}

impl Stream for Digested {
    type Item = std::io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(writing) = &mut self.writing {
                return match writing.as_mut().poll(cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(written) => {
                        self.writing = None;
                        Poll::Ready(written.err().map(|e| Err(std::io::Error::other(e.to_string()))))
                    }
                };
            }
            if self.work.is_none() {
                return Poll::Ready(None);
            }
            match self.body.poll_next_unpin(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    let Some(work) = self.work.take() else { return Poll::Ready(None) };
                    let data = json!({ "digest": digest_of(&self.hasher), "effect": self.effect });
                    self.writing = Some(Box::pin(async move { work.step(STREAMED, data, Vec::new()).await }));
                }
                Poll::Ready(Some(chunk)) => {
                    if let Ok(bytes) = &chunk {
                        self.hasher.update(bytes);
                    }
                    return Poll::Ready(Some(chunk));
                }
            }
        }
    }
}
