//! A memory image: the three files of a checkpoint, and how to tell that they are still what was captured.
//!
//! gVisor keeps no checksum of the pages: a flipped bit would be restored in silence. So digests are kept, made off
//! the pause; a restore compares device, inode, size and times, which costs nothing, and reads the files again only
//! when one of those differs.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{EngineError, Result, Tried};
use crate::state_file::{self, Mended};

/// Where an image's directory keeps what is known of it.
const MANIFEST: &str = "manifest.json";
/// Files of an image, in the order in which runsc takes them.
const NAMES: [&str; 3] = MemoryImage::NAMES;

/// The open files of an image.
#[derive(Debug)]
pub struct ImageFiles([File; 3]);

impl ImageFiles {
    /// Makes empty files in a new directory.
    pub fn create(dir: &Path) -> Result<ImageFiles> {
        crate::dirs::make(dir)?;
        Self::open_each(dir, File::options().read(true).write(true).create_new(true).mode(0o600))
    }

    fn open_each(dir: &Path, options: &fs::OpenOptions) -> Result<ImageFiles> {
        let open = |name: &str| {
            let path = dir.join(name);
            options.open(&path).tried(|| format!("open {}", path.display()))
        };
        Ok(ImageFiles([open(NAMES[0])?, open(NAMES[1])?, open(NAMES[2])?]))
    }

    /// Mends the two known faults of checkpoints (see [`state_file`]) in files that were just written. A state file that
    /// makes no sense to us is left as it is: a newer runsc has another form, and not the faults.
    pub(crate) fn mend(&mut self) -> Result<()> {
        let trying = || format!("mend {}", NAMES[0]);
        let state = &mut self.0[0];
        let mut bytes = Vec::new();
        state.seek(SeekFrom::Start(0)).tried(trying)?;
        state.read_to_end(&mut bytes).tried(trying)?;
        match state_file::mend_epoll(&mut bytes) {
            Ok(Mended { within, removed }) => {
                if removed > 0 {
                    tracing::debug!("took the events out of {removed} epoll registrations that were removed before");
                }
                // In one write: the source stands still meanwhile.
                state.write_all_at(&bytes[within.clone()], within.start as u64).tried(trying)
            }
            Err(e) => {
                tracing::warn!("a checkpoint's state file cannot be read and is not mended: {e}");
                Ok(())
            }
        }
    }

    /// One of them, to be written.
    pub(crate) fn to_write(&self, index: usize) -> io::Result<File> {
        self.0[index].try_clone()
    }

    /// As runsc takes them.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.0[0].as_fd(), self.0[1].as_fd(), self.0[2].as_fd()]
    }
}

/// What the kernel says of a file that nobody touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Witness {
    dev: u64,
    ino: u64,
    size: u64,
    mtime_ns: i128,
    ctime_ns: i128,
}

impl Witness {
    fn of(file: &File) -> io::Result<Witness> {
        let m = file.metadata()?;
        let ns = |s: i64, n: i64| i128::from(s) * 1_000_000_000 + i128::from(n);
        Ok(Witness {
            dev: m.dev(),
            ino: m.ino(),
            size: m.size(),
            mtime_ns: ns(m.mtime(), m.mtime_nsec()),
            ctime_ns: ns(m.ctime(), m.ctime_nsec()),
        })
    }
}

/// One file of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileRecord {
    name: String,
    witness: Witness,
    /// blake3; absent until the file was read once.
    digest: Option<String>,
}

/// What is known of an image on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryImage {
    dir: PathBuf,
    files: Vec<FileRecord>,
}

impl MemoryImage {
    /// Names of its files, in the order in which runsc takes them.
    pub const NAMES: [&str; 3] = ["checkpoint.img", "pages_meta.img", "pages.img"];

