//! What sandboxes stand on: another base image may be put into use while there are machines and snapshots on the one before.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::restart::Place;
use crate::world::{Server, set_up};

const REAL: &str = "/var/cache/remuda";
/// Two base images with the same files, as far as servers can tell two of their own.
const FIRST: &str = "1111111111111111111111111111111111111111111111111111111111111111";
const SECOND: &str = "2222222222222222222222222222222222222222222222222222222222222222";

/// A cache of a test's own, with the engine of the machine's.
struct Cache {
    directory: tempfile::TempDir,
    current: Value,
}

impl Cache {
    fn new() -> Cache {
        set_up();
        let directory = tempfile::Builder::new().prefix("remuda-test-").tempdir_in("/var/tmp").unwrap();
        let current: Value = serde_json::from_slice(&fs::read(Path::new(REAL).join("current.json")).unwrap()).unwrap();
        let base = current["base"].as_str().unwrap();
        symlink(Path::new(REAL).join("runsc"), directory.path().join("runsc")).unwrap();
        for digest in [FIRST, SECOND] {
            let place = directory.path().join("bases").join(digest);
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&place).unwrap();
            symlink(Path::new(REAL).join("bases").join(base).join("root"), place.join("root")).unwrap();
        }
        Cache { directory, current }
    }

    fn base(&self, digest: &str) -> PathBuf {
        self.directory.path().join("bases").join(digest)
    }

    fn serve(&self, place: &Place, base: &str) -> Server {
        let current =
            serde_json::json!({ "runsc": self.current["runsc"], "base": base, "probes": self.current["probes"] });
        fs::write(self.directory.path().join("current.json"), current.to_string()).unwrap();
        Server::start_plain(&place.data_dir, &["--cache-dir", self.directory.path().to_str().unwrap()])
    }
}

/// Whether its root is mounted on that base image.
fn stands_on(server: &Server, id: &str, base: &str) -> bool {
    let uid = server.run(&["show", id, "--json"]).json()["uid"].as_str().unwrap().to_owned();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.contains(&format!("/{uid}/upper")));
    mount.unwrap_or_else(|| panic!("{id} has no root in {mounts}")).contains(&format!("/bases/{base}/root"))
}

#[test]
fn what_was_made_on_one_base_image_goes_on_there_when_another_is_in_use() {
    let (place, cache) = (Place::new(), Cache::new());
    let server = cache.serve(&place, FIRST);
    let (source, stopped) = (server.create(), server.create());
    let write = ["exec", &stopped, "--", "sh", "-c", "echo kept > /workspace/file"];
    assert_eq!(server.run(&write).line(), "");
    assert_eq!(server.run(&["stop", &stopped]).code, 0);
    let captured = |server: &Server, mode: &str| server.run(&["snapshot", "create", &source, "--mode", mode]).line();
    let (memory, files) = (captured(&server, "memory"), captured(&server, "filesystem"));
    server.kill();

    let server = cache.serve(&place, SECOND);
    let fresh = server.create();
    assert!(stands_on(&server, &fresh, SECOND) && stands_on(&server, &source, FIRST));
    // Captured by a server that uses another one, of a machine that stands where it stood.
    let later = captured(&server, "memory");
    for snapshot in [&memory, &files, &later] {
        let restored = server.run(&["restore", snapshot]).line();
        assert!(stands_on(&server, &restored, FIRST), "{snapshot}");
        assert_eq!(server.run(&["exec", &restored, "--", "true"]).code, 0);
        assert_eq!(server.run(&["rm", &restored]).code, 0);
    }
    let branch = server.run(&["fork", &source, "--count", "1"]).line();
    assert!(stands_on(&server, &branch, FIRST));
    let started = server.run(&["start", &stopped]).line();
    assert!(stands_on(&server, &started, FIRST));
    assert_eq!(server.run(&["exec", &started, "--", "cat", "/workspace/file"]).line(), "kept");
    assert_eq!(server.run(&["stop", &started]).code, 0);

    fs::rename(cache.base(FIRST), cache.base("gone")).unwrap();
    let commands: [&[&str]; 5] = [
        &["restore", &memory],
        &["restore", &files],
        &["restore", &later],
        &["fork", &source, "--count", "1"],
        &["start", &started],
    ];
    for command in commands {
        let refused = server.run(command);
        refused.failed(1, "engine_mismatch");
        assert!(
            refused.stderr.contains(&format!("its base image is not at {}", cache.base(FIRST).display())),
            "{}",
            refused.stderr
        );
    }
    assert_eq!(server.run(&["exec", &source, "--", "true"]).code, 0, "it runs all the same");
    server.kill();
}
