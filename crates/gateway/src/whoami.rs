//! The route that tells a caller who it is and what it may do, so that it can look before it begins.

use axum::Json;
use axum::extract::State;
use remuda_control::Platform;
use remuda_types::error::ErrorBody;
use remuda_types::wire::WhoAmI;

use crate::calling::By;

/// Who calls: account, access key, scopes, narrowing, and the limits that hold.
#[utoipa::path(get, path = "/v1/whoami", operation_id = "whoami", tag = "access", responses(
    (status = 200, description = "The caller.", body = WhoAmI),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn whoami(State(platform): State<Platform>, By(caller): By) -> Json<WhoAmI> {
    Json(platform.whoami(&caller))
}
