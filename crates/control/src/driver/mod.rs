//! The driver: the one task that a sandbox's state belongs to.
//!
//! It takes short commands from a queue, and watches for the end of the machine's processes and for a broken channel.
//! Long work (a capture, a restore, a removal) belongs to operations, which ask the driver and tell it when they are
//! done. `stop` does not queue: it goes ahead of everything. What each state takes is decided in [`admission`].

pub(crate) mod admission;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remuda_engine::{Death, EngineError, HostFacts, Machine};
use remuda_types::{Error, ErrorCode, SandboxId, SandboxState};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::channel::{Channel, Silence};
use crate::clock::{RunningClock, now_unix_ms};
use crate::deadlines::Life;
use crate::executions::Executions;
use crate::heir::Heir;
use crate::ledger::Ledger;
use crate::records::{HostRecord, SandboxRecords};
use crate::registry::SandboxCell;
use admission::{Admission, Command, Refusal};

/// Commands that wait for a driver. Callers wait beyond it.
const COMMANDS_MAX: usize = 64;

/// What everybody may see of a sandbox's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status {
    pub(crate) state: SandboxState,
    pub(crate) reason: Option<String>,
    pub(crate) ended_at_ms: Option<i64>,
}

impl Status {
    pub(crate) fn starting() -> Self {
        Status { state: SandboxState::Starting, reason: None, ended_at_ms: None }
    }
}

/// A machine that was given life, and what reaches into it.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) machine: Machine,
    pub(crate) channel: Channel,
    pub(crate) clock: RunningClock,
    processes: HostFacts,
}

impl Live {
    pub(crate) fn of(machine: Machine, channel: Channel, clock: RunningClock) -> Result<Live, EngineError> {
        let processes = machine.host_facts()?;
        Ok(Live { machine, channel, clock, processes })
    }

    /// What is written down of it, so that a later server finds its processes, and no stranger in their place.
    pub(crate) fn host_record(&self, running: bool) -> HostRecord {
        HostRecord { processes: self.processes.clone(), clock: self.clock.reading(running) }
    }
}

/// How a machine stands when its driver begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It runs, and its agent is bound.
    Bound,
    /// It stands still, and stood still when this server took it over: nothing may be said to its agent before it
    /// goes on, not even whose it is now.
    HaltedAndUnbound,
}

/// Asks one sandbox's driver. Clones ask the same one.
#[derive(Debug, Clone)]
pub(crate) struct Driver {
    commands: mpsc::Sender<Ask>,
    stop: Arc<Notify>,
    status: Arc<watch::Sender<Status>>,
    /// Whether its agent is still to be bound by this server.
    unbound: Arc<AtomicBool>,
}

struct Ask {
    command: Command,
    reply: oneshot::Sender<Result<(), Error>>,
}

/// The right to read a sandbox for a capture. Nothing else is done to it meanwhile, but for a stop.
#[derive(Debug)]
pub(crate) struct CaptureLease {
    commands: mpsc::Sender<Ask>,
    /// Whether it was paused, and so is silent already.
    pub(crate) was_paused: bool,
    /// Whether its agent is still to be bound by this server.
    pub(crate) unbound: bool,
}

impl Drop for CaptureLease {
    fn drop(&mut self) {
        let (reply, _) = oneshot::channel();
        let end = Ask { command: Command::EndCapture, reply };
        if let Err(mpsc::error::TrySendError::Full(end)) = self.commands.try_send(end) {
            let commands = self.commands.clone();
            tokio::spawn(async move { commands.send(end).await });
        }
    }
}

impl Driver {
    /// Starts the driver of a machine that stands like this.
    pub(crate) fn start(cell: &SandboxCell, live: Arc<Live>, standing: Standing) -> Driver {
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        let unbound = Arc::new(AtomicBool::new(standing == Standing::HaltedAndUnbound));
        let stop = Arc::new(Notify::new());
        let status = cell.status.clone();
        let task = Task {
            id: cell.id.clone(),
            live,
            records: cell.records.clone(),
            ledger: cell.ledger.clone(),
            heir: Heir::of(cell),
            unbound: unbound.clone(),
            executions: cell.executions.clone(),
            life: cell.life.clone(),
            admission: match standing {
                Standing::Bound => Admission::running(),
                Standing::HaltedAndUnbound => Admission::paused(),
            },
            status: status.clone(),
            stop: stop.clone(),
            silence: None,
        };
        task.publish(None);
        tokio::spawn(task.run(inbox));
        Driver { commands, stop, status, unbound }
    }

