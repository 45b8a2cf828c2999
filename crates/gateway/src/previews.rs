//! Routes of previews: made, listed, shown, rotated, renewed, revoked, looked through. Each is one call of the platform. A
//! credential leaves in the answer to what issues it, and must appear nowhere else.

use axum::extract::{FromRequestParts, State};
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use http::request::Parts;
use remuda_control::Platform;
use remuda_types::error::ErrorBody;
use remuda_types::wire::{CreatePreview, MadePreview, Preview, PreviewList, PreviewProbe, RenewPreview};
use remuda_types::{PreviewId, SandboxId};
use utoipa::IntoParams;

use crate::calling::{By, Calling, WithKey, told};
use crate::errors::{Answer, Failure};
use crate::extract::{JsonBody, OfSandbox, path_parameter};
use crate::front::{Front, probe};

/// A preview in the path.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct OfPreview {
    /// `slot@generation`, percent-encoded or not; a bare slot is refused.
    #[param(example = "c1@2026-10-08T12:00:00.000Z")]
    id: SandboxId,
    /// The preview's id.
    preview: PreviewId,
}

impl<S: Sync> FromRequestParts<S> for OfPreview {
    type Rejection = Failure;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let id = path_parameter(parts, "id").await?.parse()?;
        Ok(OfPreview { id, preview: path_parameter(parts, "preview").await?.parse()? })
    }
}

/// Makes a preview: whoever has its credential reaches this port of this generation over HTTP. Repeated under its
/// `Idempotency-Key`, the answer has the same credential.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/previews", operation_id = "create_preview", tag = "previews", params(OfSandbox, WithKey),
    request_body = CreatePreview, responses(
    (status = 201, description = "Its credential is let in from now on.", body = MadePreview),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn create(
    State(platform): State<Platform>,
    Extension(front): Extension<Front>,
    Calling(call): Calling,
    of: OfSandbox,
    JsonBody(request): JsonBody<CreatePreview>,
) -> Answer<Response> {
    let made = platform.create_preview(&call, &of.id, request).await;
    Ok(told(StatusCode::CREATED, made.map(|issued| front.tell(issued))))
}

/// Lists the previews of a generation, also when that has ended, without their credentials.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/previews", operation_id = "list_previews", tag = "previews", params(OfSandbox), responses(
    (status = 200, description = "Oldest first.", body = PreviewList),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn list(State(platform): State<Platform>, By(caller): By, of: OfSandbox) -> Answer<Json<PreviewList>> {
    Ok(Json(PreviewList { previews: platform.previews(&caller, &of.id).await? }))
}

/// Shows a preview, without its credential.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/previews/{preview}", operation_id = "show_preview", tag = "previews", params(OfPreview), responses(
    (status = 200, description = "It.", body = Preview),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn show(State(platform): State<Platform>, By(caller): By, of: OfPreview) -> Answer<Json<Preview>> {
    Ok(Json(platform.preview(&caller, &of.id, &of.preview).await?))
}

/// Gives a preview another credential. From the answer on the one before is refused, and whatever came in by it is cut off.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/previews/{preview}/rotate", operation_id = "rotate_preview", tag = "previews", params(OfPreview, WithKey), responses(
    (status = 200, description = "It has another credential.", body = MadePreview),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn rotate(
    State(platform): State<Platform>,
    Extension(front): Extension<Front>,
    Calling(call): Calling,
    of: OfPreview,
) -> Answer<Response> {
    let rotated = platform.rotate_preview(&call, &of.id, &of.preview).await;
    Ok(told(StatusCode::OK, rotated.map(|issued| front.tell(issued))))
}

/// Lets a preview live longer, from now on, under the same credential. One that is entered by a link has another link.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/previews/{preview}/renew", operation_id = "renew_preview", tag = "previews", params(OfPreview, WithKey),
    request_body = RenewPreview, responses(
    (status = 200, description = "It lives longer.", body = MadePreview),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn renew(
    State(platform): State<Platform>,
    Extension(front): Extension<Front>,
    Calling(call): Calling,
    of: OfPreview,
    JsonBody(request): JsonBody<RenewPreview>,
) -> Answer<Response> {
    let renewed = platform.renew_preview(&call, &of.id, &of.preview, request).await;
    Ok(told(StatusCode::OK, renewed.map(|issued| front.tell(issued))))
}

/// Closes a preview for good. From the answer on its credential is refused, and whatever came in by it is cut off. Also 200
/// when it was over before.
#[utoipa::path(delete, path = "/v1/sandboxes/{id}/previews/{preview}", operation_id = "revoke_preview", tag = "previews", params(OfPreview, WithKey), responses(
    (status = 200, description = "It opens nothing any more.", body = Preview),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn revoke(
    State(platform): State<Platform>,
    Calling(call): Calling,
    of: OfPreview,
) -> Answer<Response> {
    Ok(told(StatusCode::OK, platform.revoke_preview(&call, &of.id, &of.preview).await))
}

/// Looks what is behind a preview at this moment: asks the application for `/`, by the name that the preview calls it by, and
/// follows redirects to itself.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/previews/{preview}/probe", operation_id = "probe_preview", tag = "previews", params(OfPreview), responses(
    (status = 200, description = "What was found, also where that is nothing.", body = PreviewProbe),
    (status = "default", description = "An error.", body = ErrorBody)))]
pub(crate) async fn look(
    State(platform): State<Platform>,
    Extension(front): Extension<Front>,
    By(caller): By,
    of: OfPreview,
) -> Answer<Json<PreviewProbe>> {
    Ok(Json(probe::probe(&platform, &front, &caller, &of.id, &of.preview).await?))
}
