//! Drills: what goes wrong in real life, done on purpose to a real server of the drill's own, through public APIs only.
//! A drill tells what it did, what it found, and how many requests it took; it passes when every fact is as it must be.
//! Never touches a server that it did not start.

mod access;
mod copies;
mod history;
mod killed;
mod lost;
mod previews;
mod proxy;
mod server;
mod stale;
mod stream;
mod visit;
mod work;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

use remuda_client::ClientError;
use serde::Serialize;
use serde_json::{Value, json};

use crate::evidence::{Evidence, EvidenceError};
use server::Server;

/// Which drill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Drill {
    /// The answer to a creation is lost, twice.
    LostCreate,
    /// The answer to a capture is lost, twice.
    LostCapture,
    /// A late call for a generation whose slot is in use again.
    StaleStop,
    /// An account at its limits.
    Quota,
    /// Access keys that may not do everything.
    Permissions,
    /// A client leaves its job, and another one finds it; a live stream breaks.
    Reconnect,
    /// The answer to a capture is lost with its key, and only its name is known.
    NamedRecovery,
    /// Copies of one machine leave marks everywhere.
    Isolation,
    /// A machine stands still while time goes on.
    Clock,
    /// A preview's credential is exchanged and revoked while streams are open.
    Rotation,
    /// One of two machines is deleted.
    Cleanup,
    /// More executions than are kept.
    HistoryLimit,
    /// The server is killed in the middle of three calls.
    ServerKilled,
    /// The server is killed while a sandbox is captured.
    InterruptedCapture,
}

impl Drill {
    /// All of them, in the order of `all`.
    pub const ALL: &'static [Drill] = &[
        Drill::LostCreate,
        Drill::LostCapture,
        Drill::StaleStop,
        Drill::Quota,
        Drill::Permissions,
        Drill::Reconnect,
        Drill::NamedRecovery,
        Drill::Isolation,
        Drill::Clock,
        Drill::Rotation,
        Drill::Cleanup,
        Drill::HistoryLimit,
        Drill::ServerKilled,
        Drill::InterruptedCapture,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Drill::LostCreate => "lost-create",
            Drill::LostCapture => "lost-capture",
            Drill::StaleStop => "stale-stop",
            Drill::Quota => "quota",
            Drill::Permissions => "permissions",
            Drill::Reconnect => "reconnect",
            Drill::NamedRecovery => "named-recovery",
            Drill::Isolation => "isolation",
            Drill::Clock => "clock",
            Drill::Rotation => "rotation",
            Drill::Cleanup => "cleanup",
            Drill::HistoryLimit => "history-limit",
            Drill::ServerKilled => "server-killed",
            Drill::InterruptedCapture => "interrupted-capture",
        }
    }
}

impl fmt::Display for Drill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Drill {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = || Drill::ALL.iter().map(|drill| drill.name()).collect::<Vec<_>>().join(", ");
        let found = Drill::ALL.iter().find(|drill| drill.name() == text);
        found.copied().ok_or_else(|| format!("there is no drill {text:?}; there are {}, and all", known()))
    }
}

/// How a drill starts servers, and where its observations go.
#[derive(Debug, Clone)]
pub struct DrillOptions {
    /// The program that is a server when it is called with `serve`.
    pub program: PathBuf,
    /// Arguments before `serve`, such as the cache directory.
    pub arguments: Vec<OsString>,
    /// Directory in which each drill makes one for its observations.
    pub out: PathBuf,
    /// Directory in which the servers' private data directories are made; they are removed with the drill.
    pub scratch: PathBuf,
}

/// Why a drill could not be carried out. Says nothing about the server's promises.
#[derive(Debug, thiserror::Error)]
pub enum DrillError {
    /// The server did not start.
    #[error("the drill's server did not start: {0}")]
    Server(String),
    /// The server's process or the drill's files failed.
    #[error("the drill could not be carried out: {0}")]
    Machine(#[from] std::io::Error),
    /// A call that is only a preparation failed.
    #[error("a step of the drill failed: {0}")]
    Call(#[from] ClientError),
    /// The observations can't be written.
    #[error(transparent)]
    Evidence(#[from] EvidenceError),
}

impl DrillError {
    /// 3 where no server could be started, 2 where the place for observations is unfit, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        match self {
            DrillError::Server(_) => 3,
            DrillError::Evidence(_) => 2,
            DrillError::Machine(_) | DrillError::Call(_) => 1,
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fact {
    /// What.
    pub what: String,
    /// What must be found.
    pub expected: Value,
    /// What was found.
    pub found: Value,
    /// Whether that is the same.
    pub holds: bool,
}

/// Requests of a drill by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// Requests that were sent.
    pub sent: u64,
    /// Answered with a success.
    pub succeeded: u64,
    /// Answered with an error.
    pub refused: u64,
    /// Whose answer was lost on the way.
    pub lost: u64,
}

/// What a drill did and found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DrillReport {
    /// Which.
    pub drill: Drill,
    /// Whether every fact is as it must be.
    pub passed: bool,
    /// What was done, in order.
    pub done: Vec<String>,
    /// What was found.
    pub facts: Vec<Fact>,
    /// The requests that the drill is about; preparation and looking are not counted.
    pub requests: Requests,
    /// How long it took, in milliseconds, with its server.
    pub took_ms: u64,
    /// The directory with its observations.
    pub observations: String,
}

impl fmt::Display for DrillReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.drill, if self.passed { "passed" } else { "FAILED" })?;
        for step in &self.done {
            writeln!(f, "  did    {step}")?;
        }
        for fact in &self.facts {
            if fact.holds {
                writeln!(f, "  found  {}: {}", fact.what, fact.found)?;
            } else {
                writeln!(f, "  WRONG  {}: {} in place of {}", fact.what, fact.found, fact.expected)?;
            }
        }
        let Requests { sent, succeeded, refused, lost } = self.requests;
        writeln!(f, "  requests: {sent} sent, {succeeded} succeeded, {refused} refused, {lost} answers lost")?;
        writeln!(f, "  observations: {}", self.observations)
    }
}

