//! Whole trees through the API: what goes in comes out again, archives that mean harm change nothing outside, and what a
//! killed server had begun is told.

use remuda_client::{Body, WriteTree};
use remuda_types::{ErrorCode, SandboxId};

use crate::api::{Api, refused};

async fn tar(api: &Api, id: &SandboxId, path: &str) -> Vec<u8> {
    let download = api.client.read_tree(id, path, None).await.unwrap();
    download.collect(256 << 20).await.unwrap().to_vec()
}

#[tokio::test]
async fn a_tree_comes_out_as_it_went_in() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let make = "mkdir -p t/a/b t/deep/$(printf 'n%.0s' $(seq 200)); cd t; seq 100000 > a/numbers; ln a/numbers a/again; \
        ln -s numbers a/link; ln -s /etc/passwd out; chmod 751 a; echo x > $(echo deep/*)/x; truncate -s 300M hole; \
        echo end >> hole; mkfifo fifo; for i in $(seq 2000); do echo $i > a/b/$i; done; touch -d @1000000000 a/numbers";
    api.sh(id, make).await;
    let sums =
        "find . -type f -print0 | sort -z | xargs -0 sha256sum; find . ! -type p -printf '%p %y %m %l %n\\n' | sort";
    let before = api.sh(id, &format!("cd t; {sums}")).await;
    let archive = tar(&api, id, "/workspace/t").await;
    assert!(archive.len() < 20 << 20, "holes are not sent: {}", archive.len());
    let options = WriteTree { parents: true, ..WriteTree::default() };
    let unpacked = api.client.write_tree(id, "/workspace/new/u", &options, archive.clone()).await.unwrap();
    assert_eq!((unpacked.files, unpacked.links), (2003, 3), "{unpacked:?}");
    assert_eq!(unpacked.skipped, ["fifo: it is a FIFO"]);
    assert_eq!(api.sh(id, &format!("cd new/u; {sums}")).await, before);
    assert_eq!(api.sh(id, "stat -c '%Y %U' new/u/a/numbers").await, "1000000000 user");
    // The same tool that everybody has reads it.
    api.client.write_file(id, "/tmp/t.tar", &Default::default(), archive).await.unwrap();
    assert_eq!(api.sh(id, &format!("mkdir v; cd v; tar xf /tmp/t.tar 2>/dev/null; {sums}")).await, before);
    refused(api.client.read_tree(id, "/workspace/none", None).await, ErrorCode::FileNotFound);
    refused(api.client.write_tree(id, "/etc/x", &options, "").await, ErrorCode::PermissionDenied);
    api.remove(id).await;
}

#[tokio::test]
async fn an_archive_that_means_harm_changes_nothing_outside() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let script = "import tarfile, io\n\
        def make(name, entries):\n\
        \x20   with tarfile.open('/tmp/' + name, 'w') as tar:\n\
        \x20       for name, kind, link in [('fine', b'0', '')] + entries:\n\
        \x20           info = tarfile.TarInfo(name); info.type = kind; info.linkname = link; tar.addfile(info)\n\
        make('up', [('../escaped', b'0', '')])\n\
        make('absolute', [('/tmp/escaped', b'0', '')])\n\
        make('link', [('l', b'2', '/tmp'), ('l/escaped', b'0', '')])\n\
        make('hard', [('h', b'1', '../../etc/passwd')])\n\
        make('own', [('l', b'2', '/etc'), ('h', b'1', 'l/passwd')])\n\
        make('device', [('d', b'3', '')])\n\
        make('fifo', [('f', b'6', '')])\n";
    api.sh(id, &format!("python3 -c \"{script}\"")).await;
    let options = WriteTree { parents: true, user: Some("root".into()) };
    for name in ["up", "absolute", "link", "hard", "own", "device", "fifo"] {
        let archive =
            api.client.read_file(id, &format!("/tmp/{name}")).await.unwrap().body.collect(1 << 20).await.unwrap();
        let to = format!("/workspace/{name}/in");
        let error = refused(api.client.write_tree(id, &to, &options, archive).await, ErrorCode::ArchiveRefused);
        let done = if ["link", "own"].contains(&name) { 2 } else { 1 };
        assert!(error.message.contains(&format!("{done} entries before it were unpacked and stay")), "{error:?}");
        assert_eq!(
            api.sh(id, &format!("ls {to}/fine; find / -xdev -name escaped 2>/dev/null || true")).await,
            format!("{to}/fine")
        );
    }
    api.remove(id).await;
}

#[tokio::test]
async fn a_keyed_archive_is_unpacked_once_and_one_that_breaks_off_says_so() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    api.sh(id, "mkdir t; echo one > t/f").await;
    let archive = tar(&api, id, "/workspace/t").await;
    let keyed = api.client.with_key("tree-once".parse().unwrap());
    let options = WriteTree::default();
    let first = keyed.write_tree(id, "/workspace/u", &options, archive.clone()).await.unwrap();
    api.sh(id, "echo mine > u/f").await;
    assert_eq!(keyed.write_tree(id, "/workspace/u", &options, archive.clone()).await.unwrap(), first);
    assert_eq!(api.sh(id, "cat u/f").await, "mine");
    refused(keyed.write_tree(id, "/workspace/u", &options, "other").await, ErrorCode::IdempotencyKeyConflict);
    let half = Body::from(archive[..700].to_vec());
    refused(api.client.write_tree(id, "/workspace/w", &options, half).await, ErrorCode::ArchiveRefused);
    api.remove(id).await;
}
