//! `/containers/export`: all of `/workspace` as one compressed archive.

use std::io::Write as _;

use axum::body::Body;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::StreamExt;
use http::HeaderValue;
use remuda_control::FileAt;

use super::answer::{FILES, Refusal, Told};
use super::enter::Asked;
use super::files::raw;

/// Largest archive, compressed, in bytes.
const EXPORT_BYTES_MAX: usize = 64 << 20;
const DIRECTORY: &str = "/workspace";

pub(super) async fn export(asked: Asked) -> Told {
    let id = asked.sandbox()?;
    let at = FileAt { path: DIRECTORY.to_owned(), user: None };
    let mut tar = asked.platform.read_tree(&asked.caller, &id, &at).await.map_err(|e| FILES.of(&e))?;
    let failed = |_| Refusal::new(503, "export_unavailable");
    // Whole before the answer begins: a client of this dialect can't tell one that breaks off.
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    while let Some(piece) = tar.next().await {
        packed.write_all(&piece.map_err(failed)?).map_err(failed)?;
        if packed.get_ref().len() > EXPORT_BYTES_MAX {
            return Err(Refusal::new(413, "export_too_large"));
        }
    }
    let bytes = packed.finish().map_err(failed)?;
    if bytes.len() > EXPORT_BYTES_MAX {
        return Err(Refusal::new(413, "export_too_large"));
    }
    Ok(raw(Body::from(bytes), HeaderValue::from_static("application/gzip")))
}
