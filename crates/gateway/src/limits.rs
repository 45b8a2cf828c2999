//! The gateway's own limits; `GET /v1/capabilities` tells them beside the platform's. Must not hold the platform's.

use std::collections::BTreeMap;

/// Connections that one listener serves at once; further ones wait to be accepted.
pub const HTTP_CONNECTIONS_MAX: usize = 512;
/// Largest request or response head, in bytes: the longest guest path, percent-encoded, and plenty of headers.
pub const HTTP_HEAD_BYTES_MAX: usize = 64 << 10;
/// Most header fields of one request or response.
pub const HTTP_HEADERS_MAX: usize = 128;
/// How long a connection may stand idle or take to send a request head, in milliseconds.
pub const HTTP_HEAD_READ_MS_MAX: u64 = 30_000;
/// How long a JSON body may take to arrive, in milliseconds.
pub const JSON_BODY_READ_MS_MAX: u64 = 60_000;
/// How long running requests may take to end once the server is asked to, in milliseconds.
pub const HTTP_DRAIN_MS_MAX: u64 = 10_000;

/// Adds these limits to the platform's.
pub fn tell(limits: &mut BTreeMap<String, u64>) {
    let own = [
        ("http_connections_max", HTTP_CONNECTIONS_MAX as u64),
        ("http_head_bytes_max", HTTP_HEAD_BYTES_MAX as u64),
        ("http_headers_max", HTTP_HEADERS_MAX as u64),
        ("http_head_read_ms_max", HTTP_HEAD_READ_MS_MAX),
        ("json_body_read_ms_max", JSON_BODY_READ_MS_MAX),
        ("http_drain_ms_max", HTTP_DRAIN_MS_MAX),
    ];
    limits.extend(own.map(|(name, value)| (name.to_owned(), value)));
}