    /// Halts the guest. Already paused is fine.
    pub(crate) async fn pause(&self) -> Result<(), Error> {
        self.ask(Command::Pause).await
    }

    /// Lets the guest go on. Already running is fine.
    pub(crate) async fn resume(&self) -> Result<(), Error> {
        self.ask(Command::Resume).await
    }

    /// Reserves the sandbox for a capture.
    pub(crate) async fn begin_capture(&self) -> Result<CaptureLease, Error> {
        self.ask(Command::BeginCapture).await?;
        let was_paused = self.status.borrow().state == SandboxState::Paused;
        let unbound = self.unbound.load(Ordering::SeqCst);
        Ok(CaptureLease { commands: self.commands.clone(), was_paused, unbound })
    }

    /// Fences the sandbox: from now on nothing is taken but the word that its removal is complete. Returns once its
    /// processes were told to end.
    pub(crate) async fn stop(&self) {
        if self.commands.is_closed() {
            // It has fenced the sandbox before, and is gone.
            return;
        }
        let mut status = self.status.subscribe();
        self.stop.notify_one();
        let fenced =
            |s: &Status| matches!(s.state, SandboxState::Stopping | SandboxState::Stopped | SandboxState::Gone);
        // The driver ends only after it has fenced.
        let _ = status.wait_for(fenced).await;
    }

    async fn ask(&self, command: Command) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        let ended = || Error::new(ErrorCode::WrongState, "the sandbox is ending");
        self.commands.send(Ask { command, reply }).await.map_err(|_| ended())?;
        answer.await.map_err(|_| ended())?
    }
}

/// Why a machine ended that nobody asked to.
pub(crate) fn why(death: Death, broken: Option<&str>) -> String {
    match (death, broken) {
        (Death::OutOfMemory, _) => "it ran out of memory: the kernel killed it at its limit".to_owned(),
        (Death::Ended, Some(why)) => format!("it was ended because its control channel broke: {why}"),
        (Death::Ended, None) => "its processes on the host ended unasked".to_owned(),
    }
}

