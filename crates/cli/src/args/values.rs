//! How values on the command line are read. What is wrong with one must be said with what it should look like.

use std::net::SocketAddr;
use std::time::Duration;

use remuda_types::limits::{DISK_MIB_MAX, DISK_MIB_MIN, EXECUTION_TIMEOUT_MS_MAX, MEMORY_MIB_MAX, MEMORY_MIB_MIN};
use remuda_types::{ExecutionId, IdError, OperationId, ReceiptId, SandboxId, SnapshotId, SnapshotState};

use super::{Drills, OfReceipt};

/// What a sandbox's id looks like, for those who gave something else.
const SANDBOX_EXAMPLE: &str = "c1@2026-10-08T12:00:00.000Z";

/// A sandbox. Ids of other things are told apart from slots: what stands there stands in the wrong place.
pub fn sandbox_id(text: &str) -> Result<SandboxId, String> {
    let is = |prefix: &str| text.starts_with(prefix) && !text.contains('@');
    if text.parse::<ExecutionId>().is_ok() || is(ExecutionId::PREFIX) {
        return Err(format!("it looks like an execution, whose sandbox stands before it: {SANDBOX_EXAMPLE} {text}"));
    }
    if is(SnapshotId::PREFIX) || is(OperationId::PREFIX) || is(ReceiptId::PREFIX) {
        return Err(format!("it is not a sandbox; one looks like {SANDBOX_EXAMPLE}"));
    }
    text.parse().map_err(|e: IdError| e.to_string())
}

/// An execution.
pub fn execution_id(text: &str) -> Result<ExecutionId, String> {
    if text.parse::<SandboxId>().is_ok() {
        return Err("it is a sandbox; an execution stands after its sandbox and looks like exec-…".to_owned());
    }
    text.parse().map_err(|e: IdError| e.to_string())
}

pub fn of_receipt(text: &str) -> Result<OfReceipt, String> {
    if text.starts_with(ReceiptId::PREFIX) {
        return text.parse().map(OfReceipt::Receipt).map_err(|e: IdError| e.to_string());
    }
    sandbox_id(text).map(OfReceipt::Sandbox)
}

pub fn drills(text: &str) -> Result<Drills, String> {
    if text == "all" { Ok(Drills::All) } else { text.parse().map(Drills::One) }
}

pub fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("it must look like NAME=VALUE".to_owned()),
    }
}

/// A length of time, more than none.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "it must look like 90s, 5m or 1h 30m, or be a number of seconds, and more than nothing".to_owned();
    let parsed = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let signed = text.parse::<jiff::SignedDuration>().map_err(|_| wrong())?;
            Duration::try_from(signed).map_err(|_| wrong())?
        }
    };
    if parsed.is_zero() { Err(wrong()) } else { Ok(parsed) }
}

/// A moment that has passed, in Unix milliseconds: by itself, or by the time since then.
pub fn moment(text: &str) -> Result<i64, String> {
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Ok(at.as_millisecond());
    }
    let ago = duration(text)
        .map_err(|_| "it must look like 90s, 5m or 1h, for so long ago, or like 2026-10-08T12:00:00Z".to_owned())?;
    let ago = i64::try_from(ago.as_millis()).map_err(|_| "that is too long ago".to_owned())?;
    Ok(jiff::Timestamp::now().as_millisecond().saturating_sub(ago))
}

/// A limit for the running time of a command.
pub fn time_limit(text: &str) -> Result<Duration, String> {
    let longest = Duration::from_millis(EXECUTION_TIMEOUT_MS_MAX);
    match duration(text)? {
        limit if limit > longest => Err(format!("it must be {}h at most", longest.as_secs() / 3600)),
        limit if limit < Duration::from_millis(1) => Err("it must be 1ms at least".to_owned()),
        limit => Ok(limit),
    }
}

/// Where to listen.
pub fn listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "it must look like 127.0.0.1:8787 or [::1]:8787".to_owned())
}

/// Where a snapshot stands.
pub fn snapshot_state(text: &str) -> Result<SnapshotState, String> {
    let known = || "it must be capturing, verifying, active, failed, deleting or deleted".to_owned();
    serde_json::from_value(text.into()).map_err(|_| known())
}

/// A number without a unit.
pub fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "it must be a whole number".to_owned())
}

/// An amount of memory in MiB, within the limits of a sandbox. Units are powers of 1024.
pub fn memory_mib(text: &str) -> Result<u32, String> {
    mib(text, MEMORY_MIB_MIN, MEMORY_MIB_MAX)
}

/// An amount of private files in MiB, within the limits of a sandbox. Units are powers of 1024.
pub fn disk_mib(text: &str) -> Result<u32, String> {
    mib(text, DISK_MIB_MIN, DISK_MIB_MAX)
}

/// A number of bytes. Units are powers of 1024.
pub fn bytes(text: &str) -> Result<u64, String> {
    let count = with_unit(text, 0).filter(|count| *count > 0);
    count.ok_or_else(|| "it must be a whole number like 500K, 10M or 2G, or a number of bytes".to_owned())
}

fn mib(text: &str, least: u32, most: u32) -> Result<u32, String> {
    let bytes = with_unit(text, 20).ok_or("it must be a whole number like 512M or 2G, or a number of MiB")?;
    match u32::try_from(bytes >> 20) {
        Ok(mib) if (least..=most).contains(&mib) => Ok(mib),
        _ => Err(format!("it must be {least}M to {}G; a bare number counts MiB", most >> 10)),
    }
}

/// Bytes of a number with K, M, G or T behind it, also as KB or KiB; a bare one counts `2^bare` bytes.
fn with_unit(text: &str, bare: u32) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let shift = match unit.strip_suffix("IB").or(unit.strip_suffix('B')).unwrap_or(&unit) {
        "" if unit.is_empty() => bare,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    Some(digits.parse::<u64>().ok()?.saturating_mul(1 << shift))
}
