//! What is asked of both sides, by the same programs: wrk for requests, curl for a long download.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Bytes of the long download.
const DOWNLOAD_BYTES: u64 = 1 << 30;
/// How long one turn of wrk takes, in seconds.
const TURN_SECONDS: u64 = 2;

/// Where a side is asked, and from where.
pub(super) struct Target<'a> {
    /// Makes a command that runs where the side is reached.
    pub(super) command: Box<dyn Fn(&str) -> Command + 'a>,
    /// Address, without a path.
    pub(super) url: String,
    /// A script of wrk's that sets the header `Host`, which may be a credential and is no argument therefore.
    pub(super) script: PathBuf,
    /// The same for curl.
    pub(super) settings: PathBuf,
}

impl<'a> Target<'a> {
    /// Writes down how it is called.
    pub(super) fn new(
        command: impl Fn(&str) -> Command + 'a,
        url: String,
        host: &str,
        scratch: &Path,
        name: &str,
    ) -> anyhow::Result<Target<'a>> {
        let (script, settings) = (scratch.join(format!("{name}.lua")), scratch.join(format!("{name}.curl")));
        fs::write(&script, format!("wrk.headers[\"Host\"] = \"{host}\"\n"))?;
        fs::write(&settings, format!("header = \"Host: {host}\"\n"))?;
        Ok(Target { command: Box::new(command), url, script, settings })
    }
}

/// What wrk told.
pub(super) struct Told {
    requests_per_second: f64,
    /// Median latency.
    median: Duration,
}

impl Told {
    /// How long a thousand requests take.
    pub(super) fn thousand(&self) -> Duration {
        Duration::from_secs_f64(1_000.0 / self.requests_per_second)
    }

    pub(super) fn median(&self) -> Duration {
        self.median
    }
}

/// Requests over so many connections, one after the other on each.
pub(super) fn requests(target: &Target<'_>, connections: usize) -> anyhow::Result<Told> {
    let threads = connections.min(2);
    let mut wrk = (target.command)("wrk");
    wrk.args(["-t", &threads.to_string(), "-c", &connections.to_string(), "-d", &format!("{TURN_SECONDS}s")]);
    wrk.arg("--latency").arg("-s").arg(&target.script).arg(format!("{}/", target.url));
    let output = wrk.stderr(Stdio::inherit()).output().context("cannot run wrk")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    anyhow::ensure!(output.status.success(), "wrk ended with {}", output.status);
    parse(&text)
}

fn parse(text: &str) -> anyhow::Result<Told> {
    for wrong in ["Socket errors", "Non-2xx"] {
        let line = text.lines().find(|line| line.contains(wrong));
        anyhow::ensure!(line.is_none(), "wrk: {}", line.unwrap_or_default().trim());
    }
    let value = |name: &str| {
        let line = text.lines().map(str::trim).find_map(|line| line.strip_prefix(name));
        line.map(str::trim).with_context(|| format!("wrk tells no {name} {text}"))
    };
    let requests_per_second: f64 = value("Requests/sec:")?.parse()?;
    anyhow::ensure!(requests_per_second > 0.0, "nothing was answered");
    Ok(Told { requests_per_second, median: duration(value("50%")?)? })
}

/// What wrk writes as `12.34us`, `1.20ms` or `2.00s`.
fn duration(text: &str) -> anyhow::Result<Duration> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let found = units.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, seconds) = found.with_context(|| format!("{text:?} is no time of wrk's"))?;
    Ok(Duration::from_secs_f64(number.parse::<f64>()? * seconds))
}

/// The long download, to its end.
pub(super) fn download(target: &Target<'_>) -> anyhow::Result<Duration> {
    let mut curl = (target.command)("curl");
    curl.args(["-sS", "--fail", "--noproxy", "*", "-o", "/dev/null", "-w", "%{size_download}", "-K"]);
    curl.arg(&target.settings).arg(format!("{}/big", target.url));
    let began = Instant::now();
    let output = curl.output().context("cannot run curl")?;
    let took = began.elapsed();
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    anyhow::ensure!(said.trim() == DOWNLOAD_BYTES.to_string(), "{said} bytes came: {}", wrong.trim());
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_tells_is_read_and_errors_are_no_figures() {
        let text = "  Latency Distribution\n     50%  312.00us\n     75%    1.20ms\n  100 requests in 1.00s\nRequests/sec:   2000.00\n";
        let told = parse(text).unwrap();
        assert_eq!((told.thousand(), told.median()), (Duration::from_millis(500), Duration::from_micros(312)));
        assert!(parse(&format!("  Socket errors: connect 0, read 1, write 0, timeout 0\n{text}")).is_err());
        assert!(parse(&format!("{text}  Non-2xx or 3xx responses: 7\n")).is_err());
        assert_eq!(duration("2.50s").unwrap(), Duration::from_millis(2_500));
        assert!(duration("2").is_err());
    }
}
