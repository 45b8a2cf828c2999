//! Reads a bundle that anybody may have made: everything in it is untrusted until it is found to be what its manifest
//! says. Follows no link, reads nothing larger than it should be, and tells every file that is not as it must be.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::BUNDLE_SCHEMA;
use super::key::PublicKey;
use super::manifest::{FileEntry, MANIFEST, Manifest, SIGNATURE, SignatureFile};

/// Files of one bundle.
pub const BUNDLE_FILES_MAX: usize = 20_000;
/// Largest single file of a bundle, in bytes.
pub const BUNDLE_FILE_BYTES_MAX: u64 = 64 << 20;
/// All files of one bundle together, in bytes.
pub const BUNDLE_BYTES_MAX: u64 = 256 << 20;
/// Folders within folders.
const DEPTH_MAX: usize = 32;

/// Why there is nothing to check.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// It is no bundle.
    #[error("{} is no bundle: it has no run.json; give the directory that `remuda rodeo run` called its evidence", .path.display())]
    NoBundle {
        /// The folder.
        path: PathBuf,
    },
    /// It can't be read.
    #[error("failed to read {}: {cause}", .path.display())]
    Read {
        /// Which file or folder.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// It is larger than any bundle is.
    #[error(
        "{} has more than {BUNDLE_FILES_MAX} files and folders, or {BUNDLE_BYTES_MAX} bytes, or is deeper than {DEPTH_MAX} \
         folders: it is no bundle", .path.display()
    )]
    TooLarge {
        /// The folder.
        path: PathBuf,
    },
}

/// Something in a bundle that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// The file it is about, by its path in the bundle.
    pub file: String,
    /// What is wrong.
    pub message: String,
}

impl Problem {
    /// A problem of this file.
    pub(super) fn new(file: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem { file: file.into(), message: message.into() }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.file, self.message)
    }
}

/// A bundle, read whole.
pub(super) struct Bundle {
    /// Where it is.
    pub folder: PathBuf,
    /// Its manifest, where it has one that can be read.
    pub manifest: Option<Manifest>,
    /// Whose signature it bears, if that is good.
    pub signer: Option<PublicKey>,
    /// The contents of the files that are exactly what the manifest says.
    files: BTreeMap<String, Vec<u8>>,
    /// Everything that is not as it must be.
    pub problems: Vec<Problem>,
}

impl Bundle {
    /// Reads a bundle and holds each of its bytes against manifest and signature.
    pub fn open(folder: &Path) -> Result<Bundle, BundleError> {
        let mut found = BTreeMap::new();
        let mut budget = Budget { entries: BUNDLE_FILES_MAX, bytes: BUNDLE_BYTES_MAX };
        list(folder, folder, 0, &mut found, &mut budget)?;
        if !found.contains_key("run.json") && !found.contains_key(MANIFEST) {
            return Err(BundleError::NoBundle { path: folder.to_owned() });
        }
        let mut bundle = Bundle {
            folder: folder.to_owned(),
            manifest: None,
            signer: None,
            files: BTreeMap::new(),
            problems: Vec::new(),
        };
        bundle.read_seal(&found);
        let Some(manifest) = bundle.manifest.clone() else { return Ok(bundle) };
        for (name, entry) in &manifest.files {
            match found.get(name) {
                None => bundle.problem(name, "it is missing"),
                Some(Kind::Other) => bundle.problem(name, "it is no regular file"),
                Some(Kind::File) => bundle.read_file(name, entry),
            }
        }
        let known = |name: &str| manifest.files.contains_key(name) || name == MANIFEST || name == SIGNATURE;
        for name in found.keys().filter(|name| !known(name)) {
            bundle.problem(name, "the manifest doesn't list it: it was not there when the bundle was sealed");
        }
        Ok(bundle)
    }

    fn problem(&mut self, file: &str, message: impl Into<String>) {
        self.problems.push(Problem::new(file, message));
    }

    fn read_seal(&mut self, found: &BTreeMap<String, Kind>) {
        if !found.contains_key(MANIFEST) {
            self.problem(
                MANIFEST,
                "it is missing: the run did not come to its end, so that nobody vouches for anything",
            );
            return;
        }
        let bytes = match read(&self.folder.join(MANIFEST)) {
            Ok(bytes) => bytes,
            Err(error) => return self.problem(MANIFEST, error.to_string()),
        };
        match read_manifest(&bytes) {
            Ok(manifest) => self.manifest = Some(manifest),
            Err(why) => self.problem(MANIFEST, why),
        }
        if !found.contains_key(SIGNATURE) {
            self.problem(SIGNATURE, "it is missing: nobody vouches for the manifest");
            return;
        }
        let signature = read(&self.folder.join(SIGNATURE)).map_err(|error| error.to_string());
        match signature.and_then(|bytes| SignatureFile::read(&bytes)) {
            Err(why) => self.problem(SIGNATURE, why),
            Ok((key, signature)) if key.signed(&bytes, &signature) => self.signer = Some(key),
            Ok((key, _)) => self.problem(MANIFEST, format!("the signature by {key} is not over these bytes")),
        }
    }

