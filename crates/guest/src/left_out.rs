//! Names what a capture of files alone leaves out of what is there now: files in places that are kept in memory, and pipes
//! and sockets, which gVisor keeps in its own memory wherever they lie. Only looks, and within limits: where it did not
//! look is said.

use std::fs::{self, DirEntry};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use remuda_guest_proto::Reply;

use crate::errors::shown;
use crate::limits::{LEFT_OUT_ENTRIES_MAX, LEFT_OUT_MS_MAX, SENTENCES_MAX};

/// Places that live in the guest's memory.
const IN_MEMORY: [&str; 3] = ["tmp", "run", "dev/shm"];
/// What is in memory and comes anew with every machine.
const OWN: &str = "run/remuda";
/// Places where programs don't make pipes and sockets: the kernel's own, and the base image's programs.
const NOT_LOOKED_AT: [&str; 10] = ["proc", "sys", "dev", "usr", "bin", "sbin", "lib", "lib64", "run", "tmp"];

/// How much may still be looked at.
struct Patience {
    entries: usize,
    until: Instant,
}

impl Patience {
    fn lasts(&mut self) -> bool {
        self.entries = self.entries.saturating_sub(1);
        self.entries > 0 && Instant::now() < self.until
    }
}

/// A sentence for each thing, below `root`.
pub fn sentences(root: &Path) -> Reply {
    let mut patience =
        Patience { entries: LEFT_OUT_ENTRIES_MAX, until: Instant::now() + Duration::from_millis(LEFT_OUT_MS_MAX) };
    let mut sentences: Vec<String> =
        IN_MEMORY.iter().filter_map(|place| in_memory(root, place, &mut patience)).collect();
    let mut special = Vec::new();
    let mut whole = true;
    let tops = fs::read_dir(root).into_iter().flatten().flatten();
    let tops = tops.filter(|top| !NOT_LOOKED_AT.iter().any(|name| top.file_name().as_bytes() == name.as_bytes()));
    for top in tops {
        whole &= walk(top, &mut patience, |entry| {
            let Ok(kind) = entry.file_type() else { return };
            let word = if kind.is_fifo() {
                "the named pipe"
            } else if kind.is_socket() {
                "the socket"
            } else {
                return;
            };
            special.push(format!("{word} {}", shown(&inside(root, &entry.path()))));
        });
    }
    special.sort();
    let more = special.len().saturating_sub(SENTENCES_MAX);
    sentences.extend(special.into_iter().take(SENTENCES_MAX));
    if more > 0 {
        sentences.push(format!("{more} more named pipes and sockets"));
    }
    if !whole {
        sentences.push("named pipes and sockets, if there are any in what was too much to look through".to_owned());
    }
    Reply::Sentences { sentences }
}

fn in_memory(root: &Path, place: &str, patience: &mut Patience) -> Option<String> {
    let (mut files, mut bytes, mut whole) = (0_u64, 0_u64, true);
    let own = root.join(OWN);
    for top in fs::read_dir(root.join(place)).into_iter().flatten().flatten().filter(|top| top.path() != own) {
        whole &= walk(top, patience, |entry| {
            let Ok(kind) = entry.file_type() else { return };
            if !kind.is_dir() {
                files += 1;
                bytes += entry.metadata().map_or(0, |meta| if kind.is_file() { meta.blocks() * 512 } else { 0 });
            }
        });
    }
    let least = if whole { "" } else { "at least " };
    let names = if files == 1 { "file" } else { "files" };
    (files > 0).then(|| format!("/{place}, which is kept in memory: {least}{files} {names}, {bytes} bytes"))
}

/// Looks at an entry and all that is below it, following no link. Returns whether that was all.
fn walk(top: DirEntry, patience: &mut Patience, mut look: impl FnMut(&DirEntry)) -> bool {
    let mut below = vec![top];
    while let Some(entry) = below.pop() {
        if !patience.lasts() {
            return false;
        }
        look(&entry);
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // What can't be listed, or is gone by now, holds nothing that could be named.
            below.extend(fs::read_dir(entry.path()).into_iter().flatten().flatten().take(LEFT_OUT_ENTRIES_MAX));
        }
    }
    true
}

/// The path as the guest names it.
fn inside(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).unwrap_or(path);
    // On one line, whatever is in a name.
    format!("/{}", below.display()).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(root: &Path) -> Vec<String> {
        let Reply::Sentences { sentences } = sentences(root) else { panic!("not sentences") };
        sentences
    }

    #[test]
    fn what_is_in_memory_and_what_is_no_file_is_named_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for place in ["tmp/deep", "run/remuda", "dev/shm", "workspace/a", "usr"] {
            fs::create_dir_all(root.join(place)).unwrap();
        }
        for file in ["run/remuda/identity.json", "workspace/kept"] {
            fs::write(root.join(file), "x").unwrap();
        }
        assert_eq!(told(root), Vec::<String>::new());
        fs::write(root.join("tmp/deep/lost"), vec![1; 4096]).unwrap();
        let fifo = root.join("workspace/a/pipe\n");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("workspace/s")).unwrap();
        let told = told(root);
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(told[0], "/tmp, which is kept in memory: 1 file, 4096 bytes");
        assert!(told[1].starts_with("the named pipe /workspace/a/pipe") && !told[1].contains('\n'), "{told:?}");
        assert_eq!(told[2], "the socket /workspace/s");
    }

    #[test]
    fn what_is_too_much_to_look_at_is_said() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        let top = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap();
        let mut patience = Patience { entries: 2, until: Instant::now() + Duration::from_secs(60) };
        assert!(!walk(top, &mut patience, |_| {}));
    }
}
