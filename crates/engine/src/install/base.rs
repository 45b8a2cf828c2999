//! Builds the base image: a small Debian made from the machine's own apt sources, with Node, a user and a workspace.
//! Must never write through a symlink of the tree it builds, and must leave nothing of this machine in it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, chown};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::apt;
use super::cache::{Cache, Held, Kind};
use super::command::Tool;
use super::digest::{Digest, digest_tree};
use super::distribution::Distribution;
use super::error::SetupError;
use super::node;

/// Raise it when anything below changes what an image contains; older images stay for those who refer to them.
const RECIPE_REVISION: u32 = 2;
/// Packages beyond Debian's minimum.
const PACKAGES: &[&str] = &[
    "bash",
    "ca-certificates",
    "coreutils",
    "curl",
    "findutils",
    "git",
    "grep",
    "gzip",
    "less",
    "procps",
    "python3",
    "python3-pip",
    "python3-venv",
    "sed",
    "tar",
    "xz-utils",
];
/// Documentation and translations, two thirds of the files. Licences stay.
const DPKG_OPTIONS: &[&str] = &[
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
];
/// Whom programs in a sandbox trust: those whom this machine trusts.
const TRUSTED: &str = "etc/ssl/certs/ca-certificates.crt";
/// For those that don't look there by themselves.
const ENVIRONMENT: &str = "\
SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt
PIP_CERT=/etc/ssl/certs/ca-certificates.crt
NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
";
/// The date packages are told, so that none writes the day of building into the image: 2025-01-01 UTC, in seconds.
const SOURCE_DATE_EPOCH: &str = "1735689600";
/// Uid and gid of `user`.
const USER_ID: u32 = 1000;
/// Longest time for building the tree.
const BUILD_TIME_MAX: Duration = Duration::from_secs(1800);
/// Longest time for one short command inside the tree.
const INSIDE_TIME_MAX: Duration = Duration::from_secs(120);

/// What `manifest.json` beside an image's root says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseManifest {
    /// Digest of the tree; the entry's name.
    pub digest: Digest,
    /// Digest of what was asked for: an image with this recipe need not be built again.
    pub recipe: Digest,
    /// Such as `debian bookworm`.
    pub distribution: String,
    /// Version of Node.
    pub node: String,
    /// Version of npm.
    pub npm: String,
    /// Every package with its version, as `name=version`.
    pub packages: Vec<String>,
    /// Number of entries in the tree.
    pub entries: u64,
    /// Sum of the files' sizes in bytes.
    pub bytes: u64,
    /// When it was built, in milliseconds since 1970 UTC.
    pub built_at_unix_ms: i64,
}

/// The digest of what an image for this machine is made of.
pub(super) fn recipe(distribution: &Distribution) -> Digest {
    // A machine that comes to trust others gets another image.
    let trusted = Digest::of_file(&Path::new("/").join(TRUSTED)).map(|digest| digest.to_string()).unwrap_or_default();
    let text = format!(
        "{RECIPE_REVISION}\n{}\n{}\n{}\n{PACKAGES:?}\n{DPKG_OPTIONS:?}\n{}\n{}\n{trusted}\n",
        distribution.id,
        distribution.codename,
        std::env::consts::ARCH,
        node::NODE_VERSION,
        node::NPM_VERSION,
    );
    Digest::of_bytes(text.as_bytes())
}

