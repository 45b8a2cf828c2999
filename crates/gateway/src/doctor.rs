//! The route of the server's own health. Repairs nothing unless it is asked to.

use axum::Json;
use axum::extract::State;
use remuda_control::Platform;
use remuda_types::error::ErrorBody;
use remuda_types::wire::Doctor;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::calling::By;
use crate::errors::Answer;
use crate::extract::QueryOf;

/// What is to be done about what is found.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    /// Whether what is certain is repaired now, as the server does by itself every now and then; false when absent.
    /// Only for whoever runs the server.
    #[serde(default)]
    pub repair: bool,
}

/// Compare records, memory and machine now, and look at what the server stands on.
///
/// A key is told what is its account's; one of the operator's account also what is nobody's, and about the machine.
#[utoipa::path(get, path = "/v1/doctor", operation_id = "doctor", tag = "server", params(Asked), responses(
    (status = 200, description = "What was found, and what was repaired since the server started.", body = Doctor),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn doctor(
    State(platform): State<Platform>,
    By(caller): By,
    QueryOf(asked): QueryOf<Asked>,
) -> Answer<Json<Doctor>> {
    Ok(Json(platform.doctor(&caller, asked.repair).await?))
}
