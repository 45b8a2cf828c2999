//! What each frame of the host leads to. Runs on the reader's thread, so nothing here waits: what takes time gets a
//! thread of its own. Every call is answered, sense or not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use remuda_guest_proto::{
    AgentError, AgentErrorKind, Frame, INPUT_WRITER_BYTES_MAX, Input, Kind, PtySize, Reply, Request, Spawn,
    decode_credit,
};

use crate::agent::{Agent, Place};
use crate::bind::bind;
use crate::children::Signalled;
use crate::effects::{Begin, Known};
use crate::errors::{failed, invalid, reason, refusal, say, shown};
use crate::execution::{Execution, Target};
use crate::files;
use crate::inbox::Ending;
use crate::launch::launch;
use crate::left_out;
use crate::limits::{EXECUTION_ID_BYTES_MAX, EXECUTIONS_LIVE_MAX, EXECUTIONS_MAX, PUMP_BUFFER_BYTES};
use crate::outbox::Host;
use crate::pump::{drain, pump};
use crate::relay;
use crate::sync::lock;
use crate::terminal;

/// Carries out a frame.
pub fn dispatch(agent: &Arc<Agent>, frame: Frame) {
    let channel = frame.channel;
    match frame.kind {
        Kind::Request => request(agent, channel, &frame.payload),
        Kind::HostData => data(agent, channel, &frame.payload),
        Kind::HostEnd => end(agent, channel, frame.payload.is_empty()),
        Kind::HostCredit => match decode_credit(frame.kind, &frame.payload) {
            Ok(consumed) => credit(agent, channel, consumed),
            Err(error) => say(format_args!("{error}")),
        },
        Kind::Quiesce => {
            if frame.payload == [1] {
                rustix::fs::sync();
            }
            agent.outbox.quiesce();
        }
        Kind::Proceed => agent.outbox.proceed(),
        kind => say(format_args!("the host sent a frame of kind {kind:?}, which only an agent sends")),
    }
}

fn request(agent: &Arc<Agent>, call: u32, payload: &[u8]) {
    let request = serde_json::from_slice::<Request>(payload);
    if let Ok(Request::Bind { nonce, identity }) = &request {
        bind(agent, call, *nonce, identity);
        return;
    }
    let Some(host) = agent.outbox.host() else {
        say(format_args!("call {call} before a bind is not carried out"));
        return;
    };
    if !agent.outbox.wait_for_room() {
        say(format_args!("call {call} is not carried out: too many answers wait for the host"));
        return;
    }
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            agent.reply(host, call, &Err(invalid(format!("call {call} makes no sense: {error}"))));
            return;
        }
    };
    match request {
        Request::Bind { .. } => {}
        Request::Spawn(spawn) => start(agent, host, call, spawn),
        Request::Signal { channel, signal } => agent.reply(host, call, &send_signal(agent, channel, signal)),
        Request::Forget { channel } => agent.reply(host, call, &forget(agent, channel)),
        Request::Input(input) => agent.reply(host, call, &take_input(agent, &input)),
        Request::Resize { channel, size } => resize(agent, host, call, channel, size),
        Request::Outcome { effect } => tell_outcome(agent, effect, host, call),
        Request::Ping => agent.reply(host, call, &Ok(Reply::Done)),
        Request::DeletedOpenFiles => files::call(agent, host, call, |_| Ok(crate::deleted::sentences())),
        Request::LeftOutOfFiles => {
            files::call(agent, host, call, |agent| Ok(left_out::sentences(&agent.inherited.root)))
        }
        Request::Connect { port, from } => relay::connect(agent, host, call, port, from),
        Request::ReadFile { path, user } => files::read(agent, host, call, files::Read::whole(path, user)),
        Request::OpenFile { path, user, range, conditions, digest_bytes_max } => {
            let part = Some(files::Part { range, conditions, digest_bytes_max });
            files::read(agent, host, call, files::Read { path, user, part });
        }
        Request::WriteFile { path, user, mode, parents, conditions, effect } => {
            files::write(agent, host, call, files::Write { path, user, mode, parents, conditions, effect });
        }
        Request::List { path, user, limit } => {
            files::call(agent, host, call, move |agent| files::list(agent, &path, &user, limit));
        }
        Request::Stat { path, user, digest } => {
            files::call(agent, host, call, move |agent| files::stat(agent, &path, &user, digest));
        }
        Request::MakeDirectory { path, user, parents, effect } => {
            files::change(agent, host, call, effect, move |agent| files::make_directory(agent, &path, &user, parents));
        }
        Request::Remove { path, user, recursive, effect } => {
            files::change(agent, host, call, effect, move |agent| files::remove(agent, &path, &user, recursive));
        }
        Request::Move { from, to, user, overwrite, effect } => {
            files::change(agent, host, call, Some(effect), move |agent| {
                files::rename(agent, &from, &to, &user, overwrite)
            });
        }
        Request::PackTree { path, user } => files::pack_tree(agent, host, call, path, user),
        Request::UnpackTree { path, user, parents, effect } => {
            files::unpack_tree(agent, host, call, path, user, parents, effect);
        }
        Request::Glob(glob) => files::call(agent, host, call, move |agent| files::glob(agent, &glob)),
        Request::Grep(grep) => files::call(agent, host, call, move |agent| files::grep(agent, &grep)),
        Request::Watch(watch) => files::watch(agent, host, call, watch),
        Request::Batch(batch) => {
            files::change(agent, host, call, Some(batch.effect), move |agent| files::batch(agent, batch));
        }
        Request::SetAttributes { path, user, mode, owner, effect } => {
            files::change(agent, host, call, Some(effect), move |agent| {
                files::set_attributes(agent, &path, &user, mode, owner.as_deref())
            });
        }
    }
}

