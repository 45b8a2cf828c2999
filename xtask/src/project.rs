//! The workspace: where it is, what it consists of, which files belong to it.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;

use crate::command;

/// The workspace's directory.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_owned()
}

/// What `cargo metadata` tells about the workspace's own packages.
pub(crate) struct Metadata {
    /// Its packages.
    pub packages: Vec<Package>,
    /// Where cargo builds.
    pub target: PathBuf,
}

/// One package of the workspace.
pub(crate) struct Package {
    /// Its name.
    pub name: String,
    /// Its `Cargo.toml`.
    pub manifest: PathBuf,
    /// Names of the packages it depends on, of every kind (normal, build, dev).
    pub dependencies: Vec<String>,
    /// Those of them that are not for its tests alone.
    pub shipped: Vec<String>,
}

impl Metadata {
    /// Asks cargo.
    pub(crate) fn read() -> anyhow::Result<Metadata> {
        let text = command::text(command::cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
        Metadata::parse(&text).context("`cargo metadata` told something unexpected")
    }

    fn parse(text: &str) -> anyhow::Result<Metadata> {
        let value: Value = serde_json::from_str(text)?;
        let string = |v: &Value, name: &str| -> anyhow::Result<String> {
            Ok(v[name].as_str().with_context(|| format!("no {name}"))?.to_owned())
        };
        let list = |v: &Value, name: &str| v[name].as_array().cloned().with_context(|| format!("no {name}"));
        let package = |p: &Value| -> anyhow::Result<Package> {
            let dependencies = list(p, "dependencies")?;
            let shipped = dependencies.iter().filter(|d| d["kind"] != "dev");
            Ok(Package {
                shipped: shipped.map(|d| string(d, "name")).collect::<Result<_, _>>()?,
                name: string(p, "name")?,
                manifest: string(p, "manifest_path")?.into(),
                dependencies: dependencies.iter().map(|d| string(d, "name")).collect::<Result<_, _>>()?,
            })
        };
        Ok(Metadata {
            packages: list(&value, "packages")?.iter().map(package).collect::<Result<_, _>>()?,
            target: string(&value, "target_directory")?.into(),
        })
    }

    /// The `remuda` that a build in this profile has made.
    pub(crate) fn remuda(&self, profile: &str) -> PathBuf {
        self.target.join(profile).join("remuda")
    }
}

/// Files of the repository, relative to its root: tracked ones, and new ones that git doesn't ignore.
pub(crate) fn files() -> anyhow::Result<Vec<PathBuf>> {
    let listed =
        command::output(command::program("git").args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))
            .context("the checks need a git checkout, to know which files belong to the project")?;
    let mut files: Vec<PathBuf> = listed
        .stdout
        .split(|b| *b == 0)
        .filter(|n| !n.is_empty())
        .map(|n| String::from_utf8_lossy(n).into_owned().into())
        .collect();
    files.sort();
    files.dedup();
    // One that is deleted and not yet committed as such is no file of the project any more.
    files.retain(|f| root().join(f).is_file());
    Ok(files)
}
