//! A benchmark's result as JSON and as a Markdown table. It must never leave a figure or a failed side out.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;

use crate::harness::{Entry, Figure, Goal, Outcome};

/// Everything one run of one benchmark found.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    /// The benchmark's name.
    pub benchmark: String,
    /// When it began, UTC.
    pub began_at: String,
    /// The machine it ran on.
    pub machine: Machine,
    /// Its figures, in order.
    pub figures: Vec<Figure>,
}

/// The machine, as far as it bears on the figures.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// Processors this process may use.
    pub cpus: usize,
    /// Their model, as the kernel names it.
    pub cpu_model: String,
    /// The kernel's release.
    pub kernel: String,
    /// Memory in MiB.
    pub memory_mib: u64,
}

impl Machine {
    /// Reads what the kernel tells.
    pub(crate) fn this() -> Machine {
        let field = |file: &str, key: &str| -> Option<String> {
            let text = std::fs::read_to_string(file).ok()?;
            let line = text.lines().find(|l| l.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field("/proc/meminfo", "MemTotal").unwrap_or_default();
        let memory_kib: u64 = memory.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
        Machine {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            memory_mib: memory_kib / 1024,
        }
    }
}

impl Report {
    /// Whether every stated goal is met; an undecided one is not.
    pub(crate) fn all_met(&self) -> bool {
        self.figures.iter().all(|f| matches!(f.outcome, Outcome::Met | Outcome::NoGoal))
    }

    /// Writes `NAME.json` and `NAME.md` into the directory; tells both paths.
    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let json = directory.join(format!("{}.json", self.benchmark));
        let markdown = directory.join(format!("{}.md", self.benchmark));
        std::fs::write(&json, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| format!("cannot write {}", json.display()))?;
        std::fs::write(&markdown, self.markdown()).with_context(|| format!("cannot write {}", markdown.display()))?;
        Ok((json, markdown))
    }

    /// The table, with the sides, their versions and flags, and the failures below it.
    pub(crate) fn markdown(&self) -> String {
        let m = &self.machine;
        let mut out = format!(
            "# {}\n\n{}; {} × {}, {} MiB, Linux {}. Milliseconds: median (p10–p90, samples).\n\n",
            self.benchmark, self.began_at, m.cpus, m.cpu_model, m.memory_mib, m.kernel
        );
        out.push_str("| figure | ours | peer | ratio | goal | |\n| --- | --- | --- | --- | --- | --- |\n");
        for f in &self.figures {
            let peer = f.peer.as_ref().map_or_else(|| "—".to_owned(), cell);
            let ratio = f.ratio.map_or_else(|| "—".to_owned(), |r| format!("{r:.2}"));
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} |",
                f.name,
                cell(&f.ours),
                peer,
                ratio,
                goal(f.goal),
                outcome(f.outcome)
            );
        }
        out.push_str("\n## Sides\n\n");
        let mut seen: Vec<String> = Vec::new();
        for entry in self.entries() {
            let side = &entry.side;
            let line = format!("- **{}**, {}: `{}`\n", side.name, side.version, side.flags.join(" "));
            if !seen.contains(&line) {
                out.push_str(&line);
                seen.push(line);
            }
        }
        for f in &self.figures {
            for entry in std::iter::once(&f.ours).chain(&f.peer) {
                if let Some(failure) = &entry.failure {
                    let _ = writeln!(out, "\n**{}, {}** did not run through: {failure}", f.name, entry.side.name);
                }
            }
        }
        out
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.figures.iter().flat_map(|f| std::iter::once(&f.ours).chain(&f.peer))
    }
}

fn cell(entry: &Entry) -> String {
    match (&entry.summary, &entry.failure) {
        // What is short has another digit.
        (Some(s), None) if s.p90 < 10.0 => format!("{:.2} ({:.2}–{:.2}, {})", s.median, s.p10, s.p90, s.n),
        (Some(s), None) => format!("{:.1} ({:.1}–{:.1}, {})", s.median, s.p10, s.p90, s.n),
        (Some(s), Some(_)) => format!("broke off after {}", s.n),
        (None, _) => "could not run".to_owned(),
    }
}

fn goal(goal: Goal) -> String {
    match goal {
        Goal::RatioAtMost(x) => format!("≤ {x:.2} ×"),
        Goal::MillisecondsAtMost(x) => format!("≤ {x:.0} ms"),
        Goal::MillisecondsMoreAtMost(x) => format!("≤ peer + {x} ms"),
        Goal::MebibytesAtMost(x) => format!("≤ {x:.0} MiB"),
        Goal::None => "—".to_owned(),
    }
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Met => "met",
        Outcome::Missed => "**missed**",
        Outcome::Undecided => "**undecided**",
        Outcome::NoGoal => "",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::harness::{Contender, Contest, Side};

    fn contender(name: &str, turn: Result<u64, &str>) -> Contender<'static> {
        let side = Side { name: name.to_owned(), version: "v1".to_owned(), flags: vec!["--fast".to_owned()] };
        let turn = match turn {
            Ok(ms) => Ok(Box::new(move || Ok(Duration::from_millis(ms))) as _),
            Err(reason) => Err(reason.to_owned()),
        };
        Contender { side, turn }
    }

    fn report(peer: Result<u64, &str>) -> Report {
        let contest = Contest { name: "fork", rounds: 2, warm_ups: 0, goal: Goal::RatioAtMost(0.9) };
        let figure = contest.run(contender("remuda", Ok(50)), Some(contender("runsc", peer)));
        Report {
            benchmark: "fork".to_owned(),
            began_at: "then".to_owned(),
            machine: Machine { cpus: 2, cpu_model: "m".to_owned(), kernel: "k".to_owned(), memory_mib: 1 },
            figures: vec![figure],
        }
    }

    #[test]
    fn a_table_row_tells_both_sides_ratio_goal_and_outcome() {
        let report = report(Ok(100));
        assert!(report.all_met());
        let table = report.markdown();
        assert!(
            table.contains("| fork | 50.0 (50.0–50.0, 2) | 100.0 (100.0–100.0, 2) | 0.50 | ≤ 0.90 × | met |"),
            "{table}"
        );
        assert!(table.contains("- **runsc**, v1: `--fast`"), "{table}");
    }

    #[test]
    fn a_peer_that_cannot_run_is_in_the_table_and_is_no_success() {
        let report = report(Err("no such program"));
        assert!(!report.all_met());
        let table = report.markdown();
        assert!(table.contains("| could not run | — | ≤ 0.90 × | **undecided** |"), "{table}");
        assert!(table.contains("**fork, runsc** did not run through: no such program"), "{table}");
    }
}
