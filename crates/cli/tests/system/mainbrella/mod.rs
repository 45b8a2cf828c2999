//! The Mainbrella dialect, judged by the real client of that service: the package `mainbrella` from its registry, as it is,
//! over loopback, against real sandboxes. What it found is the table in docs/compatibility.md.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::{Answer, Server};

/// Where `cargo xtask test` puts the package.
fn python() -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_remuda")).ancestors().nth(2).unwrap();
    let python = target.join("clients/mainbrella/bin/python");
    assert!(
        python.is_file(),
        "{} is missing: `cargo xtask clients` installs the clients that tests use",
        python.display()
    );
    python
}

fn here(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn key(server: &Server) -> String {
    let key = server.run(&["key", "create", "--dialect", "mainbrella"]).line();
    assert!(key.starts_with("mb_") && key.len() == 67, "a key that the client takes");
    key
}

#[test]
fn every_method_of_the_real_client_does_what_it_says() {
    let server = Server::start();
    let script = here("tests/system/mainbrella/conformance.py");
    let output = Command::new(python())
        .arg("-I")
        .arg(&script)
        .env_clear()
        .env("MAINBRELLA_API_KEY", key(&server))
        .env("MAINBRELLA_API_URL", server.url())
        .output()
        .unwrap();
    let answer = Answer::of(output);
    let told = String::from_utf8_lossy(&answer.stdout).into_owned();
    assert_eq!(answer.code, 0, "{told}\n{}", answer.stderr);
    let rows: Vec<[&str; 3]> = told.lines().map(row).collect();
    assert!(rows.len() > 30, "{told}");
    current(&table(&rows));
}

/// Method, what was done with it, and how that ended.
fn row(line: &str) -> [&str; 3] {
    let mut parts = line.split('\t');
    let row = [parts.next(), parts.next(), parts.next()].map(|part| part.unwrap_or_else(|| panic!("{line:?}")));
    assert!(parts.next().is_none(), "{line:?}");
    row
}

fn table(rows: &[[&str; 3]]) -> String {
    let mut text = "| method | tried | result |\n| --- | --- | --- |\n".to_owned();
    for [method, tried, result] in rows {
        text.push_str(&format!("| `{method}` | {tried} | {result} |\n"));
    }
    text
}

/// The page has this table, or gets it where it is asked to.
fn current(table: &str) {
    const BEGIN: &str = "<!-- mainbrella: made by a test -->\n";
    const END: &str = "<!-- end of mainbrella -->\n";
    let page = here("../../docs/compatibility.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the page has a place for the table");
    let (old, after) = rest.split_once(END).expect("the place has an end");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&page, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(old, table, "docs/compatibility.md is not current: UPDATE=1 writes it");
}
