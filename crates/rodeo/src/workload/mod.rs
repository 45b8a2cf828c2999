//! A workload: its description and all its files, read whole before anything is done with it. Never read again during
//! a run, so that what is recorded is what was used.

mod builtin;
mod error;
mod manifest;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

    /// The built-in workload of this name.
    pub fn built_in(name: &str) -> Option<Workload> {
        builtin::find(name).and_then(|_| Workload::find(name).ok())
    }

    fn from_files(place: &str, files: BTreeMap<String, File>) -> Result<Workload, WorkloadError> {
        let (manifest_path, workload) = Workload::read_manifest(place, files)?;
        workload.check_files(&manifest_path)?;
        Ok(workload)
    }

    /// The workload with its description read, and how errors call that file. Nothing says yet that other files are there.
    fn read_manifest(place: &str, files: BTreeMap<String, File>) -> Result<(String, Workload), WorkloadError> {
        let manifest_path = format!("{place}/{MANIFEST_FILE}");
        let text = files.get(MANIFEST_FILE).ok_or_else(|| WorkloadError::NoManifest { folder: place.to_owned() })?;
        let text = std::str::from_utf8(&text.bytes)
            .map_err(|cause| WorkloadError::Syntax { file: manifest_path.clone(), cause: cause.to_string() })?;
        let manifest = Manifest::parse(&manifest_path, text)?;
        Ok((manifest_path, Workload { manifest, files }))
    }

    fn check_files(&self, manifest_path: &str) -> Result<(), WorkloadError> {
        for step in &self.manifest.prepare {
            if let Prepare::Put(put) = step
                && self.below(&put.put).next().is_none()
            {
                return Err(missing(manifest_path, "prepare.put", &put.put));
            }
        }
        self.check_patched_files(manifest_path)
    }

    fn check_patched_files(&self, manifest_path: &str) -> Result<(), WorkloadError> {
        for patch in &self.manifest.patches {
            self.file(&patch.file).ok_or_else(|| missing(manifest_path, "patches.file", &patch.file))?;
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

    /// Whether a step of the preparation puts the file at this path of the workload's folder.
    pub fn is_put(&self, path: &str) -> bool {
        self.manifest.prepare.iter().any(|step| match step {
            Prepare::Put(put) => {
                path.strip_prefix(&put.put).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            Prepare::Run(_) => false,
        })
    }

    /// Contents of the reload point as the preparation leaves it.
    pub fn unpatched(&self) -> Option<&[u8]> {
        self.unpatched_path().and_then(|path| self.file(path)).map(|file| file.bytes.as_slice())
    }

    /// The file of the workload that the preparation puts at the reload point.
    fn unpatched_path(&self) -> Option<&str> {
        let puts = self.manifest.prepare.iter().filter_map(|step| match step {
            Prepare::Put(put) => Some(put),
            Prepare::Run(_) => None,
        });
        // As in `put_files`: below a folder, or the file itself.
        let sources = puts.filter_map(|put| {
            let rest = self.manifest.reload.file.strip_prefix(put.to.as_str())?;
            if rest.is_empty() || rest.starts_with('/') { Some(format!("{}{rest}", put.put)) } else { None }
        });
        sources.filter_map(|path| self.files.get_key_value(&path)).map(|(path, _)| path.as_str()).next()
    }

    /// Takes in what an attempt left at the reload point, as one more patch of this name. Its verdict is known to nobody.
    ///
    /// # Errors
    /// [`WorkloadError::Invalid`] where a patch of this name or too many are there.
    pub fn add_attempt(&mut self, name: &str, bytes: Vec<u8>) -> Result<Patch, WorkloadError> {
        let invalid = |problem: &str, remedy: &str| WorkloadError::Invalid {
            file: MANIFEST_FILE.to_owned(),
            key: "patches.name".to_owned(),
            problem: problem.to_owned(),
            remedy: remedy.to_owned(),
        };
        if self.manifest.patch(name).is_ok() {
            return Err(invalid(&format!("{name:?} is there, and an attempt has that name"), "rename the patch"));
        }
        if self.manifest.patches.len() >= PATCHES_MAX {
            return Err(invalid("there are too many patches and attempts", "make fewer attempts"));
        }
        let patch = Patch { name: name.to_owned(), file: attempt_file(name), known: None };
        self.files.insert(patch.file.clone(), File { bytes, executable: false });
        self.manifest.patches.push(patch.clone());
        Ok(patch)
    }

    /// The files that verdicts depend on, by their path in the workload's folder: its description, the patches, and the
    /// file at the reload point.
    pub fn verdict_files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let patches = self.manifest.patches.iter().map(|patch| patch.file.as_str());
        let mut paths: BTreeSet<&str> = patches.chain([MANIFEST_FILE]).collect();
        paths.extend(self.unpatched_path());
        self.files
            .iter()
            .filter(move |(path, _)| paths.contains(path.as_str()))
            .map(|(path, file)| (path.as_str(), file.bytes.as_slice()))
    }

    /// The workload as a bundle keeps it: with no files but those of [`Workload::verdict_files`].
    ///
    /// # Errors
    /// [`WorkloadError`], naming what is missing or can't be understood.
    pub fn from_verdict_files(files: BTreeMap<String, Vec<u8>>) -> Result<Workload, WorkloadError> {
        let files = files.into_iter().map(|(path, bytes)| (path, File { bytes, executable: false })).collect();
        let (manifest_path, workload) = Workload::read_manifest("workload", files)?;
        workload.check_patched_files(&manifest_path)?;
        Ok(workload)
    }

    /// Digests of all files.
    pub fn digests(&self) -> Digests {
        let files: BTreeMap<String, String> = self
            .files
            .iter()
            .map(|(path, file)| (path.clone(), blake3::hash(&file.bytes).to_hex().to_string()))
            .collect();
        Digests { workload: Digests::over(&files), files }
    }
}

/// The name of an attempt, counted from 1.
pub(crate) fn attempt_name(number: usize) -> String {
    format!("attempt-{number}")
}

/// Where a bundle keeps what an attempt left at the reload point.
pub(crate) fn attempt_file(name: &str) -> String {
    format!("attempts/{name}")
}

fn missing(manifest_path: &str, key: &str, path: &str) -> WorkloadError {
    WorkloadError::Invalid {
        file: manifest_path.to_owned(),
        key: key.to_owned(),
        problem: format!("there is no {path:?} in the workload's folder"),
        remedy: "add the file or correct its name".to_owned(),
    }
}

impl Digests {
    /// The digest over the names and digests of some files, in the order of their paths.
    pub fn over<'a>(files: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
        let mut whole = blake3::Hasher::new();
        for (path, digest) in files {
            // Lengths keep two different folders from hashing the same text.
            whole.update(format!("{} {path} {digest}\n", path.len()).as_bytes());
        }
        whole.finalize().to_hex().to_string()
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