/// The manifest of one image in the cache; `None` when it cannot be read, which a rebuild mends.
pub(super) fn manifest(cache: &Cache, digest: &Digest) -> Option<BaseManifest> {
    let text = fs::read(cache.entry(Kind::Base, digest).join("manifest.json")).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The newest image of a recipe in the cache.
pub(super) fn find(cache: &Cache, recipe: &Digest) -> Result<Option<BaseManifest>, SetupError> {
    Ok(cache
        .list(Kind::Base)?
        .iter()
        .filter_map(|digest| manifest(cache, digest).filter(|told| told.digest == *digest))
        .filter(|told| told.recipe == *recipe)
        .max_by_key(|told| told.built_at_unix_ms))
}

/// Builds an image and publishes it.
pub(super) async fn build(
    cache: &Cache,
    held: &Held,
    distribution: &Distribution,
    now_unix_ms: i64,
) -> Result<BaseManifest, SetupError> {
    let sources = apt::of_release(&apt::read_machine(Path::new("/etc/apt"))?, &distribution.codename);
    if sources.is_empty() {
        return Err(SetupError::Wrong {
            what: "the machine's apt configuration".to_owned(),
            cause: format!(
                "no source below /etc/apt names the main archive of its release `{}`",
                distribution.codename
            ),
            remedy:
                "add the distribution's archive to /etc/apt/sources.list, run `apt-get update`, then `remuda setup`"
                    .to_owned(),
        });
    }
    let staging = cache.stage(held)?;
    let entry = staging.path().join("base");
    let root = entry.join("root");
    let node_dir = staging.path().join("node");
    let list = staging.path().join("machine.sources");
    fs::create_dir(&entry).map_err(SetupError::io("make", &entry))?;
    fs::write(&list, apt::render(&sources)).map_err(SetupError::io("write", &list))?;
    tokio::try_join!(bootstrap(held, distribution, &root, &list), node::fetch(held, &node_dir))?;
    node::place(&node_dir, &root)?;
    furnish(held, &root).await?;
    let keep_sources = !sources.iter().any(apt::Source::has_credential);
    trust_alike(&root).map_err(SetupError::io("furnish", &root))?;
    neutralise(&root, keep_sources).map_err(SetupError::io("furnish", &root))?;
    prove(held, &root).await?;
    let packages = packages(held, &root).await?;
    let (tree, counted) = tokio::task::spawn_blocking(move || {
        let counted = digest_tree(&root);
        (root, counted)
    })
    .await
    .map_err(|_| SetupError::Interrupted { doing: "digesting the base image" })?;
    let counted = counted.map_err(SetupError::io("digest", &tree))?;
    let manifest = BaseManifest {
        digest: counted.digest,
        recipe: recipe(distribution),
        distribution: format!("{} {}", distribution.id, distribution.codename),
        node: node::NODE_VERSION.to_owned(),
        npm: node::NPM_VERSION.to_owned(),
        packages,
        entries: counted.entries,
        bytes: counted.bytes,
        built_at_unix_ms: now_unix_ms,
    };
    let path = entry.join("manifest.json");
    let text = serde_json::to_vec_pretty(&manifest).map_err(|error| SetupError::io("write", &path)(error.into()))?;
    fs::write(&path, text).map_err(SetupError::io("write", &path))?;
    cache.publish(&entry, Kind::Base, &manifest.digest)?;
    Ok(manifest)
}

async fn bootstrap(held: &Held, distribution: &Distribution, root: &Path, list: &Path) -> Result<(), SetupError> {
    // Namespaces of its own: a killed build takes its mounts and its children with it.
    let mut tool = Tool::new("unshare", "building the base image", BUILD_TIME_MAX)
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"])
        .args(["mmdebstrap", "--mode=root", "--format=directory", "--variant=minbase"])
        .arg(format!("--include={}", PACKAGES.join(",")))
        .args(DPKG_OPTIONS.iter().map(|option| format!("--dpkgopt={option}")));
    for setting in proxy_settings(held).await? {
        tool = tool.arg(format!("--aptopt={setting}"));
    }
    tool.arg(&distribution.codename)
        .args([root, list])
        .env("SOURCE_DATE_EPOCH", SOURCE_DATE_EPOCH)
        .remedy(
            "if the package archive could not be reached, check this machine's network: `apt-get update` must succeed, \
             for this uses the same archive; then run `remuda setup` again",
        )
        .holding(held)
        .run()
        .await?;
    Ok(())
}

/// How the machine's apt gets to its archive, if not directly. mmdebstrap does not look there by itself.
async fn proxy_settings(held: &Held) -> Result<Vec<String>, SetupError> {
    let told = Tool::new("apt-config", "reading apt's configuration", INSIDE_TIME_MAX)
        .args(["dump", "--no-empty", "--format", "%f \"%v\";%n"])
        .args(["Acquire::http::Proxy", "Acquire::https::Proxy", "Acquire::Check-Valid-Until"])
        .holding(held)
        .run()
        .await?;
    Ok(told.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// Runs a command inside the tree with nothing of this machine's environment.
fn inside(held: &Held, root: &Path, who: &str, command: &[&str]) -> Tool {
    Tool::new("chroot", "working inside the base image", INSIDE_TIME_MAX)
        .arg(format!("--userspec={who}"))
        .arg(root)
        .args(["/usr/bin/env", "-i", "LANG=C.UTF-8", "HOME=/tmp"])
        .arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .arg(format!("SOURCE_DATE_EPOCH={SOURCE_DATE_EPOCH}"))
        .args(command)
        .holding(held)
}

async fn furnish(held: &Held, root: &Path) -> Result<(), SetupError> {
    let id = USER_ID.to_string();
    inside(held, root, "0:0", &["groupadd", "--gid", &id, "user"]).run().await?;
    let user = ["useradd", "--uid", &id, "--gid", &id, "--create-home", "--shell", "/bin/bash", "user"];
    inside(held, root, "0:0", &user).run().await?;
    let workspace = root.join("workspace");
    fs::DirBuilder::new()
        .mode(0o755)
        .create(&workspace)
        .and_then(|()| chown(&workspace, Some(USER_ID), Some(USER_ID)))
        .map_err(SetupError::io("make", &workspace))
}

/// Lets programs in it trust whom this machine trusts: its archive may be behind an authority of its own.
fn trust_alike(root: &Path) -> io::Result<()> {
    match fs::read_to_string(Path::new("/").join(TRUSTED)) {
        Ok(bundle) => write_new(&root.join(TRUSTED), &bundle),
        // Then it has the one that comes with the distribution.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Takes out what tells of this machine or of the day of building.
fn neutralise(root: &Path, keep_sources: bool) -> io::Result<()> {
    for (name, content) in [
        ("etc/machine-id", ""),
        ("etc/hostname", "sandbox\n"),
        // The near end of every sandbox's network, which leads to the machine's name server; see `crate::network`.
        ("etc/resolv.conf", "nameserver 10.254.254.1\noptions timeout:2 attempts:3\n"),
        ("etc/environment", ENVIRONMENT),
        ("etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n"),
        ("etc/default/locale", "LANG=C.UTF-8\n"),
    ] {
        write_new(&root.join(name), content)?;
    }
    let leftovers = [
        "etc/apt/apt.conf.d/99mmdebstrap",
        "etc/group-",
        "etc/gshadow-",
        "etc/passwd-",
        "etc/shadow-",
        "etc/subgid-",
        "etc/subuid-",
        "var/cache/debconf/config.dat-old",
        "var/cache/debconf/templates.dat-old",
        "var/cache/ldconfig/aux-cache",
        "var/lib/dpkg/status-old",
        "var/lib/systemd/random-seed",
    ];
    for name in leftovers {
        remove_if_there(&root.join(name))?;
    }
    for name in ["tmp", "var/tmp", "var/log", "var/cache/apt", "var/lib/apt/lists", "run"] {
        empty(&root.join(name))?;
    }
    if !keep_sources {
        // An address in them carries a password; the image is read by whatever runs in a sandbox.
        remove_if_there(&root.join("etc/apt/sources.list"))?;
        empty(&root.join("etc/apt/sources.list.d"))?;
    }
    Ok(())
}

fn write_new(path: &Path, content: &str) -> io::Result<()> {
    remove_if_there(path)?;
    OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?.write_all(content.as_bytes())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn empty(dir: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir()) {
        return Ok(());
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Asks the finished tree for what was promised of it.
async fn prove(held: &Held, root: &Path) -> Result<(), SetupError> {
    let node = format!("v{}", node::NODE_VERSION);
    let asked: [(&[&str], &str); 3] =
        [(&["node", "--version"], &node), (&["npm", "--version"], node::NPM_VERSION), (&["id", "-un"], "user")];
    for (command, wanted) in asked {
        let told = inside(held, root, "1000:1000", command).run().await?;
        if told.trim() != wanted {
            return Err(SetupError::Wrong {
                what: format!("`{}` in the base image", command.join(" ")),
                cause: format!("it says `{}`, not `{wanted}`", told.trim()),
                remedy: "run `remuda setup` again".to_owned(),
            });
        }
    }
    empty(&root.join("tmp")).map_err(SetupError::io("empty", &root.join("tmp")))
}

async fn packages(held: &Held, root: &Path) -> Result<Vec<String>, SetupError> {
    let told = Tool::new("dpkg-query", "listing the base image's packages", INSIDE_TIME_MAX)
        .arg(format!("--admindir={}", root.join("var/lib/dpkg").display()))
        .args(["--show", "--showformat", "${Package}=${Version}\n"])
        .holding(held)
        .run()
        .await?;
    Ok(told.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_replaces_a_symlink_instead_of_following_it() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        let link = dir.path().join("resolv.conf");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        write_new(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(fs::read_to_string(&link).unwrap(), "new");
    }

    #[test]
    fn the_recipe_depends_on_the_release() {
        let of = |codename: &str| recipe(&Distribution { id: "debian".to_owned(), codename: codename.to_owned() });
        assert_eq!(of("bookworm"), of("bookworm"));
        assert_ne!(of("bookworm"), of("trixie"));
    }
}
