//! A data directory whose disk runs full: captures fail whole, their sources go on, guests see the error that every
//! program knows. The disk is a small file system of the test's own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use remuda_client::WriteFile;
use remuda_client::wire::{Branch, CreateSnapshot};
use remuda_types::limits::DISK_LOW_WATER_BYTES;
use remuda_types::{ErrorCode, SnapshotMode, SnapshotState};

use crate::api::{Api, exited, fork_of, refused};
use crate::world::Server;

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 1300 * MIB;

/// A mounted file system of its own.
struct Disk {
    directory: tempfile::TempDir,
}

impl Disk {
    fn mount() -> Disk {
        let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
        let image = directory.path().join("disk.img");
        File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
        let disk = Disk { directory };
        fs::create_dir(disk.place()).unwrap();
        // No space that only root may use: the server is root.
        run(Command::new("mkfs.ext4").args(["-q", "-m", "0", "-N", "4096"]).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(disk.place()));
        disk
    }

    fn place(&self) -> PathBuf {
        self.directory.path().join("m")
    }

    /// Bytes and inodes that are free.
    fn free(&self) -> (u64, u64) {
        // What was given up counts as free only after the file system's own journal was written.
        rustix::fs::syncfs(File::open(self.place()).unwrap()).unwrap();
        let stat = rustix::fs::statvfs(self.place()).unwrap();
        (stat.f_bavail * stat.f_frsize, stat.f_favail)
    }

    /// Takes space until so many bytes are free.
    fn fill(&self, leave: u64) {
        let file = File::create(self.place().join("ballast")).unwrap();
        let length = self.free().0 - leave;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length).unwrap();
    }

    /// Takes inodes until so many are free.
    fn fill_inodes(&self, leave: u64) {
        let directory = self.place().join("inodes");
        fs::create_dir(&directory).unwrap();
        for n in leave..self.free().1 {
            File::create(directory.join(n.to_string())).unwrap();
        }
    }

    fn give_back(&self) {
        let _ = fs::remove_file(self.place().join("ballast"));
        let _ = fs::remove_dir_all(self.place().join("inodes"));
        self.free();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run(Command::new("umount").arg(self.place()));
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn names(place: &Path) -> Vec<String> {
    fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn a_capture_on_a_full_disk_fails_whole_and_its_source_goes_on() {
    let disk = Disk::mount();
    let api = Api::of(Arc::new(Server::start_in(&disk.place().join("d"))));
    let source = api.create().await;
    let id = &source.id;
    api.start_counter(id).await;
    let before = api.count(id).await;
    let capture = |mode| CreateSnapshot { mode: Some(mode), ..CreateSnapshot::default() };

    // Below the low-water mark nothing is begun.
    disk.fill(DISK_LOW_WATER_BYTES - MIB);
    for mode in [SnapshotMode::Memory, SnapshotMode::Filesystem] {
        let error = refused(api.client.snapshot(id, &capture(mode)).await, ErrorCode::DiskFull);
        assert!(error.remedy.is_some(), "{error:?}");
    }
    refused(api.client.fork(id, &fork_of(2)).await, ErrorCode::DiskFull);
    assert_eq!(api.captured(), Vec::<String>::new());
    assert_eq!(api.count(id).await, before.after(1));
    disk.give_back();

    // Enough bytes are free to begin, and too few inodes: the copy of the files runs into the end of the disk.
    api.sh(id, "mkdir many; cd many; seq 300 | xargs touch").await;
    disk.fill_inodes(150);
    for mode in [SnapshotMode::Memory, SnapshotMode::Filesystem] {
        let error = refused(api.client.snapshot(id, &capture(mode)).await, ErrorCode::DiskFull);
        assert!(error.message.contains(&id.to_string()), "{error:?}");
        assert!(error.cause.as_ref().is_some_and(|cause| cause.contains("many")), "it was the copy: {error:?}");
        assert_eq!(api.captured(), Vec::<String>::new(), "nothing is half-published");
        assert_eq!(disk.free().1, 150, "nor anything that counts");
    }
    refused(api.client.fork(id, &fork_of(2)).await, ErrorCode::DiskFull);
    assert_eq!(api.count(id).await, before.after(2), "the same process, with its memory");
    disk.give_back();

    // The same with bytes.
    api.sh(id, "dd if=/dev/zero of=large bs=1M count=600 status=none").await;
    disk.fill(570 * MIB);
    let error = refused(api.client.snapshot(id, &capture(SnapshotMode::Memory)).await, ErrorCode::DiskFull);
    assert!(error.cause.as_ref().is_some_and(|cause| cause.contains("large")), "it was the copy: {error:?}");
    assert_eq!(api.captured(), Vec::<String>::new());
    assert_eq!(api.count(id).await, before.after(3));
    let all = api.client.snapshots(true).await.unwrap();
    assert_eq!(all.len(), 4, "each that was begun is on record");
    for failed in all {
        assert_eq!(failed.state, SnapshotState::Failed);
        assert!(failed.failure.is_some_and(|failure| failure.code == ErrorCode::DiskFull));
    }

    // With space again, the same source is captured and copied.
    api.sh(id, "rm large").await;
    disk.give_back();
    let fork = api.client.fork(id, &fork_of(1)).await.unwrap();
    let Branch::Sandbox(branch) = &fork.branches[0] else { panic!("{fork:?}") };
    assert_eq!(api.count(&branch.id).await, before.after(4));
    assert_eq!(api.sh(&branch.id, "ls many | wc -l").await, "300");
    drop(api);
    assert_eq!(names(&disk.place().join("d/sandboxes")), Vec::<String>::new());
}

#[tokio::test]
async fn a_guest_that_fills_the_disk_is_told_and_lives_on() {
    let disk = Disk::mount();
    let api = Api::of(Arc::new(Server::start_in(&disk.place().join("d"))));
    let sandbox = api.create().await;
    let id = &sandbox.id;
    api.start_counter(id).await;
    let before = api.count(id).await;
    api.client.write_file(id, "/workspace/kept", &WriteFile::default(), "as it was").await.unwrap();
    disk.fill(64 * MIB);

    let full = api.run(id, "dd if=/dev/zero of=large bs=1M count=200 status=none").await;
    exited(&full, 1);
    assert!(full.stderr.as_ref().is_some_and(|text| text.contains("No space left on device")), "{full:?}");
    let megabytes = vec![7; 2 << 20];
    let error = refused(
        api.client.write_file(id, "/workspace/kept", &WriteFile::default(), megabytes.clone()).await,
        ErrorCode::DiskFull,
    );
    assert!(error.message.contains("kept"), "{error:?}");
    assert_eq!(api.sh(id, "cat kept; ls").await, "as it waskept\nlarge", "replaced whole or not at all");
    // Another sandbox can't be made, and nothing of it is left.
    let more = api.client.create_sandbox(&Default::default()).await;
    if let Ok(more) = &more {
        api.remove(&more.id).await;
    } else {
        refused(more, ErrorCode::DiskFull);
    }
    assert_eq!(names(&disk.place().join("d/sandboxes")), [sandbox.uid.as_str()]);
    assert_eq!(api.count(id).await, before.after(1));

    api.sh(id, "rm large").await;
    api.client.write_file(id, "/workspace/kept", &WriteFile::default(), megabytes).await.unwrap();
    assert_eq!(api.sh(id, "stat -c %s kept").await, (2 << 20).to_string());
    api.remove(id).await;
}
