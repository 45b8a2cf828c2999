//! A workload: its description and all its files, read whole before anything is done with it. Never read again during
//! a run, so that what is recorded is what was used.

mod builtin;
mod error;
mod manifest;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

pub use builtin::names as builtin_names;
pub use error::WorkloadError;
pub use manifest::*;

/// Files of one workload.
pub const WORKLOAD_FILES_MAX: usize = 10_000;
/// All files of one workload together, in bytes.
pub const WORKLOAD_BYTES_MAX: u64 = 256 << 20;

/// A workload, read and checked.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Its description.
    pub manifest: Manifest,
    files: BTreeMap<String, File>,
}

/// A file of a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Its contents.
    pub bytes: Vec<u8>,
    /// Whether it may be run.
    pub executable: bool,
}

/// Digests of a workload, for the evidence (BLAKE3, hex).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Digests {
    /// Over the names and digests of all files.
    pub workload: String,
    /// Each file's.
    pub files: BTreeMap<String, String>,
}

impl Workload {
    /// Finds a workload by the name of a built-in one or by the path of its folder.
    ///
    /// # Errors
    /// [`WorkloadError`], naming the file, the key and the remedy.
    pub fn find(name_or_folder: &str) -> Result<Workload, WorkloadError> {
        if let Some(files) = builtin::find(name_or_folder) {
            let files = files
                .iter()
                .map(|(path, bytes)| ((*path).to_owned(), File { bytes: bytes.to_vec(), executable: false }));
            return Workload::from_files(&format!("{name_or_folder} (built in)"), files.collect());
        }
        let folder = Path::new(name_or_folder);
        if !folder.is_dir() {
            return Err(WorkloadError::NotFound {
                given: name_or_folder.to_owned(),
                builtin: builtin::names().collect::<Vec<_>>().join(", "),
            });
        }
        let mut files = BTreeMap::new();
        let mut budget = WORKLOAD_BYTES_MAX;
        read_folder(folder, "", &mut files, &mut budget)?;
        Workload::from_files(name_or_folder, files)
    }

    fn from_files(place: &str, files: BTreeMap<String, File>) -> Result<Workload, WorkloadError> {
        let manifest_path = format!("{place}/{MANIFEST_FILE}");
        let text = files.get(MANIFEST_FILE).ok_or_else(|| WorkloadError::NoManifest { folder: place.to_owned() })?;
        let text = std::str::from_utf8(&text.bytes)
            .map_err(|cause| WorkloadError::Syntax { file: manifest_path.clone(), cause: cause.to_string() })?;
        let workload = Workload { manifest: Manifest::parse(&manifest_path, text)?, files };
        workload.check_files(&manifest_path)?;
        Ok(workload)
    }

    fn check_files(&self, manifest_path: &str) -> Result<(), WorkloadError> {
        let missing = |key: &str, path: &str| WorkloadError::Invalid {
            file: manifest_path.to_owned(),
            key: key.to_owned(),
            problem: format!("there is no {path:?} in the workload's folder"),
            remedy: "add the file or correct its name".to_owned(),
        };
        for step in &self.manifest.prepare {
            if let Prepare::Put(put) = step
                && self.below(&put.put).next().is_none()
            {
                return Err(missing("prepare.put", &put.put));
            }
        }
        for patch in &self.manifest.patches {
            self.file(&patch.file).ok_or_else(|| missing("patches.file", &patch.file))?;
        }
        if self.unpatched().is_none() {
            return Err(WorkloadError::Invalid {
                file: manifest_path.to_owned(),
                key: "reload.file".to_owned(),
                problem: format!("no step of the preparation puts {:?}", self.manifest.reload.file),
                remedy: "name a file that a prepare step puts".to_owned(),
            });
        }
        Ok(())
    }

    /// The file at this path of the workload's folder.
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files.get(path)
    }

    /// The files that `put` names: one file, or all below a folder, with their paths relative to it (empty for the one).
    pub fn below<'a>(&'a self, put: &'a str) -> impl Iterator<Item = (&'a str, &'a File)> {
        self.files.iter().filter_map(move |(path, file)| {
            let rest = path.strip_prefix(put)?;
            if rest.is_empty() { Some((rest, file)) } else { Some((rest.strip_prefix('/')?, file)) }
        })
    }

    /// All files that a put step makes, as guest paths.
    pub fn put_files<'a>(&'a self, put: &'a Put) -> impl Iterator<Item = (String, &'a File)> {
        self.below(&put.put)
            .map(|(rest, file)| (if rest.is_empty() { put.to.clone() } else { format!("{}/{rest}", put.to) }, file))
    }

    /// Contents of the reload point as the preparation leaves it.
    pub fn unpatched(&self) -> Option<&[u8]> {
        let puts = self.manifest.prepare.iter().filter_map(|step| match step {
            Prepare::Put(put) => Some(put),
            Prepare::Run(_) => None,
        });
        let mut files = puts.flat_map(|put| self.put_files(put));
        files.find(|(path, _)| *path == self.manifest.reload.file).map(|(_, file)| file.bytes.as_slice())
    }

    /// Digests of all files.
    pub fn digests(&self) -> Digests {
        let files: BTreeMap<String, String> = self
            .files
            .iter()
            .map(|(path, file)| (path.clone(), blake3::hash(&file.bytes).to_hex().to_string()))
            .collect();
        let mut whole = blake3::Hasher::new();
        for (path, digest) in &files {
            // Lengths keep two different folders from hashing the same text.
            whole.update(format!("{} {path} {digest}\n", path.len()).as_bytes());
        }
        Digests { workload: whole.finalize().to_hex().to_string(), files }
    }
}

/// SHA-256 as lower-case hex: what the worker says about the file it imported.
pub fn sha256_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn read_folder(
    folder: &Path,
    prefix: &str,
    files: &mut BTreeMap<String, File>,
    budget: &mut u64,
) -> Result<(), WorkloadError> {
    use std::os::unix::fs::PermissionsExt as _;
    let failed = |path: &Path, cause: std::io::Error| WorkloadError::Read { path: path.display().to_string(), cause };
    for entry in fs::read_dir(folder).map_err(|cause| failed(folder, cause))? {
        let entry = entry.map_err(|cause| failed(folder, cause))?;
        let path = entry.path();
        let Ok(name) = entry.file_name().into_string() else {
            return Err(WorkloadError::OddFile {
                path: path.display().to_string(),
                problem: "its name is no UTF-8".into(),
            });
        };
        let relative = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        // `DirEntry::metadata` does not follow links: a link could lead out of the folder.
        let metadata = entry.metadata().map_err(|cause| failed(&path, cause))?;
        if metadata.is_dir() {
            read_folder(&path, &relative, files, budget)?;
            continue;
        }
        let odd = |problem: String| WorkloadError::OddFile { path: path.display().to_string(), problem };
        if !metadata.is_file() {
            return Err(odd("it is neither a file nor a folder".into()));
        }
        *budget = budget
            .checked_sub(metadata.len())
            .ok_or_else(|| odd(format!("the workload is larger than {WORKLOAD_BYTES_MAX} bytes")))?;
        if files.len() >= WORKLOAD_FILES_MAX {
            return Err(odd(format!("the workload has more than {WORKLOAD_FILES_MAX} files")));
        }
        let bytes = fs::read(&path).map_err(|cause| failed(&path, cause))?;
        files.insert(relative, File { bytes, executable: metadata.permissions().mode() & 0o111 != 0 });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
