//! The route of usage: four figures that are never mixed.

use axum::Json;
use axum::extract::State;
use remuda_control::Platform;
use remuda_types::error::ErrorBody;
use remuda_types::wire::Usage;

use crate::calling::By;
use crate::errors::Answer;
use crate::extract::QueryOf;
use crate::keys::OfAccount;

/// What an account uses: bytes captured, bytes on the disk, what is reserved by quota, and what was counted each month.
#[utoipa::path(get, path = "/v1/usage", operation_id = "show_usage", tag = "access", params(OfAccount), responses(
    (status = 200, description = "Each figure from its own source.", body = Usage),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn usage(
    State(platform): State<Platform>,
    By(caller): By,
    QueryOf(whose): QueryOf<OfAccount>,
) -> Answer<Json<Usage>> {
    Ok(Json(platform.usage(&caller, whose.account.as_ref()).await?))
}
