//! A capture as one file, and back: the archive of `remuda-tree` in zstd. What comes in is a stranger's: it is unpacked
//! beside the layers, held against the digests of its manifest, and put in place only when all of it is right.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use remuda_tree::{FrozenError, FrozenTakes, FrozenWriter, read_frozen};
use rustix::fs::XattrFlags;

use crate::diff::is_opaque;
use crate::dirs::{free_bytes, make};
use crate::error::{EngineError, Result, Tried};
use crate::image::{ImageFiles, MemoryImage};
use crate::layer::LayerSeal;
use crate::machine::{CapturePlaces, discard, remove_tree};

/// How hard it is compressed: as fast as a disk, nearly.
const LEVEL: i32 = 3;
/// What the manifest is called.
const MANIFEST: &str = "manifest.json";
/// Below which name the memory image is.
const MEMORY: &str = "memory/";
/// Below which name the output of carried executions is.
const EXECUTIONS: &str = "executions/";
/// Layers of a capture that is taken in.
const LAYERS_MAX: usize = 500;
/// Files of output that a capture carries.
const EXECUTION_FILES_MAX: usize = 10_000;
/// Bytes after which the disk is asked again how full it is.
const LOOK_AFTER_BYTES: u64 = 64 << 20;
/// Nesting of directories that layers are merged in.
const DEPTH_MAX: usize = 512;

/// What is exported.
#[derive(Debug, Clone)]
pub struct Export {
    /// Text that comes first.
    pub manifest: Vec<u8>,
    /// Directories of its layers, newest first.
    pub layers: Vec<PathBuf>,
    /// The directory of its memory image.
    pub memory: Option<PathBuf>,
    /// The directory with the output of what ran in it; it need not be there.
    pub executions: PathBuf,
}

/// Writes a capture as one file. The same capture gives the same bytes. Blocks for as long as that takes.
///
/// # Errors
/// `Damaged` or `Io` of what is read; the output's own errors are `Io` with the words "write the export".
pub fn export(export: &Export, out: impl Write) -> Result<()> {
    let told = |e: FrozenError| match e {
        FrozenError::Source(why) => EngineError::Damaged { what: "the snapshot".into(), why },
        FrozenError::Output(source) => EngineError::Io { what: "write the export".into(), source },
    };
    let writing = || "write the export".to_owned();
    let mut encoder = zstd::Encoder::new(out, LEVEL).tried(writing)?;
    encoder.include_checksum(true).tried(writing)?;
    let mut writer = FrozenWriter::new(encoder);
    writer.text(MANIFEST, &export.manifest).map_err(told)?;
    for (number, layer) in export.layers.iter().enumerate() {
        writer.layer(number, layer).map_err(told)?;
    }
    if let Some(memory) = &export.memory {
        for name in MemoryImage::NAMES {
            writer.file(&format!("{MEMORY}{name}"), &memory.join(name)).map_err(told)?;
        }
        for name in sorted_files(&export.executions).tried(|| format!("list {}", export.executions.display()))? {
            writer.file(&format!("{EXECUTIONS}{name}"), &export.executions.join(&name)).map_err(told)?;
        }
    }
    let encoder = writer.finish().map_err(told)?;
    encoder.finish().and_then(|mut out| out.flush()).tried(writing)
}

fn sorted_files(directory: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_file()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The manifest of an archive; nothing else of it is read.
///
/// # Errors
/// `Damaged` where it is no archive of a capture.
pub fn manifest_of(archive: impl Read) -> Result<Vec<u8>> {
    struct First(Option<Vec<u8>>);
    impl FrozenTakes for First {
        fn manifest(&mut self, text: Vec<u8>) -> std::result::Result<(), String> {
            self.0 = Some(text);
            Err(String::new())
        }

        fn layer(&mut self, _: usize) -> std::result::Result<OwnedFd, String> {
            Err(String::new())
        }

        fn file(&mut self, _: &str, _: u64) -> std::result::Result<File, String> {
            Err(String::new())
        }

        fn grows(&mut self, _: u64) -> std::result::Result<(), String> {
            Ok(())
        }
    }
    let decoder = zstd::Decoder::new(archive).tried(|| "read the archive".into())?;
    let mut first = First(None);
    let read = read_frozen(decoder, &mut first);
    first.0.ok_or_else(|| refused(read.err().unwrap_or_default()))
}

/// What is wanted of an archive whose manifest was read.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Digests of its layers' contents, newest first.
    pub layers: Vec<String>,
    /// Digests of its memory image's files, in the order of the engine; absent where only its files are wanted.
    pub memory: Option<Vec<String>>,
}

