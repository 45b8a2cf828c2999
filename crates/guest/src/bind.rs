//! Taking on an identity and a new host. Whatever an earlier host had asked for is answered to nobody; executions and
//! their output are kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use remuda_guest_proto::{Bind, Bound, CALLS, Frame, Kind, Nonce, Reply};

use crate::agent::{Agent, reply_frame};
use crate::execution::Execution;
use crate::identity;
use crate::sync::lock;

/// Carries out a `Bind` and answers it.
pub fn bind(agent: &Agent, call: u32, nonce: Nonce, bind: &Bind) {
    unbind(agent);
    agent.processes_max.store(bind.processes_max.max(1), Ordering::Relaxed);
    identity::take(&agent.inherited, bind);
    let have: HashMap<u32, u64> = bind.executions.iter().map(|resume| (resume.channel, resume.have)).collect();
    // Held over the listing and the answer: an execution whose start fails at this moment is either not listed or stays
    // until its end is told.
    let executions = lock(&agent.executions);
    let mut shared: Vec<Arc<Execution>> = executions.values().cloned().collect();
    shared.sort_by_key(|execution| execution.channel);
    let reports = shared.iter().map(|execution| execution.rebind(have.get(&execution.channel).copied())).collect();
    let bound = Reply::Bound(Bound { agent: env!("CARGO_PKG_VERSION").to_owned(), executions: reports, calls: CALLS });
    let synced = Frame::new(Kind::Synced, 0, nonce.to_vec());
    agent.outbox.speak([synced, reply_frame(call, &Ok(bound))], &shared);
}

/// The host is gone or can't be trusted: the agent falls silent until the next bind.
pub fn unbind(agent: &Agent) {
    agent.outbox.begin();
    agent.transfers.abandon_all();
    agent.relays.close_all();
}
