//! Running other programs: what runs is said, and a failure names it. Nothing here goes through a shell.

use std::ffi::OsStr;
use std::fmt;
use std::process::{Command, Output, Stdio};

use anyhow::Context as _;

/// Wrong usage: exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A program with its arguments, in the workspace, without what `cargo run` has put into this process's environment:
/// it would make a build here differ from the same build by hand.
pub(crate) fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(crate::project::root()).stdin(Stdio::null());
    for (key, _) in std::env::vars_os() {
        let Some(key) = key.to_str() else { continue };
        let of_this_package = ["CARGO_PKG_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_MANIFEST_"];
        if of_this_package.iter().any(|p| key.starts_with(p)) || key == "CARGO_PRIMARY_PACKAGE" {
            command.env_remove(key);
        }
    }
    command
}

/// The cargo that runs this.
pub(crate) fn cargo() -> Command {
    program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs it with its output shown; fails unless it ends well.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let text = line(command);
    println!("   $ {text}");
    let status = command.status().with_context(|| format!("cannot start `{text}`"))?;
    anyhow::ensure!(status.success(), "`{text}` ended with {status}");
    Ok(())
}

/// Runs it with its output shown; tells its exit code.
pub(crate) fn exit_code(command: &mut Command) -> anyhow::Result<i32> {
    let text = line(command);
    println!("   $ {text}");
    let status = command.status().with_context(|| format!("cannot start `{text}`"))?;
    status.code().with_context(|| format!("`{text}` was ended by a signal: {status}"))
}

/// Runs it with its output caught; fails unless it ends well.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<Output> {
    let text = line(command);
    let output = command.output().with_context(|| format!("cannot start `{text}`"))?;
    anyhow::ensure!(
        output.status.success(),
        "`{text}` ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output)
}

/// Its standard output as text.
pub(crate) fn text(command: &mut Command) -> anyhow::Result<String> {
    let output = output(command)?;
    String::from_utf8(output.stdout).with_context(|| format!("`{}` did not print text", line(command)))
}

/// Program and arguments on one line, the program by its last name.
fn line(command: &Command) -> String {
    let name = std::path::Path::new(command.get_program());
    let name = name.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The value of `--name N` or `--name=N`.
pub(crate) fn number_option(arguments: &[String], name: &str) -> anyhow::Result<Option<u32>> {
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let value = match argument.strip_prefix(name) {
            Some("") => arguments.next().map(String::as_str),
            Some(rest) => rest.strip_prefix('='),
            None => continue,
        };
        let number = value.and_then(|v| v.parse().ok()).filter(|n| *n > 0);
        return Ok(Some(number.ok_or_else(|| Usage(format!("{name} needs a number from 1 on")))?));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_come_apart_or_joined_and_bad_ones_are_usage_errors() {
        assert_eq!(number_option(&words("fork --rounds 3"), "--rounds").unwrap(), Some(3));
        assert_eq!(number_option(&words("--rounds=4"), "--rounds").unwrap(), Some(4));
        assert_eq!(number_option(&words("fork"), "--rounds").unwrap(), None);
        for bad in ["--rounds", "--rounds x", "--rounds 0"] {
            assert!(number_option(&words(bad), "--rounds").unwrap_err().is::<Usage>(), "{bad}");
        }
    }

    #[test]
    fn a_failure_names_the_command_and_what_it_said() {
        let error = output(program("sh").args(["-c", "echo broken >&2; exit 3"])).unwrap_err().to_string();
        assert!(error.contains("sh -c") && error.contains("broken"), "{error}");
    }
}
