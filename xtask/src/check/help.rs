//! A program's commands and options, read from its own `--help`, command by command.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::command;

/// Deepest nesting of commands.
const DEPTH_MAX: usize = 4;

/// A command with its options and its commands.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Help {
    /// Options in every spelling, `-e` and `--env`; the value tells whether one takes an argument.
    pub options: BTreeMap<String, bool>,
    /// Its commands.
    pub commands: BTreeMap<String, Help>,
}

impl Help {
    /// Asks the program.
    pub(super) fn of(program: &Path) -> anyhow::Result<Help> {
        Help::ask(program, &mut Vec::new())
    }

    fn ask(program: &Path, path: &mut Vec<String>) -> anyhow::Result<Help> {
        let text = command::text(command::program(program).args(&*path).arg("--help").env("COLUMNS", "200"))?;
        let (options, names) = parse(&text);
        let mut help = Help { options, commands: BTreeMap::new() };
        if path.len() < DEPTH_MAX {
            for name in names {
                path.push(name.clone());
                help.commands.insert(name, Help::ask(program, path)?);
                path.pop();
            }
        }
        Ok(help)
    }

    /// What is wrong with a call of this command with these words; `None` where nothing is.
    pub(super) fn fault(&self, program: &str, words: &[&str]) -> Option<String> {
        let mut here = self;
        let mut name = program.to_owned();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if *word == "--" {
                break;
            }
            if let Some(option) = option_name(word) {
                match here.options.get(option) {
                    None => return Some(format!("`{name}` has no option {option}")),
                    Some(true) if !word.contains('=') => {
                        words.next();
                    }
                    Some(_) => {}
                }
            } else if let Some(next) = here.commands.get(*word) {
                here = next;
                name = format!("{name} {word}");
            } else if !here.commands.is_empty() {
                return Some(format!("`{name}` has no command {word}"));
            }
        }
        None
    }
}

/// `--env` of `--env=A=b`; nothing for a word that is no option.
fn option_name(word: &str) -> Option<&str> {
    if word.starts_with("--") && word.len() > 2 {
        return word.split('=').next();
    }
    let short = word.starts_with('-') && word.len() == 2 && word != "--";
    short.then_some(word)
}

/// Options and commands of one help text as clap writes it.
fn parse(text: &str) -> (BTreeMap<String, bool>, BTreeSet<String>) {
    let (mut options, mut commands) = (BTreeMap::new(), BTreeSet::new());
    let mut section = "";
    for line in text.lines() {
        if !line.starts_with(' ') && line.trim_end().ends_with(':') {
            section = line.trim_end();
            continue;
        }
        let entry = line.trim_start();
        let indent = line.len() - entry.len();
        if section == "Commands:" && indent == 2 {
            let name = entry.split_whitespace().next().unwrap_or("");
            if name != "help" && !name.is_empty() {
                commands.insert(name.to_owned());
            }
        } else if section != "Commands:" && entry.starts_with('-') && indent <= 6 {
            // `-e, --env <K=V>  What it is`: spellings end at two spaces or at the value's name.
            let spellings = entry.split("  ").next().unwrap_or(entry);
            let takes_value = spellings.contains('<') && !spellings.contains("[<") && !spellings.contains("[=");
            for spelling in spellings.split([',', ' ']).filter(|s| s.starts_with('-')) {
                options.insert(spelling.split(['=', '[']).next().unwrap_or(spelling).to_owned(), takes_value);
            }
        }
    }
    (options, commands)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: &str = "Copies running machines\n\nUsage: remuda [OPTIONS] <COMMAND>\n\nCommands:\n  exec   Runs a command\n  snapshot  Copies\n            of machines\n  help   Print this\n\nOptions:\n      --url <URL>  Where [env: REMUDA_URL=]\n  -h, --help       Print help\n";
    const EXEC: &str = "Usage: remuda exec [OPTIONS] <ID> [-- <ARGV>...]\n\nArguments:\n  <ID>  Which\n\nOptions:\n  -e, --env <K=V>\n          A variable\n      --detach     Go on\n";

    fn help() -> Help {
        let node = |text: &str| Help { options: parse(text).0, commands: BTreeMap::new() };
        let mut top = node(TOP);
        assert_eq!(parse(TOP).1, BTreeSet::from(["exec".to_owned(), "snapshot".to_owned()]));
        top.commands.insert("exec".to_owned(), node(EXEC));
        let mut snapshot = Help::default();
        snapshot.commands.insert("ls".to_owned(), Help::default());
        top.commands.insert("snapshot".to_owned(), snapshot);
        top
    }

    fn fault(line: &str) -> Option<String> {
        help().fault("remuda", &line.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn calls_that_exist_are_right() {
        for line in
            ["", "--help", "--url http://x exec ID --detach -e A=b -- ls --all", "exec --env=A=b ID", "snapshot ls"]
        {
            assert_eq!(fault(line), None, "{line}");
        }
    }

    #[test]
    fn unknown_commands_and_options_are_faults() {
        for (line, word) in
            [("exce ID", "exce"), ("exec ID --bogus", "--bogus"), ("snapshot create", "create"), ("exec -x", "-x")]
        {
            assert!(fault(line).is_some_and(|f| f.contains(word)), "{line}");
        }
    }
}
