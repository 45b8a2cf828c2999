//! The way to a name beneath a directory, one component after another, by descriptors and without following a link: what
//! an archive names never lies outside, whatever links are or come on the way.

use std::collections::VecDeque;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use crate::{DEPTH_MAX, NAME_BYTES_MAX};

/// The components of a name, none of which leads up; empty for the directory itself.
pub(crate) fn components(name: &[u8]) -> Result<VecDeque<&[u8]>, &'static str> {
    if name.starts_with(b"/") {
        return Err("its name is absolute");
    }
    if name.len() > NAME_BYTES_MAX {
        return Err("its name is too long");
    }
    if name.contains(&0) {
        return Err("its name holds a NUL byte");
    }
    let parts: VecDeque<&[u8]> = name.split(|b| *b == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
    if parts.contains(&b"..".as_slice()) {
        return Err("its name leads out by ..");
    }
    if parts.len() > DEPTH_MAX {
        return Err("it lies too deep");
    }
    Ok(parts)
}

/// Opens a directory in another one, and nothing else: never what a link of that name leads to.
///
/// In two steps, since a kernel under which this must hold doesn't keep to it in one: gVisor follows a link at the end for
/// `O_DIRECTORY | O_NOFOLLOW`, unless with `O_PATH`.
///
/// # Errors
/// `NOTDIR` for a link too.
pub fn open_directory(at: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // A link is told as a loop by some kernels, and as no directory by others.
    let place = openat(at, name, place, Mode::empty())
        .map_err(|errno| if errno == Errno::LOOP { Errno::NOTDIR } else { errno })?;
    openat(&place, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// A directory, and the way that was taken last.
pub(crate) struct Beneath {
    root: OwnedFd,
    way: Vec<(Vec<u8>, OwnedFd)>,
}

impl Beneath {
    pub(crate) fn new(root: OwnedFd) -> Beneath {
        Beneath { root, way: Vec::new() }
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The directory at the end of these components; missing ones are made if `make`.
    pub(crate) fn directory(&mut self, parts: &VecDeque<&[u8]>, make: bool) -> Result<BorrowedFd<'_>, Errno> {
        let same = self.way.iter().zip(parts).take_while(|((name, _), part)| name.as_slice() == **part).count();
        self.way.truncate(same);
        for part in parts.iter().skip(same) {
            let above = self.way.last().map_or(self.root.as_fd(), |(_, fd)| fd.as_fd());
            let opened = match open_directory(above, part) {
                Err(Errno::NOENT) if make => {
                    match mkdirat(above, *part, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno),
                    }
                    open_directory(above, part)
                }
                other => other,
            };
            self.way.push((part.to_vec(), opened?));
        }
        Ok(self.way.last().map_or(self.root.as_fd(), |(_, fd)| fd.as_fd()))
    }
}
