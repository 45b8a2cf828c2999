//! unpack_tree: journal the number by which the agent knows the effect → stream the archive to the agent, which puts each
//! entry in place as it comes → its answer.
//!
//! What breaks off is not taken back: the error says how many entries were unpacked, and the agent remembers that for a
//! later server. A repeated call is held against the digest of the first one's body, as that of a file is.

use std::sync::{Mutex, PoisonError};

use remuda_guest_proto::{Reply, Request};
use remuda_journal::{Operation as Record, Reservation};
use remuda_types::wire::UnpackedTree;
use remuda_types::{Error, ErrorCode, SandboxId};
use serde_json::{Value, json};

use crate::access::Action;
use crate::boot::next_effect;
use crate::caller::Caller;
use crate::channel::{Upload, UploadError, unexpected};
use crate::operation::{Ended, Fault, Operation, Work};
use crate::operations::change_file::HANDED_OVER;
use crate::operations::execute::handed_over;
use crate::operations::files::{Reached, failed, judged, user_of};
use crate::operations::write_file::{digested, same_body};
use crate::platform::Platform;
use crate::stream::{ByteStream, FileAt};

/// Unpacks an archive from a stream.
pub(crate) struct UnpackTree {
    sandbox: SandboxId,
    at: FileAt,
    parents: bool,
    /// Taken by whoever reads it, once.
    body: Mutex<Option<ByteStream>>,
}

impl UnpackTree {
    pub(crate) fn new(sandbox: SandboxId, at: FileAt, parents: bool, body: ByteStream) -> Self {
        UnpackTree { sandbox, at, parents, body: Mutex::new(Some(body)) }
    }

    fn body(&self) -> ByteStream {
        let body = self.body.lock().unwrap_or_else(PoisonError::into_inner).take();
        body.unwrap_or_else(|| Box::pin(futures_util::stream::empty()))
    }
}

impl Operation for UnpackTree {
    const KIND: &'static str = "unpack_tree";
    const ACTION: Action = Action::WriteTree;
    const ALWAYS: bool = false;
    type Plan = Reached;
    type Output = UnpackedTree;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        json!({ "path": self.at.path, "user": self.at.user, "parents": self.parents })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Reached, Reservation), Error> {
        judged(platform, caller, &self.sandbox, &self.at.path).await
    }

    async fn run(self, _: &Platform, reached: Reached, work: &Work) -> Ended<UnpackedTree> {
        let (body, effect) = (self.body(), next_effect());
        let Self { sandbox, at: FileAt { path, user }, parents, .. } = self;
        let (channel, user) = (&reached.live.channel, user_of(&user));
        let request = Request::UnpackTree { path: path.clone(), user, parents, effect };
        if let Err(e) = channel.knows(&request) {
            return Err(Fault::Failed(failed(&sandbox, e))).into();
        }
        let mut streamed = body;
        if work.id.is_some() {
            if let Err(e) = work.step(HANDED_OVER, json!({ "effect": effect }), Vec::new()).await {
                return Ended::failed(e, Vec::new());
            }
            streamed = digested(streamed, effect, work.clone());
        }
        match Upload::run(channel, request, streamed).await {
            Ok(reply) => unpacked(&sandbox, &path, reply).map_err(Fault::Failed).into(),
            Err(UploadError::Channel(e)) => Err(handed_over(&sandbox, e)).into(),
            Err(e @ UploadError::Body(_)) => {
                let message = format!("the archive for {path} was not unpacked to its end: {e}");
                let error = Error::new(ErrorCode::InvalidRequest, message).cause(crate::errors::chain(&e));
                let remedy = "send it again: what was unpacked until then stays, and is replaced entry by entry";
                Ended::failed(error.remedy(remedy), Vec::new())
            }
        }
    }

    async fn repeats(self, platform: &Platform, record: &Record) -> Result<(), Error> {
        same_body(platform, record, Self::KIND, self.body()).await
    }
}

pub(crate) fn unpacked(id: &SandboxId, path: &str, reply: Reply) -> Result<UnpackedTree, Error> {
    match reply {
        Reply::Unpacked { files, directories, links, bytes, skipped } => {
            Ok(UnpackedTree { path: path.to_owned(), files, directories, links, bytes, skipped })
        }
        other => Err(failed(id, unexpected(&other))),
    }
}
