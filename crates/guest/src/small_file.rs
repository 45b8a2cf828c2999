//! Reads the few small files of the guest that the agent itself wants. Whoever owns the guest may have put anything in
//! their place: nothing here waits, and nothing reads without a limit.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use crate::limits::CONFIGURATION_BYTES_MAX;

/// The content of a regular file, as much of it as the limit allows.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let path = path.as_ref();
    let regular = |meta: io::Result<std::fs::Metadata>| match meta?.is_file() {
        true => Ok(()),
        false => Err(io::Error::other("it is no regular file")),
    };
    // Looked at first, since opening something else may do something; and again, since it may have been replaced.
    regular(std::fs::metadata(path))?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    regular(file.metadata())?;
    let mut bytes = Vec::new();
    file.take(CONFIGURATION_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_read_and_nothing_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
        assert_eq!(read(path("file")).unwrap(), b"text");
        for other in [path("fifo"), path("missing"), dir.path().to_owned(), "/dev/zero".into()] {
            assert!(read(&other).is_err(), "{other:?}");
        }
    }
}
