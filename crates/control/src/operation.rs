//! The one way of every call that changes something and must not be lost or done twice:
//!
//! ```text
//!  look the key up ── known ──► its outcome, once more │ it is under way │ it was another request
//!        │ new
//!  judge the call ── refused ─► nothing is stored, and the key may come again
//!        │
//!  admit: key, request and reservation in one transaction, before any effect
//!        │
//!  steps, each journaled with what it changes
//!        │
//!  finish: outcome and changes in one transaction, and only then the answer
//! ```
//!
//! What an operation does is in its own file under `operations`; what becomes of it after a crash, in `recovery`.

use std::sync::Arc;

use remuda_journal::{
    Admission, Admitted, Change, Journal, JournalError, Operation as Record, Outcome, Refusal, Reservation, Reserved,
    Scope,
};
use remuda_types::{Account, Error, ErrorCode, Key, OperationId, OperationState, SandboxId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OwnedMutexGuard;

use crate::access::Action;
use crate::caller::Caller;
use crate::clock::{id_entropy, now_unix_ms};
use crate::ledger::Entry;
use crate::operations::{capture, fork};
use crate::platform::Platform;
use crate::registry::{SandboxCell, SnapshotCell};
use crate::usage;

/// What a call that changes something comes with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Who calls.
    pub caller: Caller,
    /// The key under which the call has one outcome, however often it is sent.
    pub key: Option<Key>,
}

impl Call {
    /// A call without a key.
    pub fn of(caller: Caller) -> Call {
        Call { caller, key: None }
    }
}

/// What came of a call that changes something.
#[derive(Debug)]
pub struct Answered<T> {
    /// What it came to, or why not.
    pub result: Result<T, Error>,
    /// Whether this is the outcome of an earlier call with the same key, and nothing was done now.
    pub replayed: bool,
}

impl<T> Answered<T> {
    pub(crate) fn now(result: Result<T, Error>) -> Self {
        Answered { result, replayed: false }
    }

    /// The same with another value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Answered<U> {
        Answered { result: self.result.map(change), replayed: self.replayed }
    }
}

/// Why an operation did not do what was asked.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It failed, and what it had begun is undone.
    Failed(Error),
    /// Its effect was handed over and nobody can say whether it took place.
    Unknown(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Failed(error)
    }
}

/// How an operation ended, and what is written down with that.
#[derive(Debug)]
pub(crate) struct Ended<T> {
    pub(crate) result: Result<T, Fault>,
    pub(crate) changes: Vec<Change>,
    /// The sandbox that ended with it: once that is on record, it is answered for from there.
    pub(crate) over: Option<Arc<SandboxCell>>,
    /// The turns of receipts that are among the changes: held until they are on the disk.
    pub(crate) turns: Vec<OwnedMutexGuard<()>>,
    /// The generation that it was to continue holds its slot again.
    pub(crate) hands_back: bool,
    /// The snapshot of a fork, which is seen to once the outcome is on record, and not before.
    pub(crate) settling: Option<Arc<SnapshotCell>>,
    /// The snapshot that was captured in it: it is active, or has failed, once that is on record.
    pub(crate) publishing: Option<Arc<SnapshotCell>>,
}

impl<T> Ended<T> {
    pub(crate) fn done(value: T, changes: Vec<Change>) -> Self {
        Ended { changes, ..Ended::from(Ok(value)) }
    }

    pub(crate) fn failed(error: Error, changes: Vec<Change>) -> Self {
        Ended { changes, ..Ended::from(Err(Fault::Failed(error))) }
    }

    /// Adds what is written in receipts and events.
    pub(crate) fn with(mut self, entry: Entry) -> Self {
        self.changes.extend(entry.changes);
        self.turns.extend(entry.turn);
        self
    }

    /// Names the sandbox that ended with it.
    pub(crate) fn over(self, cell: &Arc<SandboxCell>) -> Self {
        Ended { over: Some(cell.clone()), ..self }
    }

    /// Names the snapshot of which it is told what became of it once this is on record.
    pub(crate) fn publishing(self, cell: &Arc<SnapshotCell>) -> Self {
        Ended { publishing: Some(cell.clone()), ..self }
    }

