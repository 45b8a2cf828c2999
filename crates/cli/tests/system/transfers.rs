//! Snapshots as files: out of one server and into another, cut off on the way, and files that are none.

use std::fs;
use std::path::Path;

use remuda_client::wire::{CreateSnapshot, ImportSnapshot, RestoreSnapshot};
use remuda_types::{AccessScope, ErrorCode, SandboxId, SnapshotMode};
use serde_json::json;

use crate::api::{Api, refused};
use crate::world::text;

fn files() -> CreateSnapshot {
    CreateSnapshot { mode: Some(SnapshotMode::Filesystem), ..CreateSnapshot::default() }
}

/// Everything below a directory that counts, one line an entry; made in the guest.
const MANIFEST: &str = r#"
import hashlib, os, stat, sys
def line(path):
    s = os.lstat(path)
    kind = stat.S_IFMT(s.st_mode)
    parts = [os.fsencode(path).hex(), oct(s.st_mode), s.st_uid, s.st_gid]
    if kind != stat.S_IFDIR: parts += [s.st_size, s.st_nlink]
    if kind != stat.S_IFLNK: parts.append(s.st_mtime_ns)
    if kind == stat.S_IFLNK: parts.append(os.readlink(os.fsencode(path)).hex())
    if kind == stat.S_IFREG: parts.append(hashlib.sha256(open(path, "rb").read()).hexdigest())
    return " ".join(map(str, parts))
found = []
for top, dirs, names in os.walk(b"/workspace/odd"):
    found.append(line(top))
    for name in names + [d for d in dirs if os.path.islink(os.path.join(top, d))]:
        found.append(line(os.path.join(top, name)))
print("\n".join(sorted(found)))
"#;

async fn manifest(api: &Api, id: &SandboxId) -> String {
    api.root(id, &format!("python3 - <<'END'{MANIFEST}END")).await
}

/// Modes, owners, both kinds of links, holes, long and odd names, times.
const ODD: &str = r#"
import os
os.makedirs("/workspace/odd/deep/" + "/".join(["d" * 100] * 8))
os.chdir("/workspace/odd")
def write(name, data=b"x"):
    with open(name, "wb") as f: f.write(data)
write(b"n" * 255)
write(b"new\nline\t\xff\xfe \xf0\x9f\x90\x8e")
write(b"-rf *")
write("setuid"); os.chown("setuid", 1000, 1000); os.chmod("setuid", 0o4755)
write("none", b""); os.chmod("none", 0)
os.link("setuid", "deep/same")
write("one"); os.link("one", "two")
os.symlink("/etc/passwd", "link"); os.symlink("t" * 1000, "long link"); os.lchown("link", 7, 8)
with open("holes", "wb") as f:
    f.seek(5 << 20); f.write(b"middle"); f.truncate(20 << 20)
os.mkdir("sticky"); os.chmod("sticky", 0o1777)
os.mkdir("closed"); write("closed/in"); os.chmod("closed", 0o500)
"#;

/// A time of its own for each: what gVisor tells of a file that it writes just now is not yet what is on the disk. Names of one
/// file have one time: gVisor keeps one for each name that it knows.
const TIMES: &str = r#"
import os
n = 0
for top, dirs, names in os.walk(b"/workspace/odd", topdown=False):
    for path in [os.path.join(top, name) for name in names] + [top]:
        n += 1
        if os.path.islink(path): continue
        before = os.lstat(path)
        if os.path.isdir(path) or before.st_nlink == 1: os.utime(path, ns=(1, 1234567890123456789 + n * 1000000007))
        # A change would make two files of one that lies in a layer.
        elif before.st_mtime_ns != 1234567890123456789: os.utime(path, ns=(1, 1234567890123456789))
"#;

/// What the second layer changes: whiteouts, an opaque directory, a file that is a directory by now, and the other way.
const CHANGE: &str = "cd /workspace/odd; rm -- '-rf *' setuid; rm -r deep; mkdir deep; echo new > deep/only; rm link; mkdir link; \
                      echo in > link/in; rm -r sticky; echo file > sticky; echo more >> none; mv holes moved";

