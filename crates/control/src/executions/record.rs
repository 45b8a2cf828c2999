//! What a log says of its execution: the record it begins with and what became of it, as notes in JSON.

use remuda_types::wire::{Execution, TerminalSize};
use remuda_types::{ExecutionId, ExecutionState, SandboxId};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::output::Note;

/// Bytes of a command that are kept in memory and shown in lists and of executions that lost their output.
const COMMAND_SHOWN_BYTES_MAX: usize = 1 << 10;

/// The record of an execution: what is known before the agent is asked for anything.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) id: ExecutionId,
    pub(crate) sandbox: SandboxId,
    /// What runs: the script, or the argument vector.
    pub(crate) command: Vec<String>,
    /// When it was admitted, in Unix milliseconds.
    pub(crate) started_at_ms: i64,
    /// Its channel to the agent, also the agent's name for it.
    pub(crate) channel: u32,
    /// The number under which the agent was asked to start it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) effect: Option<u64>,
    /// Its time limit, in milliseconds of running time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout_ms: Option<u64>,
    /// Bytes of output beyond which it is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) output_limit: Option<u64>,
    /// How long its machine had run by then, in milliseconds; its time limit is counted from there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) began_ms: Option<u64>,
    /// Whether its standard input comes in pieces.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) stdin_open: bool,
    /// Size of its terminal, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pty: Option<TerminalSize>,
    /// In a branch: the execution of the source that it goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<ExecutionId>,
}

/// Why the server killed an execution, so that its end is told as what it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KilledFor {
    TimeOut,
    Cancel,
    OutputLimit,
}

/// Something that became known of an execution after its record was written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fact {
    /// The agent started it.
    Spawned { pid: u32 },
    /// Its terminal has another size.
    Resized { size: TerminalSize },
    /// The server is about to kill it.
    KilledFor { why: KilledFor },
    /// It ended; nothing comes behind this.
    Ended(End),
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) state: ExecutionState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    pub(crate) ended_at_ms: i64,
    /// Whether it lost its output to make room for others.
    #[serde(default)]
    pub(crate) buried: bool,
    /// Whether the guest has not told it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unconfirmed: bool,
    /// Whether others held its pipes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) pipes_held: bool,
}

/// What is kept in memory of a record.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) head: Head,
    /// Whether the command in `head` is not the whole of it.
    pub(crate) command_cut: bool,
    pub(crate) state: ExecutionState,
    pub(crate) exit_code: Option<i32>,
    pub(crate) pid: Option<u32>,
    pub(crate) ended_at_ms: Option<i64>,
    pub(crate) killed_for: Option<KilledFor>,
    pub(crate) buried: bool,
    pub(crate) unconfirmed: bool,
    pub(crate) pipes_held: bool,
}

impl Known {
    /// Of a record that nothing is known of beyond it. A long command is left to the file.
    pub(crate) fn of(mut head: Head) -> Known {
        let command_cut = cut(&mut head.command);
        Known {
            head,
            command_cut,
            state: ExecutionState::Running,
            exit_code: None,
            pid: None,
            ended_at_ms: None,
            killed_for: None,
            buried: false,
            unconfirmed: false,
            pipes_held: false,
        }
    }

    /// Takes note of a fact that was read back.
    pub(crate) fn learn(&mut self, fact: Fact) {
        match fact {
            Fact::Spawned { pid } => self.pid = Some(pid),
            Fact::Resized { size } => self.head.pty = Some(size),
            Fact::KilledFor { why } => self.killed_for = Some(why),
            Fact::Ended(end) => {
                self.state = end.state;
                self.exit_code = end.exit_code;
                self.pid = end.pid.or(self.pid);
                self.ended_at_ms = Some(end.ended_at_ms);
                self.buried = end.buried;
                self.unconfirmed = end.unconfirmed;
                self.pipes_held = end.pipes_held;
            }
        }
    }

    /// How it ended, if it has.
    pub(crate) fn end(&self) -> Option<End> {
        let Known { state, exit_code, pid, buried, unconfirmed, pipes_held, .. } = *self;
        self.ended_at_ms.map(|ended_at_ms| End { state, exit_code, pid, ended_at_ms, buried, unconfirmed, pipes_held })
    }

    /// As the API shows it, with as much of the command as is in memory.
    pub(crate) fn show(&self, output_bytes: u64, output_truncated: bool) -> Execution {
        Execution {
            id: self.head.id.clone(),
            sandbox: self.head.sandbox.clone(),
            command: self.head.command.clone(),
            state: self.state,
            exit_code: self.exit_code,
            pid: self.pid,
            unconfirmed: self.unconfirmed,
            left_running: self.pipes_held,
            started_at_ms: self.head.started_at_ms,
            ended_at_ms: self.ended_at_ms,
            output_bytes,
            output_truncated,
            output_exceeded: self.head.output_limit.is_some_and(|limit| output_bytes > limit),
            stdin_open: self.head.stdin_open,
            pty: self.head.pty,
            origin: self.head.origin.clone(),
            stdout: None,
            stderr: None,
        }
    }
}

/// Shortens a long command. Returns whether it was.
fn cut(command: &mut Vec<String>) -> bool {
    let mut room = COMMAND_SHOWN_BYTES_MAX;
    for n in 0..command.len() {
        let part = &mut command[n];
        if part.len() >= room {
            let end = (0..=room).rev().find(|end| part.is_char_boundary(*end)).unwrap_or(0);
            part.truncate(end);
            part.push('…');
            part.shrink_to_fit();
            command.truncate(n + 1);
            command.shrink_to_fit();
            return true;
        }
        // An empty argument takes room as well.
        room = room.saturating_sub(part.len() + 1);
    }
    false
}

/// Writes something down as a note.
///
/// # Panics
/// Never: what is written down here has no maps with keys that JSON lacks, and no input makes it fail.
pub(crate) fn note(at_ms: i64, of: &impl Serialize) -> Note {
    Note { at_ms, text: serde_json::to_vec(of).expect("plain data is JSON") }
}

/// Reads a note; `None` where it says nothing that is known here.
pub(crate) fn read<T: DeserializeOwned>(note: &Note) -> Option<T> {
    serde_json::from_slice(&note.text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_is_cut_where_a_character_ends() {
        let mut short = vec!["a".to_owned(), String::new(), "b".to_owned()];
        assert!(!cut(&mut short));
        let mut long = vec!["x".to_owned(), "é".repeat(2_000), "y".to_owned()];
        assert!(cut(&mut long));
        assert_eq!((long.len(), long[1].ends_with("é…")), (2, true));
        assert!(long[1].len() <= COMMAND_SHOWN_BYTES_MAX + "…".len());
        let mut many = vec![String::new(); 5_000];
        assert!(cut(&mut many));
        assert!(many.len() <= COMMAND_SHOWN_BYTES_MAX + 1);
    }

    #[test]
    fn a_fact_is_read_back() {
        let end = End {
            state: ExecutionState::TimedOut,
            exit_code: Some(124),
            pid: Some(7),
            ended_at_ms: 5,
            buried: false,
            unconfirmed: true,
            pipes_held: true,
        };
        for fact in [Fact::Spawned { pid: 3 }, Fact::KilledFor { why: KilledFor::Cancel }, Fact::Ended(end)] {
            assert_eq!(read::<Fact>(&note(1, &fact)), Some(fact));
        }
    }
}
