//! Looking through a guest's files: each page is one call to the agent, which is bounded there.

use remuda_guest_proto::{Glob, Grep, LineMatch, PLACE_BYTES_MAX, Reply, Request};
use remuda_types::limits::{SEARCH_FINDS_MAX, SEARCH_PATTERN_BYTES_MAX};
use remuda_types::wire::{FoundFiles, FoundText, TextMatch};
use remuda_types::{Error, ErrorCode, SandboxId};

use crate::caller::Caller;
use crate::channel::unexpected;
use crate::operations::files::{call, checked, failed, stat_of, user_of};
use crate::platform::Platform;
use crate::stream::{FileAt, FindFiles, FindText};

pub(crate) async fn glob(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    at: &FileAt,
    find: FindFiles,
) -> Result<FoundFiles, Error> {
    let FindFiles { pattern, limit, cursor } = find;
    let (path, user) = (checked(&at.path)?, user_of(&at.user));
    let (pattern, limit, after) = (of_length(pattern, "pattern")?, within(limit)?, place(cursor)?);
    match call(platform, caller, id, Request::Glob(Glob { path, user, pattern, limit, after })).await? {
        Reply::Found { entries, next, skipped } => Ok(FoundFiles {
            path: at.path.clone(),
            entries: entries.into_iter().map(stat_of).collect(),
            next_cursor: next,
            skipped,
        }),
        other => Err(failed(id, unexpected(&other))),
    }
}

pub(crate) async fn grep(
    platform: &Platform,
    caller: &Caller,
    id: &SandboxId,
    at: &FileAt,
    find: FindText,
) -> Result<FoundText, Error> {
    let FindText { pattern, literal, ignore_case, include, limit, cursor } = find;
    let (path, user) = (checked(&at.path)?, user_of(&at.user));
    let (pattern, limit, after) = (of_length(pattern, "pattern")?, within(limit)?, place(cursor)?);
    let include = include.map(|include| of_length(include, "include")).transpose()?;
    let request = Request::Grep(Grep { path, user, pattern, literal, ignore_case, include, limit, after });
    match call(platform, caller, id, request).await? {
        Reply::Matched { matches, files, next, skipped } => Ok(FoundText {
            path: at.path.clone(),
            matches: matches.into_iter().map(told).collect(),
            files_searched: files,
            next_cursor: next,
            skipped,
        }),
        other => Err(failed(id, unexpected(&other))),
    }
}

fn told(found: LineMatch) -> TextMatch {
    let LineMatch { path, line, offset, column, text, cut } = found;
    TextMatch { path, line, offset, column, text, cut }
}

fn of_length(pattern: String, what: &str) -> Result<String, Error> {
    match pattern.len() {
        1..=SEARCH_PATTERN_BYTES_MAX => Ok(pattern),
        length => {
            let message = format!("the {what} has {length} bytes; it has 1 to {SEARCH_PATTERN_BYTES_MAX}");
            Err(Error::new(ErrorCode::InvalidRequest, message).detail("limit", "search_pattern_bytes_max"))
        }
    }
}

fn within(limit: u32) -> Result<u32, Error> {
    match limit {
        1..=SEARCH_FINDS_MAX => Ok(limit),
        _ => {
            let message = format!("limit is {limit}; a page has 1 to {SEARCH_FINDS_MAX} finds");
            Err(Error::new(ErrorCode::InvalidRequest, message).detail("limit", "search_finds_max"))
        }
    }
}

/// The agent reads it, and refuses what it has not answered; only a frame must hold it.
fn place(cursor: Option<String>) -> Result<Option<String>, Error> {
    match cursor {
        Some(cursor) if cursor.len() > PLACE_BYTES_MAX => {
            Err(Error::new(ErrorCode::InvalidRequest, "the cursor is none that a search has answered"))
        }
        cursor => Ok(cursor),
    }
}