/// What was taken in.
#[derive(Debug)]
pub struct Imported {
    /// The layer, in its place, and how it is told from others.
    pub seal: LayerSeal,
    /// The memory image, in its place.
    pub memory: Option<MemoryImage>,
    /// Bytes on the disk.
    pub bytes: u64,
}

/// Judges a manifest, and says what is wanted of the rest, or why nothing is.
pub type Judge<'a> = &'a mut dyn FnMut(&[u8]) -> std::result::Result<Wanted, String>;

/// Takes a capture in: unpacks it, checks it against its manifest, makes one layer of all of its layers, and puts that and
/// its memory into these places. On failure nothing of it is left. Blocks for as long as that takes.
///
/// # Errors
/// `Damaged` with a sentence where the archive is refused, by whomever.
pub fn import(
    archive: impl Read,
    places: &CapturePlaces,
    executions: &Path,
    low_water_bytes: u64,
    judge: Judge<'_>,
) -> Result<Imported> {
    let imported = take_in(archive, places, executions, low_water_bytes, judge);
    if imported.is_err() {
        if let Err(e) = discard(places) {
            tracing::warn!("a failed import left something: {e}");
        }
        let _ = remove_tree(executions);
    }
    imported
}

fn refused(why: impl Into<String>) -> EngineError {
    EngineError::Damaged { what: "the archive".into(), why: why.into() }
}

fn take_in(
    archive: impl Read,
    places: &CapturePlaces,
    executions: &Path,
    low_water_bytes: u64,
    judge: Judge<'_>,
) -> Result<Imported> {
    make(&places.layer_tmp)?;
    let decoder = zstd::Decoder::new(archive).tried(|| "read the archive".into())?;
    let mut taking = Taking {
        places,
        executions,
        judge,
        wanted: None,
        memory: None,
        layers: 0,
        files: 0,
        since_look: LOOK_AFTER_BYTES,
        low_water_bytes,
        full: None,
    };
    let read = read_frozen(decoder, &mut taking);
    if let Some(full) = taking.full.take() {
        return Err(full);
    }
    read.map_err(refused)?;
    let (wanted, memory, count) = (taking.wanted.take(), taking.memory.take(), taking.layers);
    let wanted = wanted.ok_or_else(|| refused("it has no manifest"))?;
    if wanted.layers.len() != count || count == 0 {
        return Err(refused(format!("it has {count} layers, and its manifest says {}", wanted.layers.len())));
    }
    for (number, digest) in wanted.layers.iter().enumerate() {
        let seal = LayerSeal::of(&places.layer_tmp.join(number.to_string()))?;
        if seal.digest() != digest {
            return Err(refused(format!("its layer {number} is another than its manifest says")));
        }
    }
    // Newer ones go into older ones, until there is one.
    let last = places.layer_tmp.join((count - 1).to_string());
    for number in (0..count - 1).rev() {
        merge(&places.layer_tmp.join(number.to_string()), &last, 0)?;
    }
    let image = match (&places.memory, &wanted.memory, memory) {
        (Some((memory, memory_tmp)), Some(digests), Some(files)) => {
            let mut image = MemoryImage::publish(memory_tmp, &files, memory)?;
            image.seal()?;
            if !image.digests().eq(digests.iter().map(String::as_str)) {
                return Err(refused("its memory image is another than its manifest says"));
            }
            Some(image)
        }
        (_, Some(_), _) => return Err(refused("its memory image is missing")),
        _ => None,
    };
    fs::rename(&last, &places.layer).tried(|| format!("publish {}", places.layer.display()))?;
    remove_tree(&places.layer_tmp).tried(|| format!("remove {}", places.layer_tmp.display()))?;
    let bytes = crate::gvisor::disk_usage(&places.layer) + image.as_ref().map_or(0, MemoryImage::bytes);
    Ok(Imported { seal: LayerSeal::of(&places.layer)?, memory: image, bytes })
}

struct Taking<'a> {
    places: &'a CapturePlaces,
    executions: &'a Path,
    judge: Judge<'a>,
    wanted: Option<Wanted>,
    memory: Option<ImageFiles>,
    layers: usize,
    files: usize,
    since_look: u64,
    low_water_bytes: u64,
    /// The disk is too full: an error of its own.
    full: Option<EngineError>,
}