    /// Digests of its files, in the same order; empty for one that was never read.
    pub fn digests(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.digest.as_deref().unwrap_or(""))
    }

    /// Takes in the files that a checkpoint has just finished writing into `written` and moves them to `dir`.
    pub fn publish(written: &Path, files: &ImageFiles, dir: &Path) -> Result<MemoryImage> {
        let mut records = Vec::new();
        for (name, file) in NAMES.into_iter().zip(&files.0) {
            let witness = Witness::of(file).tried(|| format!("look at {name}"))?;
            // Near a full disk a checkpoint may claim success and leave a short file.
            if witness.size == 0 && name != "pages.img" {
                return Err(EngineError::Damaged { what: name.into(), why: "the checkpoint left it empty".into() });
            }
            records.push(FileRecord { name: name.into(), witness, digest: None });
        }
        let image = MemoryImage { dir: dir.to_owned(), files: records };
        // So that what was captured is known also if the server does not live to seal it.
        image.record(written)?;
        fs::rename(written, dir).tried(|| format!("move a memory image to {}", dir.display()))?;
        Ok(image)
    }

    /// What is known of the image in `dir` since it was published or, later, sealed.
    pub fn load(dir: &Path) -> Result<MemoryImage> {
        let path = dir.join(MANIFEST);
        let text = fs::read(&path).tried(|| format!("read {}", path.display()))?;
        let recorded: MemoryImage = serde_json::from_slice(&text).map_err(|e| changed(&path, &e.to_string()))?;
        if !recorded.files.iter().map(|f| f.name.as_str()).eq(NAMES) {
            return Err(changed(&path, "it names other files"));
        }
        Ok(MemoryImage { dir: dir.to_owned(), ..recorded })
    }

    /// Writes the manifest into a directory.
    fn record(&self, into: &Path) -> Result<()> {
        let path = into.join(MANIFEST);
        let text = serde_json::to_vec_pretty(self).map_err(io::Error::from).tried(|| "write out a manifest".into())?;
        // Replaced whole: a reader of half a manifest would take a good image for a damaged one.
        let new = path.with_extension("new");
        fs::write(&new, text).tried(|| format!("write {}", new.display()))?;
        fs::rename(&new, &path).tried(|| format!("write {}", path.display()))
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.witness.size).sum()
    }

    /// Reads every file once, flushes it to disk and keeps its digest. Blocks for as long as that takes.
    pub fn seal(&mut self) -> Result<()> {
        for record in &mut self.files {
            let path = self.dir.join(&record.name);
            let (file, seen) = open_unfollowed(&path)?;
            if seen != record.witness {
                return Err(changed(&path, "it changed between the capture and its verification"));
            }
            record.digest = Some(digest(&path)?);
            file.sync_all().tried(|| format!("flush {}", path.display()))?;
        }
        self.record(&self.dir)
    }

    /// Reads every file whole and holds it against its digest, whatever the kernel says of it. Blocks for as long as that
    /// takes.
    ///
    /// # Errors
    /// `Damaged` where one is not what was captured.
    pub fn check_whole(&self) -> Result<()> {
        for record in &self.files {
            let path = self.dir.join(&record.name);
            let (_, seen) = open_unfollowed(&path)?;
            let Some(expected) = &record.digest else { return Err(changed(&path, "it was never verified")) };
            if seen.size != record.witness.size {
                let why = format!("{} bytes long, {} were captured", seen.size, record.witness.size);
                return Err(changed(&path, &why));
            }
            if digest(&path)? != *expected {
                return Err(changed(&path, "its digest is not the one that was recorded"));
            }
        }
        Ok(())
    }

    /// Opens the files for a restore, after making sure that they are what was captured.
    pub fn open(&self) -> Result<ImageFiles> {
        let mut files = Vec::new();
        for record in &self.files {
            let path = self.dir.join(&record.name);
            let (file, seen) = open_unfollowed(&path)?;
            if seen != record.witness {
                let Some(expected) = &record.digest else {
                    return Err(changed(&path, "it changed before it was ever verified"));
                };
                if seen.size != record.witness.size {
                    let why = format!("{} bytes long, {} were captured", seen.size, record.witness.size);
                    return Err(changed(&path, &why));
                }
                // Touched or copied back, perhaps; only its contents can tell.
                if digest(&path)? != *expected {
                    return Err(changed(&path, "its digest is not the one that was recorded"));
                }
            }
            files.push(file);
        }
        let files: [File; 3] = files.try_into().map_err(|_| changed(&self.dir, "it does not have three files"))?;
        Ok(ImageFiles(files))
    }
}