struct Task {
    id: SandboxId,
    live: Arc<Live>,
    records: SandboxRecords,
    ledger: Ledger,
    heir: Heir,
    unbound: Arc<AtomicBool>,
    executions: Arc<Executions>,
    life: Arc<Life>,
    admission: Admission,
    status: Arc<watch::Sender<Status>>,
    stop: Arc<Notify>,
    /// Held while paused: nothing may be written into the channel of a machine that stands still.
    silence: Option<Silence>,
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<Ask>) {
        let live = self.live.clone();
        let mut alive = true;
        loop {
            tokio::select! {
                biased;
                () = self.stop.notified() => return self.fence(),
                death = live.machine.ended(), if alive => {
                    alive = false;
                    // All that was said before the end counts: ends of executions, and their output.
                    live.channel.close();
                    live.channel.broken().await;
                    self.died(death, None).await;
                }
                () = live.channel.broken(), if alive => {
                    alive = false;
                    // Without its channel nobody can say what goes on in there: it is ended, and its files kept.
                    let why = live.channel.why_broken();
                    if let Err(e) = live.machine.kill() {
                        tracing::error!("failed to end {}: {e}", self.id);
                    }
                    let death = live.machine.ended().await;
                    self.died(death, why).await;
                }
                ask = inbox.recv() => match ask {
                    Some(ask) => {
                        let stop = self.stop.clone();
                        tokio::select! {
                            biased;
                            // `notify_one` keeps its permit, so a stop that comes first is not lost.
                            () = stop.notified() => return self.fence(),
                            result = self.obey(ask.command) => drop(ask.reply.send(result)),
                        }
                    }
                    None => return,
                },
            }
        }
    }

    async fn obey(&mut self, command: Command) -> Result<(), Error> {
        let mut after = self.admission;
        after.command(command).map_err(|refusal| self.refuse(command, refusal))?;
        let changed = after.state() != self.admission.state();
        if changed {
            // What is to be stands on record before it is done: a server that is killed in between finds it there.
            self.is_to_be(after.state()).await?;
            if let Err(e) = self.carry_out(command).await {
                let before = self.admission.state();
                if let Err(e) = self.is_to_be(before).await {
                    tracing::error!("that {} is still {before} is not written down: {e}", self.id);
                }
                return Err(e);
            }
        }
        self.admission = after;
        if changed {
            self.publish(None);
        } else if command == Command::EndCapture {
            // Whoever waits for it sees it here.
            self.status.send_modify(|_| {});
        }
        Ok(())
    }

    async fn is_to_be(&self, state: SandboxState) -> Result<(), Error> {
        self.records.is_to_be(state, &self.live.host_record(state == SandboxState::Running)).await
    }

    async fn carry_out(&mut self, command: Command) -> Result<(), Error> {
        let Live { machine, channel, clock, .. } = &*self.live;
        match command {
            Command::Pause => {
                // With its files flushed, so that a capture of files alone finds them while it stands still.
                let silence = channel.quiesce(true).await.map_err(|e| crate::errors::channel(&self.id, e))?;
                if let Err(e) = machine.pause().await {
                    // It may stand still all the same.
                    self.go_back(machine.resume().await);
                    return Err(crate::errors::engine(&self.id, e));
                }
                clock.pause();
                self.silence = Some(silence);
            }
            Command::Resume => {
                if let Err(e) = machine.resume().await {
                    // It may go on all the same.
                    self.go_back(machine.pause().await);
                    return Err(crate::errors::engine(&self.id, e));
                }
                clock.resume();
                self.silence = None;
                if self.unbound.load(Ordering::SeqCst) {
                    if let Err(e) = self.heir.take_over(&self.live).await {
                        // Nobody can say what goes on in there: as with a channel that breaks, it is ended.
                        machine.kill().map_err(|e| crate::errors::engine(&self.id, e))?;
                        return Err(crate::errors::channel(&self.id, e));
                    }
                    self.unbound.store(false, Ordering::SeqCst);
                }
            }
            Command::BeginCapture | Command::EndCapture | Command::Stop => {}
        }
        Ok(())
    }

    /// A machine that is neither as it was nor as it was to be is ended: nobody can say what goes on in there.
    fn go_back(&self, gone_back: Result<(), EngineError>) {
        let Err(e) = gone_back else { return };
        tracing::error!("{} is ended, since it can be neither halted nor let go on: {e}", self.id);
        if let Err(e) = self.live.machine.kill() {
            tracing::error!("failed to end {}: {e}", self.id);
        }
    }

    fn refuse(&self, command: Command, refusal: Refusal) -> Error {
        let word = match command {
            Command::Pause => "paused",
            Command::Resume => "resumed",
            Command::BeginCapture | Command::EndCapture => "captured",
            Command::Stop => "removed",
        };
        match refusal {
            Refusal::Capturing if command == Command::BeginCapture => {
                Error::new(ErrorCode::SnapshotInProgress, format!("another capture of {} is under way", self.id))
                    .remedy("wait for it to end, and try again")
            }
            Refusal::Capturing => {
                Error::new(ErrorCode::SnapshotInProgress, format!("{} cannot be {word} while it is captured", self.id))
                    .remedy("wait for the capture to end, and try again")
            }
            Refusal::WrongState(state) => {
                let message = format!("{} is {state} and cannot be {word}", self.id);
                let error = Error::new(ErrorCode::WrongState, message).detail("state", state.to_string());
                match self.status.borrow().reason.clone() {
                    Some(reason) => error.cause(reason),
                    None => error,
                }
            }
        }
    }

    async fn died(&mut self, death: Death, broken: Option<String>) {
        let out_of_memory = death == Death::OutOfMemory;
        // Whoever ends its processes at its deadline and keeps its files says why before.
        let on_purpose = self.life.ending().is_some() && death == Death::Ended && broken.is_none();
        let said = self.status.borrow().reason.clone().filter(|_| on_purpose);
        let reason = said.unwrap_or_else(|| why(death, broken.as_deref()));
        tracing::warn!("{} died: {reason}", self.id);
        self.silence = None;
        self.executions.sandbox_ended(out_of_memory);
        self.admission.died();
        // On record before it is told, so that a server that is killed in between tells the same.
        let at_ms = now_unix_ms();
        self.ledger.died(at_ms, &reason).await;
        self.publish(Some((reason, at_ms)));
    }

    /// The last thing a driver does. Whoever asked to stop tears the machine down.
    fn fence(mut self) {
        // Refused only when it is fenced already.
        let _ = self.admission.command(Command::Stop);
        if let Err(e) = self.live.machine.kill() {
            tracing::error!("failed to kill the processes of {}: {e}", self.id);
        }
        // Nobody is to wait for an answer of a guest that is being ended.
        self.live.channel.close();
        self.publish(None);
    }

    fn publish(&self, death: Option<(String, i64)>) {
        let state = self.admission.state();
        self.status.send_modify(|status| {
            if state == SandboxState::Running {
                // Why it stood still.
                status.reason = None;
            }
            status.state = state;
            if let Some((reason, at_ms)) = death {
                status.reason = Some(reason);
                status.ended_at_ms = Some(at_ms);
            }
        });
    }
}
