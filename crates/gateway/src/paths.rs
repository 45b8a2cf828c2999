//! Routes of a guest's paths: what is there, and changes of it in one step. Each is one call of the platform.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use remuda_control::{Attributes, FileAt, MoveFile, Platform};
use remuda_types::error::ErrorBody;
use remuda_types::wire::{FileList, FileStat};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::{By, Calling, WithKey, told};
use crate::errors::Answer;
use crate::extract::{OfSandbox, QueryOf};
use crate::files::{AtPath, octal};

/// Lists a directory.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/list", operation_id = "list_files", tag = "files", params(OfSandbox, AtPath), responses(
    (status = 200, description = "Its entries.", body = FileList),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn list(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSandbox,
    QueryOf(at): QueryOf<AtPath>,
) -> Answer<Json<FileList>> {
    Ok(Json(platform.list_files(&caller, &of.id, &at.into()).await?))
}

/// What to look at.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StatQuery {
    /// Absolute path in the guest.
    path: String,
    /// Guest user by name, whose permissions count; `user` when absent.
    user: Option<String>,
    /// Whether the digest of a regular file is told too. The file is read for it.
    #[serde(default)]
    #[param(required = false)]
    digest: bool,
}

/// Tells what a path is; links are not followed.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/files/stat", operation_id = "stat_file", tag = "files", params(OfSandbox, StatQuery), responses(
    (status = 200, description = "What it is.", body = FileStat),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn stat(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfSandbox,
    QueryOf(query): QueryOf<StatQuery>,
) -> Answer<Json<FileStat>> {
    let StatQuery { path, user, digest } = query;
    Ok(Json(platform.stat_file(&caller, &of.id, &FileAt { path, user }, digest).await?))
}

/// What to remove.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RemoveQuery {
    /// Absolute path in the guest.
    path: String,
    /// Guest user by name, whose permissions count; `user` when absent.
    user: Option<String>,
    /// Whether a directory is removed with all that is in it.
    #[serde(default)]
    #[param(required = false)]
    recursive: bool,
}

/// Removes a file or directory.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/files", operation_id = "remove_file", tag = "files", params(OfSandbox, RemoveQuery, WithKey), responses(
    (status = 204, description = "It is gone."),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn remove(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    QueryOf(query): QueryOf<RemoveQuery>,
) -> Answer<Response> {
    let RemoveQuery { path, user, recursive } = query;
    Ok(told(StatusCode::NO_CONTENT, platform.remove_file(&call, &of.id, FileAt { path, user }, recursive).await))
}

/// Which directory to make.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DirectoryQuery {
    /// Absolute path in the guest.
    path: String,
    /// Guest user by name, who makes and owns it; `user` when absent.
    user: Option<String>,
    /// Whether missing directories above it are made, and one that exists is no error.
    #[serde(default)]
    #[param(required = false)]
    parents: bool,
}

/// Makes a directory.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/mkdir", tag = "files", params(OfSandbox, DirectoryQuery, WithKey),
    responses(
    (status = 201, description = "It is there.", body = FileStat),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn make_directory(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    QueryOf(query): QueryOf<DirectoryQuery>,
) -> Answer<Response> {
    let DirectoryQuery { path, user, parents } = query;
    Ok(told(StatusCode::CREATED, platform.make_directory(&call, &of.id, FileAt { path, user }, parents).await))
}

/// Which path is to have which name.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MoveQuery {
    /// Absolute path in the guest. A link is moved itself.
    path: String,
    /// Absolute path of the new name itself, not of a directory to put it into.
    to: String,
    /// Guest user by name, whose permissions count; `user` when absent.
    user: Option<String>,
    /// Whether what is there may be replaced: a file by a file, an empty directory by a directory. Else it is
    /// `file_exists`.
    #[serde(default)]
    #[param(required = false)]
    overwrite: bool,
}

/// Gives a path another name, in one step: whoever looks finds it under one of the two. Between file systems a regular
/// file is copied and its old name removed, and anything else is refused.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/move", operation_id = "move_file", tag = "files", params(OfSandbox, MoveQuery, WithKey),
    responses(
    (status = 200, description = "What has the new name.", body = FileStat),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn rename(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    QueryOf(query): QueryOf<MoveQuery>,
) -> Answer<Response> {
    let MoveQuery { path: from, to, user, overwrite } = query;
    let moving = MoveFile { from, to, user, overwrite };
    Ok(told(StatusCode::OK, platform.move_file(&call, &of.id, moving).await))
}

/// What is to be changed of which path.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AttributesQuery {
    /// Absolute path in the guest; links are followed.
    path: String,
    /// Guest user by name, whose permissions count; `user` when absent. Only `root` may give a file to another.
    user: Option<String>,
    /// Permission bits in octal, as in `0644`; as they are when absent.
    mode: Option<String>,
    /// Owner by name, with that user's group; as it is when absent.
    owner: Option<String>,
}

/// Changes permission bits and owner.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/files/attributes", operation_id = "set_attributes", tag = "files", params(OfSandbox, AttributesQuery, WithKey),
    responses(
    (status = 200, description = "What it is now.", body = FileStat),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn set_attributes(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfSandbox,
    QueryOf(query): QueryOf<AttributesQuery>,
) -> Answer<Response> {
    let AttributesQuery { path, user, mode, owner } = query;
    let attributes = Attributes { mode: mode.as_deref().map(octal).transpose()?, owner };
    Ok(told(StatusCode::OK, platform.set_attributes(&call, &of.id, FileAt { path, user }, attributes).await))
}
