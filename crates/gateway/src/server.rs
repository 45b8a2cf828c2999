//! Routes about the server itself: health, capabilities, the OpenAPI document. Must tell nothing of any sandbox.

use std::sync::LazyLock;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use remuda_control::Platform;
use remuda_types::error::ErrorBody;
use remuda_types::wire::{Capabilities, Health};

use crate::errors::Answer;

/// Whether the server answers.
#[utoipa::path(get, path = "/v1/health", tag = "server", security(()), responses(
    (status = 200, description = "It does.", body = Health),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn health() -> Json<Health> {
    Json(Health { status: "ok".to_owned() })
}

/// What this server can do, on what engine, within which limits.
#[utoipa::path(get, path = "/v1/capabilities", tag = "server", responses(
    (status = 200, description = "The capabilities.", body = Capabilities),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn capabilities(State(platform): State<Platform>) -> Answer<Json<Capabilities>> {
    let mut capabilities = platform.capabilities();
    crate::limits::tell(&mut capabilities.limits);
    Ok(Json(capabilities))
}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "server", security(()), responses(
    (status = 200, description = "The OpenAPI document of this server.", body = Object),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn openapi() -> Response {
    // Made once: it is the same for as long as the program runs.
    static TEXT: LazyLock<String> = LazyLock::new(|| crate::document().to_pretty_json().unwrap_or_default());
    ([(CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}