impl FrozenTakes for Taking<'_> {
    fn manifest(&mut self, text: Vec<u8>) -> std::result::Result<(), String> {
        self.wanted = Some((self.judge)(&text)?);
        Ok(())
    }

    fn layer(&mut self, number: usize) -> std::result::Result<OwnedFd, String> {
        if number >= LAYERS_MAX {
            return Err(format!("it has more than {LAYERS_MAX} layers"));
        }
        let place = self.places.layer_tmp.join(number.to_string());
        make(&place).map_err(|e| crate::error::chain(&e))?;
        self.layers = number + 1;
        File::open(&place).map(OwnedFd::from).map_err(|e| e.to_string())
    }

    fn file(&mut self, name: &str, _: u64) -> std::result::Result<File, String> {
        let with_memory = self.wanted.as_ref().is_some_and(|wanted| wanted.memory.is_some());
        if let Some(name) = name.strip_prefix(MEMORY) {
            let index = MemoryImage::NAMES.iter().position(|known| *known == name);
            let index = index.ok_or("it is no file of a memory image")?;
            let Some((_, memory_tmp)) = self.places.memory.as_ref().filter(|_| with_memory) else { return nowhere() };
            if self.memory.is_none() {
                self.memory = Some(ImageFiles::create(memory_tmp).map_err(|e| crate::error::chain(&e))?);
            }
            let files = self.memory.as_ref().ok_or("it is no file of a memory image")?;
            return files.to_write(index).map_err(|e| e.to_string());
        }
        let name = name.strip_prefix(EXECUTIONS).ok_or("it is no part of a capture")?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if name.is_empty() || name.len() > 128 || name.starts_with('.') || !name.chars().all(plain) {
            return Err("it is no output of an execution".into());
        }
        self.files += 1;
        if self.files > EXECUTION_FILES_MAX {
            return Err(format!("it has more than {EXECUTION_FILES_MAX} files of output"));
        }
        if !with_memory {
            return nowhere();
        }
        make(self.executions).map_err(|e| crate::error::chain(&e))?;
        File::create_new(self.executions.join(name)).map_err(|e| e.to_string())
    }

    fn grows(&mut self, bytes: u64) -> std::result::Result<(), String> {
        self.since_look += bytes;
        if self.since_look >= LOOK_AFTER_BYTES {
            self.since_look = 0;
            let place = self.places.layer_tmp.as_path();
            let free = free_bytes(place).map_err(|e| crate::error::chain(&e))?;
            if free < self.low_water_bytes {
                let needed_bytes = self.low_water_bytes;
                let place = place.display().to_string();
                self.full = Some(EngineError::DiskFull { free_bytes: free, needed_bytes, place });
                return Err("the disk is too full".into());
            }
        }
        Ok(())
    }
}

/// For what is not wanted.
fn nowhere() -> std::result::Result<File, String> {
    File::options().write(true).open("/dev/null").map_err(|e| e.to_string())
}

