//! The tour of README.md, command by command in one shell, on a real server: what newcomers do first must work, and must
//! print what the page says. Ids, times and sizes differ from run to run, and all else may not.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::world::{Server, text};

/// What comes between two commands' outputs.
const MARK: &str = "@@ended with ";

/// A command of the page with what it prints there.
struct Step {
    command: String,
    printed: Vec<String>,
}

/// The commands in the page's `console` blocks.
fn steps(page: &str) -> Vec<Step> {
    let (mut steps, mut inside) = (Vec::<Step>::new(), false);
    for line in page.lines() {
        if let Some(language) = line.strip_prefix("```") {
            inside = language == "console";
        } else if !inside {
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), printed: Vec::new() });
        } else if let Some(step) = steps.last_mut() {
            step.printed.push(line.to_owned());
        }
    }
    steps
}

/// A line without what differs between runs.
fn shape(line: &str) -> String {
    if let Some(path) = line.strip_prefix("evidence: ").or(line.strip_prefix("evidence/")) {
        return shape(path.rsplit('/').next().unwrap_or(path));
    }
    let line = line.split_once(" removed, ").map_or(line, |(before, _freed)| before);
    let mut shape = String::new();
    let mut word = String::new();
    for c in line.chars().chain([' ']) {
        if c.is_ascii_alphanumeric() {
            word.push(c);
            continue;
        }
        let hex = word.len() == 8 && word.chars().all(|c| c.is_ascii_hexdigit());
        let differs = hex || word.len() >= 20 || word.chars().any(|c| c.is_ascii_digit());
        shape.push_str(if differs { "#" } else { &word });
        word.clear();
        // Columns are as wide as what stands in them.
        if c != ' ' || !shape.ends_with(' ') {
            shape.push(c);
        }
    }
    shape.trim_end().to_owned()
}

#[test]
fn the_tour_of_the_readme_is_true() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(project.join("README.md")).unwrap();
    let steps = steps(&page);
    assert!(steps.len() > 10, "{}", steps.len());
    let server = Server::start();
    let here = tempfile::tempdir().unwrap();
    symlink(project.join("workloads").canonicalize().unwrap(), here.path().join("workloads")).unwrap();
    let mut script = "exec 2>&1\n".to_owned();
    for step in &steps {
        script.push_str(&format!("{}\nprintf '\\n{MARK}%s\\n' $?\n", step.command));
    }
    let data_dir = server.data_dir.to_str().unwrap();
    let script = script.replace("/var/lib/remuda", data_dir).replace("http://127.0.0.1:8787", &server.url());
    let programs = Path::new(env!("CARGO_BIN_EXE_remuda")).parent().unwrap();
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(here.path())
        .env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()))
        .env("REMUDA_DATA_DIR", data_dir)
        // The key that signs evidence, and calls that are kept, are not the machine's owner's.
        .env("XDG_STATE_HOME", here.path().join("state"))
        .env_remove("REMUDA_URL")
        .stdin(Stdio::null())
        .output()
        .unwrap();

    let told = text(&output.stdout);
    let mut parts = told.split(MARK);
    let mut printed = parts.next().unwrap();
    for step in &steps {
        let (code, rest) = parts.next().unwrap_or_default().split_once('\n').unwrap_or_default();
        let lines: Vec<&str> = printed.trim_end().lines().collect();
        let fails = step.printed.iter().any(|line| line.starts_with("error: "));
        assert_eq!(code != "0", fails, "{} ended with {code:?}: {lines:#?}", step.command);
        let (page, real) = (step.printed.iter().map(|line| shape(line)), lines.iter().map(|line| shape(line)));
        assert_eq!(real.collect::<Vec<_>>(), page.collect::<Vec<_>>(), "{}", step.command);
        // Of the figures, these are no chance.
        for same in ["\"pending\":1,", " 0 of 5 ", " 3 of 5 ", " 5 of 5 ", "source: 5 pending"] {
            let count = |text: &str| text.matches(same).count();
            assert_eq!(count(printed), count(&step.printed.join("\n")), "{same:?} of {}", step.command);
        }
        printed = rest;
    }
}