    fn read_file(&mut self, name: &str, entry: &FileEntry) {
        let bytes = match read(&self.folder.join(name)) {
            Ok(bytes) => bytes,
            Err(error) => return self.problem(name, error.to_string()),
        };
        let digest = blake3::hash(&bytes).to_hex();
        if bytes.len() as u64 == entry.bytes && digest.as_str() == entry.blake3 {
            self.files.insert(name.to_owned(), bytes);
        } else {
            let message = format!(
                "it was changed: {} bytes with BLAKE3 {digest}, sealed with {} bytes and {}",
                bytes.len(),
                entry.bytes,
                entry.blake3
            );
            self.problem(name, message);
        }
    }

    /// Whether this file is there as it was sealed.
    pub fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// A file as it was sealed.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(Vec::as_slice)
    }

    /// The names of the files that are as they were sealed.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Reads a record, if its file is there as it was sealed; one that can't be understood is a problem.
    pub fn record<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        match serde_json::from_slice(self.files.get(name)?) {
            Ok(record) => Some(record),
            Err(cause) => {
                self.problem(name, format!("it can't be understood: {cause}"));
                None
            }
        }
    }
}

fn read_manifest(bytes: &[u8]) -> Result<Manifest, String> {
    #[derive(serde::Deserialize)]
    struct Schema {
        schema: u32,
    }
    let schema: Schema = serde_json::from_slice(bytes).map_err(|cause| format!("it is no manifest: {cause}"))?;
    if schema.schema != BUNDLE_SCHEMA {
        return Err(format!(
            "the bundle's form is {}, and {BUNDLE_SCHEMA} is the one that is known here",
            schema.schema
        ));
    }
    let manifest: Manifest = serde_json::from_slice(bytes).map_err(|cause| format!("it is no manifest: {cause}"))?;
    // A name that leads elsewhere is never opened.
    let odd = |name: &&String| name.split('/').any(|part| part.is_empty() || part == "." || part == "..");
    match manifest.files.keys().find(odd) {
        Some(name) => Err(format!("it lists {name:?}, which is no path in a bundle")),
        None => Ok(manifest),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Other,
}

/// What may still be listed.
struct Budget {
    entries: usize,
    bytes: u64,
}

fn list(
    root: &Path,
    folder: &Path,
    depth: usize,
    found: &mut BTreeMap<String, Kind>,
    budget: &mut Budget,
) -> Result<(), BundleError> {
    let failed = |path: &Path, cause| BundleError::Read { path: path.to_owned(), cause };
    for entry in fs::read_dir(folder).map_err(|cause| failed(folder, cause))? {
        let path = entry.map_err(|cause| failed(folder, cause))?.path();
        let metadata = fs::symlink_metadata(&path).map_err(|cause| failed(&path, cause))?;
        let kind = metadata.file_type();
        let bytes = if kind.is_file() { metadata.len() } else { 0 };
        match (budget.entries.checked_sub(1), budget.bytes.checked_sub(bytes)) {
            (Some(entries), Some(bytes)) if depth <= DEPTH_MAX => *budget = Budget { entries, bytes },
            _ => return Err(BundleError::TooLarge { path: root.to_owned() }),
        }
        if kind.is_dir() {
            list(root, &path, depth + 1, found, budget)?;
            continue;
        }
        let relative = path.strip_prefix(root).unwrap_or(&path);
        match relative.to_str() {
            Some(name) => found.insert(name.to_owned(), if kind.is_file() { Kind::File } else { Kind::Other }),
            // Never the name of a listed file: those are text.
            None => found.insert(format!("{relative:?}"), Kind::Other),
        };
    }
    Ok(())
}

/// Reads a regular file, never through a link at its end.
fn read(path: &Path) -> Result<Vec<u8>, BundleError> {
    let failed = |cause| BundleError::Read { path: path.to_owned(), cause };
    // A pipe would be waited for.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    let mut bytes = Vec::new();
    file.take(BUNDLE_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > BUNDLE_FILE_BYTES_MAX {
        return Err(failed(io::Error::other(format!("it is larger than {BUNDLE_FILE_BYTES_MAX} bytes"))));
    }
    Ok(bytes)
}
