//! `remuda-agent`: PID 1 in every sandbox. It starts programs, reaps, moves files and takes on identities for the host,
//! over one channel on stdin and stdout. It must never exit while it is PID 1, never panic on what it is told, never
//! write to the channel before it is bound, and never wake up when there is nothing to do.

mod agent;
mod bind;
mod channel;
mod children;
mod clone;
mod deleted;
mod dispatch;
mod effects;
mod errors;
mod execution;
mod files;
mod identity;
mod inbox;
mod launch;
mod left_out;
mod limits;
mod outbox;
mod output_log;
mod process;
mod program;
mod pump;
mod relay;
mod small_file;
mod sync;
mod terminal;
mod transfers;
mod user_thread;
mod users;
mod workers;

use std::process::ExitCode;
use std::sync::Arc;

use agent::Agent;
use errors::say;

fn main() -> ExitCode {
    let inherited = match process::prepare() {
        Ok(inherited) => inherited,
        Err(error) => {
            say(format_args!("cannot prepare this process: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let agent = Arc::new(Agent::new(inherited));
    for (name, body) in [("writer", channel::write_all as fn(Arc<Agent>)), ("reaper", children::reap_all)] {
        let agent = agent.clone();
        if let Err(error) = workers::start_thread(name, move || body(agent)) {
            say(format_args!("cannot start the thread {name}: {error}"));
            return ExitCode::FAILURE;
        }
    }
    channel::read_all(&agent);
    // Only reached when the channel ended, and never as PID 1.
    agent.kill_executions();
    ExitCode::SUCCESS
}
