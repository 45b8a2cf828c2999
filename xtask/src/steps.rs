//! Numbered steps with their times, so that a reader of the output knows what is done and what took long.

use std::time::{Duration, Instant};

use anyhow::Context as _;

/// A run of steps.
pub(crate) struct Steps {
    total: usize,
    done: Vec<(String, Duration)>,
    began: Instant,
}

impl Steps {
    /// So many steps will follow.
    pub(crate) fn new(total: usize) -> Steps {
        Steps { total, done: Vec::new(), began: Instant::now() }
    }

    /// Does one; its failure names it.
    pub(crate) fn step<T>(&mut self, name: &str, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let number = format!("{}/{}", self.done.len() + 1, self.total);
        println!("== {number} {name}");
        let began = Instant::now();
        let result = work();
        let took = began.elapsed();
        self.done.push((name.to_owned(), took));
        let how = if result.is_ok() { "done in" } else { "FAILED after" };
        println!("== {number} {name}: {how} {}", seconds(took));
        result.with_context(|| format!("step {number} ({name}) failed"))
    }

    /// Prints what took how long.
    pub(crate) fn summary(&self) {
        println!();
        for (name, took) in &self.done {
            println!("{:>9}  {name}", seconds(*took));
        }
        println!("{:>9}  all", seconds(self.began.elapsed()));
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_is_named_with_its_number() {
        let mut steps = Steps::new(2);
        steps.step("first", || Ok(())).unwrap();
        let error = steps.step("second", || -> anyhow::Result<()> { anyhow::bail!("no disk") }).unwrap_err();
        assert_eq!(format!("{error:#}"), "step 2/2 (second) failed: no disk");
        assert_eq!(steps.done.len(), 2);
    }
}
