//! Every command line in the documents' shell blocks can be typed: its commands and options exist in `remuda --help`,
//! or in xtask's own table.

use std::path::Path;

use super::help::Help;
use super::{Faults, Repository};
use crate::TASKS;

/// Languages of fenced blocks that hold command lines.
const SCRIPT: [&str; 3] = ["sh", "bash", "shell"];
/// Words of the shell's that stand in front of a command.
const IN_FRONT: [&str; 7] = ["do", "then", "else", "if", "while", "!", "sudo"];
/// Language of fenced blocks that hold prompts with command lines, and output.
const CONSOLE: &str = "console";

pub(super) fn check(repository: &Repository<'_>) -> anyhow::Result<Faults> {
    let help = Help::of(repository.remuda)?;
    let mut faults = Vec::new();
    for file in repository.with_extension("md").filter(|f| is_document(f)) {
        for (number, line) in shell_lines(&repository.text(file)?) {
            let problems = calls(&line).into_iter().filter_map(|call| fault(&help, &call));
            faults.extend(problems.map(|p| format!("{}:{number}: {p}", file.display())));
        }
    }
    Ok(faults)
}

/// The documents at the top and under `docs/`; workloads and clients have their own.
fn is_document(file: &Path) -> bool {
    file.components().count() == 1 || file.starts_with("docs")
}

fn fault(help: &Help, call: &[String]) -> Option<String> {
    let words: Vec<&str> = call.iter().map(String::as_str).collect();
    match words.as_slice() {
        [program, rest @ ..] if is_remuda(program) => help.fault("remuda", rest),
        ["cargo", "xtask", rest @ ..] => xtask_fault(rest),
        _ => None,
    }
}

fn is_remuda(word: &str) -> bool {
    word == "remuda" || word.ends_with("/remuda")
}

fn xtask_fault(words: &[&str]) -> Option<String> {
    let [name, rest @ ..] = words else { return None };
    let Some(task) = TASKS.iter().find(|t| t.name == *name) else {
        return Some(format!("`cargo xtask` has no command {name}"));
    };
    let stranger = rest.iter().find(|w| w.starts_with('-') && !task.flags.contains(&crate::flag_name(w)))?;
    Some(format!("`cargo xtask {name}` has no option {stranger}"))
}

/// Lines of shell blocks with their numbers; a line that ends in `\` is joined with the next. In a `console` block
/// only what follows a prompt is a command, the rest is output.
fn shell_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut block = Block::None;
    let mut open: Option<(usize, String)> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if let Some(language) = line.strip_prefix("```") {
            block = block.at_fence(language.trim());
            open = None;
            continue;
        }
        let prompted = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
        let command = match (block, prompted) {
            (Block::None | Block::Other, _) => continue,
            _ if open.is_some() => line,
            (Block::Script, _) => line,
            (Block::Console, Some(command)) => command,
            (Block::Console, None) => continue,
        };
        let (number, mut whole) = open.take().unwrap_or((index + 1, String::new()));
        whole.push_str(command.trim_end_matches('\\'));
        if command.ends_with('\\') {
            open = Some((number, whole));
        } else {
            lines.push((number, whole));
        }
    }
    lines
}

/// What a line stands in.
#[derive(Clone, Copy)]
enum Block {
    /// Text.
    None,
    /// A block of commands.
    Script,
    /// A block of prompts with commands, and output.
    Console,
    /// A block of something else.
    Other,
}

impl Block {
    fn at_fence(self, language: &str) -> Block {
        match self {
            Block::None if language == CONSOLE => Block::Console,
            Block::None if SCRIPT.contains(&language) => Block::Script,
            Block::None => Block::Other,
            Block::Script | Block::Console | Block::Other => Block::None,
        }
    }
}

/// The simple commands of one line, as words: split at `|`, `&&`, `;` and `$(`, without variables in front, quotes
/// kept as one word, comments and redirections left out.
fn calls(line: &str) -> Vec<Vec<String>> {
    let mut calls = vec![Vec::new()];
    let mut word = String::new();
    let mut quote: Option<char> = None;
    let mut outer_quotes = Vec::new();
    let mut characters = line.chars().peekable();
    let end_word = |word: &mut String, calls: &mut Vec<Vec<String>>| {
        if let (false, Some(call)) = (word.is_empty(), calls.last_mut()) {
            call.push(std::mem::take(word));
        }
    };
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(q), _) if c == q => quote = None,
            (Some('"'), '$') | (None, '$') if characters.peek() == Some(&'(') => {
                characters.next();
                end_word(&mut word, &mut calls);
                outer_quotes.push(quote.take());
                calls.push(Vec::new());
            }
            (Some(_), _) => word.push(c),
            (None, '\'' | '"') => quote = Some(c),
            (None, '#') if word.is_empty() => break,
            (None, '|' | '&' | ';' | ')' | '>') => {
                end_word(&mut word, &mut calls);
                calls.push(Vec::new());
                if c == ')' {
                    quote = outer_quotes.pop().flatten();
                }
            }
            (None, c) if c.is_whitespace() => end_word(&mut word, &mut calls),
            (None, c) => word.push(c),
        }
    }
    end_word(&mut word, &mut calls);
    for call in &mut calls {
        let variables = call.iter().take_while(|w| is_assignment(w)).count();
        call.drain(..variables);
        let words = call.iter().take_while(|w| IN_FRONT.contains(&w.as_str())).count();
        call.drain(..words);
    }
    calls.retain(|c| !c.is_empty());
    calls
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_by_their_language() {
        let text = "```sh\nremuda ls\n# remark\n```\nremuda text\n```json\n$ remuda no\n```\n\
                    ```console\n$ remuda create \\\n--json\nremuda output\n```\n";
        let lines: Vec<(usize, String)> = shell_lines(text);
        let told: Vec<(usize, &str)> = lines.iter().map(|(n, l)| (*n, l.as_str())).collect();
        assert_eq!(told, [(2, "remuda ls"), (3, "# remark"), (10, "remuda create --json")]);
    }

    #[test]
    fn lines_are_split_into_their_commands() {
        let line = "ID=$(remuda create --json | jq -r .id) && A=b remuda exec \"$ID\" -- sh -c 'x | y' # remuda no";
        assert_eq!(
            self::calls("echo \"$(remuda ls)\" && remuda ps")[1..],
            [vec!["remuda", "ls"], vec!["remuda", "ps"]]
        );
        let calls = calls(line);
        let joined: Vec<String> = calls.iter().map(|c| c.join(" ")).collect();
        assert_eq!(self::calls("for B in $(x); do remuda rm \"$B\"; done")[2], ["remuda", "rm", "$B"]);
        assert_eq!(joined, ["remuda create --json", "jq -r .id", "remuda exec $ID -- sh -c x | y"]);
    }

    #[test]
    fn xtasks_own_commands_are_checked_by_its_table() {
        assert_eq!(xtask_fault(&["bench", "fork", "--check"]), None);
        assert!(xtask_fault(&["bench", "--bogus"]).is_some());
        assert!(xtask_fault(&["bogus"]).is_some());
    }
}