    /// Names the snapshot that is to be seen to afterwards.
    pub(crate) fn settling(self, cell: &Arc<SnapshotCell>) -> Self {
        Ended { settling: Some(cell.clone()), ..self }
    }
}

impl<T> From<Result<T, Fault>> for Ended<T> {
    fn from(result: Result<T, Fault>) -> Self {
        Ended {
            result,
            changes: Vec::new(),
            over: None,
            settling: None,
            publishing: None,
            turns: Vec::new(),
            hands_back: false,
        }
    }
}

/// An operation under way: where it writes down its steps.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    journal: Journal,
    pub(crate) account: Account,
    /// For whom its parts are done.
    caller: Caller,
    /// Its record; none for a call that is journaled only where it has a key, and has none.
    pub(crate) id: Option<OperationId>,
    /// What its admission set aside.
    pub(crate) reserved: Reserved,
}

impl Work {
    /// An operation that is on record, to go on with.
    pub(crate) fn on(journal: &Journal, record: &Record) -> Work {
        Work {
            journal: journal.clone(),
            account: record.account.clone(),
            caller: Caller::platform(record.account.clone()),
            id: Some(record.id.clone()),
            reserved: record.reserved.clone(),
        }
    }

    /// Writes down a step and what it changes, before this returns.
    pub(crate) async fn step(&self, name: &str, data: Value, changes: Vec<Change>) -> Result<(), Error> {
        let written = match &self.id {
            Some(id) => self.journal.step(id, name, data, changes).await.map(drop),
            None if changes.is_empty() => Ok(()),
            None => self.journal.apply(changes).await,
        };
        written.map_err(|e| crate::errors::journal(&e))
    }

    /// Writes down the outcome; the first one stands. Where that fails it is open what is on the disk, and the next
    /// start settles it: the caller is told so instead of an outcome that could be taken back. Tells whether it was
    /// written.
    async fn finish<T: Serialize>(&self, ended: Ended<T>) -> (Result<T, Error>, bool) {
        let Ended { result, changes, turns: _turns, .. } = ended;
        let written = match &self.id {
            Some(id) => match outcome(&result) {
                Ok(outcome) => self.journal.finish(id, outcome, changes, now_unix_ms()).await.map(drop),
                Err(e) => return (Err(e), false),
            },
            None if changes.is_empty() => Ok(()),
            None => self.journal.apply(changes).await,
        };
        if let Err(e) = written {
            tracing::error!("an outcome was not written down: {e}");
            let mut error = crate::errors::journal(&e)
                .remedy("what was done is settled at the server's next start; ask again with the same key then");
            if let Some(id) = &self.id {
                error = error.detail("operation", id.to_string());
            }
            return (Err(error), false);
        }
        let told = result.map_err(|fault| match fault {
            Fault::Failed(error) | Fault::Unknown(error) => error,
        });
        (told, true)
    }
}

/// The domain value that is kept of a result.
pub(crate) fn outcome<T: Serialize>(result: &Result<T, Fault>) -> Result<Outcome, Error> {
    let kept = |value: Result<Value, serde_json::Error>| {
        value.map_err(|e| Error::new(ErrorCode::Internal, "an outcome can't be written down").cause(e))
    };
    Ok(match result {
        Ok(value) => Outcome::Done(kept(serde_json::to_value(value))?),
        Err(Fault::Failed(error)) => Outcome::Failed(kept(serde_json::to_value(error))?),
        Err(Fault::Unknown(error)) => Outcome::Indeterminate(kept(serde_json::to_value(error))?),
    })
}

