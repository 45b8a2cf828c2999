//! Directory trees as tar archives: packed from a directory, and unpacked beneath one. Used by the guest's agent and by
//! the command line, and for captures by the engine, each of which believes nothing that the other side's archive says: whatever is in it, nothing is
//! read or written outside of the directory that was named. Knows no channel, no thread and no API.
//!
//! What is written is GNU's form, since every tar reads it and names are bytes in it. What is read is that, POSIX's and
//! the older ones. What can't be packed is named inside of the archive, in a record that others' readers pass over.

mod beneath;
mod format;
#[cfg(feature = "frozen")]
mod frozen;
mod holes;
mod pack;
mod read;
mod unpack;

pub use beneath::open_directory;
#[cfg(feature = "frozen")]
pub use frozen::{FrozenError, FrozenTakes, FrozenWriter, MANIFEST_BYTES_MAX, read_frozen};
pub use holes::{HOLE_BYTES_MIN, next_stretch};
pub use pack::{PackError, Packed, Source, pack};
pub use unpack::{Unpack, UnpackCause, UnpackError, Unpacked, unpack};

/// What was packed or unpacked so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links, and further names of files.
    pub links: u64,
    /// Bytes of contents, without holes.
    pub bytes: u64,
}

impl Counts {
    /// Entries in all.
    pub fn entries(&self) -> u64 {
        self.files + self.directories + self.links
    }
}

/// Deepest directory below the one that was named.
pub const DEPTH_MAX: usize = 256;
/// Longest name or target of a link in an archive, in bytes.
pub const NAME_BYTES_MAX: usize = 4096;
/// Stretches of data in one sparse file: where it has more, the shortest holes are taken for data.
pub const STRETCHES_MAX: usize = 4096;
/// Files with several names that are known again while packing; further ones are packed once for each name.
pub const LINKED_FILES_MAX: usize = 65_536;
/// Directories whose modes and times are set at the end of unpacking; those of further ones are set at once.
pub const DIRECTORIES_LATE_MAX: usize = 65_536;
/// Bytes that are read or written at once.
const PIECE_BYTES: usize = 256 << 10;

/// A name as it may stand in a sentence.
fn shown(name: &[u8]) -> String {
    const SHOWN_CHARS: usize = 200;
    String::from_utf8_lossy(name).chars().take(SHOWN_CHARS).map(|c| if c.is_control() { '?' } else { c }).collect()
}
