//! The gateway's own limits; `GET /v1/capabilities` tells them beside the platform's. Must not hold the platform's.

use std::collections::BTreeMap;

/// Connections that one listener serves at once; further ones wait to be accepted.
pub const HTTP_CONNECTIONS_MAX: usize = 4_096;
/// Largest request or response head, in bytes: the longest guest path, percent-encoded, and plenty of headers.
pub const HTTP_HEAD_BYTES_MAX: usize = 64 << 10;
/// Most header fields of one request or response.
pub const HTTP_HEADERS_MAX: usize = 128;
/// How long a connection may stand idle or take to send a request head, in milliseconds.
pub const HTTP_HEAD_READ_MS_MAX: u64 = 30_000;
/// Requests that one connection of HTTP/2 may have under way.
pub const HTTP2_STREAMS_MAX: u32 = 128;
/// How long a JSON body may take to arrive, in milliseconds.
pub const JSON_BODY_READ_MS_MAX: u64 = 60_000;
/// How long running requests may take to end once the server is asked to, in milliseconds.
pub const HTTP_DRAIN_MS_MAX: u64 = 10_000;
/// How long a connection to what is behind a preview may take to come about, in milliseconds.
pub const PREVIEW_DIAL_MS_MAX: u64 = 10_000;
/// Connections to what is behind one preview that stand idle for the next request.
pub const PREVIEW_IDLE_CONNECTIONS_MAX: usize = 64;
/// How long one of them may stand idle, in milliseconds; it is closed before twice of that.
pub const PREVIEW_IDLE_CONNECTION_MS_MAX: u64 = 1_000;
/// How long an application behind a preview may take to begin its answer after it was sent the last of its request, in
/// milliseconds.
pub const PREVIEW_HEAD_MS_MAX: u64 = 120_000;
/// How long nothing may move in an answer or a socket through a preview, in milliseconds.
pub const PREVIEW_IDLE_MS_MAX: u64 = 3_600_000;
/// Longest frame of a WebSocket through a preview, in bytes.
pub const PREVIEW_FRAME_BYTES_MAX: u64 = 16 << 20;
/// How long a look through a preview takes at most, in milliseconds.
pub const PREVIEW_PROBE_MS_MAX: u64 = 10_000;

/// Adds these limits to the platform's.
pub fn tell(limits: &mut BTreeMap<String, u64>) {
    let own = [
        ("http_connections_max", HTTP_CONNECTIONS_MAX as u64),
        ("http_head_bytes_max", HTTP_HEAD_BYTES_MAX as u64),
        ("http_headers_max", HTTP_HEADERS_MAX as u64),
        ("http_head_read_ms_max", HTTP_HEAD_READ_MS_MAX),
        ("http2_streams_max", u64::from(HTTP2_STREAMS_MAX)),
        ("json_body_read_ms_max", JSON_BODY_READ_MS_MAX),
        ("http_drain_ms_max", HTTP_DRAIN_MS_MAX),
        ("preview_dial_ms_max", PREVIEW_DIAL_MS_MAX),
        ("preview_head_ms_max", PREVIEW_HEAD_MS_MAX),
        ("preview_idle_connections_max", PREVIEW_IDLE_CONNECTIONS_MAX as u64),
        ("preview_idle_connection_ms_max", PREVIEW_IDLE_CONNECTION_MS_MAX),
        ("preview_idle_ms_max", PREVIEW_IDLE_MS_MAX),
        ("preview_frame_bytes_max", PREVIEW_FRAME_BYTES_MAX),
        ("preview_probe_ms_max", PREVIEW_PROBE_MS_MAX),
    ];
    limits.extend(own.map(|(name, value)| (name.to_owned(), value)));
}
