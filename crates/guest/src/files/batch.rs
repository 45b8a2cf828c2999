//! Several changes of files, one after another, each with a result of its own. What fails keeps nothing else from being
//! done, and nothing that was done is taken back.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use remuda_guest_proto::{AgentError, Batch, CHANGES_MAX, Change, Changed, Entry, Reply};

use super::write::{Target, Write};
use super::{digest, make_directory, remove, rename, set_attributes};
use crate::agent::Agent;
use crate::errors::{invalid, shown};
use crate::limits::BATCH_BYTES_MAX;
use crate::user_thread::as_user;

/// Carries out a [`Batch`].
pub fn batch(agent: &Agent, batch: Batch) -> Result<Reply, AgentError> {
    let Batch { user, changes, effect } = batch;
    if changes.len() > CHANGES_MAX {
        return Err(invalid(format!("{} changes, at most {CHANGES_MAX} are made in one call", changes.len())));
    }
    // Not even a temporary file of theirs may be the same.
    let effects = (0..).map(|number: u64| effect.wrapping_add(number << 40));
    let mut left = BATCH_BYTES_MAX;
    let results = changes.into_iter().zip(effects).map(|(change, effect)| {
        let made = one(agent, &user, change, effect, &mut left)?;
        Ok(made.map(|entry| Changed { size: entry.size, digest: entry.digest }))
    });
    let results = results.map(|result: Result<_, AgentError>| {
        result.map_err(|error| AgentError { message: shown(&error.message), ..error })
    });
    Ok(Reply::Changed { results: results.collect() })
}

fn one(agent: &Agent, user: &str, change: Change, effect: u64, left: &mut usize) -> Result<Option<Entry>, AgentError> {
    let entry = |reply: Reply| match reply {
        Reply::Entry(entry) => Some(entry),
        _ => None,
    };
    match change {
        Change::Write { path, base64, mode, parents, conditions } => {
            let bytes =
                BASE64.decode(base64).map_err(|error| invalid(format!("the contents are no base64: {error}")))?;
            *left = left.checked_sub(bytes.len()).ok_or_else(|| {
                invalid(format!(
                    "the files of one call hold more than {BATCH_BYTES_MAX} bytes; this one was not written"
                ))
            })?;
            let write = Write { path, user: user.to_owned(), mode, parents, conditions, effect };
            as_user(agent, user, |_| whole(agent, &write, &bytes)).map(Some)
        }
        Change::MakeDirectory { path, parents } => make_directory(agent, &path, user, parents).map(entry),
        Change::Remove { path, recursive } => remove(agent, &path, user, recursive).map(entry),
        Change::Move { path, to, overwrite } => rename(agent, &path, &to, user, overwrite).map(entry),
        Change::SetAttributes { path, mode, owner } => {
            set_attributes(agent, &path, user, mode, owner.as_deref()).map(entry)
        }
    }
}

fn whole(agent: &Agent, write: &Write, bytes: &[u8]) -> Result<Entry, AgentError> {
    let mut target = Target::begin(write)?;
    target.write(bytes)?;
    let mut told = digest::Digest::default();
    told.update(bytes);
    target.place(agent, told.finish())
}
