//! Which crate may depend on which. The arrows are ARCHITECTURE.md's, as data; `remuda-types` is open to all crates of
//! the product, and nothing but what stands here is allowed, for dependencies of every kind.

use super::{Faults, Repository};
use crate::project::Package;

/// Stands in for the engine in trials: only tests and benchmarks may depend on it, so that nothing that is shipped does.
const FOR_TRIALS: &str = "remuda-stand-in";

/// A crate and those of ours that it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("remuda-types", &[]),
    ("remuda-guest-proto", &["remuda-types"]),
    ("remuda-tree", &[]),
    ("remuda-guest", &["remuda-types", "remuda-guest-proto", "remuda-tree"]),
    ("remuda-journal", &["remuda-types"]),
    // It exports captures as archives, and takes strangers' ones in.
    ("remuda-engine", &["remuda-types", "remuda-tree"]),
    ("remuda-client", &["remuda-types"]),
    ("remuda-stand-in", &["remuda-types", "remuda-engine", "remuda-guest-proto"]),
    ("remuda-control", &["remuda-types", "remuda-journal", "remuda-engine", "remuda-guest-proto", "remuda-stand-in"]),
    ("remuda-gateway", &["remuda-types", "remuda-control"]),
    ("remuda-rodeo", &["remuda-types", "remuda-client"]),
    (
        "remuda-cli",
        &[
            "remuda-types",
            "remuda-guest-proto",
            "remuda-guest",
            "remuda-tree",
            "remuda-journal",
            "remuda-engine",
            "remuda-client",
            "remuda-control",
            "remuda-gateway",
            "remuda-rodeo",
        ],
    ),
    // A benchmark sees what a user sees; the journal and the control plane are also measured by themselves.
    ("remuda-bench", &["remuda-types", "remuda-client", "remuda-journal", "remuda-control", "remuda-stand-in"]),
    ("xtask", &[]),
];

pub(super) fn check(repository: &Repository<'_>) -> anyhow::Result<Faults> {
    Ok(faults(&repository.metadata.packages))
}

fn faults(packages: &[Package]) -> Faults {
    let mut faults = Vec::new();
    for package in packages {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name) else {
            faults.push(format!(
                "{} has no arrows: say in xtask/src/check/arrows.rs what it may depend on",
                package.name
            ));
            continue;
        };
        if package.name != "remuda-bench" && package.shipped.iter().any(|name| name == FOR_TRIALS) {
            faults.push(format!("{} must not depend on {FOR_TRIALS} but for its tests", package.name));
        }
        for dependency in &package.dependencies {
            let ours = packages.iter().any(|p| p.name == *dependency);
            if ours && !allowed.contains(&dependency.as_str()) {
                faults.push(format!(
                    "{} must not depend on {dependency}: arrows run one way; it may use {}",
                    package.name,
                    if allowed.is_empty() { "none of our crates".to_owned() } else { allowed.join(", ") }
                ));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[&str]) -> Package {
        let dependencies = dependencies.iter().map(|d| (*d).to_owned()).collect();
        Package { name: name.to_owned(), manifest: "Cargo.toml".into(), shipped: Vec::new(), dependencies }
    }

    #[test]
    fn what_stands_in_for_the_engine_is_for_tests_alone() {
        let mut control = package("remuda-control", &["remuda-stand-in"]);
        assert!(faults(&[control]).is_empty());
        control = package("remuda-control", &["remuda-stand-in"]);
        control.shipped = vec!["remuda-stand-in".to_owned()];
        assert_eq!(faults(&[control]).len(), 1);
    }

    #[test]
    fn the_harness_must_not_reach_into_the_platform() {
        let packages = [package("remuda-control", &[]), package("remuda-rodeo", &["remuda-control", "serde"])];
        let faults = faults(&packages);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].starts_with("remuda-rodeo must not depend on remuda-control"), "{faults:?}");
    }

    #[test]
    fn engine_never_knows_the_journal_and_only_the_cli_knows_the_gateway() {
        let names = ARROWS.iter().map(|(name, _)| *name);
        for (name, allowed) in ARROWS {
            assert!(*name == "remuda-cli" || !allowed.contains(&"remuda-gateway"), "{name}");
            assert!(!(*name == "remuda-engine" && allowed.contains(&"remuda-journal")));
            assert!(allowed.iter().all(|a| names.clone().any(|n| n == *a)), "{name} names an unknown crate");
        }
    }

    #[test]
    fn a_crate_without_arrows_is_a_fault() {
        assert!(faults(&[package("remuda-new", &[])])[0].contains("has no arrows"));
    }

    #[test]
    fn what_stands_in_the_table_is_allowed() {
        let packages = [package("remuda-client", &["remuda-types"]), package("remuda-types", &["serde"])];
        assert!(faults(&packages).is_empty());
    }
}