/// What a guest says of the times of directories that lie in layers is not what is on the disk: gVisor changes a file of theirs
/// there later than it says.
fn without_times_of_directories(manifest: &str) -> String {
    let line = |line: &str| match line.split_once(" 0o4") {
        Some((path, rest)) => format!("{path} 0o4{}", rest.rsplit_once(' ').map_or(rest, |(rest, _)| rest)),
        None => line.to_owned(),
    };
    manifest.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Two manifests are equal; else the lines are told that are not.
#[track_caller]
fn same(a: &str, b: &str) {
    let only = |of: &str, not_of: &str| {
        of.lines().filter(|line| !not_of.lines().any(|l| l == *line)).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!((only(a, b), only(b, a)), (vec![], vec![]));
    assert_eq!(a, b);
}

#[tokio::test]
async fn a_tree_with_everything_odd_in_it_is_the_same_after_capture_restore_export_and_import() {
    let (here, there) = (Api::own(), Api::own());
    let id = here.create().await.id;
    here.root(&id, &format!("python3 - <<'END'{ODD}{TIMES}END")).await;
    let first = manifest(&here, &id).await;
    assert!(first.lines().count() > 20, "{first}");
    let below = here.client.snapshot(&id, &files()).await.unwrap();
    let restored = here.client.restore(below.id.as_str(), &RestoreSnapshot::default()).await.unwrap().id;
    same(&manifest(&here, &restored).await, &first);
    here.root(&restored, &format!("{CHANGE}; python3 - <<'END'{TIMES}END")).await;
    let second = manifest(&here, &restored).await;
    assert_ne!(second, first);
    let above = here.client.snapshot(&restored, &files()).await.unwrap();
    let again = here.client.restore(above.id.as_str(), &RestoreSnapshot::default()).await.unwrap().id;
    let on_disk = manifest(&here, &again).await;
    same(&without_times_of_directories(&on_disk), &without_times_of_directories(&second));
    // Of two layers, taken in elsewhere as one.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = directory.path().join("above.remuda");
    let name = file.to_str().unwrap();
    here.server.run(&["snapshot", "export", above.id.as_str(), name]).line();
    here.server.run(&["snapshot", "export", above.id.as_str(), name]).failed(2, "is there already");
    let taken = there.server.run(&["snapshot", "import", name, "--name", "taken", "-l", "a=b"]).line();
    let shown = there.client.snapshot_info("taken").await.unwrap();
    assert_eq!(
        (shown.id.to_string(), shown.mode, &shown.labels["a"]),
        (taken, SnapshotMode::Filesystem, &"b".to_owned())
    );
    assert!(there.client.verify_snapshot("taken").await.unwrap().sound);
    let copy = there.client.restore("taken", &RestoreSnapshot::default()).await.unwrap().id;
    same(&manifest(&there, &copy).await, &on_disk);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside the file");
    let staged = fs::read_dir(there.server.data_dir.join("imports")).unwrap().count();
    assert_eq!(staged, 0, "what came is not kept twice");
}

#[tokio::test]
async fn memory_goes_to_a_server_with_the_same_engine_and_its_files_to_any() {
    let (here, there) = (Api::own(), Api::own());
    let id = here.create().await.id;
    let counter = here.start_counter(&id).await;
    here.sh(&id, "echo kept > file").await;
    let before = here.count(&id).await;
    let snapshot = here.client.snapshot(&id, &CreateSnapshot::default()).await.unwrap();
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = directory.path().join("memory.remuda");
    here.server.run(&["snapshot", "export", snapshot.id.as_str(), file.to_str().unwrap()]).line();
    there.server.run(&["snapshot", "import", file.to_str().unwrap(), "--name", "woken"]).line();
    let woken = there.client.restore("woken", &RestoreSnapshot::default()).await.unwrap().id;
    assert_eq!(there.count(&woken).await, before.after(1), "the same process, on another server");
    let carried = there.client.executions(&woken).await.unwrap();
    assert_eq!(carried[0].origin.as_ref(), Some(&counter), "and its execution goes on");
    let output = there.client.output(&woken, &carried[0].id, &Default::default()).await.unwrap();
    assert_eq!(output.records[0].text, "ready\n");

    // One that says it is of another engine.
    let foreign = directory.path().join("foreign.remuda");
    rewritten(&file, &foreign);
    let name = foreign.to_str().unwrap();
    let refusal = there.server.run(&["snapshot", "import", name]);
    refusal.failed(1, "engine_mismatch");
    assert!(refusal.stderr.contains("--mode filesystem"), "{}", refusal.stderr);
    let taken = there.server.run(&["snapshot", "import", name, "--mode", "filesystem"]).line();
    let shown = there.client.snapshot_info(&taken).await.unwrap();
    assert_eq!((shown.mode, shown.excluded.len(), shown.memory_kept), (SnapshotMode::Filesystem, 1, false));
    let copy = there.client.restore(&taken, &RestoreSnapshot::default()).await.unwrap().id;
    assert_eq!(there.sh(&copy, "cat file; ls /tmp").await, "kept");

    // A memory image is trusted like the engine: not every key brings one in.
    let made = there.server.run(&["key", "create", "--scope", "snapshots:write", "--json"]).json();
    let client = remuda_client::Client::tcp(&there.server.url(), made["secret"].as_str().unwrap()).unwrap();
    let digest = digest(&file);
    send(&client, &digest, &fs::read(&file).unwrap()).await;
    let error = refused(client.import_snapshot(&digest, &ImportSnapshot::default()).await, ErrorCode::Forbidden);
    assert_eq!(error.details["missing_scope"], AccessScope::Admin.as_str());
    let of_files = ImportSnapshot { mode: Some(SnapshotMode::Filesystem), ..ImportSnapshot::default() };
    client.import_snapshot(&digest, &of_files).await.unwrap();
}

/// The same file, but for the engine that its manifest names.
fn rewritten(from: &Path, to: &Path) {
    let script = r#"
import hashlib, io, json, subprocess, sys, tarfile
raw = subprocess.run(["zstd", "-dc", sys.argv[1]], check=True, capture_output=True).stdout
size = int(raw[124:136].rstrip(b"\0"), 8)
manifest = json.loads(raw[512:512 + size])
runsc = manifest["fingerprint"]["runsc"]
# Of the same length, so that nothing else moves.
other = ("0" if runsc[0] != "0" else "1") + runsc[1:]
changed = raw.replace(runsc.encode(), other.encode())
at = changed.rindex(b"digest\0")
import ctypes
sys.stdout.write(str(at))
open(sys.argv[2] + ".tar", "wb").write(changed)
"#;
    let output = std::process::Command::new("python3").args(["-c", script]).args([from, to]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let at: usize = text(&output.stdout).parse().unwrap();
    let tar = to.with_extension("remuda.tar");
    let mut bytes = fs::read(&tar).unwrap();
    let digest = blake3::hash(&bytes[..at]).to_hex();
    bytes[at + 512..at + 512 + 64].copy_from_slice(digest.as_bytes());
    fs::write(&tar, &bytes).unwrap();
    let packed = std::process::Command::new("zstd").arg("-q").arg(&tar).arg("-o").arg(to).output().unwrap();
    assert!(packed.status.success(), "{}", text(&packed.stderr));
}

fn digest(file: &Path) -> String {
    blake3::hash(&fs::read(file).unwrap()).to_hex().to_string()
}

async fn send(client: &remuda_client::Client, digest: &str, bytes: &[u8]) {
    let state = client.import_piece(digest, 0, bytes.to_vec()).await.unwrap();
    assert_eq!(state.received, bytes.len() as u64);
}

#[tokio::test]
async fn an_export_and_an_import_that_are_cut_off_go_on_where_they_were() {
    let api = Api::own();
    let id = api.create().await.id;
    api.sh(&id, "head -c 3000000 /dev/urandom > data; cksum data > sum").await;
    let snapshot = api.client.snapshot(&id, &files()).await.unwrap();
    let name = snapshot.id.as_str();
    let whole = api.client.export_snapshot(name, 0, None).await.unwrap();
    let tag = whole.tag.clone().unwrap();
    let all = whole.body.collect(100 << 20).await.unwrap();
    for offset in [1, 100_000, all.len() as u64 - 1, all.len() as u64] {
        let rest = api.client.export_snapshot(name, offset, Some(&tag)).await.unwrap();
        assert_eq!(rest.body.collect(100 << 20).await.unwrap(), all[offset as usize..], "{offset}");
    }
    refused(api.client.export_snapshot(name, 5, Some("another")).await, ErrorCode::PreconditionFailed);
    // The command line goes on with what it finds, if it is of the same export.
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = directory.path().join("x.remuda");
    fs::write(directory.path().join("x.remuda.part"), &all[..1_000_000]).unwrap();
    fs::write(directory.path().join("x.remuda.part-of"), &tag).unwrap();
    api.server.run(&["snapshot", "export", name, file.to_str().unwrap()]).line();
    assert_eq!(fs::read(&file).unwrap(), all);

    let digest = digest(&file);
    let half = all.slice(..all.len() / 2);
    api.client.import_piece(&digest, 0, half.clone()).await.unwrap();
    let gap = refused(api.client.import_piece(&digest, 5, half.clone()).await, ErrorCode::InputGap);
    assert_eq!(gap.details["received"], json!(half.len()));
    let early = api.client.import_snapshot(&digest, &ImportSnapshot::default()).await;
    refused(early, ErrorCode::ArchiveRefused);
    let keyed = api.client.with_key("take-it".parse().unwrap());
    assert_eq!(api.client.import_state(&digest).await.unwrap().received, half.len() as u64);
    let id = api.server.run(&["snapshot", "import", file.to_str().unwrap(), "--key", "take-it"]).line();
    let restored = api.client.restore(&id, &RestoreSnapshot::default()).await.unwrap().id;
    assert_eq!(api.sh(&restored, "cksum data | cmp - sum && echo same").await, "same");
    let again = keyed.import_snapshot(&digest, &ImportSnapshot::default()).await.unwrap();
    assert_eq!(again.id.to_string(), id, "one key, one snapshot, also when the file is gone by now");
}

#[tokio::test]
async fn what_is_no_export_is_refused_with_a_reason_and_leaves_nothing() {
    let api = Api::own();
    let id = api.create().await.id;
    api.sh(&id, "head -c 300000 /dev/urandom > file").await;
    let snapshot = api.client.snapshot(&id, &files()).await.unwrap();
    let whole = api.client.export_snapshot(snapshot.id.as_str(), 0, None).await.unwrap();
    let all = whole.body.collect(100 << 20).await.unwrap().to_vec();
    let captured = api.captured();
    let mut changed = all.clone();
    let middle = changed.len() / 2;
    changed[middle] ^= 0x10;
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("text", b"not an archive at all".to_vec()),
        ("a cut one", all[..all.len() - 7].to_vec()),
        ("a changed one", changed),
    ] {
        let digest = blake3::hash(&bytes).to_hex().to_string();
        if !bytes.is_empty() {
            send(&api.client, &digest, &bytes).await;
        }
        let error =
            refused(api.client.import_snapshot(&digest, &ImportSnapshot::default()).await, ErrorCode::ArchiveRefused);
        assert!(error.cause.is_some() || error.remedy.is_some(), "{what}: {error:?}");
        assert_eq!(api.captured(), captured, "{what}");
        api.client.forget_import(&digest).await.unwrap();
        assert_eq!(api.client.import_state(&digest).await.unwrap().received, 0);
    }
    // Under another name than its own.
    let wrong = "0".repeat(64);
    send(&api.client, &wrong, &all).await;
    refused(api.client.import_snapshot(&wrong, &ImportSnapshot::default()).await, ErrorCode::ArchiveRefused);
    refused(api.client.import_state("no-digest").await, ErrorCode::InvalidRequest);
    let memory = ImportSnapshot { mode: Some(SnapshotMode::Memory), ..ImportSnapshot::default() };
    let right = blake3::hash(&all).to_hex().to_string();
    send(&api.client, &right, &all).await;
    refused(api.client.import_snapshot(&right, &memory).await, ErrorCode::InvalidRequest);
    let taken = ImportSnapshot { name: Some("n".into()), ..ImportSnapshot::default() };
    api.client.import_snapshot(&right, &taken).await.unwrap();
    send(&api.client, &right, &all).await;
    refused(api.client.import_snapshot(&right, &taken).await, ErrorCode::SnapshotNameTaken);
}