/// Data of a channel nobody knows (any more) is dropped: its sender learns the reason from the answer to its call.
fn data(agent: &Agent, channel: u32, bytes: &[u8]) {
    agent.moved_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
    if let Some(execution) = agent.execution(channel) {
        match execution.receive(bytes) {
            Ok(true) => agent.outbox.offer(&execution),
            Ok(false) => {}
            Err(sentence) => say(format_args!("{sentence}")),
        }
    } else if let Some(transfer) = agent.transfers.get(channel)
        && !transfer.receive(bytes)
    {
        say(format_args!("more than the window on channel {channel}: its transfer is broken off"));
    }
}

fn end(agent: &Agent, channel: u32, whole: bool) {
    if let Some(execution) = agent.execution(channel) {
        execution.end_input();
    } else if let Some(transfer) = agent.transfers.get(channel) {
        transfer.end(if whole { Ending::Whole } else { Ending::BrokenOff });
    }
}

fn credit(agent: &Agent, channel: u32, consumed: u64) {
    if let Some(execution) = agent.execution(channel) {
        execution.acknowledge(consumed);
    } else if let Some(transfer) = agent.transfers.get(channel) {
        transfer.credit(consumed);
    }
}

/// Takes up a `Spawn`; its thread answers it and then moves the program's pipes.
fn start(agent: &Arc<Agent>, host: Host, call: u32, spawn: Spawn) {
    let sound = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    if spawn.execution.len() > EXECUTION_ID_BYTES_MAX || !spawn.execution.bytes().all(sound) {
        // All of them must fit into the answer to a bind.
        let message = format!("an execution's id is at most {EXECUTION_ID_BYTES_MAX} plain characters");
        agent.reply(host, call, &Err(invalid(message)));
        return;
    }
    let effect = spawn.effect;
    if !begin_effect(agent, effect, host, call) {
        return;
    }
    let (execution, place) = match admit(agent, call, &spawn) {
        Ok(admitted) => admitted,
        Err(error) => {
            agent.finish_effect(effect, Err(error), false);
            return;
        }
    };
    let (for_thread, started) = (agent.clone(), execution.clone());
    let thread = agent.workers.run(move || run(&for_thread, &started, &spawn, place));
    if let Err(error) = thread {
        lock(&agent.executions).remove(&execution.channel);
        let message = format!("there can't be another thread: {error}");
        agent.finish_effect(effect, Err(refusal(AgentErrorKind::Busy, message)), false);
    }
}

/// Answers with what became of an effect, at once or when it is known.
fn tell_outcome(agent: &Agent, effect: u64, host: Host, call: u32) {
    let known = lock(&agent.effects).outcome(effect, host, call);
    match known {
        Known::Waits => {}
        Known::Outcome(result) => agent.reply(host, call, &result),
        Known::TooMany => agent.reply(host, call, &Err(too_many_wait(effect))),
        Known::Undone => {
            let message = format!("effect {effect} was not asked for, or nothing of it was done");
            agent.reply(host, call, &Err(refusal(AgentErrorKind::Undone, message)));
        }
        Known::Forgotten => {
            let message = format!("whether effect {effect} was done is not known any more");
            agent.reply(host, call, &Err(refusal(AgentErrorKind::Forgotten, message)));
        }
    }
}

fn too_many_wait(effect: u64) -> AgentError {
    refusal(AgentErrorKind::Busy, format!("too many calls wait for the outcome of effect {effect}"))
}

/// Whether the call must be carried out; else it was or will be answered.
pub fn begin_effect(agent: &Agent, effect: u64, host: Host, call: u32) -> bool {
    let begin = lock(&agent.effects).begin(effect, host, call);
    match begin {
        Begin::Do => return true,
        Begin::Wait => {}
        Begin::Answer(result) => agent.reply(host, call, &result),
        Begin::TooMany => agent.reply(host, call, &Err(too_many_wait(effect))),
    }
    false
}

