//! Changes of paths in one step: make_directory, remove_file, move_file, set_attributes. Each is journaled with the number
//! by which the agent knows the effect, and then handed over: a later server asks the agent what became of it.

use remuda_guest_proto::{Reply, Request};
use remuda_journal::Reservation;
use remuda_types::wire::FileStat;
use remuda_types::{Error, ErrorCode, SandboxId};
use serde_json::{Value, json};

use crate::access::Action;
use crate::boot::next_effect;
use crate::caller::Caller;
use crate::operation::{Ended, Fault, Operation, Work};
use crate::operations::execute::handed_over;
use crate::operations::files::{Reached, checked, entry, failed, judged, user_of};
use crate::platform::Platform;
use crate::stream::{Attributes, FileAt, MoveFile};

/// The step that holds the number by which the agent knows the effect; none for an agent that doesn't keep it.
pub(crate) const HANDED_OVER: &str = "handed_over";

/// The first agents that keep the effects of these calls.
const CALLS_WITH_EFFECTS: u32 = 1;

/// Journals a change and asks the agent for it.
pub(crate) async fn hand_over(
    sandbox: &SandboxId,
    reached: &Reached,
    work: &Work,
    request: impl FnOnce(u64) -> Request,
) -> Result<Reply, Fault> {
    let effect = next_effect();
    let (channel, request) = (&reached.live.channel, request(effect));
    channel.knows(&request).map_err(|e| failed(sandbox, e))?;
    if work.id.is_some() {
        let kept = (channel.calls() >= CALLS_WITH_EFFECTS).then_some(effect);
        work.step(HANDED_OVER, json!({ "effect": kept }), Vec::new()).await?;
    }
    channel.call(request).await.map_err(|e| handed_over(sandbox, e))
}

fn stat(sandbox: &SandboxId, reply: Result<Reply, Fault>) -> Ended<FileStat> {
    reply.and_then(|reply| Ok(entry(sandbox, reply)?)).into()
}

/// Makes a directory.
pub(crate) struct MakeDirectory {
    pub(crate) sandbox: SandboxId,
    pub(crate) at: FileAt,
    pub(crate) parents: bool,
}

impl Operation for MakeDirectory {
    const KIND: &'static str = "make_directory";
    const ACTION: Action = Action::MakeDirectory;
    const ALWAYS: bool = false;
    type Plan = Reached;
    type Output = FileStat;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        json!({ "path": self.at.path, "user": self.at.user, "parents": self.parents })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Reached, Reservation), Error> {
        judged(platform, caller, &self.sandbox, &self.at.path).await
    }

    async fn run(self, _: &Platform, reached: Reached, work: &Work) -> Ended<FileStat> {
        let Self { sandbox, at: FileAt { path, user }, parents } = self;
        let request = |effect| Request::MakeDirectory { path, user: user_of(&user), parents, effect: Some(effect) };
        stat(&sandbox, hand_over(&sandbox, &reached, work, request).await)
    }
}

/// Removes a path.
pub(crate) struct RemoveFile {
    pub(crate) sandbox: SandboxId,
    pub(crate) at: FileAt,
    pub(crate) recursive: bool,
}

impl Operation for RemoveFile {
    const KIND: &'static str = "remove_file";
    const ACTION: Action = Action::RemoveFile;
    const ALWAYS: bool = false;
    type Plan = Reached;
    type Output = ();

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        json!({ "path": self.at.path, "user": self.at.user, "recursive": self.recursive })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Reached, Reservation), Error> {
        judged(platform, caller, &self.sandbox, &self.at.path).await
    }

    async fn run(self, _: &Platform, reached: Reached, work: &Work) -> Ended<()> {
        let Self { sandbox, at: FileAt { path, user }, recursive } = self;
        let request = |effect| Request::Remove { path, user: user_of(&user), recursive, effect: Some(effect) };
        hand_over(&sandbox, &reached, work, request).await.map(drop).into()
    }
}

/// Gives a path another name.
pub(crate) struct Rename {
    pub(crate) sandbox: SandboxId,
    pub(crate) moving: MoveFile,
}

impl Operation for Rename {
    const KIND: &'static str = "move_file";
    const ACTION: Action = Action::MoveFile;
    const ALWAYS: bool = false;
    type Plan = Reached;
    type Output = FileStat;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        let MoveFile { from, to, user, overwrite } = &self.moving;
        json!({ "from": from, "to": to, "user": user, "overwrite": overwrite })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Reached, Reservation), Error> {
        checked(&self.moving.to)?;
        judged(platform, caller, &self.sandbox, &self.moving.from).await
    }

    async fn run(self, _: &Platform, reached: Reached, work: &Work) -> Ended<FileStat> {
        let Self { sandbox, moving: MoveFile { from, to, user, overwrite } } = self;
        let request = |effect| Request::Move { from, to, user: user_of(&user), overwrite, effect };
        stat(&sandbox, hand_over(&sandbox, &reached, work, request).await)
    }
}

/// Changes permission bits and owner.
pub(crate) struct SetAttributes {
    pub(crate) sandbox: SandboxId,
    pub(crate) at: FileAt,
    pub(crate) attributes: Attributes,
}

impl Operation for SetAttributes {
    const KIND: &'static str = "set_attributes";
    const ACTION: Action = Action::SetAttributes;
    const ALWAYS: bool = false;
    type Plan = Reached;
    type Output = FileStat;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        let Attributes { mode, owner } = &self.attributes;
        json!({ "path": self.at.path, "user": self.at.user, "mode": mode, "owner": owner })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Reached, Reservation), Error> {
        if self.attributes.mode.is_none() && self.attributes.owner.is_none() {
            return Err(Error::new(ErrorCode::InvalidRequest, "the call names neither a mode nor an owner"));
        }
        judged(platform, caller, &self.sandbox, &self.at.path).await
    }

    async fn run(self, _: &Platform, reached: Reached, work: &Work) -> Ended<FileStat> {
        let Self { sandbox, at: FileAt { path, user }, attributes: Attributes { mode, owner } } = self;
        let request = |effect| Request::SetAttributes { path, user: user_of(&user), mode, owner, effect };
        stat(&sandbox, hand_over(&sandbox, &reached, work, request).await)
    }
}
