//! Starts programs inside a network namespace without a shell or `ip netns exec` in between, so that the peer isn't
//! slowed by its surroundings. It must do nothing between fork and exec but system calls.

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::mount::{MountFlags, mount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// The program will run in this network namespace.
pub(crate) fn enter_network(command: &mut Command, namespace: BorrowedFd<'_>) {
    enter(command, namespace, false);
}

/// The program will run in this network namespace and find `/proc/sys/net/core` empty: runsc refuses
/// `--network=sandbox` where it sees `rmem_default` there, since it takes that for the root namespace.
pub(crate) fn enter_network_for_runsc(command: &mut Command, namespace: BorrowedFd<'_>) {
    enter(command, namespace, true);
}

fn enter(command: &mut Command, namespace: BorrowedFd<'_>, hide_core: bool) {
    // The descriptor is inherited by number: fork copies the table, and exec closes it only after the hook has run.
    let raw = namespace.as_raw_fd();
    let hook = move || {
        // SAFETY: the caller's borrow of the namespace outlives the spawn, so the number names an open descriptor in
        // the child, which has a copy of the parent's table.
        let namespace = unsafe { BorrowedFd::borrow_raw(raw) };
        move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
        if hide_core {
            // SAFETY: the forked child has one thread; only its mount namespace changes.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
            mount(c"none", c"/proc/sys/net/core", c"tmpfs", MountFlags::RDONLY, None)?;
        }
        Ok(())
    };
    // SAFETY: the hook makes system calls only; it neither allocates nor takes locks.
    unsafe { command.pre_exec(hook) };
}
