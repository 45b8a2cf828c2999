//! Files through the API: whole or not at all, with their modes, under the guest user's permissions, and transfers that
//! somebody abandons.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use remuda_client::WriteFile;
use remuda_client::wire::FileKind;
use remuda_types::{ErrorCode, SandboxId};

use crate::api::{Api, detached, refused};

async fn read(api: &Api, id: &SandboxId, path: &str) -> Vec<u8> {
    let download = api.client.read_file(id, path).await.unwrap();
    download.body.collect(128 << 20).await.unwrap().to_vec()
}

/// Bytes without a pattern that a fault could hide in.
pub fn noise(length: usize) -> Vec<u8> {
    let mut word = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[tokio::test]
async fn a_large_file_goes_both_ways_unchanged() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let bytes = noise((64 << 20) + 13);
    let written = api.client.write_file(id, "/workspace/large", &WriteFile::default(), bytes.clone()).await.unwrap();
    assert_eq!(
        (written.size, written.kind, written.mode, written.uid),
        (bytes.len() as u64, FileKind::File, 0o644, 1000)
    );
    let download = api.client.read_file(id, "/workspace/large").await.unwrap();
    assert_eq!((download.size, download.mode), (Some(bytes.len() as u64), Some(0o644)));
    let got = download.body.collect(128 << 20).await.unwrap();
    assert!(got == bytes, "bytes were changed");
    for length in [0, 1, 65_536, 1 << 20] {
        let part = bytes[..length].to_vec();
        api.client.write_file(id, "/tmp/part", &WriteFile::default(), part.clone()).await.unwrap();
        assert!(read(&api, id, "/tmp/part").await == part, "{length}");
    }
    api.remove(id).await;
}

#[tokio::test]
async fn a_file_is_replaced_as_a_whole_and_keeps_its_mode() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let options = WriteFile { mode: Some(0o750), ..WriteFile::default() };
    api.client.write_file(id, "/workspace/tool", &options, "#!/bin/sh\necho one\n").await.unwrap();
    assert_eq!(api.sh(id, "./tool; stat -c %a tool").await, "one\n750");
    // Whoever has the old one open reads the old one to its end.
    let reader = "exec 3< tool; echo ready; while [ ! -e /tmp/go ]; do sleep 0.02; done; cat <&3";
    let (reader, _) = api.background(id, detached(reader)).await;
    let before = api.sh(id, "stat -c %i tool").await;
    let after =
        api.client.write_file(id, "/workspace/tool", &WriteFile::default(), "#!/bin/sh\necho two\n").await.unwrap();
    assert_eq!(after.mode, 0o750, "the mode of the file that is replaced");
    assert_ne!(api.sh(id, "stat -c %i tool").await, before, "another file under the same name");
    assert_eq!(api.sh(id, "./tool; ls -A").await, "two\ntool", "nothing temporary is left");
    api.sh(id, "touch /tmp/go").await;
    api.ended(id, &reader).await;
    let page = api.client.output(id, &reader, &Default::default()).await.unwrap();
    let text: String = page.records.iter().map(|record| record.text.as_str()).collect();
    assert_eq!(text, "ready\n#!/bin/sh\necho one\n");
    // A link is written through, not replaced.
    api.sh(id, "ln -s tool link").await;
    api.client.write_file(id, "/workspace/link", &WriteFile::default(), "three").await.unwrap();
    assert_eq!(api.sh(id, "readlink link; cat tool").await, "tool\nthree");
    let deep = WriteFile { parents: true, ..WriteFile::default() };
    api.client.write_file(id, "/workspace/a/b/c", &deep, "x").await.unwrap();
    assert_eq!(api.sh(id, "stat -c %U:%a a a/b a/b/c").await, "user:755\nuser:755\nuser:644");
    let owned = WriteFile { user: Some("root".into()), mode: Some(0o600), ..WriteFile::default() };
    api.client.write_file(id, "/etc/secret", &owned, "x").await.unwrap();
    assert_eq!(api.root(id, "stat -c %U:%a /etc/secret").await, "root:600");
    api.remove(id).await;
}

