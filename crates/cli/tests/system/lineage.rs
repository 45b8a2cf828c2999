//! What snapshots are made of: checks of every byte, the scrubber, comparisons by layers, and the tree of where all comes
//! from.

use std::fs;
use std::os::unix::fs::FileExt;

use remuda_client::wire::{Branch, ChangeKind, CreateSnapshot, RestoreSnapshot, SnapshotDiff};
use remuda_client::{SandboxFilter, Told};
use remuda_types::{ErrorCode, SandboxId, SnapshotMode};
use serde_json::json;

use crate::api::{Api, PATIENCE, fork_of, refused};
use crate::world::Server;

fn files() -> CreateSnapshot {
    CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() }
}

/// Turns a byte of a file around, so that only its contents tell.
fn damage(path: &std::path::Path) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 100).unwrap();
    file.write_all_at(&[!byte[0]], 100).unwrap();
}

#[tokio::test]
async fn a_check_reads_every_byte_and_restores_for_a_trial_that_leaves_nothing() {
    let api = Api::own();
    let id = api.create().await.id;
    api.start_counter(&id).await;
    api.sh(&id, "head -c 5000 /dev/zero > zeros; echo text > text").await;
    let memory = api.client.snapshot(&id, &CreateSnapshot::default()).await.unwrap();
    let filesystem = api.client.snapshot(&id, &files()).await.unwrap();
    for (snapshot, parts) in [(&memory, 2), (&filesystem, 1)] {
        let checked = api.client.verify_snapshot(snapshot.id.as_str()).await.unwrap();
        assert!(checked.sound && checked.parts.len() == parts, "{checked:?}");
        assert!(checked.trial.is_some_and(|trial| trial.error.is_none()));
    }
    let living = api.client.list_sandboxes(&SandboxFilter::default()).await.unwrap();
    assert_eq!(living.len(), 1, "{living:?}");
    // Damaged in its memory: told, marked, not restored, by no way; and its files are not touched by that.
    let place = api.server.data_dir.join("memory").join(memory.id.as_str()).join("pages.img");
    damage(&place);
    let line = api.server.run(&["snapshot", "verify", memory.id.as_str()]);
    assert_eq!(line.code, 1, "{}", line.stderr);
    assert!(crate::world::text(&line.stdout).contains("pages.img is damaged: its digest"), "{:?}", line.stdout);
    let shown = api.client.snapshot_info(memory.id.as_str()).await.unwrap();
    assert!(!shown.restorable && shown.damage.as_ref().unwrap().contains("pages.img"), "{shown:?}");
    refused(api.client.restore(memory.id.as_str(), &RestoreSnapshot::default()).await, ErrorCode::SnapshotDamaged);
    assert!(api.server.run(&["snapshot", "ls"]).line().contains("damaged"));
    // Put back, it is found to be well.
    damage(&place);
    assert!(api.client.verify_snapshot(memory.id.as_str()).await.unwrap().sound);
    let restored = api.client.restore(memory.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    assert!(api.count(&restored.id).await.asked > 0);
    refused(api.client.verify_snapshot("nothing-like-it").await, ErrorCode::SnapshotNotFound);
}

#[tokio::test]
async fn a_layer_that_rots_is_found_by_itself_and_all_that_stand_on_it_are_marked() {
    let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
    let server = Server::start_with(&directory.path().join("data"), &["--scrub-every", "1s"]);
    let api = Api::of(std::sync::Arc::new(server));
    let id = api.create().await.id;
    api.sh(&id, "head -c 100000 /dev/urandom > data").await;
    let below = api.client.snapshot(&id, &files()).await.unwrap();
    let restored = api.client.restore(below.id.as_str(), &RestoreSnapshot::default()).await.unwrap();
    let above = api.client.snapshot(&restored.id, &files()).await.unwrap();
    let beside = api.client.snapshot(&api.create().await.id, &files()).await.unwrap();
    let begun = api.client.events(0).await.unwrap().newest;
    let mut stream = api.client.follow_events(begun).await.unwrap();
    damage(&api.server.data_dir.join("layers").join(below.id.as_str()).join("workspace/data"));
    let mut told = Vec::new();
    while told.len() < 2 {
        let next = tokio::time::timeout(PATIENCE, stream.next()).await.expect("it is not found").unwrap().unwrap();
        let Told::Event(event) = next else { panic!("{next:?}") };
        if event.kind == "snapshot.damaged" {
            assert!(event.about.reason.unwrap().contains(below.id.as_str()));
            told.push(event.about.snapshot.unwrap());
        }
    }
    told.sort();
    let mut expected = [below.id.clone(), above.id.clone()];
    expected.sort();
    assert_eq!(told, expected);
    for damaged in &expected {
        refused(api.client.restore(damaged.as_str(), &RestoreSnapshot::default()).await, ErrorCode::SnapshotDamaged);
    }
    assert!(api.client.snapshot_info(beside.id.as_str()).await.unwrap().restorable);
}

fn lines(diff: &SnapshotDiff) -> Vec<String> {
    let mode = |change: &remuda_client::wire::FileDifference| {
        let facts = change.after.as_ref().or(change.before.as_ref()).unwrap();
        format!("{:o}", facts.mode)
    };
    let line = |change: &remuda_client::wire::FileDifference| {
        let word = match change.change {
            ChangeKind::Added => "A",
            ChangeKind::Changed => "M",
            ChangeKind::Removed => "D",
        };
        format!("{word} {} {}", mode(change), change.path)
    };
    diff.changes.iter().map(line).filter(|line| line.contains("/workspace/")).collect()
}

#[tokio::test]
async fn what_differs_is_found_by_the_layers_and_told_with_modes_and_patches() {
    let api = Api::own();
    let id = api.create().await.id;
    api.sh(
        &id,
        "umask 022; mkdir kept gone; echo one > kept/text; echo same > kept/same; echo x > gone/file; ln -s kept link; \
                 head -c 3000 /dev/urandom > binary; echo m > mode; mkdir -p deep/a/b; echo d > deep/a/b/c",
    )
    .await;
    let a = api.client.snapshot(&id, &files()).await.unwrap();
    let restored = api.client.restore(a.id.as_str(), &RestoreSnapshot::default()).await.unwrap().id;
    api.sh(&restored, "umask 022; echo two >> kept/text; rm -r gone; echo y > new; chmod 600 mode; rm link; echo file > link; \
                       head -c 3000 /dev/urandom > binary; rm -r deep; mkdir -p deep/a; echo e > deep/a/other; touch kept/same").await;
    let b = api.client.snapshot(&restored, &files()).await.unwrap();
    let expected = [
        "M 644 /workspace/binary",
        "D 755 /workspace/deep/a/b",
        "D 644 /workspace/deep/a/b/c",
        "A 644 /workspace/deep/a/other",
        "D 755 /workspace/gone",
        "D 644 /workspace/gone/file",
        "M 644 /workspace/kept/text",
        "M 644 /workspace/link",
        "M 600 /workspace/mode",
        "A 644 /workspace/new",
    ];
    let diff = api.client.diff_snapshots(Some(a.id.as_str()), b.id.as_str(), true).await.unwrap();
    assert_eq!(lines(&diff), expected);
    assert_eq!(
        lines(&api.client.diff_snapshots(None, b.id.as_str(), false).await.unwrap()),
        expected,
        "its origin is a"
    );
    let of = |path: &str| diff.changes.iter().find(|change| change.path == format!("/workspace/{path}")).unwrap();
    let patch = "--- a/workspace/kept/text\n+++ b/workspace/kept/text\n@@ -1 +1,2 @@\n one\n+two\n";
    assert_eq!(of("kept/text").patch.as_deref(), Some(patch));
    assert_eq!((of("binary").patch.as_ref(), of("binary").contents), (None, true));
    assert_eq!((of("mode").contents, of("mode").before.as_ref().unwrap().mode), (false, 0o644));
    assert_eq!(of("link").before.as_ref().unwrap().target.as_deref(), Some("kept"));
    let back = api.client.diff_snapshots(Some(b.id.as_str()), a.id.as_str(), false).await.unwrap();
    assert_eq!(back.changes.len(), diff.changes.len());
    let same = api.client.diff_snapshots(Some(a.id.as_str()), a.id.as_str(), false).await.unwrap();
    assert_eq!(same.changes, []);
    // From the image on: all that the first one has, whole.
    let whole = api.client.diff_snapshots(None, a.id.as_str(), false).await.unwrap();
    assert!(lines(&whole).contains(&"A 644 /workspace/deep/a/b/c".to_owned()), "{whole:?}");
    // A patch of the command line is one that `patch` takes.
    let text = api.server.run(&["snapshot", "diff", a.id.as_str(), b.id.as_str(), "--patch"]);
    assert_eq!(text.code, 1);
    assert!(crate::world::text(&text.stdout).contains(patch));
    // A sandbox against what it was made from, with nothing kept of the capture.
    api.sh(&restored, "echo late > late").await;
    let live = api.server.run(&["snapshot", "diff", b.id.as_str(), &restored.to_string()]);
    let said = crate::world::text(&live.stdout);
    assert!(live.code == 1 && said.contains("A 0644 /workspace/late"), "{said} {}", live.stderr);
    assert_eq!(api.client.snapshots(false).await.unwrap().len(), 2);
    refused(api.client.diff_snapshots(Some("none"), b.id.as_str(), false).await, ErrorCode::SnapshotNotFound);
    // Nothing of the looks is left.
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&format!("{} overlay", api.server.data_dir.join("layers").display())), "{mounts}");
}

