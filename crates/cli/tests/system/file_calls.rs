//! Files through the API beside whole reads and writes: parts, entity tags and conditions, moving, modes and owners, and
//! what becomes of such calls when the server is killed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use remuda_client::{MoveFile, OnlyIf, ReadFile, SetAttributes, WriteFile};
use remuda_types::{ErrorCode, SandboxId};

use crate::api::{Api, refused};
use crate::guest_files::noise;
use crate::restart::Place;
use crate::world::Server;

async fn text(api: &Api, id: &SandboxId, path: &str, options: &ReadFile) -> String {
    let download = api.client.read_file_with(id, path, options).await.unwrap();
    String::from_utf8(download.body.collect(1 << 20).await.unwrap().to_vec()).unwrap()
}

/// What HTTP itself says of a read.
struct Seen {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Seen {
    fn header(&self, name: &str) -> &str {
        let of = |line: &'_ str| line.split_once(": ").filter(|(found, _)| found.eq_ignore_ascii_case(name)).is_some();
        let line = self.head.lines().find(|line| of(line)).unwrap_or_else(|| panic!("no {name}: {}", self.head));
        line.split_once(": ").unwrap().1
    }
}

fn get(api: &Api, id: &SandboxId, headers: &[(&str, &str)]) -> Seen {
    get_cut(api, id, headers, u64::MAX)
}

/// Reads no more than so many bytes of the answer, head and body, and cuts the connection.
fn get_cut(api: &Api, id: &SandboxId, headers: &[(&str, &str)], most: u64) -> Seen {
    let mut socket = UnixStream::connect(api.server.data_dir.join("remuda.sock")).unwrap();
    let mut request =
        format!("GET /v1/sandboxes/{id}/files?path=/workspace/f HTTP/1.1\r\nHost: x\r\nConnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    write!(socket, "{request}\r\n").unwrap();
    let mut answer = Vec::new();
    (&socket).take(most).read_to_end(&mut answer).unwrap();
    let cut = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(answer[..cut].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Seen { status, head, body: answer[cut + 4..].to_vec() }
}

#[tokio::test]
async fn parts_and_tags_are_those_of_http() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let written = api.client.write_file(id, "/workspace/f", &WriteFile::default(), "0123456789").await.unwrap();
    let digest = written.digest.unwrap();
    assert_eq!(digest, format!("sha256:{}", api.sh(id, "sha256sum f | cut -c 1-64").await));
    let whole = get(&api, id, &[]);
    let tag = whole.header("etag");
    assert_eq!((whole.status, whole.body.as_slice(), tag), (200, b"0123456789".as_slice(), &*format!("\"{digest}\"")));
    assert_eq!(whole.header("accept-ranges"), "bytes");
    for (range, part, told) in
        [("bytes=2-4", "234", "bytes 2-4/10"), ("bytes=7-", "789", "bytes 7-9/10"), ("bytes=-1", "9", "bytes 9-9/10")]
    {
        let seen = get(&api, id, &[("Range", range)]);
        assert_eq!((seen.status, seen.body.as_slice()), (206, part.as_bytes()), "{range}");
        let length = part.len().to_string();
        assert_eq!((seen.header("content-range"), seen.header("content-length")), (told, length.as_str()));
    }
    assert_eq!(get(&api, id, &[("Range", "bytes=0-1,3-4")]).status, 200);
    let behind = get(&api, id, &[("Range", "bytes=10-")]);
    assert_eq!((behind.status, behind.header("content-range")), (416, "bytes */10"));
    let unchanged = get(&api, id, &[("If-None-Match", tag)]);
    assert_eq!((unchanged.status, unchanged.body.len(), unchanged.header("etag")), (304, 0, tag));
    assert_eq!(get(&api, id, &[("If-Match", tag), ("Range", "bytes=0-0")]).status, 206);
    api.sh(id, "echo more >> f").await;
    assert_eq!(get(&api, id, &[("If-None-Match", tag)]).status, 200);
    assert_eq!(get(&api, id, &[("If-Match", tag)]).status, 412);
    assert_eq!(get(&api, id, &[("If-Match", "no quotes")]).status, 400);
    api.remove(id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_cut_anywhere_goes_on_where_it_was_and_not_in_another_file() {
    let place = Place::new();
    let mut api = place.start();
    let id = &api.create().await.id;
    let bytes = noise((8 << 20) + 77);
    let written = api.client.write_file(id, "/workspace/f", &WriteFile::default(), bytes.clone()).await.unwrap();
    let tag = format!("\"{}\"", written.digest.unwrap());
    let head_bytes = get_cut(&api, id, &[], 4096).head.len() as u64 + 4;
    let rest = |api: &Api, got: usize| {
        let seen = get(api, id, &[("Range", &format!("bytes={got}-")), ("If-Match", &tag)]);
        assert_eq!((seen.status, seen.header("etag")), (206, tag.as_str()));
        seen.body
    };
    // Everywhere near the beginning, around what is sent as one, and seldom in all the rest.
    let near = (0..4).chain((65_534..65_540).chain([131_072, 262_143, 262_144, 1 << 20]));
    for got in near.chain((0..bytes.len() as u64).step_by(1_234_567)) {
        let mut all = get_cut(&api, id, &[], head_bytes + got).body;
        assert_eq!(all.len() as u64, got);
        all.extend(rest(&api, got as usize));
        assert!(all == bytes, "cut after {got} bytes");
    }
    // The server dies in the middle, and the next one goes on.
    for got in [0, 100_000, 5 << 20] {
        let mut all = Vec::new();
        let mut socket = UnixStream::connect(place.data_dir.join("remuda.sock")).unwrap();
        write!(socket, "GET /v1/sandboxes/{id}/files?path=/workspace/f HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        (&socket).take(head_bytes + got).read_to_end(&mut all).unwrap();
        api = place.restart(api);
        // What was on its way comes, and then the end, by a reset or not.
        let _ = socket.read_to_end(&mut all);
        let cut = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let mut all = all.split_off(cut + 4);
        all.extend(rest(&api, all.len()));
        assert!(all == bytes, "killed after {got} bytes");
    }
    // Who would go on in a file that changed meanwhile is told.
    api.sh(id, "echo >> f").await;
    assert_eq!(get(&api, id, &[("Range", "bytes=9-"), ("If-Match", &tag)]).status, 412);
}

#[tokio::test]
async fn of_two_who_edit_the_same_text_one_is_told() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let client = &api.client;
    let new = WriteFile { only_if: OnlyIf::New, ..WriteFile::default() };
    let first = client.write_file(id, "/workspace/f", &new, "one").await.unwrap().digest.unwrap();
    refused(client.write_file(id, "/workspace/f", &new, "other").await, ErrorCode::PreconditionFailed);
    let over = WriteFile { only_if: OnlyIf::Digest(first.clone()), ..WriteFile::default() };
    let (a, b) = tokio::join!(
        client.write_file(id, "/workspace/f", &over, "two, by a"),
        client.write_file(id, "/workspace/f", &over, "two, by b")
    );
    let (done, lost) = if a.is_ok() { (a, b) } else { (b, a) };
    refused(lost, ErrorCode::PreconditionFailed);
    let digest = done.unwrap().digest.unwrap();
    assert_eq!(client.digest_file(id, "/workspace/f").await.unwrap().digest, Some(digest.clone()));
    refused(
        client
            .read_file_with(id, "/workspace/f", &ReadFile { only_if: OnlyIf::Digest(first), ..ReadFile::default() })
            .await,
        ErrorCode::PreconditionFailed,
    );
    let part = ReadFile { range: Some((0, Some(2))), only_if: OnlyIf::Digest(digest), ..ReadFile::default() };
    assert_eq!(text(&api, id, "/workspace/f", &part).await, "two");
    assert_eq!(api.sh(id, "ls -A").await, "f");
    api.remove(id).await;
}

#[tokio::test]
async fn paths_are_moved_and_changed_as_who_may() {
    let api = Api::shared();
    let sandbox = api.create().await;
    let id = &sandbox.id;
    let client = &api.client;
    api.sh(id, "echo a > a; echo b > b; mkdir d").await;
    let (keep, force) = (MoveFile::default(), MoveFile { overwrite: true, ..MoveFile::default() });
    refused(client.move_file(id, "/workspace/a", "/workspace/b", &keep).await, ErrorCode::FileExists);
    refused(client.move_file(id, "/workspace/a", "/workspace/d", &force).await, ErrorCode::FileExists);
    refused(client.move_file(id, "/workspace/x", "/workspace/y", &keep).await, ErrorCode::FileNotFound);
    refused(client.move_file(id, "/etc/passwd", "/workspace/p", &keep).await, ErrorCode::PermissionDenied);
    refused(client.move_file(id, "/workspace/a", "relative", &keep).await, ErrorCode::InvalidRequest);
    let moved = client.move_file(id, "/workspace/a", "/workspace/b", &force).await.unwrap();
    assert_eq!((moved.path.as_str(), moved.size), ("/workspace/b", 2));
    assert_eq!(api.sh(id, "cat b; ls -A | tr '\\n' ' '").await, "a\nb d");
    // With one key it is one move, also when another file has come to the old name.
    let keyed = client.with_key("move-once".parse().unwrap());
    let first = keyed.move_file(id, "/workspace/b", "/workspace/d/b", &keep).await.unwrap();
    api.sh(id, "echo another > b").await;
    assert_eq!(keyed.move_file(id, "/workspace/b", "/workspace/d/b", &keep).await.unwrap(), first);
    assert_eq!(api.sh(id, "cat b d/b").await, "another\na");
    // Between file systems, if this guest has two.
    client.move_file(id, "/workspace/b", "/tmp/b", &keep).await.unwrap();
    client.move_file(id, "/tmp/b", "/workspace/b", &keep).await.unwrap();
    assert_eq!(api.sh(id, "stat -c %U:%a b; cat b").await, "user:644\nanother");

    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    assert_eq!(client.set_attributes(id, "/workspace/b", &set).await.unwrap().mode, 0o600);
    let give = SetAttributes { owner: Some("root".into()), ..SetAttributes::default() };
    refused(client.set_attributes(id, "/workspace/b", &give).await, ErrorCode::PermissionDenied);
    let give = SetAttributes { user: Some("root".into()), mode: Some(0o640), ..give };
    let given = client.set_attributes(id, "/workspace/b", &give).await.unwrap();
    assert_eq!((given.mode, given.uid), (0o640, 0));
    assert_eq!(api.root(id, "stat -c %U:%G:%a /workspace/b").await, "root:root:640");
    refused(client.set_attributes(id, "/workspace/b", &SetAttributes::default()).await, ErrorCode::InvalidRequest);
    refused(client.make_directory(id, "/workspace/d", false).await, ErrorCode::FileExists);
    refused(client.read_file(id, "/workspace/b").await, ErrorCode::PermissionDenied);
    let as_root = ReadFile { user: Some("root".into()), ..ReadFile::default() };
    assert_eq!(text(&api, id, "/workspace/b", &as_root).await, "another\n");
    api.remove(id).await;
}

#[test]
fn single_files_are_handled_on_the_command_line() {
    let server = Server::start();
    let id = server.create();
    let at = |path: &str| format!("{id}:{path}");
    server.run(&["exec", &id, "-c", "printf 0123456789 > f"]).line();
    assert_eq!(server.run(&["file", "cat", &at("/workspace/f"), "--range", "3-5"]).line(), "345");
    let stat = server.run(&["file", "stat", &at("/workspace/f"), "--json"]).json();
    let digest = stat["digest"].as_str().unwrap().to_owned();
    assert_eq!((stat["size"].as_u64(), digest.len()), (Some(10), 71));
    assert!(server.run(&["file", "stat", &at("/workspace/f")]).line().contains(&digest));
    server.run(&["file", "write", &at("/workspace/f"), "--new"]).failed(1, "precondition_failed");
    server.run(&["file", "write", &at("/workspace/f"), "--if-match", &digest]).line();
    server.run(&["file", "write", &at("/workspace/f"), "--if-match", &digest]).failed(1, "precondition_failed");
    server.run(&["file", "write", &at("/workspace/g"), "--new", "--mode", "600"]).line();
    server.run(&["file", "mv", &at("/workspace/f"), "/workspace/g"]).failed(1, "file_exists");
    server.run(&["file", "mv", "--force", &at("/workspace/f"), "/workspace/g"]).line();
    server.run(&["file", "chmod", &at("/workspace/g"), "0751"]).line();
    server.run(&["file", "chmod", &at("/workspace/g")]).failed(2, "nothing to change");
    server.run(&["file", "chmod", "--user", "root", "--owner", "root", &at("/workspace/g")]).line();
    let list = server.run(&["file", "ls", &at("/workspace")]).line();
    assert!(list.contains("-0751  0:0") && list.contains("/workspace/g"), "{list}");
    server.run(&["file", "cat", "/local"]).failed(2, "no place in a sandbox");
}