#[tokio::test]
async fn what_may_not_or_cannot_be_done_is_told_apart() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let client = &api.client;
    let write = async |path: &str| client.write_file(id, path, &WriteFile::default(), "x").await;
    refused(client.read_file(id, "/no/such").await, ErrorCode::FileNotFound);
    refused(client.read_file(id, "/workspace").await, ErrorCode::NotARegularFile);
    refused(client.read_file(id, "/etc/shadow").await, ErrorCode::PermissionDenied);
    refused(client.read_file(id, "relative").await, ErrorCode::InvalidRequest);
    refused(write("/workspace/no/parent").await, ErrorCode::FileNotFound);
    refused(write("/etc/passwd").await, ErrorCode::PermissionDenied);
    refused(write("/workspace").await, ErrorCode::NotARegularFile);
    refused(write("/etc/passwd/below").await, ErrorCode::NotADirectory);
    refused(client.list_files(id, "/etc/passwd").await, ErrorCode::NotADirectory);
    refused(client.list_files(id, "/root").await, ErrorCode::PermissionDenied);
    refused(client.make_directory(id, "/workspace/no/parent", false).await, ErrorCode::FileNotFound);
    refused(client.remove_file(id, "/workspace/absent", false).await, ErrorCode::FileNotFound);
    client.make_directory(id, "/workspace/full/inside", true).await.unwrap();
    refused(client.remove_file(id, "/workspace/full", false).await, ErrorCode::InvalidRequest);
    client.remove_file(id, "/workspace/full", true).await.unwrap();
    refused(client.stat_file(id, "/workspace/full").await, ErrorCode::FileNotFound);
    // A file that says it is empty and is not.
    assert!(read(&api, id, "/proc/self/status").await.starts_with(b"Name:"));
    api.remove(id).await;
}

#[tokio::test]
async fn a_listing_is_sorted_and_tells_every_kind() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    api.sh(id, "mkdir l; cd l; echo 12345 > b; mkdir c; ln -s /nowhere a; mkfifo d; touch \"$(printf 'n\\nl \\303\\251')\"; chmod 604 b").await;
    let list = api.client.list_files(id, "/workspace/l").await.unwrap();
    assert!(!list.truncated);
    let rows: Vec<_> = list.entries.iter().map(|e| (e.path.as_str(), e.kind, e.size)).collect();
    assert_eq!(rows[0].0, "/workspace/l/a");
    assert_eq!(
        rows.iter().map(|row| row.1).collect::<Vec<_>>(),
        [FileKind::Symlink, FileKind::File, FileKind::Directory, FileKind::Other, FileKind::File,]
    );
    assert_eq!(rows[1], ("/workspace/l/b", FileKind::File, 6));
    assert_eq!(rows[4].0, "/workspace/l/n\nl é");
    assert_eq!((list.entries[1].mode, list.entries[1].uid), (0o604, 1000));
    assert_eq!(list.entries[0].target.as_deref(), Some("/nowhere"));
    // Too many are cut, and that is said.
    api.sh(id, "mkdir many; cd many; seq 10050 | xargs touch").await;
    let many = api.client.list_files(id, "/workspace/many").await.unwrap();
    assert!(many.truncated && (5_000..=10_000).contains(&many.entries.len()), "{}", many.entries.len());
    api.remove(id).await;
}

#[tokio::test]
async fn an_abandoned_transfer_leaves_no_file_and_no_wait() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    api.client.write_file(id, "/workspace/kept", &WriteFile::default(), "as it was").await.unwrap();
    api.sh(id, "head -c 40000000 /dev/zero > large").await;
    for path in ["/workspace/new", "/workspace/kept"] {
        // Half of the body, and then the caller is gone.
        let mut socket = UnixStream::connect(api.server.data_dir.join("remuda.sock")).unwrap();
        write!(
            socket,
            "PUT /v1/sandboxes/{id}/files?path={path} HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n"
        )
        .unwrap();
        socket.write_all(&noise(4_000_000)).unwrap();
        drop(socket);
    }
    for _ in 0..3 {
        // A part of the file, and then the caller is gone.
        let mut socket = UnixStream::connect(api.server.data_dir.join("remuda.sock")).unwrap();
        write!(socket, "GET /v1/sandboxes/{id}/files?path=/workspace/large HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        socket.read_exact(&mut [0; 1000]).unwrap();
        drop(socket);
    }
    // Far more than the agent works on at once: none of them is in the next one's way for longer than until the agent
    // has heard that nobody waits for it.
    for _ in 0..300 {
        let mut socket = UnixStream::connect(api.server.data_dir.join("remuda.sock")).unwrap();
        write!(
            socket,
            "PUT /v1/sandboxes/{id}/files?path=/workspace/many HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx"
        )
        .unwrap();
    }
    api.client.write_file(id, "/workspace/after", &WriteFile::default(), "served").await.unwrap();
    assert_eq!(read(&api, id, "/workspace/after").await, b"served");
    assert_eq!(read(&api, id, "/workspace/large").await.len(), 40_000_000);
    // Nothing temporary stays either, once the agent has heard of it.
    api.sh(id, "while [ \"$(ls -A | tr '\\n' ' ')\" != 'after kept large ' ]; do sleep 0.05; done").await;
    assert_eq!(api.sh(id, "cat kept").await, "as it was");
    api.remove(id).await;
}