#[tokio::test]
async fn the_tree_shows_where_everything_comes_from() {
    let api = Api::own();
    let root = api.create().await.id;
    let kept = api.client.snapshot(&root, &CreateSnapshot { name: Some("kept".into()), ..files() }).await.unwrap();
    let restored = api.client.restore("kept", &RestoreSnapshot::default()).await.unwrap().id;
    let fork = api.client.fork(&restored, &fork_of(1)).await.unwrap();
    let Branch::Sandbox(branch) = &fork.branches[0] else { panic!("{fork:?}") };
    let alone = api.create().await.id;
    api.remove(&alone).await;
    api.remove(&restored).await;
    let text = api.server.run(&["tree"]).line();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with("  base image"), "{text}");
    let expected: [(&str, &dyn std::fmt::Display, &str); 5] = [
        ("└─ ", &root, "  running"),
        ("   └─ ", &kept.id, " kept  filesystem active"),
        ("      └─ ", &restored, "  gone"),
        ("         └─ ", &fork.snapshot.id, "  memory active"),
        ("            └─ ", &branch.id, "  running"),
    ];
    // The fork's own may not be verified yet, and is shown as that.
    let got: Vec<String> = lines[1..].iter().map(|line| line.replace("verifying", "active")).collect();
    assert_eq!(got, expected.map(|(before, id, after)| format!("{before}{id}{after}")), "{text}");
    let all = api.server.run(&["tree", "--all", "--json"]).json();
    let ids = |all: &serde_json::Value| all["nodes"].as_array().unwrap().len();
    assert_eq!(ids(&all), 7);
    let of = |id: &SandboxId| all["nodes"].as_array().unwrap().iter().find(|n| n["id"] == id.to_string()).cloned();
    assert_eq!(of(&alone).unwrap()["ended"], json!(true));
}
