//! Installs into the machine-wide cache for real, and looks at what came out of it.
//! Must never replace what is in the cache: the other tests and running sandboxes stand on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use remuda_engine::Trial;
use remuda_engine::install::{Cache, Installed, NotReady, Setup, SetupError, Step, StepState, check_machine};

fn setup() -> Setup {
    Setup { cache: Cache::new(Cache::DEFAULT_ROOT), data_dir: PathBuf::from("/var/lib/remuda"), local_names: false }
}

/// What a command says that runs as `user` on a throw-away overlay over the base image, in a mount namespace of its own.
fn inside(root: &Path, command: &[&str]) -> String {
    const SCRIPT: &str = r#"cd "$1"; base=$2; shift 2; mkdir upper work merged
        mount -t overlay overlay -o "lowerdir=$base,upperdir=upper,workdir=work" merged
        mount -t proc proc merged/proc
        exec chroot --userspec=1000:1000 merged /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/home/user "$@""#;
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-e", "-c", SCRIPT, "inside"])
        .args([dir.path(), root])
        .args(command)
        .output()
        .unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_installs_once_and_what_it_installs_works() {
    setup().run(&|_| {}, &Trial).await.unwrap();

    let said = Mutex::new(Vec::new());
    let second = setup().run(&|progress| said.lock().unwrap().push(progress), &Trial).await.unwrap();
    assert_eq!(second.fetched, [""; 0], "a second run downloads nothing");
    let said = said.into_inner().unwrap();
    for step in [Step::Base, Step::Runsc] {
        let told: Vec<StepState> = said.iter().filter(|p| p.step == step).map(|p| p.state).collect();
        assert_eq!(told, [StepState::AlreadyThere], "and says so: {said:?}");
    }
    assert_eq!(Installed::load(&setup().cache).unwrap(), Some(second.clone()));
    assert!(second.capabilities.missing().is_empty());

    let root = &second.base_root;
    assert_eq!(inside(root, &["node", "--version"]), "v22.22.2");
    assert_eq!(inside(root, &["npm", "--version"]), "10.9.8");
    assert_eq!(inside(root, &["npx", "--version"]), "10.9.8");
    assert_eq!(
        inside(root, &["node", "-p", "require('crypto').createHash('sha1').update('').digest('hex')"]).len(),
        40
    );
    assert!(inside(root, &["python3", "--version"]).starts_with("Python 3."));
    assert_eq!(inside(root, &["python3", "-c", "import ssl, sqlite3, venv; print('é')"]), "é");
    for program in ["git", "curl", "bash", "grep", "find", "sed", "tar", "gzip", "xz", "ps", "pip3"] {
        assert!(!inside(root, &[program, "--version"]).is_empty());
    }
    assert_eq!(inside(root, &["id"]), "uid=1000(user) gid=1000(user) groups=1000(user)");
    assert_eq!(inside(root, &["sh", "-c", "echo ~user"]), "/home/user");
    assert_eq!(inside(root, &["stat", "-c", "%U %G %a", "/workspace", "/home/user"]), "user user 755\nuser user 755");
    assert_eq!(
        inside(root, &["sh", "-c", "test -w /workspace && test -w /home/user && test -w /tmp && echo yes"]),
        "yes"
    );
    assert!(fs::metadata(root.join("etc/ssl/certs/ca-certificates.crt")).unwrap().len() > 100_000);
    assert_eq!(fs::read_to_string(root.join("etc/machine-id")).unwrap(), "");
    assert_eq!(fs::read_to_string(root.join("etc/hostname")).unwrap(), "sandbox\n");
    for empty in ["var/lib/apt/lists", "var/cache/apt", "tmp", "var/log"] {
        assert_eq!(fs::read_dir(root.join(empty)).unwrap().count(), 0, "{empty}");
    }

    let report = setup().check(&Trial).await.unwrap();
    report.ready().unwrap();
    assert_eq!(report.probe.unwrap().runsc_digest, second.runsc_digest);
}

#[tokio::test]
async fn a_check_of_an_empty_cache_says_what_to_run_and_makes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let setup =
        Setup { cache: Cache::new(dir.path().join("cache")), data_dir: dir.path().join("data"), local_names: false };
    let NotReady { failed } = setup.check(&Trial).await.unwrap().ready().unwrap_err();
    let names: Vec<&str> = failed.iter().map(|check| check.name.as_str()).collect();
    assert_eq!(names, ["runsc", "base image"]);
    assert!(failed.iter().all(|check| check.remedy.as_deref().unwrap().contains("remuda setup")));
    assert_eq!(Installed::load(&setup.cache).unwrap(), None);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Unmounts when it goes, also after a failed assertion.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn a_data_directory_on_overlayfs_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["lower", "upper", "work", "merged"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let merged = dir.path().join("merged");
    let place = dir.path().display();
    let options = format!("lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work");
    let options = std::ffi::CString::new(options).unwrap();
    rustix::mount::mount("overlay", &merged, "overlay", rustix::mount::MountFlags::empty(), options.as_c_str())
        .unwrap();
    let mounted = Mounted(merged);
    let setup =
        Setup { cache: Cache::new(dir.path().join("cache")), data_dir: mounted.0.join("not/yet"), local_names: false };
    let SetupError::NotReady(NotReady { failed }) = setup.run(&|_| {}, &Trial).await.unwrap_err() else {
        panic!("not refused");
    };
    assert_eq!(failed.len(), 1);
    assert!(failed[0].detail.contains("on overlayfs"));
    assert!(failed[0].remedy.as_deref().unwrap().contains("--data-dir"));
}

#[test]
fn this_machine_passes_and_nothing_is_left_of_the_checks() {
    let dir = tempfile::tempdir().unwrap();
    let checks = check_machine(&Cache::new(dir.path()), &dir.path().join("data"), true);
    assert!(checks.iter().all(|check| check.ok), "{checks:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
