//! Typed client of Remuda's native API: one method for each route, over TCP with a key or over the local unix socket.
//!
//! A plain client sends each call once, and an error says whether the server may have acted on it. One that was made
//! with [`Client::keeping`] loses nothing: key and exact request of every call that changes something are on disk before
//! it is sent, and it is sent again with both while its answer is missing. Never repeats a changing call without a key.
//! Never shows the API key, neither in `Debug` output nor in an error.
//!
//! ```no_run
//! # async fn tour() -> Result<(), remuda_client::ClientError> {
//! use remuda_client::{Client, Pending, wire};
//! let client = Client::unix("/var/lib/remuda/remuda.sock")?.keeping(Pending::at("/var/lib/remuda/pending"));
//! let sandbox = client.create_sandbox(&wire::CreateSandbox::default()).await?;
//! let call = wire::StartExecution { command: Some("uname -r".into()), wait_ms: Some(10_000), ..Default::default() };
//! println!("{:?}", client.execute(&sandbox.id, &call).await?.stdout);
//! client.remove_sandbox(&sandbox.id).await?;
//! # Ok(()) }
//! ```

mod access;
mod address;
mod body;
mod connection;
mod doctor;
mod error;
mod executions;
mod files;
mod history;
mod keys;
mod local_file;
mod operations;
mod pending;
mod ports;
mod previews;
mod request;
mod sandboxes;
mod snapshots;
mod transfers;
mod watch;
mod webhooks;

pub use body::Incoming;
pub use connection::Client;
pub use error::ClientError;
pub use executions::{InputPiece, OutputBytes, OutputQuery, with_stdin};
pub use files::{FileDownload, FindFiles, FindText, MoveFile, OnlyIf, ReadFile, SetAttributes, WriteFile, WriteTree};
pub use history::{EventStream, Told};
pub use http::{HeaderMap, Method, StatusCode};
pub use keys::{IN_PROGRESS_SECONDS_MAX, LOST_SECONDS_MAX, new_key, part_key};
pub use pending::{FoundCall, KeptBody, KeptCall, Pending, PendingCall};
use remuda_types::limits;
pub use remuda_types::wire;
pub use reqwest::Body;
pub use sandboxes::SandboxFilter;
pub use snapshots::SnapshotFilter;
pub use transfers::SnapshotExport;
pub use watch::{FileWatch, WatchFiles, Watched};

/// Time allowed for making a connection, in seconds. No call has a total time limit: captures and waits may be long.
pub const CONNECT_SECONDS_MAX: u64 = 5;
/// Largest JSON answer that is read, in bytes: all retained output of one execution, each byte of which may have become
/// six (`\u0000`), and what stands around it.
pub const ANSWER_BYTES_MAX: usize = 6 * (limits::OUTPUT_HEAD_BYTES + limits::OUTPUT_TAIL_BYTES) + (1 << 20);
/// Connections that may be kept open while idle, for each server.
pub const IDLE_CONNECTIONS_MAX: usize = 32;
/// How long an idle connection is kept, in seconds; shorter than the server keeps it, so that no call meets a
/// connection which is just being closed.
pub const IDLE_SECONDS_MAX: u64 = 20;
