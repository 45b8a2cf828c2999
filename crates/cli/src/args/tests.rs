//! What the command line accepts, and what it says where it doesn't.

use clap::CommandFactory;

use super::values::{bytes, duration, time_limit};
use super::*;

const ID: &str = "c1@2026-10-08T12:00:00.000Z";
const EXECUTION: &str = "exec-aaaaaaaaaaaaaaaaaaaa";

fn exec(words: &[&str]) -> Result<Exec, clap::Error> {
    let words = ["remuda", "exec"].iter().chain(words);
    match Cli::try_parse_from(words)?.command {
        Command::Exec(exec) => Ok(exec),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(words: &[&str], because: &str) {
    let error = Cli::try_parse_from(["remuda"].iter().chain(words)).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains(because), "{because:?} in {error}");
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn help_shows_what_a_command_uses_and_all_is_accepted() {
    help::command().debug_assert();
    let help = |path: &[&str]| {
        let words = ["remuda"].iter().chain(path).chain(&["--help"]);
        help::command().try_get_matches_from(words).unwrap_err().to_string()
    };
    for (path, shown, hidden) in [
        (&["ls"][..], &["--url", "--data-dir"][..], &["--cache-dir"][..]),
        (&["snapshot", "create"], &["--url", "--data-dir"], &["--cache-dir"]),
        (&["serve"], &["--data-dir", "--cache-dir"], &["--url"]),
        (&["rodeo", "run"], &["--url", "--data-dir", "--cache-dir"], &[]),
        (&["rodeo", "drill"], &["--cache-dir"], &["--url", "--data-dir"]),
    ] {
        let text = help(path);
        assert!(shown.iter().all(|option| text.contains(option)), "{text}");
        assert!(!hidden.iter().any(|option| text.contains(option)), "{text}");
    }
    for words in [&["ls", "--cache-dir", "/c"][..], &["--cache-dir", "/c", "snapshot", "ls"]] {
        let matches = help::command().try_get_matches_from(["remuda"].iter().chain(words)).unwrap();
        assert_eq!(Cli::from_arg_matches(&matches).unwrap().global.cache_dir.to_str(), Some("/c"), "{words:?}");
    }
    let matches = help::command().try_get_matches_from(["remuda", "serve", "--data-dir", "/d"]).unwrap();
    assert_eq!(Cli::from_arg_matches(&matches).unwrap().global.data_dir.to_str(), Some("/d"));
}

#[test]
fn durations_and_pairs() {
    assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
    assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
    assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(5400)));
    assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
    for wrong in ["-5s", "soon", "1x", "0", "0s", ""] {
        assert!(duration(wrong).unwrap_err().contains("90s, 5m"), "{wrong}");
    }
    assert_eq!(time_limit("24h"), Ok(Duration::from_secs(86_400)));
    assert!(time_limit("25h").unwrap_err().contains("24h at most") && time_limit("1us").is_err());
    refused(&["serve", "--listen", "8787"], "127.0.0.1:8787 or");
    refused(&["events", "--after", "x"], "whole number");
    assert_eq!(pair("A=b=c"), Ok(("A".into(), "b=c".into())));
    assert!(pair("=b").is_err() && pair("A").is_err());
}

#[test]
fn memory_has_units() {
    for (text, mib) in [("512", 512), ("512M", 512), ("2G", 2048), ("2gib", 2048), ("131072K", 128), ("1GB", 1024)] {
        assert_eq!(memory_mib(text), Ok(mib), "{text}");
    }
    for (wrong, because) in
        [("1", "128M to 64G"), ("1T", "128M to 64G"), ("1.5G", "whole number"), ("2X", "512M or 2G"), ("512B", "512M")]
    {
        assert!(memory_mib(wrong).unwrap_err().contains(because), "{wrong}: {:?}", memory_mib(wrong));
    }
    for (text, count) in [("7", 7), ("500K", 500 << 10), ("10M", 10 << 20), ("2gib", 2 << 30)] {
        assert_eq!(bytes(text), Ok(count), "{text}");
    }
    for wrong in ["", "0", "-1", "1.5M", "M", "7X"] {
        assert!(bytes(wrong).unwrap_err().contains("a number of bytes"), "{wrong}");
    }
    assert!(memory_mib("").is_err() && memory_mib("-1").is_err() && memory_mib("ü").is_err());
}

#[test]
fn what_names_no_sandbox_is_refused_with_the_reason() {
    refused(&["show", "c1"], "must name the generation too");
    refused(&["logs", EXECUTION], &format!("whose sandbox stands before it: {ID} {EXECUTION}"));
    refused(&["logs", "exec-1"], "looks like an execution");
    refused(&["logs", ID, ID], "stands after its sandbox");
    refused(&["fork", "snap-aaaaaaaaaaaaaaaaaaaa", "--count", "1"], "not a sandbox");
    refused(&["rm", ID, "c2"], "must name the generation too");
    refused(&["receipt", "op-1"], "not a sandbox");
}

#[test]
fn exec_takes_a_program_or_a_script_and_not_both() {
    assert!(exec(&[ID, "--", "sh", "-c", "true"]).is_ok());
    assert!(exec(&[ID, "-c", "true"]).is_ok());
    assert!(exec(&[ID, "-c", "true", "--", "true"]).is_err());
    assert!(exec(&[ID, "-c", "true", "true"]).is_err());
    assert!(exec(&[ID]).is_err());
}

#[test]
fn what_follows_a_program_is_the_programs_own() {
    let plain = exec(&[ID, "-d", "ls", "-l", "--detach", "--json", "--", "-c", "x"]).unwrap();
    assert_eq!(plain.argv, ["ls", "-l", "--detach", "--json", "--", "-c", "x"]);
    assert!(plain.detach && plain.script.is_none());
    let dashed = exec(&["-i", ID, "--cwd", "/", "--", "ls", "--", "-l"]).unwrap();
    assert_eq!(dashed.argv, ["ls", "--", "-l"]);
    assert!(dashed.stdin && dashed.cwd.as_deref() == Some("/"));
    assert_eq!(exec(&[ID, "--", "-odd"]).unwrap().argv, ["-odd"]);
    refused(&["exec", ID, "--detch", "ls"], "--detch");
}

#[test]
fn what_stands_in_the_environment_is_not_shown_as_required() {
    // The values that the environment gives are defaults like the built-in ones.
    for words in [&["exec"][..], &["fork", ID], &["cp", "a"]] {
        let error = Cli::try_parse_from(["remuda"].iter().chain(words)).unwrap_err().to_string();
        assert!(error.contains("Usage: ") && !error.contains("--data-dir"), "{error}");
    }
}
