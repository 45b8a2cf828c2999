//! The bundle of a run: a folder of raw observations, one JSON file each, written as soon as they are made, and sealed
//! at the end by a signed manifest. Never holds a credential, never overwrites another run's bundle.

mod form;
pub mod key;
pub mod manifest;
mod open;
pub mod verify;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use key::Signer;
use manifest::{FileEntry, MANIFEST, Manifest, SIGNATURE, SignatureFile};

/// Version of the bundle's form.
pub const BUNDLE_SCHEMA: u32 = 2;

/// A bundle that is being written.
#[derive(Debug)]
pub struct Evidence {
    folder: PathBuf,
    files: Mutex<BTreeMap<String, FileEntry>>,
}

/// A bundle can't be written.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// It can't be written.
    #[error("failed to write the evidence {}: {cause}; choose another folder with --out, or make room", .path.display())]
    Write {
        /// Which file or folder.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Something else changed it.
    #[error(
        "{} is not what the run wrote: something changed it meanwhile, so that nobody can vouch for this run; an agent that \
         runs as the same user can do that", .path.display()
    )]
    Changed {
        /// Which file.
        path: PathBuf,
    },
}

impl EvidenceError {
    /// 2 for a place that is unfit, 1 where evidence was changed.
    pub fn exit_code(&self) -> u8 {
        match self {
            EvidenceError::Write { .. } => 2,
            EvidenceError::Changed { .. } => 1,
        }
    }
}

impl Evidence {
    /// Begins a bundle in a new folder `out/run`.
    ///
    /// # Errors
    /// [`EvidenceError`], also when the folder exists.
    pub fn begin(out: &Path, run: &str) -> Result<Evidence, EvidenceError> {
        let folder = out.join(run);
        let failed = |path: &Path, cause| EvidenceError::Write { path: path.to_owned(), cause };
        fs::create_dir_all(out).map_err(|cause| failed(out, cause))?;
        fs::create_dir(&folder).map_err(|cause| failed(&folder, cause))?;
        // The absolute path, so that a report can be read from anywhere.
        let folder = folder.canonicalize().map_err(|cause| failed(&folder, cause))?;
        Ok(Evidence { folder, files: Mutex::default() })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes one record as `name.json`: whole or not at all.
    ///
    /// # Errors
    /// [`EvidenceError`]
    pub fn write(&self, name: &str, record: &impl Serialize) -> Result<(), EvidenceError> {
        let name = format!("{name}.json");
        let bytes = manifest::pretty(record).map_err(|cause| self.failed(&name, io::Error::other(cause)))?;
        self.keep(&name, &bytes)
    }

    /// Writes these bytes as the file `name`, a relative path: whole or not at all.
    ///
    /// # Errors
    /// [`EvidenceError`]
    pub fn keep(&self, name: &str, bytes: &[u8]) -> Result<(), EvidenceError> {
        self.put(name, bytes)?;
        let entry = FileEntry { bytes: bytes.len() as u64, blake3: blake3::hash(bytes).to_hex().to_string() };
        self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), entry);
        Ok(())
    }

    /// Seals the bundle: `describe` makes the manifest from the list of its files, and its bytes are signed. What was
    /// written is read back first: a file that changed under the run's hands is never vouched for.
    ///
    /// # Errors
    /// [`EvidenceError`]
    pub fn seal(
        &self,
        signer: &Signer,
        describe: impl FnOnce(BTreeMap<String, FileEntry>) -> Manifest,
    ) -> Result<(), EvidenceError> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (name, entry) in &files {
            let bytes = fs::read(self.folder.join(name)).map_err(|cause| self.failed(name, cause))?;
            if blake3::hash(&bytes).to_hex().as_str() != entry.blake3 {
                return Err(EvidenceError::Changed { path: self.folder.join(name) });
            }
        }
        let bytes =
            manifest::pretty(&describe(files)).map_err(|cause| self.failed(MANIFEST, io::Error::other(cause)))?;
        self.put(MANIFEST, &bytes)?;
        self.put(SIGNATURE, &SignatureFile::new(signer.public(), &signer.sign(&bytes)).bytes())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), EvidenceError> {
        let path = self.folder.join(name);
        let write = || {
            let folder = path.parent().unwrap_or(&self.folder);
            fs::create_dir_all(folder)?;
            let mut partial = tempfile::Builder::new().prefix(".partial-").tempfile_in(folder)?;
            io::Write::write_all(&mut partial, bytes)?;
            // For everybody, as other files are: a bundle is made to be shown.
            fs::set_permissions(partial.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
            partial.persist(&path).map(drop).map_err(|error| error.error)
        };
        write().map_err(|cause| self.failed(name, cause))
    }

    fn failed(&self, name: &str, cause: io::Error) -> EvidenceError {
        EvidenceError::Write { path: self.folder.join(name), cause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_is_never_written_over() {
        let out = tempfile::tempdir().unwrap();
        let bundle = Evidence::begin(&out.path().join("deep/er"), "run").unwrap();
        bundle.write("a", &[1]).unwrap();
        bundle.write("a", &[2]).unwrap();
        assert_eq!(fs::read_to_string(bundle.folder().join("a.json")).unwrap(), "[\n  2\n]\n");
        assert_eq!(fs::read_dir(bundle.folder()).unwrap().count(), 1);
        let again = Evidence::begin(&out.path().join("deep/er"), "run").unwrap_err();
        assert!(again.to_string().contains("--out"), "{again}");
    }
}
