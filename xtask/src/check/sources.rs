//! Rules on source files and manifests that the compiler doesn't check.

use super::{Faults, Repository};

/// Longest source file, in lines.
const LINES_MAX: usize = 600;

/// Every `.rs` file begins with `//!` and has at most [`LINES_MAX`] lines.
pub(super) fn files(repository: &Repository<'_>) -> anyhow::Result<Faults> {
    let mut faults = Vec::new();
    for file in repository.with_extension("rs") {
        let text = repository.text(file)?;
        faults.extend(file_faults(&text).into_iter().map(|f| format!("{}: {f}", file.display())));
    }
    Ok(faults)
}

fn file_faults(text: &str) -> Faults {
    let mut faults = Vec::new();
    if !text.starts_with("//!") {
        faults.push("begin it with a `//!` line that says what the file is for and what it must never do".to_owned());
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        faults.push(format!("{lines} lines, {LINES_MAX} at most: split it by jobs"));
    }
    faults
}

/// Every crate of the workspace says `[lints] workspace = true`.
pub(super) fn lints(repository: &Repository<'_>) -> anyhow::Result<Faults> {
    let mut faults = Vec::new();
    for package in &repository.metadata.packages {
        if !inherits_lints(&repository.text(&package.manifest)?) {
            faults.push(format!("{}: add `[lints]` with `workspace = true` to its Cargo.toml", package.name));
        }
    }
    Ok(faults)
}

fn inherits_lints(manifest: &str) -> bool {
    let mut in_lints = false;
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            in_lints = line == "[lints]";
        } else if in_lints && line.replace(' ', "") == "workspace=true" {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_needs_its_opening_line_and_must_not_be_long() {
        assert!(file_faults("//! What it is for.\n").is_empty());
        assert_eq!(file_faults("use std::fs;\n").len(), 1);
        assert!(file_faults(&format!("//! x\n{}", "\n".repeat(LINES_MAX - 1))).is_empty());
        assert_eq!(file_faults(&format!("//! x\n{}", "\n".repeat(LINES_MAX))).len(), 1);
    }

    #[test]
    fn lints_count_only_under_their_own_heading() {
        assert!(inherits_lints("[package]\nname = \"x\"\n[lints]\nworkspace = true\n"));
        assert!(!inherits_lints("[package]\nversion.workspace = true\n"));
        assert!(!inherits_lints("[lints.rust]\nworkspace = true\n"));
        assert!(!inherits_lints("[lints]\n[dependencies]\nworkspace = true\n"));
    }
}
