//! Routes that look through a guest's files, and the one that makes several changes of them. Each is one call of the
//! platform.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use remuda_control::{FileAt, FindFiles, FindText, Platform};
use remuda_types::error::ErrorBody;
use remuda_types::limits::SEARCH_FINDS_DEFAULT;
use remuda_types::wire::{ChangeFiles, ChangedFiles, FoundFiles, FoundText};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::{By, Calling, WithKey, told};
use crate::errors::Answer;
use crate::extract::{JsonBody, OfSandbox, QueryOf};

/// Which paths to look for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GlobQuery {
    /// Absolute path of the directory to look through.
    path: String,
    /// What a path below it must look like: `*` and `?` stay within a name, `**` does not, `[a-z]`, `{a,b}`, and `\` before
    /// what is meant as it stands. Names that begin with a dot are names.
    #[param(example = "**/*.rs")]
    pattern: String,
    /// Guest user by name, whose permissions count; `user` when absent.
    user: Option<String>,
    /// Most finds of this page; 1,000 when absent.
    limit: Option<u32>,
    /// Where to go on: `next_cursor` of the page before, of a call that is the same otherwise.
    cursor: Option<String>,
}

/// Looks for paths by their names, below a directory. No link is followed, and what is made while it is looked at, such as
/// `/proc`, is not gone into unless it is the directory itself. A page looks at so much and no more: go on while there is
/// a `next_cursor`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/glob", operation_id = "find_files", tag = "files", params(OfSandbox, GlobQuery), responses(
    (status = 200, description = "What was found.", body = FoundFiles),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn glob(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSandbox,
    QueryOf(query): QueryOf<GlobQuery>,
) -> Answer<Json<FoundFiles>> {
    let GlobQuery { path, pattern, user, limit, cursor } = query;
    let find = FindFiles { pattern, limit: limit.unwrap_or(SEARCH_FINDS_DEFAULT), cursor };
    Ok(Json(platform.find_files(&caller, &of.id, &FileAt { path, user }, find).await?))
}

/// Which text to look for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GrepQuery {
    /// Absolute path of a regular file, or of the directory to look through.
    path: String,
    /// A regular expression, which is matched with each line by itself.
    #[param(example = "fn \\w+_test")]
    pattern: String,
    /// Whether the pattern is the text itself.
    #[serde(default)]
    #[param(required = false)]
    literal: bool,
    /// Whether upper and lower case are the same.
    #[serde(default)]
    #[param(required = false)]
    ignore_case: bool,
    /// What the path of a file below the directory must look like, as the pattern of a glob.
    #[param(example = "**/*.py")]
    include: Option<String>,
    /// Guest user by name, whose permissions count; `user` when absent.
    user: Option<String>,
    /// Most lines of this page; 1,000 when absent.
    limit: Option<u32>,
    /// Where to go on: `next_cursor` of the page before, of a call that is the same otherwise.
    cursor: Option<String>,
}

/// Looks for text in regular files, line by line. Any pattern takes time in proportion to what is read. Of a file that is
/// no text (one with NUL bytes in its beginning) the first match is told, without a text. A line of more than 1 MiB is
/// looked through in pieces of that length. A page reads so much and no more: go on while there is a `next_cursor`.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/grep", operation_id = "find_text", tag = "files", params(OfSandbox, GrepQuery), responses(
    (status = 200, description = "What was found.", body = FoundText),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn grep(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSandbox,
    QueryOf(query): QueryOf<GrepQuery>,
) -> Answer<Json<FoundText>> {
    let GrepQuery { path, pattern, literal, ignore_case, include, user, limit, cursor } = query;
    let limit = limit.unwrap_or(SEARCH_FINDS_DEFAULT);
    let find = FindText { pattern, literal, ignore_case, include, limit, cursor };
    Ok(Json(platform.find_text(&caller, &of.id, &FileAt { path, user }, find).await?))
}

/// Makes several changes of files, one after another, with a result for each: one that fails keeps no other from being
/// made, and none is taken back. The call is one effect: with the same key its changes are made once. Files of at most
/// `batch_bytes_max` together; larger ones are written one by one, many as a tar archive.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/batch", operation_id = "change_files", tag = "files", params(OfSandbox, WithKey),
    request_body = ChangeFiles, responses(
    (status = 200, description = "What became of each change; some of them may have an error.", body = ChangedFiles),
    (status = "default", description = "An error: no change was made.", body = ErrorBody)))]
pub(crate) async fn batch(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    JsonBody(wanted): JsonBody<ChangeFiles>,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.change_files(&call, &of.id, wanted).await))
}
