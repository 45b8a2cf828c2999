//! The Mainbrella dialect, at the root of the listener. A request goes through the checks of [`enter`], in the order that
//! its clients know, to the file of its group; each turns it into a call of the platform. Must hold no state.

mod answer;
mod body;
mod capabilities;
mod containers;
mod creation;
mod enter;
mod events;
mod exec;
mod executions;
mod export;
mod files;
mod filesystem;
mod ids;
mod off;
mod previews;
mod query;
mod routes;
mod sizes;
mod status;
mod stream;
mod workspaces;

use axum::Router;
use axum::routing::any;
use remuda_control::Platform;

/// The routes of this dialect. Each path answers to every method, so that its own checks say what is wrong with one.
pub(crate) fn router() -> Router<Platform> {
    let paths = routes::paths().into_iter();
    let router = paths.fold(Router::new(), |router, path| router.route(path, any(enter::enter)));
    // What is below these and is nothing is told in this dialect's words too.
    routes::FAMILIES.iter().fold(router, |router, path| router.route(path, any(enter::nothing_here)))
}
