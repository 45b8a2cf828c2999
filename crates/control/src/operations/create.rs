//! create: reserve slot and generation with the key → build → start → bound → running.

use remuda_engine::Fingerprint;
use remuda_journal::{NewSandbox, Reservation};
use remuda_types::limits::{
    DISK_MIB_MAX, DISK_MIB_MIN, LABEL_BYTES_MAX, LABELS_MAX, MEMORY_MIB_DEFAULT, MEMORY_MIB_MAX, MEMORY_MIB_MIN,
};
use remuda_types::wire::{CreateSandbox, Labels, Origin, Sandbox};
use remuda_types::{Error, ErrorCode, SandboxId, Slot, SnapshotId, Uid};
use serde_json::Value;

use crate::access::Action;
use crate::caller::Caller;
use crate::clock::{id_entropy, now_unix_ms};
use crate::deadlines::asked::Asked;
use crate::operation::{Ended, Operation, Work, canonical};
use crate::operations::launch;
use crate::operations::raise::{self, Source};
use crate::platform::Platform;
use crate::records::{SandboxSpec, document};
use crate::registry::Room;
use crate::usage::{Quotas, Share, Size};

/// Makes a sandbox from the base image.
pub(crate) struct Create {
    pub(crate) request: CreateSandbox,
}

/// A sandbox to be.
pub(crate) struct Plan {
    /// Held until the sandbox counts itself.
    pub(crate) room: Room,
    pub(crate) uid: Uid,
    pub(crate) labels: Labels,
    pub(crate) spec: SandboxSpec,
    pub(crate) layers: Vec<SnapshotId>,
    /// What it stands on below them.
    pub(crate) parts: Fingerprint,
}

impl Plan {
    pub(crate) fn new(
        platform: &Platform,
        labels: Labels,
        spec: SandboxSpec,
        layers: Vec<SnapshotId>,
        parts: Fingerprint,
    ) -> Result<Plan, Error> {
        platform.admit_work()?;
        let room = platform.registry().make_room()?;
        Ok(Plan { room, uid: Uid::from_entropy(id_entropy()?), labels, spec, layers, parts })
    }

    /// What is set aside for it.
    pub(crate) fn reservation(
        &self,
        platform: &Platform,
        caller: &Caller,
        slot: Option<Slot>,
    ) -> Result<Reservation, Error> {
        let sandbox = NewSandbox {
            slot,
            uid: self.uid.clone(),
            continues: None,
            labels: self.labels.clone(),
            spec: document(&self.spec)?,
            parts: document(&self.parts)?,
            layers: self.layers.clone(),
        };
        let size = Size { memory_mib: self.spec.memory_mib, disk_bytes: self.spec.disk_bytes() };
        let quotas = Quotas(platform.accounts());
        let Share { holds, counts } = quotas.of_start(&caller.account, &self.uid, size, now_unix_ms());
        Ok(Reservation { sandbox: Some(sandbox), holds, counts, ..Reservation::default() })
    }
}

impl Operation for Create {
    const KIND: &'static str = "create";
    const ACTION: Action = Action::CreateSandbox;
    const ALWAYS: bool = true;
    type Plan = Plan;
    type Output = Sandbox;

    fn target(&self) -> Option<&SandboxId> {
        None
    }

    fn request(&self) -> Value {
        canonical(&self.request)
    }

    async fn judge(&self, platform: &Platform, caller: &Caller) -> Result<(Plan, Reservation), Error> {
        check_labels(&self.request.labels)?;
        caller.may_make_sandbox(self.request.slot.as_ref(), &self.request.labels)?;
        let memory_mib = self.request.memory_mib.unwrap_or(MEMORY_MIB_DEFAULT);
        if !(MEMORY_MIB_MIN..=MEMORY_MIB_MAX).contains(&memory_mib) {
            let message = format!("memory_mib is {memory_mib}; it must be {MEMORY_MIB_MIN} to {MEMORY_MIB_MAX}");
            return Err(Error::new(ErrorCode::InvalidRequest, message));
        }
        if let Some(disk_mib) = self.request.disk_mib.filter(|mib| !(DISK_MIB_MIN..=DISK_MIB_MAX).contains(mib)) {
            let message = format!("disk_mib is {disk_mib}; it must be {DISK_MIB_MIN} to {DISK_MIB_MAX}");
            return Err(Error::new(ErrorCode::InvalidRequest, message));
        }
        let disk_bytes = self.request.disk_mib.map(|mib| u64::from(mib) << 20);
        let parts = platform.engine().parts().fingerprint.clone();
        let digest = parts.base.clone();
        let CreateSandbox { timeout_ms, idle_timeout_ms, on_deadline, .. } = self.request;
        let term = Asked { timeout_ms, idle_timeout_ms, on_deadline }.term(platform.timeout_ms_max())?;
        let internet = internet(platform, self.request.internet)?;
        if let Some(recipe) = &self.request.launch {
            launch::check(recipe)?;
        }
        let (origin, launch, term) = (Origin::Image { digest }, self.request.launch.clone(), Some(term));
        let spec = SandboxSpec { memory_mib, disk_bytes, internet, origin, launch, term };
        let plan = Plan::new(platform, self.request.labels.clone(), spec, Vec::new(), parts)?;
        let reservation = plan.reservation(platform, caller, self.request.slot.clone())?;
        Ok((plan, reservation))
    }

    async fn run(self, platform: &Platform, plan: Plan, work: &Work) -> Ended<Sandbox> {
        raise::planned(platform, work, plan, Source::Image).await
    }
}

/// Whether a new sandbox gets out.
fn internet(platform: &Platform, asked: Option<bool>) -> Result<bool, Error> {
    match (asked, platform.engine().no_way_out()) {
        (Some(true), Some(why)) => {
            let error = Error::new(ErrorCode::InvalidRequest, "internet: this server has no way out for sandboxes");
            Err(error.cause(why).remedy("leave it out, or ask the operator; `remuda doctor` tells more"))
        }
        (Some(false), _) => Ok(false),
        (_, no_way_out) => Ok(no_way_out.is_none()),
    }
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