fn open_unfollowed(path: &Path) -> Result<(File, Witness)> {
    let file = match File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(changed(path, "it is missing")),
        opened => opened.tried(|| format!("open {}", path.display()))?,
    };
    let witness = Witness::of(&file).tried(|| format!("look at {}", path.display()))?;
    Ok((file, witness))
}

fn digest(path: &Path) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut file = File::open(path).tried(|| format!("open {}", path.display()))?;
    let mut chunk = vec![0; 1 << 20];
    loop {
        match io::Read::read(&mut file, &mut chunk).tried(|| format!("read {}", path.display()))? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            n => hasher.update(&chunk[..n]),
        };
    }
}

fn changed(path: &Path, why: &str) -> EngineError {
    let what = path.file_name().map_or_else(|| path.display().to_string(), |n| n.display().to_string());
    EngineError::Damaged { what: format!("the memory image's {what}"), why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed() -> (tempfile::TempDir, MemoryImage) {
        let dir = tempfile::tempdir().unwrap();
        let files = ImageFiles::create(&dir.path().join("tmp")).unwrap();
        for file in &files.0 {
            file.write_at(&[7; 5000], 0).unwrap();
        }
        let mut image = MemoryImage::publish(&dir.path().join("tmp"), &files, &dir.path().join("image")).unwrap();
        image.seal().unwrap();
        (dir, image)
    }

    fn why(image: &MemoryImage) -> String {
        match image.open() {
            Err(EngineError::Damaged { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn untouched_files_are_opened() {
        let (_dir, image) = sealed();
        assert_eq!(image.bytes(), 15_000);
        image.open().unwrap();
    }

    #[test]
    fn a_touched_file_is_read_again_and_taken_if_equal() {
        let (_dir, image) = sealed();
        let file = File::options().write(true).open(image.dir.join("pages.img")).unwrap();
        file.write_at(&[7], 100).unwrap();
        image.open().unwrap();
    }

    #[test]
    fn a_changed_byte_is_refused() {
        for name in NAMES {
            let (_dir, image) = sealed();
            File::options().write(true).open(image.dir.join(name)).unwrap().write_at(&[8], 100).unwrap();
            assert!(why(&image).contains("digest"));
        }
    }

    #[test]
    fn a_cut_or_missing_file_is_refused() {
        let (_dir, image) = sealed();
        File::options().write(true).open(image.dir.join("pages.img")).unwrap().set_len(4000).unwrap();
        assert!(why(&image).contains("4000 bytes long"));
        fs::remove_file(image.dir.join("pages.img")).unwrap();
        assert!(why(&image).contains("missing"));
    }

    #[test]
    fn a_swapped_file_is_refused() {
        let (_dir, image) = sealed();
        fs::remove_file(image.dir.join("pages.img")).unwrap();
        fs::write(image.dir.join("pages.img"), [9; 5000]).unwrap();
        assert!(why(&image).contains("digest"));
    }

    #[test]
    fn an_image_that_changes_before_it_is_sealed_never_becomes_active() {
        let dir = tempfile::tempdir().unwrap();
        let files = ImageFiles::create(&dir.path().join("tmp")).unwrap();
        for file in &files.0 {
            file.write_at(&[7; 5000], 0).unwrap();
        }
        let mut image = MemoryImage::publish(&dir.path().join("tmp"), &files, &dir.path().join("image")).unwrap();
        files.0[2].write_at(&[8], 1).unwrap();
        assert!(image.seal().is_err());
        assert!(why(&image).contains("before it was ever verified"));
    }

    #[test]
    fn an_empty_state_file_is_not_published() {
        let dir = tempfile::tempdir().unwrap();
        let files = ImageFiles::create(&dir.path().join("tmp")).unwrap();
        assert!(MemoryImage::publish(&dir.path().join("tmp"), &files, &dir.path().join("image")).is_err());
        assert!(!dir.path().join("image").exists());
    }
}
