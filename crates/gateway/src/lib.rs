//! How the world reaches Remuda: the native API under `/v1`, and who may use it.
//!
//! It turns a request into one call of the platform and the result into a response. It holds no state and decides
//! nothing about sandboxes.

mod auth;
mod begun;
mod calling;
mod courier;
mod dialects;
mod doctor;
mod drain;
mod errors;
mod events;
mod executions;
mod extract;
mod file_headers;
mod files;
mod follow;
mod front;
mod head;
mod keys;
mod limits;
mod malformed;
mod openapi;
mod operations;
mod paths;
mod ports;
mod previews;
mod queries;
mod receipts;
mod relay;
mod router;
mod sandboxes;
mod search;
mod serve;
mod server;
mod snapshots;
mod terminal_socket;
mod terminals;
mod tls;
mod transfers;
mod trees;
mod usage;
mod watch;
mod webhooks;
mod whoami;

pub use auth::Access;
pub use courier::HttpCourier;
pub use dialects::Dialects;
pub use front::{Domain, DomainError, Front};
pub use openapi::document;
pub use router::router;
pub use serve::{serve_tcp, serve_unix};
pub use tls::{Tls, TlsError};
