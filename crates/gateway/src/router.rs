//! Puts the routes together, and around them what holds for every request. Must not know what a route does.

use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Extension, Router};
use http::HeaderValue;
use http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use remuda_control::Platform;
use remuda_types::{Error, ErrorCode};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;
use tower_http::trace::TraceLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{Access, authenticate};
use crate::dialects::{Dialects, mainbrella};
use crate::drain::drain_what_is_left;
use crate::errors::{Failure, method_not_allowed, panicked, route_not_found};
use crate::front::{Door, Front, choose};
use crate::head::within_limits;
use crate::openapi::Base;
use crate::queries::{Queries, refuse_unknown};
use crate::{
    doctor, events, executions, files, follow, keys, operations, paths, ports, previews, receipts, sandboxes, search,
    server, snapshots, terminal_socket, terminals, transfers, trees, usage, watch, webhooks, whoami,
};

/// Every route for whom `access` lets in, and those of the dialects that are spoken.
pub fn router(platform: Platform, access: Access, front: Front, dialects: Dialects) -> Router {
    let door = Door::new(platform.clone(), front.clone());
    let access = (platform.clone(), access);
    let (open, _) = open_routes().split_for_parts();
    let (guarded, _) = guarded_routes().split_for_parts();
    // Of this route the answers and most of the headers are the application's: nothing of ours is added to them.
    let application =
        ports::PATHS.into_iter().fold(Router::new(), |router, path| router.route(path, any(ports::proxy)));

    let queries = Queries::of(&described());
    let check = || from_fn_with_state(queries.clone(), refuse_unknown);
    // Its requests show their keys themselves: its words for that are others.
    let mainbrella = if dialects.mainbrella { mainbrella::router() } else { Router::new() };
    let own = open
        .route_layer(check())
        .merge(
            guarded
                .route_layer(check())
                .route_layer(from_fn(see_through))
                .route_layer(from_fn_with_state(access.clone(), authenticate)),
        )
        .merge(mainbrella)
        .fallback(route_not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(SetResponseHeaderLayer::overriding(CACHE_CONTROL, HeaderValue::from_static("no-store")))
        .layer(SetResponseHeaderLayer::overriding(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")));
    own.merge(application.route_layer(from_fn_with_state(access, authenticate)))
        .layer(Extension(front))
        // Around all of it: what names a preview is none of the API's.
        .layer(from_fn_with_state(door, choose))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(within_limits))
        .layer(from_fn(drain_what_is_left))
        .layer(
            TraceLayer::new_for_http()
                .make_span_with(|request: &Request| {
                    // The pattern and not the path: paths and queries of applications may carry secrets.
                    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
                    tracing::debug_span!("request", method = %request.method(), route)
                })
                // Errors of ours are told where they are made; a status alone, or an application's own, says nothing.
                .on_failure(()),
        )
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
        .routes(routes!(sandboxes::stop))
        .routes(routes!(sandboxes::start))
        .routes(routes!(sandboxes::pause))
        .routes(routes!(sandboxes::resume))
        .routes(routes!(sandboxes::set_deadline))
        .routes(routes!(executions::start, executions::list))
        .routes(routes!(executions::show, executions::cancel))
        .routes(routes!(executions::output))
        .routes(routes!(follow::follow))
        .routes(routes!(executions::signal))
        .routes(routes!(terminals::write_input))
        .routes(routes!(terminals::resize))
        .routes(routes!(terminal_socket::join))
        .routes(routes!(files::read, files::write, paths::remove))
        .routes(routes!(trees::read, trees::write))
        .routes(routes!(paths::list))
        .routes(routes!(paths::stat))
        .routes(routes!(paths::make_directory))
        .routes(routes!(paths::rename))
        .routes(routes!(paths::set_attributes))
        .routes(routes!(search::glob))
        .routes(routes!(search::grep))
        .routes(routes!(search::batch))
        .routes(routes!(watch::watch))
        .routes(routes!(previews::create, previews::list))
        .routes(routes!(previews::show, previews::revoke))
        .routes(routes!(previews::rotate))
        .routes(routes!(previews::renew))
        .routes(routes!(previews::look))
        .routes(routes!(snapshots::capture))
        .routes(routes!(snapshots::fork))
        .routes(routes!(snapshots::list))
        .routes(routes!(snapshots::show, snapshots::update, snapshots::remove))
        .routes(routes!(snapshots::restore))
        .routes(routes!(snapshots::verify))
        .routes(routes!(snapshots::diff))
        .routes(routes!(transfers::export))
        .routes(routes!(transfers::show, transfers::write, transfers::remove))
        .routes(routes!(transfers::import))
        .routes(routes!(operations::list))
        .routes(routes!(whoami::whoami))
        .routes(routes!(usage::usage))
        .routes(routes!(doctor::doctor))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::revoke))
        .routes(routes!(keys::accounts))
        .routes(routes!(keys::set_account))
        .routes(routes!(operations::show))
        .routes(routes!(operations::cancel))
        .routes(routes!(receipts::list))
        .routes(routes!(receipts::show))
        .routes(routes!(events::read))
        .routes(routes!(webhooks::create, webhooks::list))
        .routes(routes!(webhooks::show, webhooks::remove))
        .routes(routes!(webhooks::rotate))
        .routes(routes!(webhooks::deliveries))
        .routes(routes!(webhooks::redeliver))
}

/// The document of exactly these routes.
pub(crate) fn described() -> utoipa::openapi::OpenApi {
    let routes = OpenApiRouter::with_openapi(Base::openapi()).merge(open_routes()).merge(guarded_routes());
    let mut document = routes.into_openapi();
    crate::openapi::tell_needs(&mut document);
    document
}

/// What changes something runs to its end also when the caller hangs up meanwhile: a handler that is dropped half-way
/// would leave its call half-done.
async fn see_through(request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return next.run(request).await;
    }
    match tokio::spawn(next.run(request)).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(response) => response,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => Failure(Error::new(ErrorCode::ShuttingDown, "the server is ending")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::Body;
    use axum::routing::post;
    use tokio::sync::Notify;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn a_caller_that_hangs_up_does_not_stop_what_it_began() {
        let (begun, go_on, done) = (Arc::new(Notify::new()), Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (tell_begun, wait, tell_done) = (begun.clone(), go_on.clone(), done.clone());
        let handler = async move || {
            tell_begun.notify_one();
            wait.notified().await;
            tell_done.notify_one();
        };
        let router = Router::new().route("/", post(handler)).layer(from_fn(see_through));
        let call = tokio::spawn(router.oneshot(Request::post("/").body(Body::empty()).unwrap()));
        begun.notified().await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        go_on.notify_one();
        tokio::time::timeout(std::time::Duration::from_secs(10), done.notified()).await.unwrap();
    }
}
