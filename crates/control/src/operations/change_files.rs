//! change_files: several changes of files, which are one effect of the agent's, with a result for each. Journaled with the
//! number by which the agent knows it and then handed over, like a single change; contents stay out of the journal.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use remuda_guest_proto::{
    AgentError, Batch, Change, Changed, Conditions, Contents, FRAME_PAYLOAD_BYTES_MAX, Reply, Request,
};
use remuda_journal::Reservation;
use remuda_types::limits::{BATCH_BYTES_MAX, BATCH_CHANGES_MAX};
use remuda_types::wire::{ChangeFiles as Wanted, ChangedFile, ChangedFiles, FileChange};
use remuda_types::{Error, ErrorCode, SandboxId};
use serde_json::{Value, json};

use crate::access::Action;
use crate::caller::Caller;
use crate::channel::{ChannelError, unexpected};
use crate::operation::{Ended, Operation, Work};
use crate::operations::change_file::hand_over;
use crate::operations::files::{Reached, checked, failed, judged, shown_digest, user_of};
use crate::platform::Platform;

/// Makes several changes.
pub(crate) struct ChangeFiles {
    pub(crate) sandbox: SandboxId,
    pub(crate) wanted: Wanted,
}

impl Operation for ChangeFiles {
    const KIND: &'static str = "change_files";
    const ACTION: Action = Action::ChangeFiles;
    const ALWAYS: bool = false;
    type Plan = (Reached, Vec<Change>);
    type Output = ChangedFiles;

    fn target(&self) -> Option<&SandboxId> {
        Some(&self.sandbox)
    }

    fn request(&self) -> Value {
        let changes: Vec<Value> = self.wanted.changes.iter().map(without_contents).collect();
        json!({ "user": self.wanted.user, "changes": changes })
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Self::Plan, Reservation), Error> {
        let changes = changes(&self.wanted)?;
        let first = self.wanted.changes.first().map_or("", FileChange::path);
        let (reached, reservation) = judged(platform, caller, &self.sandbox, first).await?;
        Ok(((reached, changes), reservation))
    }

    async fn run(self, _: &Platform, (reached, changes): Self::Plan, work: &Work) -> Ended<ChangedFiles> {
        let Self { sandbox, wanted } = self;
        let user = user_of(&wanted.user);
        let request = |effect| Request::Batch(Batch { user, changes, effect });
        let reply = hand_over(&sandbox, &reached, work, request).await;
        let paths = wanted.changes.iter().map(|change| change.path().to_owned()).collect();
        reply.and_then(|reply| Ok(results(&sandbox, paths, reply)?)).into()
    }
}

/// What the agent answered, for these paths.
pub(crate) fn results(id: &SandboxId, paths: Vec<String>, reply: Reply) -> Result<ChangedFiles, Error> {
    let Reply::Changed { results } = reply else { return Err(failed(id, unexpected(&reply))) };
    if results.len() != paths.len() {
        let why = format!("{} results for {} changes", results.len(), paths.len());
        return Err(failed(id, ChannelError::Broken(why)));
    }
    let told = |(path, result): (String, Result<Option<Changed>, AgentError>)| match result {
        Ok(changed) => ChangedFile {
            path,
            size: changed.as_ref().map(|changed| changed.size),
            // As a guest says it: what is no digest is none.
            digest: changed.and_then(|changed| changed.digest).and_then(|hex| shown_digest(&hex)),
            error: None,
        },
        Err(refusal) => {
            let error = crate::errors::channel(id, ChannelError::Agent(refusal));
            ChangedFile { path, size: None, digest: None, error: Some(error) }
        }
    };
    Ok(ChangedFiles { results: paths.into_iter().zip(results).map(told).collect() })
}

/// The paths of a request on record.
pub(crate) fn paths_of(request: Option<&Value>) -> Vec<String> {
    let changes = request.and_then(|request| request["changes"].as_array());
    let path = |change: &Value| change["path"].as_str().unwrap_or_default().to_owned();
    changes.into_iter().flatten().map(path).collect()
}

/// A change as it is on record: contents by their digest.
fn without_contents(change: &FileChange) -> Value {
    let mut value = json!(change);
    for member in ["text", "base64"] {
        if let Some(contents) = value[member].as_str() {
            value[member] = json!(format!("blake3:{}", blake3::hash(contents.as_bytes()).to_hex()));
        }
    }
    value
}

