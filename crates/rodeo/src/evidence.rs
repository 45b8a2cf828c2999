//! The bundle of a run: a folder of raw observations, one JSON file each, written as soon as they are made. Never holds
//! a credential, never overwrites another run's bundle.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Version of the bundle's form.
pub const BUNDLE_SCHEMA: u32 = 1;

/// A bundle that is being written.
#[derive(Debug)]
pub struct Evidence {
    folder: PathBuf,
}

/// A bundle can't be written.
#[derive(Debug, thiserror::Error)]
#[error("failed to write the evidence {}: {cause}; choose another folder with --out, or make room", .path.display())]
pub struct EvidenceError {
    /// Which file or folder.
    pub path: PathBuf,
    /// Why.
    pub cause: io::Error,
}

impl Evidence {
    /// Begins a bundle in a new folder `out/run`.
    ///
    /// # Errors
    /// [`EvidenceError`], also when the folder exists.
    pub fn begin(out: &Path, run: &str) -> Result<Evidence, EvidenceError> {
        let folder = out.join(run);
        let failed = |path: &Path, cause| EvidenceError { path: path.to_owned(), cause };
        fs::create_dir_all(out).map_err(|cause| failed(out, cause))?;
        fs::create_dir(&folder).map_err(|cause| failed(&folder, cause))?;
        // The absolute path, so that a report can be read from anywhere.
        let folder = folder.canonicalize().map_err(|cause| failed(&folder, cause))?;
        Ok(Evidence { folder })
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
        let path = self.folder.join(format!("{name}.json"));
        let partial = self.folder.join(format!(".{name}.partial"));
        let write = || {
            let mut text = serde_json::to_vec_pretty(record).map_err(io::Error::other)?;
            text.push(b'\n');
            fs::write(&partial, text)?;
            fs::rename(&partial, &path)
        };
        write().map_err(|cause| EvidenceError { path: path.clone(), cause })
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
