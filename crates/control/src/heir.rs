//! Whose machine it is: what an agent is told when it is bound, and how a server takes over the executions of a machine
//! that an earlier one spoke to.

use std::sync::Arc;

use remuda_guest_proto::{AgentErrorKind, Bind, Reply, Request, ResumeAt};
use remuda_types::limits::PROCESSES_DEFAULT;
use remuda_types::wire::Origin;
use remuda_types::{SandboxId, SnapshotId};

use crate::channel::ChannelError;
use crate::clock::now_unix_ms;
use crate::driver::Live;
use crate::executions::{ExecutionCell, Executions};
use crate::operations::execute;
use crate::records::SandboxRecords;
use crate::registry::SandboxCell;

/// What a machine's agent is bound to.
#[derive(Debug, Clone)]
pub(crate) struct Heir {
    id: SandboxId,
    snapshot: Option<SnapshotId>,
    records: SandboxRecords,
    executions: Arc<Executions>,
}

impl Heir {
    pub(crate) fn of(cell: &SandboxCell) -> Heir {
        let snapshot = match &cell.spec.origin {
            Origin::Snapshot { snapshot, .. } => Some(snapshot.clone()),
            Origin::Image { .. } => None,
        };
        Heir { id: cell.id.clone(), snapshot, records: cell.records.clone(), executions: cell.executions.clone() }
    }

    /// The identity, the same whichever server tells it.
    pub(crate) fn identity(&self, executions: Vec<ResumeAt>) -> Bind {
        let uid = &self.records.uid;
        // Another one for every machine, and the same after a server's restart, without being kept anywhere.
        let machine_id = blake3::derive_key("remuda 2026-11 machine id", uid.as_str().as_bytes());
        Bind {
            sandbox: self.id.to_string(),
            uid: uid.to_string(),
            hostname: self.id.slot.to_string(),
            machine_id: hex(&machine_id[..16]),
            snapshot: self.snapshot.as_ref().map(ToString::to_string),
            now_unix_ms: now_unix_ms(),
            executions,
            processes_max: PROCESSES_DEFAULT,
        }
    }

    /// Binds the agent of a machine that an earlier server spoke to, and takes over what runs in there: from the last
    /// byte of output on that is on the disk. What the agent never heard of did not start.
    ///
    /// # Errors
    /// The agent does not answer, or makes no sense.
    pub(crate) async fn take_over(&self, live: &Arc<Live>) -> Result<(), ChannelError> {
        let running = self.executions.open();
        for execution in &running {
            live.channel.attach_execution(execution.channel, execution.clone());
        }
        let resume = running.iter().map(|e| ResumeAt { channel: e.channel, have: e.have() }).collect();
        let bound = live.channel.rebind(self.identity(resume)).await?;
        for execution in &running {
            let effect = execution.head().effect;
            // A branch's agent still has the number that its source's server gave.
            let is_it = |n: u64| effect.is_none_or(|effect| effect == n);
            match bound.executions.iter().find(|report| report.channel == execution.channel && is_it(report.effect)) {
                Some(report) => {
                    // One that is just being started has no pid yet.
                    if report.pid != 0 {
                        execution.spawned(report.pid);
                    }
                    execute::mind(&self.records, live.clone(), execution.clone());
                }
                None => self.ask_for(live, execution, effect).await?,
            }
        }
        for report in &bound.executions {
            let known = running.iter().any(|execution| execution.channel == report.channel);
            // Its end is on the disk; the word that it may be forgotten was lost.
            if !known && !report.running {
                live.channel.call(Request::Forget { channel: report.channel }).await?;
            }
        }
        Ok(())
    }

    /// What became of an execution that the agent does not list.
    async fn ask_for(&self, live: &Live, execution: &ExecutionCell, effect: Option<u64>) -> Result<(), ChannelError> {
        live.channel.detach(execution.channel);
        let Some(effect) = effect else {
            execution.unknown();
            return Ok(());
        };
        match live.channel.call(Request::Outcome { effect }).await {
            Err(ChannelError::Agent(refusal)) if refusal.kind == AgentErrorKind::Forgotten => execution.unknown(),
            // It was refused, or never arrived.
            Err(ChannelError::Agent(_)) => execution.not_started(),
            Ok(Reply::Spawned { pid }) => {
                execution.spawned(pid);
                execution.unknown();
            }
            Ok(_) => execution.unknown(),
            Err(e) => return Err(e),
        }
        self.records.soon(self.records.execution(&execute::document_of(execution)).into_iter().collect()).await;
        Ok(())
    }
}

/// Lower-case hex.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, b| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{b:02x}");
        text
    })
}