/// One kind of operation.
pub(crate) trait Operation: Sized + Send + Sync + 'static {
    /// The word for it.
    const KIND: &'static str;
    /// What a caller must be allowed to do.
    const ACTION: Action;
    /// Whether it is journaled without a key too, since a crash in its middle would leave something half-done.
    const ALWAYS: bool;
    /// What judging it found, for its steps.
    type Plan: Send;
    /// What it comes to: a domain value, never an answer in the words of a protocol.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// The generation that it addresses.
    fn target(&self) -> Option<&SandboxId>;

    /// The request before defaults are filled in; an absent member and one that is null are the same. How long the
    /// caller waits is no part of it.
    fn request(&self) -> Value;

    /// Whether it can be done as things stand, and what is set aside for it. A refusal stores nothing.
    fn judge(
        &self,
        platform: &Platform,
        caller: &Caller,
    ) -> impl Future<Output = Result<(Self::Plan, Reservation), Error>> + Send;

    /// Its steps. On failure it has undone what it had begun.
    fn run(
        self,
        platform: &Platform,
        plan: Self::Plan,
        work: &Work,
    ) -> impl Future<Output = Ended<Self::Output>> + Send;

    /// Whether a call that repeats a finished one is the same in what its request does not hold, such as a body.
    fn repeats(self, _platform: &Platform, _record: &Record) -> impl Future<Output = Result<(), Error>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Takes a call through. It runs to its end also when the caller goes away.
pub(crate) async fn operate<O: Operation>(platform: &Platform, call: &Call, operation: O) -> Answered<O::Output> {
    let (platform, call) = (platform.clone(), call.clone());
    let under_way = platform.under_way().clone();
    let task = under_way.spawn(async move { drive(&platform, &call, None, operation).await });
    task.await.unwrap_or_else(|e| {
        Answered::now(Err(Error::new(ErrorCode::Internal, "the operation ended unexpectedly").cause(e)))
    })
}

/// Takes a part of an operation through, under a key that derives from the whole's.
pub(crate) async fn operate_part<O: Operation>(
    platform: &Platform,
    whole: &Work,
    number: usize,
    operation: O,
) -> Result<O::Output, Error> {
    let key = whole.id.as_ref().map(|id| part_key(id, number)).transpose()?;
    let call = Call { caller: whole.caller.clone(), key };
    drive(platform, &call, whole.id.clone(), operation).await.result
}

/// The key of a part. An operation's id is in no other, so that no caller's key and no other whole's part is the same.
pub(crate) fn part_key(whole: &OperationId, number: usize) -> Result<Key, Error> {
    format!("{whole}-{}", number + 1).parse().map_err(|e| Error::new(ErrorCode::Internal, "a key is none").cause(e))
}

async fn drive<O: Operation>(
    platform: &Platform,
    call: &Call,
    parent: Option<OperationId>,
    operation: O,
) -> Answered<O::Output> {
    match admit(platform, call, parent, &operation).await {
        Err(e) => Answered::now(Err(e)),
        Ok(Received::Begin(plan, work)) => {
            let _in_hand = work.id.clone().map(|id| platform.hands().take(id));
            let ended = operation.run(platform, plan, &work).await;
            Answered::now(conclude(platform, &work, ended).await)
        }
        Ok(Received::Known(known)) => answer(platform, *known, operation).await,
    }
}

/// Writes the outcome down, lets go of what has ended with it, and has seen to what is left to do.
pub(crate) async fn conclude<T: Serialize>(platform: &Platform, work: &Work, ended: Ended<T>) -> Result<T, Error> {
    let (over, settling, publishing) = (ended.over.clone(), ended.settling.clone(), ended.publishing.clone());
    let (result, written) = work.finish(ended).await;
    if let Some(cell) = over.filter(|_| written) {
        platform.registry().tables().forget_sandbox(&cell);
    }
    // Where it could not be written, the next server does both.
    if let Some(cell) = publishing.filter(|_| written) {
        platform.registry().tables().named(&cell);
        capture::on_record(platform, &cell);
    }
    if let Some(cell) = settling.filter(|_| written) {
        let finishing = platform.clone();
        platform.under_way().spawn(async move { fork::settle(&finishing, &cell).await });
    }
    result
}

enum Received<P> {
    Begin(P, Work),
    Known(Box<Admitted>),
}

