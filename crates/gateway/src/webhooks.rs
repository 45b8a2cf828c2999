//! Routes of webhooks. Each is one call of the platform. A secret leaves in the answer to its making, and must appear
//! nowhere else.

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use remuda_control::Platform;
use remuda_types::WebhookId;
use remuda_types::error::ErrorBody;
use remuda_types::wire::{
    CreateWebhook, Delivery, DeliveryList, MadeWebhook, Redeliver, Webhook, WebhookList, WebhookRemoval,
};
use utoipa::IntoParams;

use crate::calling::{By, Calling, WithKey, told};
use crate::errors::{Answer, Failure};
use crate::extract::{JsonBody, path_parameter};

/// A webhook in the path.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct OfWebhook {
    /// The webhook's id.
    webhook: WebhookId,
}

impl<S: Sync> FromRequestParts<S> for OfWebhook {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        Ok(OfWebhook { webhook: path_parameter(parts, "webhook").await?.parse()? })
    }
}

/// Makes a webhook: events from now on are delivered to its URL. The secret is in this answer and never told again: an
/// answer that is told again under its `Idempotency-Key` has none.
#[utoipa::path(post, path = "/v1/webhooks", operation_id = "create_webhook", tag = "webhooks", params(WithKey),
    request_body = CreateWebhook, responses(
    (status = 201, description = "Events are delivered from now on.", body = MadeWebhook),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn create(
    State(platform): State<Platform>,
    Calling(call): Calling,
    JsonBody(request): JsonBody<CreateWebhook>,
) -> Answer<Response> {
    Ok(told(StatusCode::CREATED, platform.create_webhook(&call, request).await))
}

/// Lists the account's webhooks, without their secrets.
#[utoipa::path(get, path = "/v1/webhooks", operation_id = "list_webhooks", tag = "webhooks", responses(
    (status = 200, description = "Oldest first.", body = WebhookList),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn list(State(platform): State<Platform>, By(caller): By) -> Answer<Json<WebhookList>> {
    Ok(Json(WebhookList { webhooks: platform.webhooks(&caller)? }))
}

/// Shows a webhook and how far its deliveries have come, without its secret.
#[utoipa::path(get, path = "/v1/webhooks/{webhook}", operation_id = "show_webhook", tag = "webhooks", params(OfWebhook), responses(
    (status = 200, description = "It.", body = Webhook),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn show(State(platform): State<Platform>, By(caller): By, of: OfWebhook) -> Answer<Json<Webhook>> {
    Ok(Json(platform.webhook(&caller, &of.webhook)?))
}

/// Removes a webhook: no delivery begins after that.
#[utoipa::path(delete, path = "/v1/webhooks/{webhook}", operation_id = "remove_webhook", tag = "webhooks", params(OfWebhook, WithKey), responses(
    (status = 200, description = "It is gone.", body = WebhookRemoval),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn remove(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfWebhook,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.remove_webhook(&call, &of.webhook).await))
}

/// Gives a webhook another secret, which is in this answer and never told again: attempts that begin later are signed with
/// it. An answer that is told again under its `Idempotency-Key` has none.
#[utoipa::path(post, path = "/v1/webhooks/{webhook}/rotate", operation_id = "rotate_webhook", tag = "webhooks", params(OfWebhook, WithKey), responses(
    (status = 200, description = "It has another secret.", body = MadeWebhook),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn rotate(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfWebhook,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.rotate_webhook(&call, &of.webhook).await))
}

/// Lists deliveries of a webhook, as far as they are kept.
#[utoipa::path(get, path = "/v1/webhooks/{webhook}/deliveries", operation_id = "list_webhook_deliveries", tag = "webhooks", params(OfWebhook), responses(
    (status = 200, description = "Newest first.", body = DeliveryList),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn deliveries(
    State(platform): State<Platform>,
    By(caller): By,
    of: OfWebhook,
) -> Answer<Json<DeliveryList>> {
    Ok(Json(DeliveryList { deliveries: platform.webhook_deliveries(&caller, &of.webhook)? }))
}

/// Delivers one event once more, now, in one attempt and beside the order. That it failed is an answer, not an error.
#[utoipa::path(post, path = "/v1/webhooks/{webhook}/redeliver", operation_id = "redeliver_webhook", tag = "webhooks", params(OfWebhook, WithKey), request_body = Redeliver, responses(
    (status = 200, description = "What came of it.", body = Delivery),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn redeliver(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfWebhook,
    JsonBody(request): JsonBody<Redeliver>,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.redeliver_webhook(&call, &of.webhook, request.sequence).await))
}
