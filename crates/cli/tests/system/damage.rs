//! Snapshots whose bytes on disk were changed behind the server's back: what differs is refused, what does not is taken.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use remuda_client::SandboxFilter;
use remuda_client::wire::{CreateSnapshot, RestoreSnapshot};
use remuda_types::{ErrorCode, SnapshotMode, SnapshotState};

use crate::api::{Api, refused, traces};

/// Changes one byte in the middle of a file, and gives back what was there.
pub fn change(path: &Path, byte: Option<u8>) -> u8 {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let middle = file.metadata().unwrap().len() / 2;
    let mut before = [0];
    file.read_exact_at(&mut before, middle).unwrap();
    file.write_all_at(&[byte.unwrap_or(!before[0])], middle).unwrap();
    before[0]
}

async fn must_be_damaged(api: &Api, snapshot: &str, named: &str) {
    let living = api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap();
    let error = refused(api.client.restore(snapshot, &RestoreSnapshot::default()).await, ErrorCode::SnapshotDamaged);
    let cause = error.cause.clone().unwrap_or_default();
    assert!(cause.contains(named), "{named} in {error:?}");
    // Nothing of the refused sandbox is left.
    assert_eq!(api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap(), living);
    let all = SandboxFilter { include_ended: true, ..SandboxFilter::default() };
    let known = api.client.list_sandboxes(&all).await.unwrap();
    for failed in known.iter().filter(|sandbox| !living.iter().any(|other| other.id == sandbox.id)) {
        assert_eq!(traces(failed.uid.as_str()), Vec::<String>::new());
        assert!(!api.server.data_dir.join("sandboxes").join(failed.uid.as_str()).exists());
    }
}

#[tokio::test]
async fn a_changed_or_cut_memory_image_is_not_restored() {
    let api = Api::own();
    let source = api.create().await;
    api.start_counter(&source.id).await;
    let before = api.count(&source.id).await;
    let snapshot = api.client.snapshot(&source.id, &CreateSnapshot::default()).await.unwrap();
    assert_eq!(snapshot.state, SnapshotState::Active);
    let image = api.server.data_dir.join("memory").join(snapshot.id.as_str());
    let name = snapshot.id.as_str();
    for file in ["checkpoint.img", "pages_meta.img", "pages.img"] {
        let path = image.join(file);
        let byte = change(&path, None);
        must_be_damaged(&api, name, file).await;
        // The byte is put back: another time of change and another inode state, but the same contents.
        change(&path, Some(byte));
    }
    let touched = api.client.restore(name, &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.count(&touched.id).await, before.after(1), "a touched image that is equal is taken");
    api.remove(&touched.id).await;

    let pages = image.join("pages.img");
    let whole = fs::read(&pages).unwrap();
    File::options().write(true).open(&pages).unwrap().set_len(whole.len() as u64 - 1).unwrap();
    must_be_damaged(&api, name, "pages.img").await;
    fs::remove_file(&pages).unwrap();
    must_be_damaged(&api, name, "pages.img").await;
    // Copied back from elsewhere.
    fs::write(&pages, whole).unwrap();
    let copied = api.client.restore(name, &RestoreSnapshot::default()).await.unwrap();
    assert_eq!(api.count(&copied.id).await, before.after(1));
    assert_eq!(api.count(&source.id).await, before.after(1), "the source knows nothing of all this");
}

/// The one file of that name below a directory.
pub fn find(directory: &Path, name: &str) -> PathBuf {
    let output = std::process::Command::new("find").arg(directory).args(["-name", name]).output().unwrap();
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

#[tokio::test]
async fn a_changed_layer_is_not_restored_in_either_mode() {
    let api = Api::own();
    let source = api.create().await;
    api.sh(&source.id, "echo the work of a day > work; mkdir d; echo x > d/x").await;
    for mode in [SnapshotMode::Memory, SnapshotMode::Filesystem] {
        let capture = CreateSnapshot { mode: Some(mode), ..CreateSnapshot::default() };
        let snapshot = api.client.snapshot(&source.id, &capture).await.unwrap();
        let name = snapshot.id.as_str();
        let work = find(&api.server.data_dir.join("layers").join(name), "work");
        let byte = change(&work, None);
        must_be_damaged(&api, name, &format!("the layer {name}")).await;
        change(&work, Some(byte));
        let added = work.with_file_name("added");
        fs::write(&added, "").unwrap();
        must_be_damaged(&api, name, &format!("the layer {name}")).await;
        fs::remove_file(&added).unwrap();
        let restored = api.client.restore(name, &RestoreSnapshot::default()).await.unwrap();
        assert_eq!(api.sh(&restored.id, "cat work").await, "the work of a day");
        // What stands on it is refused too.
        let next = api.client.snapshot(&restored.id, &capture).await.unwrap();
        let byte = change(&work, None);
        must_be_damaged(&api, next.id.as_str(), &format!("the layer {name}")).await;
        change(&work, Some(byte));
        api.remove(&restored.id).await;
    }
}