async fn admit<O: Operation>(
    platform: &Platform,
    call: &Call,
    parent: Option<OperationId>,
    operation: &O,
) -> Result<Received<O::Plan>, Error> {
    call.caller.may(O::ACTION)?;
    let account = call.caller.account.clone();
    let scope = match operation.target() {
        Some(target) => Scope::on(O::KIND, target.clone()),
        None => Scope::new(O::KIND),
    };
    let scope = scope.map_err(|e| Error::new(ErrorCode::Internal, "an operation has no scope").cause(e))?;
    let request = operation.request();
    let journal = platform.journal();
    let _turn = match &call.key {
        Some(key) => Some(platform.turns().wait(&account, &scope, key).await),
        None => None,
    };
    // Before it is judged: a repeated removal finds nothing to remove, and is still the one that removed it.
    if let Some(key) = &call.key
        && let Some(known) =
            journal.received(&account, &scope, key, &request).await.map_err(|e| refused(&e, &call.caller))?
    {
        if !platform.sees_operation(&call.caller, operation_of(&known)).await? {
            return Err(taken());
        }
        return Ok(Received::Known(Box::new(known)));
    }
    let (plan, reservation) = operation.judge(platform, &call.caller).await?;
    if !O::ALWAYS && call.key.is_none() {
        let caller = call.caller.clone();
        let work = Work { journal: journal.clone(), account, caller, id: None, reserved: Reserved::default() };
        return Ok(Received::Begin(plan, work));
    }
    let admission = Admission {
        id: OperationId::from_entropy(id_entropy()?),
        account,
        scope,
        key: call.key.clone(),
        parent,
        request,
        now_ms: now_unix_ms(),
        reservation,
    };
    match journal.admit(admission).await.map_err(|e| refused(&e, &call.caller))? {
        Admitted::New(record) => {
            Ok(Received::Begin(plan, Work { caller: call.caller.clone(), ..Work::on(journal, &record) }))
        }
        // Which only another server could have written.
        known => Ok(Received::Known(Box::new(known))),
    }
}

async fn answer<O: Operation>(platform: &Platform, known: Admitted, operation: O) -> Answered<O::Output> {
    let named = |error: Error, record: &Record| error.detail("operation", record.id.to_string());
    match known {
        Admitted::New(record) => {
            Answered::now(Err(named(Error::new(ErrorCode::Internal, "a new operation is no known one"), &record)))
        }
        Admitted::InFlight(record) => {
            let message = format!("the {} with this key is under way", O::KIND);
            let error = Error::new(ErrorCode::OperationInProgress, message)
                .remedy(format!("ask GET /v1/operations/{}, or send the same call again in a moment", record.id));
            Answered::now(Err(named(error, &record)))
        }
        Admitted::Conflict(record) => Answered::now(Err(conflict(O::KIND, &record))),
        Admitted::Replay(record) => match operation.repeats(platform, &record).await {
            Ok(()) => Answered { result: replay(&record), replayed: true },
            Err(e) => Answered::now(Err(e)),
        },
    }
}

/// The key came with another request.
pub(crate) fn conflict(kind: &str, record: &Record) -> Error {
    let message = format!("this key was used for another {kind}");
    Error::new(ErrorCode::IdempotencyKeyConflict, message)
        .cause("the request differs from the first one with this key; nothing was done")
        .remedy("use another key for another request")
        .detail("operation", record.id.to_string())
}

fn operation_of(admitted: &Admitted) -> &Record {
    match admitted {
        Admitted::New(record) | Admitted::Replay(record) | Admitted::InFlight(record) | Admitted::Conflict(record) => {
            record
        }
    }
}

/// The key was used for something that this caller doesn't see: no more is told.
pub(crate) fn taken() -> Error {
    Error::new(ErrorCode::IdempotencyKeyConflict, "this key was used for another call of the account")
        .cause("keys are the account's, and that call was about something that the access key does not see")
        .remedy("use another key")
}

/// The outcome of an operation, as it was told first.
pub(crate) fn replay<T: DeserializeOwned>(record: &Record) -> Result<T, Error> {
    let unreadable = |e: &dyn std::fmt::Display| {
        tracing::error!("the outcome of {} can't be read: {e}", record.id);
        Error::new(ErrorCode::Internal, format!("the outcome of {} can't be read", record.id)).cause(e)
    };
    match &record.outcome {
        Some(outcome) if record.evicted && outcome.domain().is_null() => {
            let message = format!("the call with this key is {}, and what came of it is no longer kept", record.state);
            Err(Error::new(ErrorCode::OutcomeEvicted, message)
                .remedy("look by listing; nothing was done a second time")
                .detail("operation", record.id.to_string())
                .detail("state", record.state.to_string()))
        }
        Some(Outcome::Done(value)) => serde_json::from_value(value.clone()).map_err(|e| unreadable(&e)),
        Some(Outcome::Failed(value) | Outcome::Indeterminate(value)) => {
            Err(serde_json::from_value(value.clone()).unwrap_or_else(|e| unreadable(&e)))
        }
        None => Err(unreadable(&"it has none")),
    }
}

