//! The host's side of the control channel of one machine.
//!
//! A server that takes over a machine finds both ways in the middle of something: see `remuda_guest_proto` for how the
//! two sides come into step again.
//!
//! Two tasks own the two FIFOs. The reader takes in whatever the guest says and believes none of it; the first frame
//! that makes no sense breaks the channel for good. The writer sends one frame after another and can be silenced at a
//! frame boundary, which is what every pause and capture needs: what is written into a channel while its guest stands
//! still would be answered by every copy.

mod intake;
mod places;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_engine::ChannelEnds;
use remuda_guest_proto::{
    AgentError, Bind, Bound, Frame, HOST_END_ABANDONED, Kind, Nonce, Reply, ReplyResult, Request,
};
use tokio::sync::{Notify, mpsc, oneshot, watch};

pub(crate) use intake::{Download, Feed, Upload, UploadError};

use crate::executions::ExecutionCell;
use intake::{Incoming, UploadWindow};
use places::{FileCall, Places};
use writer::Order;

/// Frames that wait for the writer. Callers wait beyond it.
const ORDERS_MAX: usize = 64;
/// How long an agent may take to fall silent. It only has to finish a frame; a machine under load is slow.
const QUIESCE_WAIT_MAX: Duration = Duration::from_secs(15);
/// How long a bound agent may take. A restored machine faults its pages in first.
const BIND_WAIT_MAX: Duration = Duration::from_secs(60);

/// Why a call on the channel brought no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ChannelError {
    /// The agent says no.
    #[error("{}", .0.message)]
    Agent(AgentError),
    /// The channel is broken: the guest wrote something that makes no sense, or its FIFO failed.
    #[error("the control channel broke: {0}")]
    Broken(String),
    /// No answer came in time.
    #[error("the agent did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The agent is too old for the call, which was not sent.
    #[error("its agent does not know this call")]
    Outdated,
    /// The machine has ended or is being ended.
    #[error("its processes have ended")]
    Closed,
}

/// A machine's control channel. Clones share one; when the last is dropped both tasks end.
#[derive(Debug, Clone)]
pub(crate) struct Channel {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    orders: mpsc::Sender<Order>,
    next_channel: AtomicU32,
    /// Which calls the agent knows, as it said when it was bound.
    calls: AtomicU32,
    intake: Mutex<Intake>,
    places: Places,
    /// Where the reader learns what to wait for; taken by the bind.
    nonce: Mutex<Option<oneshot::Sender<Nonce>>>,
    urgent: Arc<Urgent>,
    broken: watch::Sender<Option<String>>,
    /// The machine has ended: what it said before is taken in, and nothing more will come.
    ended: tokio_util::sync::CancellationToken,
    closing: tokio_util::sync::CancellationToken,
}

/// What the writer sends ahead of everything else. It needs no room in the queue, so that the reader never waits for
/// the writer.
#[derive(Debug, Default)]
struct Urgent {
    news: Mutex<News>,
    waiting: Notify,
}

#[derive(Debug, Default)]
struct News {
    /// Bytes consumed on each channel since it began.
    credits: HashMap<u32, u64>,
}

impl Urgent {
    fn tell(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
        self.waiting.notify_one();
    }

