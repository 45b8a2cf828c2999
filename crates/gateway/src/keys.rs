//! Routes of access keys and accounts. Each is one call of the platform. A secret leaves in the answer to its making,
//! and must appear nowhere else.

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use remuda_control::Platform;
use remuda_types::error::ErrorBody;
use remuda_types::wire::{
    AccessKey, AccessKeyList, AccountInfo, AccountList, CreateAccessKey, MadeAccessKey, SetAccount,
};
use remuda_types::{AccessKeyId, Account, Error, ErrorCode};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::{By, Calling, IDEMPOTENCY_KEY, WithKey, told};
use crate::errors::{Answer, Failure, invalid};
use crate::extract::{JsonBody, QueryOf, path_parameter};

/// Refuses what no making of a key can honour.
pub(crate) struct WithoutKey;

impl<S: Sync> FromRequestParts<S> for WithoutKey {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        if !parts.headers.contains_key(IDEMPOTENCY_KEY) {
            return Ok(WithoutKey);
        }
        let message = "the making of an access key takes no idempotency key";
        Err(Error::new(ErrorCode::IdempotencyKeyUnsupported, message)
            .cause("the secret is kept nowhere, so its answer could not be given again")
            .remedy("leave the header out; where an answer was lost, revoke the key (remuda key ls) and make another")
            .into())
    }
}

/// Makes an access key. It grants nothing that its maker has not; its secret is in this answer and never told again.
/// It takes no `Idempotency-Key`: such a header is refused.
#[utoipa::path(post, path = "/v1/keys", operation_id = "create_access_key", tag = "access",
    request_body = CreateAccessKey, responses(
    (status = 201, description = "It opens from now on.", body = MadeAccessKey),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn create(
    State(platform): State<Platform>,
    By(caller): By,
    _: WithoutKey,
    JsonBody(request): JsonBody<CreateAccessKey>,
) -> Answer<(StatusCode, Json<MadeAccessKey>)> {
    Ok((StatusCode::CREATED, Json(platform.create_key(&caller, request).await?)))
}

/// Which keys to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct KeyFilter {
    /// Whether revoked and expired ones are listed too.
    #[serde(default)]
    #[param(required = false)]
    all: bool,
    /// Whose keys; the caller's own account when absent. Only on the server's own socket.
    account: Option<Account>,
}

/// Lists access keys, without their secrets. A narrowed key sees those that are narrowed to no more than itself.
#[utoipa::path(get, path = "/v1/keys", operation_id = "list_access_keys", tag = "access", params(KeyFilter), responses(
    (status = 200, description = "Oldest first.", body = AccessKeyList),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn list(
    State(platform): State<Platform>,
    By(caller): By,
    QueryOf(filter): QueryOf<KeyFilter>,
) -> Answer<Json<AccessKeyList>> {
    let access_keys = platform.keys(&caller, filter.account.as_ref(), filter.all)?;
    Ok(Json(AccessKeyList { access_keys }))
}

/// An access key in the path.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct OfAccessKey {
    /// The access key's id, which is not its secret.
    pub access_key: AccessKeyId,
}

impl<S: Sync> FromRequestParts<S> for OfAccessKey {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let text = path_parameter(parts, "access_key").await?;
        // What is in the path may be a secret that was taken for an id: it is not repeated.
        let access_key = text.parse().map_err(|_| {
            Error::new(ErrorCode::InvalidId, "the path names no access key: an id looks like key-xxxxxxxxxxxxxxxxxxxx")
                .remedy("list them with: remuda key ls")
        })?;
        Ok(OfAccessKey { access_key })
    }
}

/// Whose key.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OfAccount {
    /// Whose; the caller's own account when absent. Only on the server's own socket.
    pub account: Option<Account>,
}

/// Revokes an access key: from the answer on it opens nothing. Keys that it made go on.
#[utoipa::path(delete, path = "/v1/keys/{access_key}", operation_id = "revoke_access_key", tag = "access",
    params(OfAccessKey, OfAccount, WithKey), responses(
    (status = 200, description = "It is revoked, by this call or an earlier one.", body = AccessKey),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn revoke(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfAccessKey,
    QueryOf(whose): QueryOf<OfAccount>,
) -> Response {
    told(StatusCode::OK, platform.revoke_key(&call, whose.account, of.access_key).await)
}

/// Lists the server's accounts. Only on the server's own socket.
#[utoipa::path(get, path = "/v1/accounts", operation_id = "list_accounts", tag = "access", responses(
    (status = 200, description = "By name.", body = AccountList),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn accounts(State(platform): State<Platform>, By(caller): By) -> Answer<Json<AccountList>> {
    Ok(Json(AccountList { accounts: platform.list_accounts(&caller)? }))
}

/// An account in the path.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct InPath {
    /// The account's name.
    pub account: Account,
}

impl<S: Sync> FromRequestParts<S> for InPath {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let account = path_parameter(parts, "account").await?.parse().map_err(|e| invalid(format!("{e}")))?;
        Ok(InPath { account })
    }
}

/// Makes an account where there is none of that name, and replaces the quotas that are its own. Only on the server's
/// own socket.
#[utoipa::path(put, path = "/v1/accounts/{account}", operation_id = "set_account", tag = "access", params(InPath, WithKey),
    request_body = SetAccount, responses(
    (status = 200, description = "It is set.", body = AccountInfo),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn set_account(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: InPath,
    JsonBody(request): JsonBody<SetAccount>,
) -> Response {
    told(StatusCode::OK, platform.set_account(&call, of.account, request).await)
}
