//! Tries a runsc for real: a sandbox is started, checkpointed and restored through the engine's own machinery.
//!
//! The program inside is a shell script, so that a trial needs no agent. It counts the lines it is sent: a count that
//! goes on in the copy is memory that was carried over.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use remuda_types::{SnapshotId, Uid};
use tokio::io::AsyncWriteExt;

use crate::cgroup::Limits;
use crate::engine::{Engine, Machine};
use crate::error::{EngineError, Result, Tried};
use crate::install::{Capabilities, Probe, ProbeFuture};
use crate::machine::MachineSpec;
use crate::parts::{AGENT_PATH, Fingerprint, Parts};
use crate::site::{ChannelEnds, Life};

/// The program inside: answers every line with a count; at `hold` it keeps a deleted file open.
const PROGRAM: &str = "#!/bin/sh\nn=0\nwhile read -r line; do\n  n=$((n+1))\n  \
                       [ \"$line\" = hold ] && exec 9>/var/held && rm /var/held\n  echo \"$n $line\"\ndone\n";
/// How long an answer may take. A machine under load is slow; a broken one is silent for ever.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(20);
const LIMITS: Limits = Limits { memory_bytes: 256 << 20, cpus: 2 };

/// The trial that setup runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Trial;

impl Probe for Trial {
    fn probe<'a>(&'a self, runsc: &'a Path, base: &'a Path) -> ProbeFuture<'a> {
        Box::pin(async move {
            let dir = tempfile::Builder::new().prefix("remuda-trial-").tempdir().map_err(|e| e.to_string())?;
            let engine = open(dir.path(), runsc, base).map_err(explain)?;
            let mut found = Capabilities { platform: "systrap".into(), ..Capabilities::default() };
            let outcome = run(&engine, &mut found).await;
            engine.sweep().await.map_err(explain)?;
            engine.close().map_err(explain)?;
            match outcome {
                Ok(()) => Ok(found),
                // What was shown before it failed still counts; setup names what is missing.
                Err(e) if found.control_socket => {
                    tracing::warn!("the trial of {} stopped: {}", runsc.display(), explain(e));
                    Ok(found)
                }
                Err(e) => Err(explain(e)),
            }
        })
    }
}

fn open(dir: &Path, runsc: &Path, base: &Path) -> Result<Engine> {
    let agent_dir = dir.join("program");
    let program = agent_dir.join(AGENT_PATH.trim_start_matches('/'));
    let trying = || format!("write {}", program.display());
    if let Some(parent) = program.parent() {
        fs::create_dir_all(parent).tried(trying)?;
    }
    fs::write(&program, PROGRAM).tried(trying)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).tried(trying)?;
    let fingerprint = Fingerprint { runsc: "trial".into(), agent: "trial".into(), base: "trial".into() };
    let parts = Parts {
        fingerprint,
        runsc_version: String::new(),
        runsc: runsc.to_owned(),
        agent_dir,
        base_dir: base.to_owned(),
    };
    Engine::open(&dir.join("data"), parts)
}

async fn run(engine: &Engine, found: &mut Capabilities) -> Result<()> {
    let (source, mut talk) = raise(engine, b's', Vec::new(), Life::Fresh).await?;
    expect(&mut talk, "hello", 1).await?;
    found.control_socket = true;

    source.pause().await?;
    source.resume().await?;
    expect(&mut talk, "hello", 2).await?;
    found.pause_resume = true;

    let snapshot = SnapshotId::from_entropy([b'p'; 20]);
    let captured = source.capture(engine.capture_places(&snapshot, true), false).await?;
    expect(&mut talk, "hello", 3).await?;
    let image = captured.memory.ok_or(EngineError::Ended)?;
    found.checkpoint = true;

    let life = Life::Restored(image.open()?);
    let (_copy, mut talk_copy) = raise(engine, b'c', vec![snapshot.to_string()], life).await?;
    // The source counted to 3 by now; the copy knows of two lines.
    expect(&mut talk_copy, "hello", 3).await?;
    expect(&mut talk_copy, "hello", 4).await?;
    expect(&mut talk, "hello", 4).await?;
    found.restore = true;

    expect(&mut talk, "hold", 5).await?;
    let second = SnapshotId::from_entropy([b'q'; 20]);
    found.deleted_open_files = Some(match source.capture(engine.capture_places(&second, true), false).await {
        Ok(_) => true,
        Err(EngineError::Refused { .. }) => {
            // What matters more than the refusal: the source goes on after it.
            expect(&mut talk, "hello", 6).await?;
            false
        }
        Err(e) => return Err(e),
    });
    Ok(())
}

async fn raise(engine: &Engine, name: u8, layers: Vec<String>, life: Life) -> Result<(Machine, ChannelEnds)> {
    let (uid, parts) = (Uid::from_entropy([name; 20]), engine.parts().fingerprint.clone());
    let spec = MachineSpec { uid, layers, parts, limits: LIMITS, internet: false };
    let site = engine.prepare(&spec).await?;
    let ends = site.open_channel()?;
    Ok((site.raise(life).await?, ends))
}

/// Says a line and waits for its echo with the right count.
async fn expect(talk: &mut ChannelEnds, line: &str, count: u32) -> Result<()> {
    let trying = || format!("get {count} from the program in the trial sandbox");
    let conversation = async {
        talk.to_guest.write_all(format!("{line}\n").as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\n") {
            talk.from_guest.readable().await?;
            match talk.from_guest.try_read_buf(&mut answer) {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                read => drop(read?),
            }
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    let timed_out = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    let answer: String =
        tokio::time::timeout(ANSWER_WAIT_MAX, conversation).await.map_err(timed_out).flatten().tried(trying)?;
    if answer.trim_end() == format!("{count} {line}") {
        return Ok(());
    }
    Err(std::io::Error::other(format!("it said {answer:?}"))).tried(trying)
}

fn explain(e: EngineError) -> String {
    use std::error::Error;
    match e.source() {
        Some(source) => format!("{e}: {source}"),
        None => e.to_string(),
    }
}
