//! A look at the files with which a machine on certain layers would begin, as its kernel would show them. Nothing is
//! written, no process sees it but this one, and nothing of it is left when it is dropped or this process is killed: the
//! mount is made in a namespace of one thread, and only its descriptor is kept.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

use crate::dirs::Dirs;
use crate::error::{Result, Tried};

/// The files, read-only.
#[derive(Debug)]
pub(crate) struct View {
    root: OwnedFd,
}

impl View {
    /// `layers` are directory names under the layers directory, newest first; agent and base image lie below them.
    pub(crate) fn of(dirs: &Dirs, layers: &[String], (agent, base): &(PathBuf, PathBuf)) -> Result<View> {
        let below = [agent, base].map(|path| path.display().to_string());
        let lower: Vec<String> = layers.iter().cloned().chain(below).collect();
        let options = format!("lowerdir={},index=off,redirect_dir=nofollow,metacopy=off", lower.join(":"));
        let place = dirs.layers();
        let mounting = move || -> std::io::Result<OwnedFd> {
            // SAFETY: only this thread gets a working directory and mounts of its own; no descriptor table is taken apart.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS | UnshareFlags::NEWNS)? };
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            rustix::mount::mount_change("/", private)?;
            // Lower directories are named relative to it: a deep chain fits into the one page that options may take.
            rustix::process::chdir(&place)?;
            let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
            rustix::mount::mount("overlay", &place, "overlay", flags, CString::new(options)?.as_c_str())?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok(rustix::fs::openat(CWD, &place, flags, Mode::empty())?)
        };
        let root = std::thread::spawn(mounting)
            .join()
            .map_err(|_| std::io::Error::other("the mounting thread panicked"))
            .flatten()
            .tried(|| "look at the files of a snapshot".into())?;
        Ok(View { root })
    }

    /// What is at a path, which is relative; no link is followed, also not on the way. `None` where nothing is.
    pub(crate) fn look(&self, path: &[u8]) -> Result<Option<Found>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match self.open(path, flags).and_then(|fd| Ok((rustix::fs::fstat(&fd)?, fd))) {
            Ok((stat, fd)) => Ok(Some(Found { stat, fd })),
            // A file or a link where a directory would have to be: there is nothing below it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(e) => Err(e).tried(|| format!("look at {}", String::from_utf8_lossy(path).escape_debug())),
        }
    }

    /// Opens what is at a path.
    pub(crate) fn open(&self, path: &[u8], flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b".".as_slice() } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(self.root.as_fd(), path, flags, Mode::empty(), resolve)
    }
}

/// Something in a view.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) stat: Stat,
    fd: OwnedFd,
}

impl Found {
    /// What leads to it; nothing is read through it.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