fn changes(wanted: &Wanted) -> Result<Vec<Change>, Error> {
    let wrong = |at: usize, why: String| {
        Error::new(ErrorCode::InvalidRequest, format!("change {at} of the batch is not understood"))
            .cause(why)
            .detail("change", at as u64)
    };
    let count = wanted.changes.len();
    if !(1..=BATCH_CHANGES_MAX).contains(&count) {
        return Err(Error::new(
            ErrorCode::InvalidRequest,
            format!("a batch has 1 to {BATCH_CHANGES_MAX} changes, not {count}"),
        )
        .remedy("send the rest as further batches, each with a key of its own")
        .detail("limit", "batch_changes_max"));
    }
    let too_large = |what: &str, bytes: usize, most: usize| {
        Error::new(
            ErrorCode::TooLarge,
            format!("the {what} of the batch have {bytes} bytes, at most {most} are allowed"),
        )
        .remedy("write large files one by one, or many as a tar archive")
        .detail("limit", "batch_bytes_max")
        .detail("maximum", most as u64)
    };
    let (mut made, mut bytes) = (Vec::with_capacity(count), 0);
    for (at, change) in wanted.changes.iter().enumerate() {
        let path = checked(change.path())?;
        let no_mode = |text: &str| wrong(at, format!("mode is {text:?}, not permission bits such as 0644"));
        made.push(match change {
            FileChange::Write { text, base64, mode, parents, if_match, new, .. } => {
                let base64 = match (text, base64) {
                    (Some(text), None) => BASE64.encode(text),
                    (None, Some(base64)) => base64.clone(),
                    _ => return Err(wrong(at, "a write has one of text and base64".into())),
                };
                bytes += BASE64.decode(&base64).map_err(|e| wrong(at, format!("base64: {e}")))?.len();
                let matches = match if_match {
                    Some(_) if *new => return Err(wrong(at, "if_match and new contradict each other".into())),
                    Some(digest) => {
                        let hex = digest.strip_prefix("sha256:").filter(|hex| shown_digest(hex).is_some());
                        let hex = hex.ok_or_else(|| wrong(at, "if_match is no digest such as sha256:…".into()))?;
                        Some(Contents::OneOf(vec![hex.to_ascii_lowercase()]))
                    }
                    None => None,
                };
                let conditions = Conditions { matches, matches_not: new.then_some(Contents::Any) };
                let mode = mode_of(mode).map_err(no_mode)?;
                Change::Write { path, base64, mode, parents: *parents, conditions }
            }
            FileChange::Mkdir { parents, .. } => Change::MakeDirectory { path, parents: *parents },
            FileChange::Move { to, overwrite, .. } => Change::Move { path, to: checked(to)?, overwrite: *overwrite },
            FileChange::Remove { recursive, .. } => Change::Remove { path, recursive: *recursive },
            FileChange::Attributes { mode, owner, .. } => {
                if mode.is_none() && owner.is_none() {
                    return Err(wrong(at, "it names neither a mode nor an owner".into()));
                }
                Change::SetAttributes { path, mode: mode_of(mode).map_err(no_mode)?, owner: owner.clone() }
            }
        });
    }
    if bytes > BATCH_BYTES_MAX {
        return Err(too_large("contents", bytes, BATCH_BYTES_MAX));
    }
    // All of it travels in one frame, with its effect and user beside it.
    let frame_bytes_max = FRAME_PAYLOAD_BYTES_MAX - (64 << 10);
    match serde_json::to_vec(&made).map_or(usize::MAX, |json| json.len()) {
        long if long > frame_bytes_max => Err(too_large("contents and paths, written down,", long, frame_bytes_max)),
        _ => Ok(made),
    }
}

/// Permission bits, if there are any, or the text that is none.
fn mode_of(mode: &Option<String>) -> Result<Option<u32>, &str> {
    mode.as_deref().map(|text| octal(text).ok_or(text)).transpose()
}

fn octal(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(text: Option<&str>, base64: Option<&str>) -> FileChange {
        FileChange::Write {
            path: "/a".into(),
            text: text.map(str::to_owned),
            base64: base64.map(str::to_owned),
            mode: None,
            parents: false,
            if_match: None,
            new: false,
        }
    }

    fn wanted(changes: Vec<FileChange>) -> Wanted {
        Wanted { user: None, changes }
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_its_number_and_nothing_is_asked_for() {
        for (wrong, code) in [
            (wanted(Vec::new()), ErrorCode::InvalidRequest),
            (wanted(vec![write(None, None)]), ErrorCode::InvalidRequest),
            (wanted(vec![write(Some("a"), Some("YQ=="))]), ErrorCode::InvalidRequest),
            (wanted(vec![write(None, Some("%"))]), ErrorCode::InvalidRequest),
            (wanted(vec![FileChange::Mkdir { path: "a".into(), parents: false }]), ErrorCode::InvalidRequest),
            (wanted(vec![write(Some("a"), None); BATCH_CHANGES_MAX + 1]), ErrorCode::InvalidRequest),
            (wanted(vec![write(Some(&"a".repeat(BATCH_BYTES_MAX / 2 + 1)), None); 2]), ErrorCode::TooLarge),
        ] {
            assert_eq!(changes(&wrong).unwrap_err().code, code);
        }
        let second = wanted(vec![write(Some("a"), None), write(None, None)]);
        assert_eq!(changes(&second).unwrap_err().details["change"], 1);
    }

    #[test]
    fn a_record_tells_contents_apart_and_does_not_hold_them() {
        let of = |text: &str| without_contents(&write(Some(text), None));
        assert_ne!(of("secret"), of("another"));
        assert!(!of("secret").to_string().contains("secret"));
    }
}
