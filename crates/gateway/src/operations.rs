//! Routes of operations: what became of a call, and the cancelling of one by its key. Each is one call of the platform.

use axum::Json;
use axum::extract::{FromRequestParts, State};
use http::request::Parts;
use remuda_control::Platform;
use remuda_types::error::ErrorBody;
use remuda_types::wire::{CancelOperation, Cancellation, Operation, OperationList};
use remuda_types::{Key, OperationId};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::By;
use crate::errors::{Answer, Failure};
use crate::extract::{JsonBody, QueryOf, path_parameter};

/// An operation in the path.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct OfOperation {
    /// The operation's id.
    operation: OperationId,
}

impl<S: Sync> FromRequestParts<S> for OfOperation {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(OfOperation { operation: path_parameter(parts, "operation").await?.parse()? })
    }
}

/// Shows one operation: where it stands, and its outcome once it has one.
#[utoipa::path(get, path = "/v1/operations/{operation}", operation_id = "show_operation", tag = "operations",
    params(OfOperation), responses(
    (status = 200, description = "Where it stands.", body = Operation),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn show(State(platform): State<Platform>, By(caller): By, of: OfOperation) -> Answer<Json<Operation>> {
    Ok(Json(platform.operation(&caller, &of.operation).await?))
}

/// Which operations to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct OfKey {
    /// The key that the call came with.
    key: Key,
}

/// Lists the operations of a key: one for each kind of call and sandbox that it was used with.
#[utoipa::path(get, path = "/v1/operations", operation_id = "list_operations", tag = "operations", params(OfKey), responses(
    (status = 200, description = "All of them; none where no such call was admitted.", body = OperationList),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn list(
    State(platform): State<Platform>,
    By(caller): By,
    QueryOf(of): QueryOf<OfKey>,
) -> Answer<Json<OperationList>> {
    Ok(Json(OperationList { operations: platform.operations(&caller, &of.key).await? }))
}

/// Cancels a call by its key where it has not been admitted yet, as when it may still be on its way. Repeating it is fine.
#[utoipa::path(post, path = "/v1/operations/cancel", operation_id = "cancel_operation", tag = "operations",
    request_body = CancelOperation, responses(
    (status = 200, description = "Whether it was in time.", body = Cancellation),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn cancel(
    State(platform): State<Platform>,
    By(caller): By,
    JsonBody(request): JsonBody<CancelOperation>,
) -> Answer<Json<Cancellation>> {
    Ok(Json(platform.cancel_operation(&caller, request).await?))
}
