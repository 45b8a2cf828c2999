//! What a sandbox's host processes could reach if they were taken over: looked at from outside, in `/proc`, on the real
//! thing.

#[path = "adoption/server.rs"]
#[allow(dead_code, reason = "this test needs no more than a machine that lives")]
mod server;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use server::{Server, World};

/// CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID: what serves files of every owner.
const OF_FILES: u64 = 0b11111;
const SYS_CHROOT: u64 = 1 << 18;
const SYS_PTRACE: u64 = 1 << 19;

#[tokio::test(flavor = "multi_thread")]
async fn sentry_and_gofer_have_no_more_than_they_need() {
    let world = World::new();
    // Open in whoever starts processes, and not marked to be closed by that: it must not reach them.
    let secret = tempfile::NamedTempFile::new().unwrap();
    rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).unwrap();
    let (server, facts) = Server::raised(&world);
    let (sentry, gofer) = (proc(facts.sentry.pid), proc(facts.gofer.pid));
    let engine = world.engine();

    for process in [&sentry, &gofer] {
        let extra = if *process == sentry { SYS_PTRACE } else { SYS_CHROOT };
        let status = fs::read_to_string(process.join("status")).unwrap();
        for set in ["CapPrm", "CapEff", "CapBnd"] {
            assert_eq!(capabilities(&status, set), OF_FILES | extra, "{set} of {}", process.display());
        }
        for set in ["CapInh", "CapAmb"] {
            assert_eq!(capabilities(&status, set), 0, "{set} of {}", process.display());
        }
        // Its own seccomp filters are up.
        assert_eq!(field(&status, "Seccomp"), "2", "{}", process.display());
        for namespace in ["user", "mnt", "ipc", "uts", "net"] {
            let of = |at: &Path| fs::read_link(at.join("ns").join(namespace)).unwrap();
            assert_ne!(of(process), of(Path::new("/proc/self")), "{namespace} of {}", process.display());
        }
        let targets = descriptors(process);
        assert!(!targets.contains(secret.path()), "{targets:?}");
        let data = world.data();
        let own = |path: &&PathBuf| path.starts_with(&data) && !path.starts_with(data.join("sandboxes"));
        assert_eq!(targets.iter().find(own), None, "{targets:?}");
    }

    let status = fs::read_to_string(gofer.join("status")).unwrap();
    assert_eq!(field(&status, "NSpid").split_ascii_whitespace().last(), Some("1"), "it sees no process but its own");
    let pinned = fs::metadata(engine.dirs().sandbox(&world.uid).net_inner()).unwrap().ino();
    assert_eq!(fs::metadata(sentry.join("ns/net")).unwrap().ino(), pinned, "the sentry is in its sandbox's network");

    let seen = |process: &Path| {
        let entries = fs::read_dir(process.join("root")).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
    };
    assert_eq!(seen(&sentry), BTreeSet::from(["proc".to_owned()]));
    assert_eq!(fs::read_dir(sentry.join("root/proc")).unwrap().count(), 0, "/proc is unmounted");
    let files = engine.dirs().sandbox(&world.uid).mount;
    let of = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).unwrap();
    assert_eq!(of(&gofer.join("root")), of(&files), "the gofer's root is the sandbox's");
    for (process, most) in [(&sentry, 1), (&gofer, 3)] {
        let mounts = fs::read_to_string(process.join("mounts")).unwrap();
        assert!(mounts.lines().count() <= most, "{}: {mounts}", process.display());
    }

    server.kill();
    world.clear(&engine).await;
}

fn proc(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {status}")).trim()
}

fn capabilities(status: &str, set: &str) -> u64 {
    u64::from_str_radix(field(status, set), 16).unwrap()
}

/// What a process has open, by path.
fn descriptors(process: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(process.join("fd")).unwrap();
    entries.filter_map(|e| fs::read_link(e.unwrap().path()).ok()).collect()
}
