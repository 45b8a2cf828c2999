//! What raw answers of the worker say, read strictly: a status or results in the documented form, or the reason why
//! they are none. Pure; decides nothing about a repair.

use serde::Deserialize;
use serde_json::Value;

use crate::observe::{Answer, Exchange};

/// What `GET /status` says.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Status {
    /// Pid in the guest.
    pub pid: u64,
    /// Made when the process started.
    pub nonce: String,
    /// Given to the process at its launch.
    pub preparation: String,
    /// Jobs in the queue.
    pub pending: u64,
    /// Digest of the queue.
    pub fingerprint: String,
    /// Marker in its memory.
    pub marker: Option<String>,
    /// Whether it was released.
    pub released: bool,
    /// Whether it says it has completed.
    pub completed: bool,
}

/// What `GET /results` says.
#[derive(Debug, Clone, PartialEq)]
pub struct Results {
    /// Whether it says it has completed.
    pub completed: bool,
    /// SHA-256 of the processor it imported.
    pub processor: Option<String>,
    /// The receipts. What they hold is judged, not required here: a malformed receipt is wrong work, not an error.
    pub receipts: Vec<Receipt>,
}

/// One receipt, as far as it can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The job's id.
    pub id: Option<String>,
    /// The amount, where it is a whole number of cents.
    pub amount_cents: Option<i64>,
}

/// Reads a status. It must be uncached: a copy kept on the way would tell of another process.
///
/// # Errors
/// Why it can't be read.
pub fn status(exchange: Option<&Exchange>) -> Result<Status, String> {
    let body = good_body(exchange)?;
    let status: Status = serde_json::from_str(body).map_err(|cause| format!("the status is malformed: {cause}"))?;
    if status.nonce.is_empty() { Err("the status has an empty nonce".into()) } else { Ok(status) }
}

/// Reads the results.
///
/// # Errors
/// Why they can't be read.
pub fn results(exchange: Option<&Exchange>) -> Result<Results, String> {
    #[derive(Deserialize)]
    struct Wire {
        completed: bool,
        processor: Option<String>,
        receipts: Vec<Value>,
    }
    let wire: Wire =
        serde_json::from_str(good_body(exchange)?).map_err(|cause| format!("the results are malformed: {cause}"))?;
    let receipts = wire.receipts.iter().map(|receipt| Receipt {
        id: receipt.get("id").and_then(Value::as_str).map(str::to_owned),
        amount_cents: receipt.get("amountCents").and_then(Value::as_i64),
    });
    Ok(Results { completed: wire.completed, processor: wire.processor, receipts: receipts.collect() })
}

/// Whether an exchange ended with this status.
///
/// # Errors
/// What it ended with instead.
pub fn expect_status(exchange: Option<&Exchange>, expected: u16) -> Result<(), String> {
    match answer(exchange)? {
        (status, _, _) if status == expected => Ok(()),
        (status, _, body) => Err(format!("answered {status} instead of {expected}: {}", excerpt(body))),
    }
}

fn answer(exchange: Option<&Exchange>) -> Result<(u16, Option<&str>, &str), String> {
    match exchange.map(|exchange| &exchange.answer) {
        None => Err("it was not asked".into()),
        Some(Answer::Error { message }) => Err(message.clone()),
        Some(Answer::Response { status, cache_control, body }) => Ok((*status, cache_control.as_deref(), body)),
    }
}

fn good_body(exchange: Option<&Exchange>) -> Result<&str, String> {
    let (status, cache_control, body) = answer(exchange)?;
    if status != 200 {
        return Err(format!("answered {status} instead of 200: {}", excerpt(body)));
    }
    let uncached =
        cache_control.is_some_and(|text| text.split(',').any(|word| word.trim().eq_ignore_ascii_case("no-store")));
    if uncached {
        Ok(body)
    } else {
        Err("the answer does not say Cache-Control: no-store, so it may be an old one".into())
    }
}

fn excerpt(body: &str) -> String {
    const CHARACTERS_MAX: usize = 120;
    body.chars().take(CHARACTERS_MAX).collect()
}