/// What a drill writes down as it goes on.
struct Log {
    evidence: Evidence,
    done: Vec<String>,
    facts: Vec<Fact>,
    requests: Requests,
    observations: u32,
}

impl Log {
    fn did(&mut self, step: impl Into<String>) {
        self.done.push(step.into());
    }

    fn fact(&mut self, what: &str, expected: impl Serialize, found: impl Serialize) {
        let (expected, found) = (json!(expected), json!(found));
        let holds = expected == found;
        self.facts.push(Fact { what: what.to_owned(), expected, found, holds });
    }

    /// Keeps what was seen as a file of its own, numbered in the order of seeing.
    fn saw(&mut self, name: &str, observation: &impl Serialize) -> Result<(), DrillError> {
        self.observations += 1;
        Ok(self.evidence.write(&format!("{:02}-{name}", self.observations), observation)?)
    }

    /// Counts one request that the drill is about, and keeps its outcome. Gives the word for an outcome that is none.
    fn count<T: Serialize>(&mut self, name: &str, outcome: &Result<T, ClientError>) -> Result<String, DrillError> {
        self.requests.sent += 1;
        let word = match outcome {
            Ok(_) => {
                self.requests.succeeded += 1;
                "ok".to_owned()
            }
            Err(error) if error.outcome_unknown() && error.code().is_none() => {
                self.requests.lost += 1;
                "lost".to_owned()
            }
            Err(error) => {
                self.requests.refused += 1;
                error.code().map_or_else(|| "failed".to_owned(), |code| code.to_string())
            }
        };
        let kept = match outcome {
            Ok(value) => json!({ "outcome": word, "answer": value }),
            Err(error) => json!({ "outcome": word, "error": error.to_string(), "details": error.api() }),
        };
        self.saw(name, &kept)?;
        Ok(word)
    }
}

/// Carries a drill out on a server of its own, which is ended and removed afterwards.
///
/// # Errors
/// [`DrillError`] where nothing was found out.
pub async fn drill(drill: Drill, options: &DrillOptions) -> Result<DrillReport, DrillError> {
    let begun = Instant::now();
    let run = format!("{drill}-{}", jiff::Timestamp::now().as_millisecond());
    let evidence = Evidence::begin(&options.out, &run)?;
    let observations = evidence.folder().display().to_string();
    let mut log = Log { evidence, done: Vec::new(), facts: Vec::new(), requests: Requests::default(), observations: 0 };
    let mut server = Server::start(options, log.evidence.folder()).await?;
    log.did("started a server on a private data directory");
    let carried_out = match drill {
        Drill::LostCreate => lost::create(&server, &mut log).await,
        Drill::LostCapture => lost::capture(&server, &mut log).await,
        Drill::StaleStop => stale::stop(&server, &mut log).await,
        Drill::Quota => access::quota(&server, &mut log).await,
        Drill::Permissions => access::permissions(&server, &mut log).await,
        Drill::Reconnect => work::reconnect(&server, &mut log).await,
        Drill::NamedRecovery => copies::named_recovery(&server, &mut log).await,
        Drill::Isolation => copies::isolation(&server, &mut log).await,
        Drill::Clock => work::clock(&server, &mut log).await,
        Drill::Rotation => previews::rotation(&server, &mut log).await,
        Drill::Cleanup => previews::cleanup(&server, &mut log).await,
        Drill::HistoryLimit => history::limit(&server, &mut log).await,
        Drill::ServerKilled => killed::server_killed(&mut server, &mut log).await,
        Drill::InterruptedCapture => killed::interrupted_capture(&mut server, &mut log).await,
    };
    // Whatever became of the drill, its sandboxes and its server go.
    let ended = server.end().await;
    carried_out?;
    ended?;
    let passed = log.facts.iter().all(|fact| fact.holds) && !log.facts.is_empty();
    let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let Log { evidence, done, facts, requests, .. } = log;
    let report = DrillReport { drill, passed, done, facts, requests, took_ms, observations };
    evidence.write("report", &report)?;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_drills_and_others_are_told_what_there_is() {
        for drill in Drill::ALL {
            assert_eq!(drill.name().parse(), Ok(*drill));
            assert_eq!(serde_json::to_value(drill).unwrap(), drill.name());
        }
        assert!("lost".parse::<Drill>().unwrap_err().contains("lost-create"));
    }

    #[test]
    fn a_fact_that_is_not_as_it_must_be_is_shown_as_wrong() {
        let out = tempfile::tempdir().unwrap();
        let evidence = Evidence::begin(out.path(), "x").unwrap();
        let mut log =
            Log { evidence, done: Vec::new(), facts: Vec::new(), requests: Requests::default(), observations: 0 };
        log.fact("snapshots", 1, 1);
        log.fact("sandboxes", 1, 2);
        assert_eq!(log.facts.iter().map(|fact| fact.holds).collect::<Vec<_>>(), [true, false]);
        let lost: Result<(), _> =
            Err(ClientError::Transport { call: "POST /x".into(), target: "t".into(), sent: true, cause: "cut".into() });
        assert_eq!(log.count("call", &lost).unwrap(), "lost");
        assert_eq!(log.requests, Requests { sent: 1, lost: 1, ..Requests::default() });
    }
}
