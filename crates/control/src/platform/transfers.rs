//! Calls about snapshots as files: out, and in.

use std::io::{self, Write};

use bytes::Bytes;
use remuda_engine::install::Digest;
use remuda_types::wire::{ImportSnapshot, ImportState, Snapshot};
use remuda_types::{Error, ErrorCode, SnapshotState};
use tokio::sync::mpsc;

use super::Platform;
use crate::access::Action;
use crate::caller::Caller;
use crate::operation::{Answered, Call, operate};
use crate::operations::import::{Import, export_of};
use crate::operations::restore::{Reading, check_layers};
use crate::staging::Staging;
use crate::stream::ByteStream;

/// Bytes of an export that are handed on at once.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that wait for their reader. A slow one holds nothing but these, and a thread.
const PIECES_WAITING_MAX: usize = 4;

/// An export on its way.
pub struct ExportedSnapshot {
    /// The same as long as the same bytes would come: whoever goes on reading compares it.
    pub tag: String,
    /// The bytes from the wanted offset on. One that breaks off ends with an error, never as if it were whole.
    pub bytes: ByteStream,
}

impl Platform {
    /// A snapshot as one file, from an offset on.
    ///
    /// # Errors
    /// `snapshot_not_found`, `snapshot_not_active`, `snapshot_damaged`; `precondition_failed` where `tag` is given and it
    /// is another by now.
    pub async fn export_snapshot(
        &self,
        caller: &Caller,
        id_or_name: &str,
        offset: u64,
        tag: Option<&str>,
    ) -> Result<ExportedSnapshot, Error> {
        caller.may(Action::ExportSnapshot)?;
        self.admit_work()?;
        let cell = self.kept_snapshot(caller, id_or_name).await?;
        let reading = Reading::begin(&cell);
        let shown = cell.show();
        if shown.state != SnapshotState::Active || !shown.restorable {
            let message = format!("snapshot {} is {}, and can't be restored nor exported", cell.id, shown.state);
            let error = Error::new(ErrorCode::SnapshotNotActive, message);
            return Err(match shown.damage {
                Some(damage) => error.cause(damage),
                None => error,
            });
        }
        check_layers(self, &cell).await?;
        let (export, now) = export_of(self, &cell)?;
        if tag.is_some_and(|tag| tag != now) {
            return Err(Error::new(
                ErrorCode::PreconditionFailed,
                format!("snapshot {} would be another file now", cell.id),
            )
            .cause("its name, labels or state have changed since")
            .remedy("begin anew, without If-Match"));
        }
        let (sender, receiver) = mpsc::channel(PIECES_WAITING_MAX);
        let ended = sender.clone();
        let source = shown.source;
        std::thread::Builder::new()
            .name("export".into())
            .spawn(move || {
                let mut out = Pieces { sender, waiting: Vec::with_capacity(PIECE_BYTES), skip: offset };
                if let Err(e) = remuda_engine::export(&export, &mut out) {
                    let error = crate::errors::engine(&source, e);
                    // Whoever went away needs no reason.
                    let _ = ended.blocking_send(Err(io::Error::other(error.to_string())));
                }
                // Its bytes stay until all of them are read.
                drop(reading);
            })
            .map_err(|e| Error::new(ErrorCode::Internal, "an export was not begun").cause(e))?;
        let bytes = futures_util::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|piece| (piece, receiver))
        });
        Ok(ExportedSnapshot { tag: now, bytes: Box::pin(bytes) })
    }

    /// Where files of exported snapshots are on their way in.
    pub(crate) fn staging(&self) -> &Staging {
        &self.shared().staging
    }

    /// How much of a file is here.
    ///
    /// # Errors
    /// `invalid_request` for a digest that is none.
    pub async fn import_state(&self, caller: &Caller, digest: &str) -> Result<ImportState, Error> {
        caller.may(Action::ShowImport)?;
        self.staging().state(&caller.account, &digest_of(digest)?)
    }

    /// Adds a piece to a file.
    ///
    /// # Errors
    /// `input_gap`, `too_large`, `limit_reached`, `disk_full`, `operation_in_progress`.
    pub async fn import_piece(
        &self,
        caller: &Caller,
        digest: &str,
        offset: u64,
        piece: ByteStream,
    ) -> Result<ImportState, Error> {
        caller.may(Action::WriteImport)?;
        self.admit_work()?;
        self.staging().append(&caller.account, &digest_of(digest)?, offset, piece).await
    }

    /// Forgets a file. One that is not here is fine.
    ///
    /// # Errors
    /// `invalid_request` for a digest that is none.
    pub async fn forget_import(&self, caller: &Caller, digest: &str) -> Result<(), Error> {
        caller.may(Action::RemoveImport)?;
        self.staging().remove(&caller.account, &digest_of(digest)?)
    }

    /// Makes a snapshot of a file that is here whole.
    ///
    /// # Errors
    /// `archive_refused`, `engine_mismatch`, `forbidden` for memory, `snapshot_name_taken`, `disk_full`.
    pub async fn import_snapshot(&self, call: &Call, digest: &str, request: ImportSnapshot) -> Answered<Snapshot> {
        match digest_of(digest) {
            Ok(digest) => operate(self, call, Import { digest, request }).await,
            Err(e) => Answered::now(Err(e)),
        }
    }
}

fn digest_of(text: &str) -> Result<Digest, Error> {
    text.parse().map_err(|e| {
        Error::new(ErrorCode::InvalidRequest, "the file of an export is named by its BLAKE3 digest").cause(e)
    })
}

/// An export on its way from the thread that makes it.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    waiting: Vec<u8>,
    /// Bytes that its reader has already.
    skip: u64,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
        self.skip -= skipped as u64;
        self.waiting.extend_from_slice(&bytes[skipped..]);
        if self.waiting.len() >= PIECE_BYTES {
            self.hand_on()?;
        } else if self.sender.is_closed() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hand_on()
    }
}

impl Pieces {
    fn hand_on(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.waiting, Vec::with_capacity(PIECE_BYTES));
        self.sender.blocking_send(Ok(piece.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
