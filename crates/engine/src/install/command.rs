//! Runs the tools that do part of a setup (apt, mmdebstrap, npm, …), captures what they say, and ends them in time.
//! Must never keep more of their output than its limit, nor show an address that carries a password.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

use super::cache::Held;
use super::error::SetupError;

/// How much of each stream is kept, in bytes; the end counts.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// How many of the last lines of a failed tool are told.
const TOLD_LINES_MAX: usize = 12;

/// One run of one tool.
pub(super) struct Tool {
    doing: String,
    remedy: String,
    limit: Duration,
    command: Command,
}

impl Tool {
    /// `doing` is a phrase for errors, such as "building the base image".
    pub(super) fn new(program: impl AsRef<OsStr>, doing: &str, limit: Duration) -> Self {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap_or_default();
        command
            // Root's tools are missing from the path of some shells.
            .env("PATH", format!("{path}:/usr/sbin:/usr/bin:/sbin:/bin"))
            .env("LC_ALL", "C.UTF-8")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        Self {
            doing: doing.to_owned(),
            remedy: "read the lines above, mend what they name, and run `remuda setup` again".to_owned(),
            limit,
            command,
        }
    }

    pub(super) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(super) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    pub(super) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub(super) fn in_dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    pub(super) fn remedy(mut self, remedy: &str) -> Self {
        remedy.clone_into(&mut self.remedy);
        self
    }

    /// Keeps the lock held for as long as the tool or any child of it lives.
    pub(super) fn holding(mut self, held: &Held) -> Self {
        if let Ok(file) = held.share() {
            self.command.stdin(Stdio::from(file));
        }
        self
    }

    /// Runs it to its end and returns what it wrote to its standard output.
    pub(super) async fn run(mut self) -> Result<String, SetupError> {
        let fail = |cause: String| SetupError::Tool { doing: self.doing.clone(), cause, remedy: self.remedy.clone() };
        let program = self.command.as_std().get_program().to_owned();
        let mut child =
            self.command.spawn().map_err(|error| fail(format!("{}: {error}", program.to_string_lossy())))?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let work = async { tokio::join!(child.wait(), tail(out), tail(err)) };
        let Ok((status, out, err)) = tokio::time::timeout(self.limit, work).await else {
            return Err(fail(format!("it had not ended after {} s and was killed", self.limit.as_secs())));
        };
        let status = status.map_err(|error| fail(error.to_string()))?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&out).into_owned());
        }
        let told = if err.iter().all(u8::is_ascii_whitespace) { last_lines(&out) } else { last_lines(&err) };
        Err(fail(format!("{status}\n{told}")))
    }
}

async fn tail(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut stream) = stream else {
        return kept;
    };
    let mut chunk = vec![0; 64 << 10];
    while let Ok(read @ 1..) = stream.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..read]);
        if kept.len() > 2 * KEPT_BYTES_MAX {
            kept.drain(..kept.len() - KEPT_BYTES_MAX);
        }
    }
    kept
}

fn last_lines(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(TOLD_LINES_MAX)..]
        .iter()
        .map(|line| format!("    {}", without_passwords(line)))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Cuts `user:password@` out of every address in a line.
fn without_passwords(line: &str) -> String {
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        clean.push_str(before);
        let end = after.find(|c: char| c == '/' || c.is_whitespace()).unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(sign) => {
                clean.push_str("…@");
                &after[sign + 1..]
            }
            None => after,
        };
    }
    clean.push_str(rest);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_failure_tells_the_last_lines() {
        let tool = Tool::new("sh", "a test", Duration::from_secs(10))
            .args(["-c", "for i in $(seq 40); do echo line $i >&2; done; exit 7"]);
        let text = tool.run().await.unwrap_err().to_string();
        assert!(text.contains("exit status: 7") && text.contains("line 40"));
        assert!(text.contains("line 29") && !text.contains("line 28"));
    }

    #[tokio::test]
    async fn a_tool_that_never_ends_is_ended() {
        let tool = Tool::new("sleep", "a test", Duration::from_millis(50)).arg("600");
        let text = tool.run().await.unwrap_err().to_string();
        assert!(text.contains("was killed"), "{text}");
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let tool = Tool::new("no-such-program-here", "a test", Duration::from_secs(1));
        let text = tool.run().await.unwrap_err().to_string();
        assert!(text.contains("no-such-program-here"), "{text}");
    }

    #[test]
    fn passwords_in_addresses_are_cut_out() {
        assert_eq!(
            without_passwords("Err: https://me:secret@mirror.example/debian x http://b/c"),
            "Err: https://…@mirror.example/debian x http://b/c"
        );
    }
}
