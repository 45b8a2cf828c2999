//! PROMISES.md: nine promises, each with points, and each point either names what enforces it as `path::function` (a
//! test, or a figure of a benchmark) or says *pending*. A named function must exist and be one.

use super::{Faults, Repository};

const FILE: &str = "PROMISES.md";
/// How many promises there are.
const PROMISES: usize = 9;
const PENDING: &str = "*pending*";
/// How far above a function its test attribute may stand, in lines.
const ATTRIBUTE_LINES_MAX: usize = 6;

pub(super) fn check(repository: &Repository<'_>) -> anyhow::Result<Faults> {
    let text = repository.text(FILE)?;
    let mut faults = Vec::new();
    let mut points_of = [0_usize; PROMISES];
    for point in points(&text) {
        match points_of.get_mut(point.promise.wrapping_sub(1)) {
            Some(count) => *count += 1,
            None => {
                faults.push(format!("{FILE}:{}: this point belongs to none of the {PROMISES} promises", point.line))
            }
        }
        let references = references(&point.text);
        if references.is_empty() && !point.text.contains(PENDING) {
            faults.push(format!("{FILE}:{}: name what enforces it as `path::function`, or say {PENDING}", point.line));
        }
        for (path, function) in references {
            let fault = match repository.text(&path) {
                Err(_) => Some(format!("there is no file {path}")),
                Ok(source) => function_fault(&source, &function, path.starts_with("bench/")),
            };
            faults.extend(fault.map(|f| format!("{FILE}:{}: {path}::{function}: {f}", point.line)));
        }
    }
    let without = points_of.iter().enumerate().filter(|(_, n)| **n == 0);
    faults.extend(without.map(|(i, _)| format!("{FILE}: promise {} has no points", i + 1)));
    Ok(faults)
}

struct Point {
    promise: usize,
    line: usize,
    text: String,
}

/// Points: list items below headings `## N. …`, with their continuation lines.
fn points(text: &str) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    let mut promise = 0;
    let mut open = false;
    for (index, line) in text.lines().enumerate() {
        if let Some(heading) = line.strip_prefix("## ") {
            promise = heading.split('.').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            open = false;
        } else if promise > 0 && line.starts_with("- ") {
            points.push(Point { promise, line: index + 1, text: line.to_owned() });
            open = true;
        } else if open && line.starts_with("  ") {
            if let Some(point) = points.last_mut() {
                point.text.push(' ');
                point.text.push_str(line.trim());
            }
        } else {
            open = false;
        }
    }
    points
}

/// `path.rs::function` in backticks.
fn references(text: &str) -> Vec<(String, String)> {
    let spans = text.split('`').skip(1).step_by(2);
    let reference = |span: &str| {
        let (path, function) = span.split_once(".rs::")?;
        Some((format!("{path}.rs"), function.rsplit("::").next()?.to_owned()))
    };
    spans.filter_map(reference).collect()
}

fn function_fault(source: &str, function: &str, benchmark: bool) -> Option<String> {
    let lines: Vec<&str> = source.lines().collect();
    let head = format!("fn {function}(");
    let Some(at) = lines.iter().position(|l| l.contains(&head)) else {
        return Some("there is no such function".to_owned());
    };
    let above = &lines[at.saturating_sub(ATTRIBUTE_LINES_MAX)..at];
    let attributed = above.iter().rev().take_while(|l| !l.starts_with('}')).any(|l| {
        let l = l.trim();
        l == "#[test]" || l.starts_with("#[tokio::test")
    });
    (!attributed && !benchmark).then(|| "it is no test".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_belong_to_their_promise_and_may_have_several_lines() {
        let text = "# P\n- no point\n## 2. Fenced\n\n- one `a/b.rs::works`\n  and more *pending*\n\ntext\n- two\n";
        let points = points(text);
        let told: Vec<_> = points.iter().map(|p| (p.promise, p.line, p.text.as_str())).collect();
        assert_eq!(told, [(2, 5, "- one `a/b.rs::works` and more *pending*"), (2, 9, "- two")]);
        assert_eq!(references(&points[0].text), [("a/b.rs".to_owned(), "works".to_owned())]);
    }

    #[test]
    fn a_named_function_must_exist_and_be_a_test() {
        let source = "#[test]\nfn works() {\n}\n\nfn plain() {\n}\n\n#[tokio::test(flavor = \"multi_thread\")]\nasync fn later() {}\n";
        assert_eq!(function_fault(source, "works", false), None);
        assert_eq!(function_fault(source, "later", false), None);
        assert!(function_fault(source, "plain", false).is_some());
        assert_eq!(function_fault(source, "plain", true), None);
        assert!(function_fault(source, "absent", true).is_some());
    }
}