/// Why a call was not admitted. A narrowed caller is not told who stands in the way: it may not see that.
pub(crate) fn refused(e: &JournalError, caller: &Caller) -> Error {
    let JournalError::Refused(refusal) = e else { return crate::errors::journal(e) };
    if let Some(error) = usage::refused(refusal, caller) {
        return error;
    }
    match refusal {
        Refusal::SlotInUse { slot, .. } if caller.narrowing().is_some() => {
            Error::new(ErrorCode::SlotInUse, format!("the slot {slot} holds a living sandbox"))
                .remedy("choose another slot")
        }
        Refusal::NameTaken { name, .. } if caller.narrowing().is_some() => {
            Error::new(ErrorCode::SnapshotNameTaken, format!("a snapshot of the account has the name {name}"))
                .remedy("choose another name")
        }
        Refusal::SlotInUse { slot, occupant } => {
            Error::new(ErrorCode::SlotInUse, format!("the slot {slot} holds a living sandbox, {occupant}"))
                .remedy("choose another slot, or remove that sandbox first (see: remuda ls)")
                .detail("occupant", occupant.to_string())
        }
        Refusal::NameTaken { name, owner } => {
            Error::new(ErrorCode::SnapshotNameTaken, format!("{owner} has the name {name}"))
                .remedy("choose another name, or remove that snapshot first")
        }
        Refusal::Limit { name, limit, current, .. } => Error::limit(name, *limit, *current),
        Refusal::Cancelled(key) => {
            Error::new(ErrorCode::OperationCancelled, format!("the key {key} was cancelled before its call came"))
                .remedy("use another key if the call is wanted after all")
        }
        Refusal::TooLarge { limit, name, .. } => {
            Error::new(ErrorCode::TooLarge, refusal.to_string()).detail("limit", *name).detail("maximum", *limit)
        }
        Refusal::Contradiction(message) => Error::new(ErrorCode::InvalidRequest, message.clone()),
        Refusal::NotContinuable(_) => Error::new(ErrorCode::WrongState, refusal.to_string()),
        Refusal::UnknownOperation(_) | Refusal::OperationEnded(_) | Refusal::UnknownRecord(_) | Refusal::Clock => {
            Error::new(ErrorCode::Internal, "the journal refused a record").cause(refusal)
        }
    }
}

/// What is told of an operation.
pub(crate) fn shown(record: Record) -> remuda_types::wire::Operation {
    let (mut result, mut error) = (None, None);
    match record.outcome {
        Some(Outcome::Done(value)) => result = Some(value).filter(|value| !value.is_null()),
        Some(Outcome::Failed(value) | Outcome::Indeterminate(value)) => error = serde_json::from_value(value).ok(),
        None => debug_assert_eq!(record.state, OperationState::Pending),
    }
    remuda_types::wire::Operation {
        id: record.id,
        kind: record.scope.kind().to_owned(),
        sandbox: record.scope.target().cloned(),
        key: record.key,
        parent: record.parent,
        state: record.state,
        admitted_at_ms: record.admitted_at_ms,
        finished_at_ms: record.finished_at_ms,
        made: remuda_types::wire::Made {
            sandbox: record.reserved.sandbox,
            snapshot: record.reserved.snapshot,
            execution: record.reserved.execution,
        },
        steps: record.steps.into_iter().map(|step| step.name).collect(),
        result,
        error,
        holds: Default::default(),
        evicted: record.evicted,
    }
}

/// A request as JSON. The wire types leave absent members out.
pub(crate) fn canonical(request: &impl Serialize) -> Value {
    // They are plain data: this does not fail.
    serde_json::to_value(request).unwrap_or_else(|e| json!({ "unwritable": e.to_string() }))
}