/// Puts a newer layer into an older one, as overlayfs would show both: what is in the newer one replaces what is in the older
/// one, and what either hides of the layers below stays hidden.
fn merge(newer: &Path, older: &Path, depth: usize) -> Result<()> {
    let trying = || format!("merge layers at {}", older.display());
    if depth > DEPTH_MAX {
        return Err(refused("its directories are nested too deeply"));
    }
    // Before anything is moved out of it, which changes its time.
    let properties = fs::symlink_metadata(newer).tried(trying)?;
    for entry in fs::read_dir(newer).tried(trying)? {
        let entry = entry.tried(trying)?;
        let (from, to) = (entry.path(), older.join(entry.file_name()));
        let is_directory = entry.file_type().tried(trying)?.is_dir();
        let there = match fs::symlink_metadata(&to) {
            Ok(meta) => Some(meta.is_dir()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(e).tried(trying),
        };
        match (is_directory, there) {
            (true, Some(true)) if !is_opaque(&from).tried(trying)? => merge(&from, &to, depth + 1)?,
            (true, Some(was_directory)) => {
                if was_directory {
                    fs::remove_dir_all(&to).tried(trying)?;
                } else {
                    fs::remove_file(&to).tried(trying)?;
                }
                // What was not there to be seen below the older one stays unseen.
                rustix::fs::lsetxattr(&from, c"trusted.overlay.opaque", b"y", XattrFlags::empty()).tried(trying)?;
                fs::rename(&from, &to).tried(trying)?;
            }
            (false, Some(true)) => {
                fs::remove_dir_all(&to).tried(trying)?;
                fs::rename(&from, &to).tried(trying)?;
            }
            (_, None) | (false, Some(false)) => fs::rename(&from, &to).tried(trying)?,
        }
    }
    set_properties(&properties, older).tried(trying)
}

/// Owner, mode and time of a directory.
fn set_properties(meta: &fs::Metadata, to: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    std::os::unix::fs::lchown(to, Some(meta.uid()), Some(meta.gid()))?;
    fs::set_permissions(to, meta.permissions())?;
    File::open(to)?.set_times(fs::FileTimes::new().set_modified(meta.modified()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::fs::{CWD, FileType, Mode};

    fn whiteout(path: &Path) {
        rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    }

    fn is_whiteout(path: &Path) -> bool {
        use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
        let meta = fs::symlink_metadata(path).unwrap();
        meta.file_type().is_char_device() && meta.rdev() == 0
    }

    #[test]
    fn two_layers_are_one_as_overlayfs_would_show_them() {
        let dir = tempfile::tempdir().unwrap();
        let (newer, older) = (dir.path().join("newer"), dir.path().join("older"));
        for path in [
            "newer/both",
            "newer/fresh",
            "newer/again",
            "newer/over-file",
            "older/both",
            "older/fresh",
            "older/under-file",
        ] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        rustix::fs::lsetxattr(newer.join("fresh"), c"trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        for (path, text) in [
            ("newer/both/new", "n"),
            ("newer/both/changed", "n"),
            ("older/both/changed", "o"),
            ("older/both/old", "o"),
            ("older/fresh/old", "o"),
            ("newer/fresh/new", "n"),
            ("older/over-file", "o"),
            ("newer/under-file", "n"),
            ("older/gone", "o"),
        ] {
            fs::write(dir.path().join(path), text).unwrap();
        }
        whiteout(&newer.join("gone"));
        whiteout(&older.join("again"));
        fs::set_permissions(newer.join("both"), fs::Permissions::from_mode(0o711)).unwrap();
        merge(&newer, &older, 0).unwrap();
        let read = |path: &str| fs::read_to_string(older.join(path)).unwrap();
        assert_eq!([read("both/new"), read("both/changed"), read("both/old")], ["n", "n", "o"]);
        assert_eq!(fs::metadata(older.join("both")).unwrap().permissions().mode() & 0o7777, 0o711);
        assert!(!older.join("fresh/old").exists() && read("fresh/new") == "n");
        assert!(is_whiteout(&older.join("gone")));
        assert_eq!(read("under-file"), "n");
        for hides in ["fresh", "again", "over-file"] {
            assert!(is_opaque(&older.join(hides)).unwrap(), "{hides}");
        }
        assert!(!is_opaque(&older.join("both")).unwrap());
    }

    #[test]
    fn a_capture_of_several_layers_comes_back_as_one_and_nothing_is_left_of_a_refused_one() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for (path, text) in [("0/a", "new"), ("1/a", "old"), ("1/b", "b")] {
            fs::create_dir_all(at(path).parent().unwrap()).unwrap();
            fs::write(at(path), text).unwrap();
        }
        let layers = vec![at("0"), at("1")];
        let digests: Vec<String> =
            layers.iter().map(|layer| LayerSeal::of(layer).unwrap().digest().to_owned()).collect();
        let of = Export { manifest: b"{}".to_vec(), layers, memory: None, executions: at("none") };
        let mut archive = Vec::new();
        export(&of, &mut archive).unwrap();
        let places = |name: &str| CapturePlaces {
            layer: at(name),
            layer_tmp: at(&format!("{name}.tmp")),
            memory: Some((at("memory"), at("memory.tmp"))),
        };
        let wanted = Wanted { layers: digests.clone(), memory: None };
        let imported = import(&archive[..], &places("good"), &at("e"), 0, &mut |_| Ok(wanted.clone())).unwrap();
        imported.seal.check_whole(&at("good")).unwrap();
        assert_eq!(fs::read_to_string(at("good/a")).unwrap(), "new");
        assert_eq!(fs::read_to_string(at("good/b")).unwrap(), "b");
        let swapped = Wanted { layers: digests.iter().rev().cloned().collect(), memory: None };
        let no_memory = Wanted { memory: Some(vec![String::new(); 3]), ..wanted.clone() };
        let cut = &archive[..archive.len() / 2];
        let judged: [(&str, &[u8], std::result::Result<Wanted, String>); 4] = [
            ("digests of others", &archive, Ok(swapped)),
            ("no memory", &archive, Ok(no_memory)),
            ("a cut one", cut, Ok(wanted.clone())),
            ("one that nobody wants", &archive, Err("it is not for here".into())),
        ];
        for (what, archive, judgement) in judged {
            let refused = import(archive, &places("bad"), &at("e"), 0, &mut |_| judgement.clone());
            assert!(matches!(refused, Err(EngineError::Damaged { .. })), "{what}: {refused:?}");
            assert!(!at("bad").exists() && !at("bad.tmp").exists() && !at("memory.tmp").exists(), "{what}");
        }
        let full = import(&archive[..], &places("bad"), &at("e"), u64::MAX, &mut |_| Ok(wanted.clone()));
        assert!(matches!(full, Err(EngineError::DiskFull { .. })), "{full:?}");
    }
}
