//! Files of exported snapshots on their way in. A file is named by its own digest, so that a piece that comes twice, or from
//! two sides, makes no other file of it; it is held against that name before anything is done with it. Pieces are added in
//! order, and what has arrived stays there for whoever goes on with it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use remuda_engine::free_bytes;
use remuda_engine::install::Digest;
use remuda_types::limits::{DISK_LOW_WATER_BYTES, IMPORT_BYTES_MAX, IMPORT_KEPT_MS, IMPORTS_MAX};
use remuda_types::wire::ImportState;
use remuda_types::{Account, Error, ErrorCode};
use rustix::fs::{FlockOperation, flock};
use tokio::io::AsyncWriteExt;

use crate::stream::ByteStream;

/// How many bytes are written before the disk is asked again how full it is.
const LOOK_AFTER_BYTES: u64 = 16 << 20;

/// Where they lie.
#[derive(Debug, Clone)]
pub(crate) struct Staging {
    root: PathBuf,
}

impl Staging {
    pub(crate) fn below(data: &Path) -> Staging {
        Staging { root: data.join("imports") }
    }

    /// Names of one account begin alike, and tell nothing of it.
    fn prefix(account: &Account) -> String {
        blake3::hash(account.as_str().as_bytes()).to_hex()[..16].to_owned()
    }

    fn place(&self, account: &Account, digest: &Digest) -> PathBuf {
        self.root.join(format!("{}-{digest}", Self::prefix(account)))
    }

    /// How much of a file is there.
    pub(crate) fn state(&self, account: &Account, digest: &Digest) -> Result<ImportState, Error> {
        match fs::metadata(self.place(account, digest)) {
            Ok(meta) => Ok(ImportState { received: meta.len() }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(ImportState { received: 0 }),
            Err(e) => Err(failed(&e)),
        }
    }

    /// Adds a piece at its place. What arrives is kept, also if the piece breaks off.
    ///
    /// # Errors
    /// `input_gap` where the piece belongs elsewhere, with what is there; `too_large`, `limit_reached`, `disk_full`;
    /// `operation_in_progress` while somebody else adds to it.
    pub(crate) async fn append(
        &self,
        account: &Account,
        digest: &Digest,
        offset: u64,
        mut piece: ByteStream,
    ) -> Result<ImportState, Error> {
        let place = self.place(account, digest);
        let file = self.open(account, &place)?;
        let mut received = file.metadata().map_err(|e| failed(&e))?.len();
        if offset != received {
            let message = format!("the piece begins at {offset}, and {received} bytes are there");
            return Err(Error::new(ErrorCode::InputGap, message)
                .remedy("go on where the file ends: `received` says where that is")
                .detail("received", received));
        }
        let mut file = tokio::fs::File::from_std(file);
        let mut since_look = LOOK_AFTER_BYTES;
        while let Some(bytes) = piece.next().await {
            // What has come is kept; who sends it goes on from there.
            let bytes = bytes.map_err(|e| {
                Error::new(ErrorCode::InvalidRequest, "the piece broke off").cause(e).detail("received", received)
            })?;
            since_look += bytes.len() as u64;
            if since_look >= LOOK_AFTER_BYTES {
                since_look = 0;
                self.room()?;
            }
            if received + bytes.len() as u64 > IMPORT_BYTES_MAX {
                let message = format!("the file is longer than {IMPORT_BYTES_MAX} bytes");
                return Err(Error::new(ErrorCode::TooLarge, message)
                    .detail("limit", "import_bytes_max")
                    .detail("maximum", IMPORT_BYTES_MAX));
            }
            file.write_all(&bytes).await.map_err(|e| failed(&e))?;
            received += bytes.len() as u64;
        }
        file.flush().await.map_err(|e| failed(&e))?;
        Ok(ImportState { received })
    }

    fn room(&self) -> Result<(), Error> {
        let free = free_bytes(&self.root).map_err(|e| failed(&io::Error::other(crate::errors::chain(&e))))?;
        if free >= DISK_LOW_WATER_BYTES {
            return Ok(());
        }
        Err(Error::new(ErrorCode::DiskFull, "the disk is too full to take more of the file in")
            .cause(format!("{free} bytes are free, and the low-water mark is {DISK_LOW_WATER_BYTES}"))
            .remedy("free space on the data directory's disk, and go on where the file ends"))
    }

    /// Opens a file to add to it, for one at a time.
    fn open(&self, account: &Account, place: &Path) -> Result<File, Error> {
        use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root).map_err(|e| failed(&e))?;
        if !place.exists() {
            let (prefix, mut own) = (Self::prefix(account), 0);
            for entry in fs::read_dir(&self.root).map_err(|e| failed(&e))?.flatten() {
                own += usize::from(entry.file_name().to_string_lossy().starts_with(&prefix));
            }
            if own >= IMPORTS_MAX {
                return Err(Error::limit("imports_max", IMPORTS_MAX as u64, own as u64));
            }
        }
        let file = File::options().append(true).create(true).mode(0o600).open(place).map_err(|e| failed(&e))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Error::new(ErrorCode::OperationInProgress, "another piece of this file is being added")
                .remedy("wait for it to end, and go on where the file ends then")
        })?;
        Ok(file)
    }

    /// Opens a file that is there whole. Blocks for as long as it takes to read it once.
    ///
    /// # Errors
    /// `archive_refused` where it is not the one that its name says.
    pub(crate) fn whole(&self, account: &Account, digest: &Digest) -> Result<File, Error> {
        let place = self.place(account, digest);
        let mut file = match File::open(&place) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(Error::new(ErrorCode::ArchiveRefused, "nothing of this file is here")
                    .remedy("send it first: PUT /v1/imports/{digest}"));
            }
            opened => opened.map_err(|e| failed(&e))?,
        };
        let (mut hasher, mut piece) = (blake3::Hasher::new(), vec![0; 1 << 20]);
        let mut length = 0_u64;
        loop {
            match file.read(&mut piece).map_err(|e| failed(&e))? {
                0 => break,
                n => {
                    hasher.update(&piece[..n]);
                    length += n as u64;
                }
            }
        }
        if hasher.finalize().to_hex().as_str() != digest.as_str() {
            return Err(Error::new(ErrorCode::ArchiveRefused, "the file is not the one that its digest says")
                .cause(format!("{length} bytes of it are here; it is not whole, or was changed on its way"))
                .remedy("go on sending it where it ends; if it is whole, remove it and send it again")
                .detail("received", length));
        }
        File::open(&place).map_err(|e| failed(&e))
    }

    /// Removes a file; one that is not there is fine.
    pub(crate) fn remove(&self, account: &Account, digest: &Digest) -> Result<(), Error> {
        match fs::remove_file(self.place(account, digest)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(&e)),
            _ => Ok(()),
        }
    }

    /// Removes what nobody has added to for long.
    pub(crate) fn expire(&self) -> io::Result<()> {
        let entries = match fs::read_dir(&self.root) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        let before = SystemTime::now() - Duration::from_millis(IMPORT_KEPT_MS);
        for entry in entries {
            let entry = entry?;
            if entry.metadata()?.modified()? < before {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Removes all of it.
    pub(crate) fn remove_all(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.root) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

fn failed(e: &io::Error) -> Error {
    let code = if e.kind() == io::ErrorKind::StorageFull { ErrorCode::DiskFull } else { ErrorCode::EngineFailed };
    Error::new(code, "the file of an exported snapshot can't be kept or read").cause(e)
}
