//! A disk that is full: what runs goes on, what it says waits within a window, and nothing is lost.

use std::io::Write;

use remuda_types::ErrorCode;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::*;

const DISK_BYTES: usize = 4 << 20;

/// A small file system of its own.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount() -> Disk {
        let place = place();
        let options = std::ffi::CString::new(format!("size={DISK_BYTES}")).unwrap();
        mount("tmpfs", place.path(), "tmpfs", MountFlags::empty(), &*options).unwrap();
        Disk(place)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn fill(&self) {
        let mut ballast = std::fs::File::create(self.path().join("ballast")).unwrap();
        let full = std::iter::repeat_with(|| ballast.write_all(&[1; 4096])).find_map(Result::err);
        assert_eq!(full.unwrap().kind(), std::io::ErrorKind::StorageFull);
    }

    fn give_back(&self) {
        std::fs::remove_file(self.path().join("ballast")).unwrap();
    }

    /// Room for all that may wait in memory, whoever of those that wait is written first.
    fn grow(&self) {
        let options = std::ffi::CString::new(format!("size={}", DISK_BYTES + 4 * UNWRITTEN_BYTES_MAX)).unwrap();
        rustix::mount::mount_remount(self.path(), MountFlags::empty(), &*options).unwrap();
        self.give_back();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let unmounted = unmount(self.path(), UnmountFlags::DETACH);
        assert!(unmounted.is_ok() || std::thread::panicking());
    }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it took too long")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_the_window_closes_and_opens_again_with_space() {
    let disk = Disk::mount();
    let executions = at(disk.path());
    let cell = admitted(&executions, 1);
    let mut agent = Agent::of(&cell);
    agent.send(b"before ").await;
    disk.fill();
    let mut expected = b"before ".to_vec();
    while agent.room() >= 100_000 {
        let piece = vec![b'a' + (agent.sent % 26) as u8; 100_000];
        agent.send_now(&piece);
        expected.extend_from_slice(&piece);
    }
    // Nothing that is not on the disk was acknowledged, and readers see it all the same.
    assert!(cell.have() < agent.sent);
    assert!(text(&cell).await.as_bytes() == expected);
    // The agent sends no more; a program's end comes behind all of it.
    cell.exited(Some(3), None, agent.sent, false);
    assert_eq!(cell.state(), ExecutionState::Exited);
    assert!(tokio::time::timeout(Duration::from_millis(50), cell.settled()).await.is_err(), "the agent keeps it");
    // What a kill would leave now has no end: the agent tells it again.
    assert_eq!(again(disk.path()).running().len(), 1);
    disk.give_back();
    soon(cell.settled()).await;
    let found = again(disk.path()).get(&cell.id, &sandbox()).unwrap();
    assert_eq!((found.show(), text(&found).await.into_bytes() == expected), (cell.show(), true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_runs_on_a_full_disk_and_its_record_follows() {
    let disk = Disk::mount();
    let executions = at(disk.path());
    end(&admitted(&executions, 0));
    disk.fill();
    let cell = admitted(&executions, 1);
    say(&cell, b"cleared\n").unwrap();
    end(&cell);
    assert_eq!(text(&cell).await, "cleared\n");
    // Not without end: what waits is memory.
    let mut refused = None;
    for n in 2..40 {
        let cell = executions.prepare(head(n));
        match executions.admit(cell.clone()) {
            Ok(()) => drop(say(&cell, &vec![1; WINDOW_BYTES as usize])),
            Err(e) => refused = Some(e),
        }
    }
    assert_eq!(refused.unwrap().code, ErrorCode::DiskFull);
    disk.grow();
    soon(cell.settled()).await;
    assert_eq!(again(disk.path()).get(&cell.id, &sandbox()).unwrap().show(), cell.show());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_on_a_full_disk_fails_whole() {
    let disk = Disk::mount();
    let executions = at(disk.path());
    let cell = admitted(&executions, 1);
    say(&cell, &[b'x'; 50_000]).unwrap();
    disk.fill();
    let into = disk.path().join("snap");
    let error = executions.carry(&into, 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    assert!(!into.exists());
    disk.give_back();
    say(&cell, b"on").unwrap();
    assert_eq!(executions.carry(&into, 0).unwrap()[0].have(), 50_002);
}
