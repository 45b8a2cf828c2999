//! Captures as archives: a manifest first, then frozen layers with all that overlayfs makes of them, then further files, and
//! at the end a digest of all that came before. Any tar shows what is in one; only what is written here is read here.
//!
//! ```text
//!  manifest.json │ layers/0/… │ layers/1/… │ further files │ digest
//! ```
//!
//! Beside what a tar says anyway, entries of layers have times to the nanosecond (`mtime`), the attributes that overlayfs
//! and file capabilities need (`SCHILY.xattr.…`, from a short list), and whiteouts as the character device 0:0.

mod pack;
mod unpack;

pub use pack::{FrozenError, FrozenWriter};
pub use unpack::{FrozenTakes, read_frozen};

/// What is first.
pub(crate) const MANIFEST: &str = "manifest.json";
/// What is last.
pub(crate) const DIGEST: &str = "digest";
/// Where layers are: a number, newest first, and the path below it.
pub(crate) const LAYERS: &str = "layers/";
/// Longest manifest, in bytes.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Names of attributes as extended headers have them.
pub(crate) const ATTRIBUTE: &[u8] = b"SCHILY.xattr.";
/// What hides a directory of the layers below.
pub(crate) const OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// What a program may do whoever runs it.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
    use std::path::{Path, PathBuf};

    use rustix::fs::{CWD, FileType, Mode, XattrFlags};

    use super::*;

    struct Into {
        root: PathBuf,
        manifest: Vec<u8>,
        files: Vec<String>,
    }

    impl FrozenTakes for Into {
        fn manifest(&mut self, text: Vec<u8>) -> Result<(), String> {
            self.manifest = text;
            Ok(())
        }

        fn layer(&mut self, number: usize) -> Result<OwnedFd, String> {
            let place = self.root.join(number.to_string());
            fs::create_dir(&place).map_err(|e| e.to_string())?;
            File::open(place).map(OwnedFd::from).map_err(|e| e.to_string())
        }

        fn file(&mut self, name: &str, _: u64) -> Result<File, String> {
            if !name.starts_with("memory/") {
                return Err("nobody wants it".into());
            }
            self.files.push(name.to_owned());
            File::create_new(self.root.join(name.replace('/', "_"))).map_err(|e| e.to_string())
        }

        fn grows(&mut self, _: u64) -> Result<(), String> {
            Ok(())
        }
    }

    fn into(root: &Path) -> Into {
        Into { root: root.to_owned(), manifest: Vec::new(), files: Vec::new() }
    }

    /// All that counts of a tree, one line an entry.
    fn listing(root: &Path) -> Vec<String> {
        let mut lines = Vec::new();
        let mut ways = vec![PathBuf::new()];
        while let Some(way) = ways.pop() {
            let path = root.join(&way);
            let meta = fs::symlink_metadata(&path).unwrap();
            let kind = meta.file_type();
            let mut value = [0; 64];
            let opaque = rustix::fs::lgetxattr(&path, c"trusted.overlay.opaque", &mut value[..]).unwrap_or(0);
            let contents = if kind.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            let target = fs::read_link(&path).unwrap_or_default();
            // What is stored depends on the file system; that a hole is one does not.
            let hole = kind.is_file() && meta.blocks() * 512 < meta.size() / 2;
            let nlink = if kind.is_dir() { 0 } else { meta.nlink() };
            lines.push(format!(
                "{way:?} {:o} {}:{} {} {}.{} {} {nlink} {target:?} {opaque} {hole} {contents:?}",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.size() * u64::from(!kind.is_dir()),
                meta.mtime(),
                meta.mtime_nsec(),
                meta.rdev(),
            ));
            if kind.is_dir() {
                ways.extend(fs::read_dir(&path).unwrap().map(|entry| way.join(entry.unwrap().file_name())));
            }
        }
        lines.sort();
        lines
    }

    fn odd_tree(root: &Path) {
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/text"), "hello").unwrap();
        fs::set_permissions(root.join("a/text"), fs::Permissions::from_mode(0o4755)).unwrap();
        fs::hard_link(root.join("a/text"), root.join("a/b/same")).unwrap();
        symlink("/etc/passwd", root.join("a/link")).unwrap();
        std::os::unix::fs::lchown(root.join("a/link"), Some(1000), Some(7)).unwrap();
        File::create(root.join("sparse")).unwrap().write_at(b"end", 8 << 20).unwrap();
        rustix::fs::mknodat(CWD, root.join("gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        let opaque = File::open(root.join("a/b")).unwrap();
        rustix::fs::fsetxattr(&opaque, c"trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        fs::write(root.join("new\nline \u{1F40E}"), "").unwrap();
        fs::write(root.join("x".repeat(255)), "long").unwrap();
        fs::set_permissions(root.join("a"), fs::Permissions::from_mode(0o1731)).unwrap();
    }

    fn packed(root: &Path) -> Vec<u8> {
        let mut writer = FrozenWriter::new(Vec::new());
        writer.text(MANIFEST, b"{}").unwrap();
        for number in 0..2 {
            writer.layer(number, &root.join(number.to_string())).unwrap();
        }
        writer.text("memory/pages.img", &[7; 10_000]).unwrap();
        writer.finish().unwrap()
    }

    fn both(root: &Path) {
        for number in ["0", "1"] {
            fs::create_dir(root.join(number)).unwrap();
            odd_tree(&root.join(number));
        }
    }

    #[test]
    fn a_capture_comes_back_as_it_was_and_is_the_same_each_time() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        both(from.path());
        let archive = packed(from.path());
        assert!(archive == packed(from.path()), "whoever goes on reading finds what was there before");
        let mut takes = into(to.path());
        read_frozen(&archive[..], &mut takes).unwrap();
        assert_eq!(
            (takes.manifest.as_slice(), takes.files.as_slice()),
            (&b"{}"[..], &["memory/pages.img".to_owned()][..])
        );
        for number in ["0", "1"] {
            assert_eq!(listing(&to.path().join(number)), listing(&from.path().join(number)));
        }
        assert_eq!(fs::read(to.path().join("memory_pages.img")).unwrap(), [7; 10_000]);
    }

    #[test]
    fn what_is_cut_or_changed_anywhere_is_refused() {
        let from = tempfile::tempdir().unwrap();
        both(from.path());
        let archive = packed(from.path());
        for at in (0..archive.len() - 1024).step_by(1021) {
            let to = tempfile::tempdir().unwrap();
            assert!(read_frozen(&archive[..at], &mut into(to.path())).is_err(), "cut at {at}");
            let to = tempfile::tempdir().unwrap();
            let mut changed = archive.clone();
            changed[at] ^= 1;
            assert!(read_frozen(&changed[..], &mut into(to.path())).is_err(), "changed at {at}");
        }
    }

    /// An archive with one entry of a layer, whatever it is, and a digest that is right.
    fn with_entry(name: &[u8], kind: u8, link: &[u8], records: &[(&[u8], &[u8])]) -> Vec<u8> {
        let mut writer = FrozenWriter::new(Vec::new());
        writer.text(MANIFEST, b"{}").unwrap();
        writer.raw(name, kind, link, records).unwrap();
        writer.finish().unwrap()
    }

    /// What it is, and the entry: name, kind, target and records.
    type Case<'a> = (&'a str, &'a [u8], u8, &'a [u8], Vec<(&'a [u8], &'a [u8])>);

    #[test]
    fn nothing_leads_out_and_nothing_comes_that_a_layer_has_not() {
        let attribute = |name: &[u8]| [ATTRIBUTE, name].concat();
        let (opaque, user) = (attribute(OPAQUE), attribute(b"user.x"));
        let all: [Case<'_>; 12] = [
            ("up", b"layers/0/../x", b'0', b"", vec![]),
            ("absolute", b"/layers/0/x", b'0', b"", vec![]),
            ("no layer's", b"layers/x/y", b'0', b"", vec![]),
            ("of nothing", b"etc/passwd", b'0', b"", vec![]),
            ("a FIFO", b"layers/0/x", b'6', b"", vec![]),
            ("a block device", b"layers/0/x", b'4', b"", vec![]),
            ("a link to another layer", b"layers/0/x", b'1', b"layers/1/y", vec![]),
            ("a link out", b"layers/0/x", b'1', b"../../etc/passwd", vec![]),
            ("an attribute that is not listed", b"layers/0/x", b'0', b"", vec![(&user, b"1")]),
            ("a file that hides", b"layers/0/x", b'0', b"", vec![(&opaque, b"y")]),
            ("another mark", b"layers/0/x/", b'5', b"", vec![(&opaque, b"x")]),
            ("a second manifest", b"manifest.json", b'0', b"", vec![]),
        ];
        for (what, name, kind, link, records) in all {
            let to = tempfile::tempdir().unwrap();
            let result = read_frozen(&with_entry(name, kind, link, &records)[..], &mut into(to.path()));
            assert!(result.is_err(), "{what}");
        }
        let to = tempfile::tempdir().unwrap();
        read_frozen(&with_entry(b"layers/0/x/", b'5', b"", &[(&opaque, b"y")])[..], &mut into(to.path())).unwrap();
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let (outside, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut writer = FrozenWriter::new(Vec::new());
        writer.text(MANIFEST, b"{}").unwrap();
        writer.raw(b"layers/0/way", b'2', outside.path().as_os_str().as_encoded_bytes(), &[]).unwrap();
        writer.raw(b"layers/0/way/file", b'0', b"", &[]).unwrap();
        let archive = writer.finish().unwrap();
        assert!(read_frozen(&archive[..], &mut into(to.path())).is_err());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
