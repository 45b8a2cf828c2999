//! create: reserve slot and generation → build → start → bound → running.

use remuda_types::limits::{LABEL_BYTES_MAX, LABELS_MAX, MEMORY_MIB_DEFAULT, MEMORY_MIB_MAX, MEMORY_MIB_MIN};
use remuda_types::wire::{CreateSandbox, Labels, Origin, Sandbox};
use remuda_types::{Error, ErrorCode, Uid};

use crate::boot::{Life, boot};
use crate::caller::Caller;
use crate::clock::id_entropy;
use crate::platform::Platform;
use crate::registry::Reservation;

pub(crate) async fn create(platform: &Platform, caller: &Caller, request: CreateSandbox) -> Result<Sandbox, Error> {
    check_labels(&request.labels)?;
    let memory_mib = request.memory_mib.unwrap_or(MEMORY_MIB_DEFAULT);
    if !(MEMORY_MIB_MIN..=MEMORY_MIB_MAX).contains(&memory_mib) {
        let message = format!("memory_mib is {memory_mib}; it must be {MEMORY_MIB_MIN} to {MEMORY_MIB_MAX}");
        return Err(Error::new(ErrorCode::InvalidRequest, message));
    }
    platform.admit_work()?;
    let digest = platform.engine().parts().fingerprint.base.clone();
    let cell = platform.registry().tables().reserve(Reservation {
        account: caller.account.clone(),
        slot: request.slot,
        uid: Uid::from_entropy(id_entropy()?),
        labels: request.labels,
        memory_mib,
        origin: Origin::Image { digest },
        layers: Vec::new(),
    })?;
    boot(platform, &cell, Life::Fresh { snapshot: None }).await?;
    Ok(cell.show())
}

/// Labels within their limits.
pub(crate) fn check_labels(labels: &Labels) -> Result<(), Error> {
    if labels.len() > LABELS_MAX {
        return Err(Error::limit("labels_max", LABELS_MAX as u64, labels.len() as u64));
    }
    match labels.iter().find(|(k, v)| k.is_empty() || k.len() > LABEL_BYTES_MAX || v.len() > LABEL_BYTES_MAX) {
        Some((key, _)) => {
            let shown: String = key.chars().take(40).collect();
            let message = format!("the label {shown:?} has a key or value outside 1 to {LABEL_BYTES_MAX} bytes");
            Err(Error::new(ErrorCode::InvalidRequest, message))
        }
        None => Ok(()),
    }
}
