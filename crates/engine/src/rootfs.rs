//! Root file systems: the base image, the agent and frozen layers below, a private upper above.

use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::thread::UnshareFlags;

use crate::dirs::{Dirs, SandboxDirs};
use crate::error::{EngineError, Result, Tried};

/// Mounts a sandbox's root. `layers` are directory names under the layers directory, newest first; agent and base image lie below
/// them.
///
/// Lower directories are named relative to the layers directory, so that a deep chain fits into the one page that
/// mount options may take; that needs a thread with a working directory of its own.
pub(crate) fn mount(
    dirs: &Dirs,
    sandbox: &SandboxDirs,
    layers: &[String],
    (agent_dir, base_dir): &(PathBuf, PathBuf),
) -> Result<()> {
    let trying = || format!("mount the root file system of {}", sandbox.root.display());
    let paths = [&sandbox.upper, &sandbox.work, agent_dir, base_dir];
    if let Some(path) = paths.iter().find(|p| has_separator(p)) {
        return Err(EngineError::NotReady {
            what: format!(
                "{} contains ':', ',' or '\\', which overlayfs cannot take; use another path",
                path.display()
            ),
        });
    }
    let lower: Vec<String> = layers.iter().cloned().chain([display(agent_dir), display(base_dir)]).collect();
    let options = format!(
        "lowerdir={},upperdir={},workdir={},index=off,redirect_dir=nofollow,metacopy=off",
        lower.join(":"),
        display(&sandbox.upper),
        display(&sandbox.work),
    );
    let (from, target) = (dirs.layers(), sandbox.mount.clone());
    let mounting = move || -> std::io::Result<()> {
        // SAFETY: only this thread's working directory is taken apart from the others'; no descriptor table is.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS)? };
        rustix::process::chdir(&from)?;
        let options = std::ffi::CString::new(options)?;
        rustix::mount::mount("overlay", &target, "overlay", MountFlags::NODEV, options.as_c_str())?;
        Ok(())
    };
    std::thread::spawn(mounting)
        .join()
        .map_err(|_| std::io::Error::other("the mounting thread panicked"))
        .flatten()
        .tried(trying)
}

/// Unmounts what is mounted at `path`, if anything, also while somebody still has it open.
pub(crate) fn unmount(path: &Path) -> Result<()> {
    use rustix::io::Errno;
    loop {
        match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // Pins may be stacked by an interrupted start; go on until nothing is left.
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e).tried(|| format!("unmount {}", path.display())),
        }
    }
}

fn has_separator(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().iter().any(|b| matches!(b, b':' | b',' | b'\\'))
}

fn display(path: &Path) -> String {
    path.display().to_string()
}
