//! Puts the routes together, and around them what holds for every request. Must not know what a route does.

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderName, HeaderValue};
use remuda_control::Platform;
use remuda_types::{Error, ErrorCode};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::trace::TraceLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{Access, authenticate};
use crate::errors::{Failure, method_not_allowed, panicked, route_not_found};
use crate::openapi::Base;
use crate::{executions, files, ports, sandboxes, server, snapshots};

/// Every route for whom `access` lets in.
pub fn router(platform: Platform, access: Access) -> Router {
    let (open, _) = open_routes().split_for_parts();
    let (guarded, _) = guarded_routes().split_for_parts();
    // Of this route the answers and most of the headers are the application's: nothing of ours is added to them.
    let application =
        ports::PATHS.into_iter().fold(Router::new(), |router, path| router.route(path, any(ports::proxy)));

    let own = open
        .merge(guarded.route_layer(from_fn(refuse_key)).route_layer(from_fn_with_state(access, authenticate)))
        .fallback(route_not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(SetResponseHeaderLayer::overriding(CACHE_CONTROL, HeaderValue::from_static("no-store")))
        .layer(SetResponseHeaderLayer::overriding(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")));
    own.merge(application.route_layer(from_fn_with_state(access, authenticate)))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(TraceLayer::new_for_http().make_span_with(|request: &Request| {
            // The pattern and not the path: paths and queries of applications may carry secrets.
            let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
            tracing::debug_span!("request", method = %request.method(), route)
        }))
        .with_state(platform)
}

/// Routes that need no credential.
fn open_routes() -> OpenApiRouter<Platform> {
    OpenApiRouter::new().routes(routes!(server::health)).routes(routes!(server::openapi))
}

/// Routes that need one.
fn guarded_routes() -> OpenApiRouter<Platform> {
    OpenApiRouter::new()
        .routes(routes!(server::capabilities))
        .routes(routes!(sandboxes::create, sandboxes::list))
        .routes(routes!(sandboxes::show, sandboxes::remove))
        .routes(routes!(sandboxes::pause))
        .routes(routes!(sandboxes::resume))
        .routes(routes!(executions::start, executions::list))
        .routes(routes!(executions::show, executions::cancel))
        .routes(routes!(executions::output))
        .routes(routes!(executions::signal))
        .routes(routes!(files::read, files::write, files::remove))
        .routes(routes!(files::list))
        .routes(routes!(files::stat))
        .routes(routes!(files::make_directory))
        .routes(routes!(snapshots::capture))
        .routes(routes!(snapshots::fork))
        .routes(routes!(snapshots::list))
        .routes(routes!(snapshots::show, snapshots::remove))
        .routes(routes!(snapshots::restore))
}

/// The document of exactly these routes.
pub(crate) fn described() -> utoipa::openapi::OpenApi {
    OpenApiRouter::with_openapi(Base::openapi()).merge(open_routes()).merge(guarded_routes()).into_openapi()
}

/// Idempotency keys are refused for as long as nothing could be kept of them: to ignore one would break its promise.
/// On the ports route the header is the application's own, and reaches it.
async fn refuse_key(request: Request, next: Next) -> Response {
    const KEY: HeaderName = HeaderName::from_static("idempotency-key");
    if !request.headers().contains_key(KEY) {
        return next.run(request).await;
    }
    Failure(
        Error::new(ErrorCode::IdempotencyKeyUnsupported, "this server does not take idempotency keys yet")
            .cause("it could not tell a repeated request from a new one, so nothing was done")
            .remedy("send the request without the Idempotency-Key header, and look before sending it again"),
    )
    .into_response()
}