    fn take(&self) -> News {
        std::mem::take(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Who waits for what the guest says.
#[derive(Debug, Default)]
struct Intake {
    calls: HashMap<u32, oneshot::Sender<ReplyResult>>,
    file_calls: HashMap<u32, FileCall>,
    channels: HashMap<u32, Incoming>,
    windows: HashMap<u32, Arc<UploadWindow>>,
    quiesced: Option<oneshot::Sender<()>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

/// Proof that the agent is at a frame boundary and says nothing. It goes on when this is dropped.
#[derive(Debug)]
pub(crate) struct Silence {
    _open: oneshot::Sender<()>,
}

impl Channel {
    /// Starts the two tasks on a machine's FIFOs. Nothing is said before [`Channel::bind`].
    pub(crate) fn start(ends: ChannelEnds) -> Channel {
        let (orders, inbox) = mpsc::channel(ORDERS_MAX);
        let (tell_nonce, nonce) = oneshot::channel();
        let shared = Arc::new(Shared {
            orders,
            next_channel: AtomicU32::new(1),
            calls: AtomicU32::new(0),
            intake: Mutex::default(),
            places: Places::default(),
            nonce: Mutex::new(Some(tell_nonce)),
            urgent: Arc::default(),
            broken: watch::Sender::new(None),
            ended: tokio_util::sync::CancellationToken::new(),
            closing: tokio_util::sync::CancellationToken::new(),
        });
        let pen = writer::Pen { fifo: ends.to_guest, inbox, urgent: shared.urgent.clone() };
        tokio::spawn(writer::run(pen, Arc::downgrade(&shared), shared.closing.clone()));
        let ear = reader::Ear { fifo: ends.from_guest, nonce, oom: ends.oom, ended: shared.ended.clone() };
        tokio::spawn(reader::run(ear, Arc::downgrade(&shared), shared.closing.clone()));
        Channel { shared }
    }

    /// Tells the agent of a machine that was just raised who it is. New channel numbers begin above those it uses.
    pub(crate) async fn bind(&self, identity: Bind) -> Result<Bound, ChannelError> {
        let nonce = self.expect_answer()?;
        match self.call_within(Request::Bind { nonce, identity }, BIND_WAIT_MAX).await? {
            Reply::Bound(bound) => {
                let taken = bound.executions.iter().map(|e| e.channel).max().unwrap_or(0);
                self.shared.next_channel.fetch_max(taken.saturating_add(1), Ordering::Relaxed);
                self.shared.calls.store(bound.calls, Ordering::Relaxed);
                Ok(bound)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The same for a machine that an earlier server spoke to, and for a copy of one that was captured before the
    /// server that adopted it had done this: its agent may still wait for the rest of a frame.
    pub(crate) async fn rebind(&self, identity: Bind) -> Result<Bound, ChannelError> {
        self.shared.orders.send(Order::Padding).await.map_err(|_| self.end())?;
        self.bind(identity).await
    }

    /// Makes the reader wait for the answer to a bind with this nonce, from before the bind is sent.
    fn expect_answer(&self) -> Result<Nonce, ChannelError> {
        let nonce: Nonce = crate::clock::entropy().map_err(|e| ChannelError::Broken(e.message))?;
        let tell = self.shared.nonce.lock().unwrap_or_else(PoisonError::into_inner).take();
        let tell = tell.ok_or_else(|| ChannelError::Broken("it was bound before".into()))?;
        // The reader only goes when the channel does.
        tell.send(nonce).map_err(|_| self.end())?;
        Ok(nonce)
    }

    /// A call and its answer. Waits as long as the machine lives: how long a guest takes is its own affair.
    pub(crate) async fn call(&self, request: Request) -> Result<Reply, ChannelError> {
        self.call_on(self.new_channel(), request).await
    }

    /// A call and its answer, but not for ever.
    pub(crate) async fn call_within(&self, request: Request, wait: Duration) -> Result<Reply, ChannelError> {
        tokio::time::timeout(wait, self.call(request)).await.unwrap_or(Err(ChannelError::Silent(wait)))
    }

    /// Which calls the agent knows: see [`remuda_guest_proto::CALLS`].
    pub(crate) fn calls(&self) -> u32 {
        self.shared.calls.load(Ordering::Relaxed)
    }

    /// An error if the agent is too old for a call.
    pub(crate) fn knows(&self, request: &Request) -> Result<(), ChannelError> {
        if request.needs() <= self.calls() { Ok(()) } else { Err(ChannelError::Outdated) }
    }

    /// A number for a new call; data that belongs to the call travels under it too.
    pub(crate) fn new_channel(&self) -> u32 {
        self.shared.next_channel.fetch_add(1, Ordering::Relaxed)
    }

    /// A call under a number that was taken before, so that its channel could be registered first.
    pub(crate) async fn call_on(&self, channel: u32, request: Request) -> Result<Reply, ChannelError> {
        self.ask(channel, request).await?.answer().await
    }

    /// Sends a call and leaves its answer for later. What belongs to the call may follow from here on, and not before: it
    /// may have waited for a place, and the agent drops what it knows no call of.
    async fn ask(&self, channel: u32, request: Request) -> Result<Asked<'_>, ChannelError> {
        self.knows(&request)?;
        let payload = serde_json::to_vec(&request).map_err(|e| ChannelError::Broken(e.to_string()))?;
        let place = tokio::select! {
            place = self.shared.places.wait_for(&request) => place.map_err(ChannelError::Agent)?,
            () = self.broken() => return Err(self.end()),
        };
        let (tell, told) = oneshot::channel();
        let mut forget = Forget { shared: &self.shared, channel, sent: false };
        {
            let mut intake = self.intake();
            intake.calls.insert(channel, tell);
            if let Some(place) = place {
                intake.file_calls.insert(channel, place);
            }
        }
        self.send(Frame::new(Kind::Request, channel, payload)).await?;
        forget.sent = true;
        Ok(Asked { channel: self, told, _forget: forget })
    }

    /// Registers where an execution's output goes, before it is spawned or taken over.
    pub(crate) fn attach_execution(&self, channel: u32, execution: Arc<ExecutionCell>) {
        let shared = Arc::downgrade(&self.shared);
        execution.credit_by(Box::new(move |consumed| {
            if let Some(shared) = shared.upgrade() {
                shared.credit(channel, consumed);
            }
        }));
        self.intake().channels.insert(channel, Incoming::Execution(execution));
    }

    /// Forgets a channel that will bring nothing more.
    pub(crate) fn detach(&self, channel: u32) {
        self.intake().channels.remove(&channel);
    }

    /// Brings the agent to a frame boundary and keeps it there until the result is dropped. `sync` asks it to flush
    /// its file system first.
    pub(crate) async fn quiesce(&self, sync: bool) -> Result<Silence, ChannelError> {
        let (reached, quiesced) = oneshot::channel();
        self.intake().quiesced = Some(reached);
        let (open, opened) = oneshot::channel();
        self.shared.orders.send(Order::Quiesce { sync, opened }).await.map_err(|_| self.end())?;
        let silence = Silence { _open: open };
        tokio::select! {
            answer = tokio::time::timeout(QUIESCE_WAIT_MAX, quiesced) => match answer {
                Ok(Ok(())) => Ok(silence),
                Ok(Err(_)) => Err(self.end()),
                Err(_) => Err(ChannelError::Silent(QUIESCE_WAIT_MAX)),
            },
            () = self.broken() => Err(self.end()),
        }
    }

    /// The machine behind the channel has ended or is being ended: whoever waits for an answer learns that none will
    /// come. A FIFO that the host holds open itself does not tell.
    pub(crate) fn close(&self) {
        self.shared.ended.cancel();
    }

    /// Waits until the channel is broken or closed; for ever if it never is.
    pub(crate) async fn broken(&self) {
        let mut broken = self.shared.broken.subscribe();
        if broken.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// What broke it.
    pub(crate) fn why_broken(&self) -> Option<String> {
        self.shared.broken.borrow().clone()
    }

    async fn send(&self, frame: Frame) -> Result<(), ChannelError> {
        self.shared.orders.send(Order::Frame(frame)).await.map_err(|_| self.end())
    }

    fn end(&self) -> ChannelError {
        let broken = self.why_broken().filter(|_| !self.shared.ended.is_cancelled());
        broken.map_or(ChannelError::Closed, ChannelError::Broken)
    }

    fn intake(&self) -> MutexGuard<'_, Intake> {
        self.shared.intake()
    }
}

impl Intake {
    /// The place of a file call comes back with the agent's last frame about it.
    fn file_call_said(&mut self, channel: u32, kind: Kind, refused: bool) {
        if self.file_calls.get(&channel).is_some_and(|call| call.ends_with(kind, refused)) {
            self.file_calls.remove(&channel);
        }
    }
}

impl Shared {
    // A panic while the lock was held leaves maps that are still whole.
    fn intake(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the guest how much of its data was taken in.
    fn credit(&self, channel: u32, consumed: u64) {
        self.urgent.tell(|news| {
            news.credits.insert(channel, consumed);
        });
    }

    /// Tells the guest that nobody waits for a transfer any more. This must not overtake the call that begins it: the
    /// agent would not know the channel yet, and then wait for its data for ever.
    fn abandon(&self, channel: u32) {
        let end = Order::Frame(Frame::new(Kind::HostEnd, channel, vec![HOST_END_ABANDONED]));
        let Err(mpsc::error::TrySendError::Full(end)) = self.orders.try_send(end) else { return };
        // Outside of a runtime nobody would send it either.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let orders = self.orders.clone();
            runtime.spawn(async move { orders.send(end).await });
        }
    }

    fn break_off(&self, why: String) {
        self.broken.send_if_modified(|broken| {
            let first = broken.is_none();
            if first {
                *broken = Some(why);
            }
            first
        });
        // Whoever waits for an answer learns at once that none will come.
        let mut intake = self.intake();
        intake.calls.clear();
        intake.file_calls.clear();
        intake.channels.clear();
        for window in intake.windows.drain().map(|(_, window)| window) {
            window.close();
        }
        intake.quiesced = None;
    }
}

/// A call that was sent.
struct Asked<'a> {
    channel: &'a Channel,
    told: oneshot::Receiver<ReplyResult>,
    _forget: Forget<'a>,
}

impl Asked<'_> {
    async fn answer(self) -> Result<Reply, ChannelError> {
        let Asked { channel, told, _forget } = self;
        tokio::select! {
            // An answer that came before the end is one.
            biased;
            answer = told => match answer {
                Ok(Ok(reply)) => Ok(reply),
                Ok(Err(refusal)) => Err(ChannelError::Agent(refusal)),
                Err(_) => Err(channel.end()),
            },
            () = channel.broken() => Err(channel.end()),
        }
    }
}

/// Takes a call's entry away when its caller goes, answered or not.
struct Forget<'a> {
    shared: &'a Shared,
    channel: u32,
    /// The agent has heard of it, or will: its place comes back with the agent's last word.
    sent: bool,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut intake = self.shared.intake();
        intake.calls.remove(&self.channel);
        if !self.sent {
            intake.file_calls.remove(&self.channel);
        }
    }
}

/// An answer of another kind than the question.
pub(crate) fn unexpected(reply: &Reply) -> ChannelError {
    let text = format!("{reply:?}");
    ChannelError::Broken(format!("an answer of the wrong kind: {}", text.chars().take(80).collect::<String>()))
}
