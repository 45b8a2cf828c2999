//! Trees there and back, also by way of GNU tar, and archives that mean harm.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use remuda_tree::{Counts, Source, Unpack, UnpackCause, UnpackError, Unpacked, pack, unpack};

fn packed(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack(Source::open(path).unwrap(), &mut bytes, &mut |_, _| {}).unwrap();
    bytes
}

fn put(bytes: &[u8], into: &Path, owners: bool) -> Result<Unpacked, UnpackError> {
    let directory = File::open(into).unwrap();
    unpack(bytes, directory.into(), Unpack { owners, itself: true }, &mut |_, _| {})
}

/// What a tree is: kind, mode, time, owner, size, target or contents, and which names are one file.
fn seen(root: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let what = if meta.is_dir() {
            waiting.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            "directory".to_owned()
        } else if meta.is_symlink() {
            format!("link to {:?}", fs::read_link(&path).unwrap())
        } else {
            let bytes = fs::read(&path).unwrap();
            let sum = bytes.iter().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
            format!("{} bytes {sum:x}, {} names", bytes.len(), meta.nlink())
        };
        let mode = if meta.is_symlink() { 0 } else { meta.mode() & 0o7777 };
        all.insert(name, format!("{what} {mode:o} {} {}:{}", meta.mtime(), meta.uid(), meta.gid()));
    }
    all
}

fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("a/b/empty")).unwrap();
    fs::write(at("a/small"), "small").unwrap();
    fs::write(at("a/nothing"), "").unwrap();
    fs::write(at("a/block"), vec![7; 512]).unwrap();
    fs::write(at("a/b/big"), (0..3_000_001u32).map(|i| (i % 251) as u8).collect::<Vec<_>>()).unwrap();
    fs::hard_link(at("a/small"), at("a/b/again")).unwrap();
    symlink("small", at("a/link")).unwrap();
    symlink("/etc/passwd", at("a/absolute")).unwrap();
    symlink("../../..", at("a/up")).unwrap();
    let long = "n".repeat(120);
    fs::create_dir_all(at(&format!("{long}/{long}"))).unwrap();
    fs::write(at(&format!("{long}/{long}/{long}")), "deep").unwrap();
    symlink("t".repeat(300), at("long-target")).unwrap();
    fs::write(at("größe"), "ü").unwrap();
    fs::set_permissions(at("a/small"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(at("a/b/empty"), fs::Permissions::from_mode(0o500)).unwrap();
    fs::set_permissions(at("a/b"), fs::Permissions::from_mode(0o555)).unwrap();
    std::os::unix::fs::chown(at("a/nothing"), Some(1234), Some(4321)).unwrap();
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for name in ["a/block", "a/b", "a"] {
        File::open(at(name)).unwrap().set_modified(old).unwrap();
    }
    dir
}

#[test]
fn a_tree_comes_back_as_it_was() {
    let from = tree();
    let bytes = packed(from.path());
    let to = tempfile::tempdir().unwrap();
    let done = put(&bytes, to.path(), true).unwrap();
    assert_eq!(seen(from.path()), seen(to.path()));
    assert_eq!((done.counts.files, done.counts.links, done.skipped.len()), (6, 5, 0), "{:?}", done.counts);
    // Once more over itself, and without owners.
    put(&bytes, to.path(), true).unwrap();
    assert_eq!(seen(from.path()), seen(to.path()));
    put(&bytes, to.path(), false).unwrap();
    assert_eq!(
        fs::metadata(to.path().join("a/small")).unwrap().mode() & 0o7777,
        0o751,
        "a set-id bit of somebody else's"
    );
}

#[test]
fn gnu_tar_reads_what_is_written_and_the_other_way_round() {
    let from = tree();
    let sparse = File::create(from.path().join("sparse")).unwrap();
    sparse.set_len(50 << 20).unwrap();
    for n in 0..30 {
        sparse.write_all_at(b"data", n << 20).unwrap();
    }
    let tar = |arguments: &[&str], at: &Path| {
        let output = Command::new("tar").args(arguments).current_dir(at).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let bytes = packed(from.path());
    assert!(bytes.len() < 10 << 20, "{}", bytes.len());
    let (archive, to) = (from.path().with_extension("tar"), tempfile::tempdir().unwrap());
    fs::write(&archive, &bytes).unwrap();
    tar(&["xpf", archive.to_str().unwrap(), "--numeric-owner"], to.path());
    fs::remove_file(&archive).unwrap();
    assert_eq!(seen(from.path()), seen(to.path()));
    for form in ["gnu", "pax", "ustar"] {
        // What the oldest form can't hold is left out there.
        let without: &[&str] = if form == "ustar" { &["--exclude=nnn*", "--exclude=long-target"] } else { &[] };
        let sparse: &[&str] = if form == "gnu" { &["--sparse"] } else { &[] };
        let all = [&["cf", "-", "--format", form][..], sparse, without, &["."]].concat();
        let to = tempfile::tempdir().unwrap();
        put(&tar(&all, from.path()), to.path(), true).unwrap();
        let mut expected = seen(from.path());
        if form == "ustar" {
            expected.retain(|name, _| !name.starts_with("nnn") && name != "long-target");
        }
        assert_eq!(expected, seen(to.path()), "{form}");
        if form == "gnu" {
            let stored = fs::metadata(to.path().join("sparse")).unwrap().blocks() * 512;
            assert!(stored < 10 << 20, "{stored} bytes are stored");
        }
    }
    let failed = put(&tar(&["cf", "-", "--format", "pax", "--sparse", "."], from.path()), to.path(), true).unwrap_err();
    assert!(matches!(&failed.cause, UnpackCause::Archive(why) if why.contains("--format=gnu")), "{failed:?}");
}

#[test]
fn holes_are_neither_sent_nor_stored() {
    let dir = tempfile::tempdir().unwrap();
    for (name, size, data) in [
        ("end", 1u64 << 28, vec![0u64]),
        ("hole", 1 << 28, vec![]),
        ("many", 200 << 20, (0..5000).map(|n| n * 41_000).collect()),
    ] {
        let path = dir.path().join(name);
        let file = File::create(&path).unwrap();
        file.set_len(size).unwrap();
        for offset in &data {
            file.write_all_at(b"x", *offset).unwrap();
        }
        if name == "many" {
            continue;
        }
        let (bytes, to) = (packed(&path), tempfile::tempdir().unwrap());
        assert!(bytes.len() < 1 << 20, "{name}: {}", bytes.len());
        put(&bytes, to.path(), true).unwrap();
        let meta = fs::metadata(to.path().join(name)).unwrap();
        assert!(meta.len() == size && meta.blocks() < 2048, "{name}: {} {}", meta.len(), meta.blocks());
    }
    // More stretches than a map has: it is whole all the same.
    let to = tempfile::tempdir().unwrap();
    put(&packed(&dir.path().join("many")), to.path(), true).unwrap();
    assert!(fs::read(dir.path().join("many")).unwrap() == fs::read(to.path().join("many")).unwrap());
}

#[test]
fn what_cannot_be_packed_is_named() {
    let dir = tempfile::tempdir().unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    let to = tempfile::tempdir().unwrap();
    let done = put(&packed(dir.path()), to.path(), true).unwrap();
    let mut skipped = done.skipped;
    skipped.sort();
    assert_eq!(skipped, ["fifo: it is a FIFO", "socket: it is a socket"]);
    assert_eq!(done.counts.files, 1);
    assert!(Source::open(&dir.path().join("fifo")).is_err() && Source::open(&dir.path().join("none")).is_err());
}

/// A plain header with this name, kind and link.
fn header(name: &str, kind: u8, link: &str, size: usize) -> Vec<u8> {
    let mut block = vec![0u8; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(b"0000644");
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[156] = kind;
    block[157..157 + link.len()].copy_from_slice(link.as_bytes());
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

fn file(name: &str, text: &str) -> Vec<u8> {
    let mut bytes = header(name, b'0', "", text.len());
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn archive(parts: &[Vec<u8>]) -> Vec<u8> {
    [parts.concat(), vec![0; 1024]].concat()
}

#[test]
fn nothing_leads_out_of_the_directory() {
    let outer = tempfile::tempdir().unwrap();
    let (inside, outside) = (outer.path().join("inside"), outer.path().join("outside"));
    fs::create_dir(&inside).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    let out = outside.to_str().unwrap();
    symlink(out, inside.join("there")).unwrap();
    fs::create_dir(inside.join("d")).unwrap();
    for (what, parts) in [
        ("up", vec![file("../outside/x", "bad")]),
        ("up within", vec![file("d/../../outside/x", "bad")]),
        ("absolute", vec![file(&format!("{out}/x"), "bad")]),
        ("by a link that is there", vec![file("there/x", "bad")]),
        ("by a link of its own", vec![header("l", b'2', out, 0), file("l/x", "bad")]),
        ("by two links", vec![header("m", b'2', "..", 0), header("l", b'2', "m/outside", 0), file("l/x", "bad")]),
        ("a directory over a link", vec![header("there", b'5', "", 0)]),
        ("another name of what is outside", vec![header("h", b'1', "../outside/secret", 0)]),
        ("another name by a link", vec![header("h", b'1', "there/secret", 0)]),
        ("an absolute other name", vec![header("h", b'1', &format!("{out}/secret"), 0)]),
        ("a device", vec![header("dev", b'3', "", 0)]),
        ("a FIFO", vec![header("fifo", b'6', "", 0)]),
        ("a file in a directory's place", vec![file("d", "bad")]),
        ("itself", vec![file("f", "x"), header("f", b'1', "f", 0)]),
    ] {
        let failed = put(&archive(&parts), &inside, true).expect_err(what);
        assert!(matches!(failed.cause, UnpackCause::Archive(_)) && failed.entry.is_some(), "{what}: {failed:?}");
        assert_eq!(failed.done.entries(), parts.len() as u64 - 1, "{what}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "{what}");
        let secret = fs::metadata(outside.join("secret")).unwrap();
        assert_eq!((fs::read(outside.join("secret")).unwrap(), secret.nlink()), (b"secret".to_vec(), 1), "{what}");
    }
    // A file over a link replaces the link; what it led to is left alone.
    put(&archive(&[file("there", "mine")]), &inside, true).unwrap();
    assert!(fs::symlink_metadata(inside.join("there")).unwrap().is_file());
    assert_eq!(fs::read(outside.join("secret")).unwrap(), b"secret");
}

#[test]
fn what_is_no_archive_or_not_whole_is_told() {
    let to = tempfile::tempdir().unwrap();
    let whole = archive(&[file("a", "some text"), file("b", "more")]);
    for cut in [0, 100, 512, 600, 1024, 1500, 2048] {
        let failed = put(&whole[..cut], to.path(), true).unwrap_err();
        assert!(matches!(failed.cause, UnpackCause::Archive(_)), "{cut}: {failed:?}");
    }
    assert!(put(&[7; 4096], to.path(), true).is_err());
    let mut long = header("././@LongLink", b'L', "", 1 << 30);
    long.resize(4096, b'n');
    assert!(put(&long, to.path(), true).unwrap_err().to_text().contains("longer than"));
}

trait ToText {
    fn to_text(&self) -> String;
}

impl ToText for UnpackError {
    fn to_text(&self) -> String {
        self.cause.to_string()
    }
}

fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![Just(".."), Just("."), Just(""), Just("a"), Just("b"), Just("l"), Just("outside")];
    let name = prop::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"));
    let kind = prop::sample::select(b"0123567LKxgSDz".to_vec());
    let one = (name.clone(), kind, name, 0usize..2000, any::<u8>()).prop_map(|(name, kind, link, size, fill)| {
        let mut bytes = header(&name, kind, &link, size);
        bytes.resize(512 + size.next_multiple_of(512), fill);
        bytes
    });
    (prop::collection::vec(one, 0..12), prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3))
        .prop_map(|(parts, damage)| {
            let mut bytes = archive(&parts);
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes
        })
}

/// As many as the run is told, which in a soak are very many.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn no_archive_panics_or_escapes(bytes in hostile()) {
        let outer = tempfile::tempdir().unwrap();
        let (inside, outside) = (outer.path().join("inside"), outer.path().join("outside"));
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink("../outside", inside.join("outside")).unwrap();
        symlink("..", inside.join("l")).unwrap();
        let _ = put(&bytes, &inside, true);
        prop_assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        prop_assert_eq!(fs::read_dir(outer.path()).unwrap().count(), 2);
    }

    #[test]
    fn noise_is_no_archive(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let to = tempfile::tempdir().unwrap();
        if let Ok(done) = put(&bytes, to.path(), false) {
            prop_assert_eq!(done.counts, Counts::default());
        }
    }
}