fn admit(agent: &Agent, call: u32, spawn: &Spawn) -> Result<(Arc<Execution>, Place), AgentError> {
    let busy = |message: String| refusal(AgentErrorKind::Busy, message);
    let place = Place::take(&agent.live_executions, EXECUTIONS_LIVE_MAX)
        .ok_or_else(|| busy(format!("{EXECUTIONS_LIVE_MAX} executions run or have their pipes held by others")))?;
    let execution = Execution::new(call, spawn.execution.clone(), spawn.effect, spawn.stdin || spawn.pty.is_some())
        .map_err(|errno| failed("make an execution", errno))
        .map(Arc::new)?;
    if agent.transfers.get(call).is_some() {
        return Err(invalid(format!("channel {call} carries a file")));
    }
    let mut executions = lock(&agent.executions);
    if executions.len() >= EXECUTIONS_MAX {
        return Err(busy(format!("{EXECUTIONS_MAX} executions are kept; forget ended ones")));
    }
    if let Some(other) = executions.get(&call) {
        return Err(invalid(format!("channel {call} belongs to execution {}", shown(&other.id))));
    }
    executions.insert(call, execution.clone());
    Ok((execution, place))
}

/// The life of an execution's thread.
fn run(agent: &Agent, execution: &Arc<Execution>, spawn: &Spawn, place: Place) {
    let ends = match launch(agent, spawn, execution) {
        Err(error) => {
            let mut executions = lock(&agent.executions);
            let listed = execution.never_started();
            if !listed {
                executions.remove(&execution.channel);
            }
            drop(executions);
            agent.finish_effect(spawn.effect, Err(error), true);
            if listed {
                agent.outbox.offer(execution);
            }
            return;
        }
        Ok((pid, ends)) => {
            let early = execution.started(pid);
            // Before the pipes are read, so that the answer goes out before any output.
            agent.finish_effect(spawn.effect, Ok(Reply::Spawned { pid }), true);
            for signal in early {
                agent.children.signal(pid, signal);
            }
            ends
        }
    };
    // What starting one leaves behind counts as well.
    agent.moved_bytes.fetch_add(PUMP_BUFFER_BYTES, Ordering::Relaxed);
    let held = pump(&agent.outbox, execution, ends, Duration::from_millis(spawn.grace_ms));
    drain(held);
    drop(place);
}

fn send_signal(agent: &Agent, channel: u32, signal: i32) -> Result<Reply, AgentError> {
    if !(1..=64).contains(&signal) {
        return Err(invalid(format!("there is no signal {signal}")));
    }
    let execution = known(agent, channel)?;
    match execution.target(signal) {
        Target::Kept => Ok(Reply::Done),
        Target::TooMany => Err(refusal(AgentErrorKind::Busy, format!("execution {channel} is still being started"))),
        Target::Group(pid) => match agent.children.signal(pid, signal) {
            Signalled::Sent => Ok(Reply::Done),
            Signalled::NobodyLeft => Err(refusal(
                AgentErrorKind::NotFound,
                format!("execution {channel} has ended and nothing of its process group is left"),
            )),
            Signalled::Refused(errno) => {
                Err(refusal(AgentErrorKind::Failed, format!("cannot signal execution {channel}: {}", reason(errno))))
            }
        },
    }
}

fn take_input(agent: &Agent, input: &Input) -> Result<Reply, AgentError> {
    let execution = known(agent, input.channel)?;
    if !execution.has_stdin {
        return Err(invalid(format!("execution {} was started without an input", input.channel)));
    }
    if input.writer.len() > INPUT_WRITER_BYTES_MAX {
        return Err(invalid(format!("the name of a writer is longer than {INPUT_WRITER_BYTES_MAX} bytes")));
    }
    agent.moved_bytes.fetch_add(input.bytes.len(), Ordering::Relaxed);
    Ok(execution.input(input))
}

/// Gives a terminal another size. The session's processes are told by a thread: there may be many.
fn resize(agent: &Arc<Agent>, host: Host, call: u32, channel: u32, size: PtySize) {
    let set = known(agent, channel).and_then(|execution| {
        match execution.with_terminal(|terminal| terminal::set_size(terminal, size)) {
            None => Err(invalid(format!("execution {channel} has no terminal, or has ended"))),
            Some(Err(errno)) => Err(failed("set the size of a terminal", errno)),
            Some(Ok(())) => Ok(execution.pid()),
        }
    });
    if let Ok(Some(pid)) = set {
        let for_thread = agent.clone();
        let told = agent.workers.run(move || {
            terminal::tell_session(pid);
            for_thread.reply(host, call, &Ok(Reply::Done));
        });
        if told.is_ok() {
            return;
        }
    }
    agent.reply(host, call, &set.map(|_| Reply::Done));
}

fn forget(agent: &Agent, channel: u32) -> Result<Reply, AgentError> {
    if !known(agent, channel)?.has_ended() {
        return Err(invalid(format!("execution {channel} has not ended")));
    }
    lock(&agent.executions).remove(&channel);
    agent.rest();
    Ok(Reply::Done)
}

fn known(agent: &Agent, channel: u32) -> Result<Arc<Execution>, AgentError> {
    agent
        .execution(channel)
        .ok_or_else(|| refusal(AgentErrorKind::NotFound, format!("there is no execution on channel {channel}")))
}
