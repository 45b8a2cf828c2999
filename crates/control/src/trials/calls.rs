//! Calls of the platform as data, and whether the world is as their outcomes say.

use std::time::Duration;

use remuda_types::wire::{Branch, CreateSandbox, CreateSnapshot, Fork, ForkSandbox, Sandbox, Snapshot, StartExecution};
use remuda_types::{Error, ErrorCode, SandboxId, SandboxState, Slot, SnapshotId, SnapshotMode, SnapshotState};
use serde::Serialize;
use serde_json::Value;

use crate::caller::Caller;
use crate::operation::{Answered, Call};
use crate::platform::Platform;

/// One call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Asked {
    Create { slot: Option<Slot> },
    Pause(SandboxId),
    Resume(SandboxId),
    Stop(SandboxId),
    Start(SandboxId),
    Capture(SandboxId, SnapshotMode),
    Fork(SandboxId, u32, SnapshotMode),
    Restore(SnapshotId),
    Remove(SandboxId),
    RemoveSnapshot(SnapshotId),
    Execute(SandboxId, &'static str),
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    pub(super) result: Result<Value, Error>,
    pub(super) replayed: bool,
}

impl Told {
    fn of<T: Serialize>(answered: Answered<T>) -> Told {
        let Answered { result, replayed } = answered;
        Told { result: result.map(|value| serde_json::to_value(value).unwrap()), replayed }
    }

    /// What must be the same however often it is told.
    pub(super) fn outcome(&self) -> Result<Value, (ErrorCode, String)> {
        self.result.clone().map_err(|e| (e.code, e.message))
    }

    /// A sandbox that was to end and did not do so whole, and is to be ended again.
    pub(super) fn half_ended(&self, asked: &Asked) -> Option<SandboxId> {
        match asked {
            Asked::Stop(id) | Asked::Remove(id) => Some(id.clone()).filter(|_| self.result.is_err()),
            _ => None,
        }
    }

    /// Sandboxes that it made.
    pub(super) fn made(&self, asked: &Asked) -> Vec<SandboxId> {
        let Ok(value) = &self.result else { return Vec::new() };
        let id = |value: &Value| value["id"].as_str().unwrap().parse().unwrap();
        match asked {
            Asked::Create { .. } | Asked::Restore(_) | Asked::Start(_) => vec![id(value)],
            Asked::Fork(..) => branches(value),
            _ => Vec::new(),
        }
    }

    /// The snapshot that it made.
    pub(super) fn captured(&self, asked: &Asked) -> Option<SnapshotId> {
        let value = self.result.as_ref().ok().filter(|_| matches!(asked, Asked::Capture(..)))?;
        value["id"].as_str()?.parse().ok()
    }
}

fn branches(value: &Value) -> Vec<SandboxId> {
    let fork: Fork = serde_json::from_value(value.clone()).unwrap();
    let made = fork.branches.into_iter().filter_map(|branch| match branch {
        Branch::Sandbox(sandbox) => Some(sandbox.id),
        Branch::Error(_) => None,
    });
    made.collect()
}

impl Asked {
    /// Makes the call.
    pub(super) async fn of(self, platform: Platform, key: Option<String>) -> Told {
        let call = Call { caller: Caller::operator(), key: key.map(|key| key.parse().unwrap()) };
        match self {
            Asked::Create { slot } => {
                let request = CreateSandbox { slot, memory_mib: Some(256), ..CreateSandbox::default() };
                Told::of(platform.create(&call, request).await)
            }
            Asked::Pause(id) => Told::of(platform.pause(&call, &id).await),
            Asked::Resume(id) => Told::of(platform.resume(&call, &id).await),
            Asked::Stop(id) => Told::of(platform.stop(&call, &id).await),
            Asked::Start(id) => Told::of(platform.start(&call, &id, Default::default()).await),
            Asked::Capture(id, mode) => {
                let request = CreateSnapshot { mode: Some(mode), ..serde_json::from_str("{}").unwrap() };
                Told::of(platform.capture(&call, &id, request).await)
            }
            Asked::Fork(id, count, mode) => {
                let request =
                    ForkSandbox { count, mode: Some(mode), ..serde_json::from_str(r#"{"count":1}"#).unwrap() };
                Told::of(platform.fork(&call, &id, request).await)
            }
            Asked::Restore(id) => {
                Told::of(platform.restore(&call, id.as_str(), serde_json::from_str("{}").unwrap()).await)
            }
            Asked::Remove(id) => Told::of(platform.remove(&call, &id).await),
            Asked::RemoveSnapshot(id) => Told::of(platform.remove_snapshot(&call, id.as_str()).await),
            Asked::Execute(id, program) => {
                let argv = program.split(' ').map(str::to_owned).collect();
                let request = StartExecution { argv: Some(argv), ..StartExecution::default() };
                let told = Told::of(platform.execute(&call, &id, request).await);
                // Only which one it is stays the same; it goes on.
                let result = told.result.map(|value| value["id"].clone());
                Told { result, ..told }
            }
        }
    }

    /// Whether the world is as a good outcome says.
    pub(super) async fn holds(self, platform: Platform, told: Told) -> Result<(), String> {
        let Ok(value) = &told.result else { return Ok(()) };
        let caller = Caller::operator();
        let stands = async |id: &SandboxId, wanted: SandboxState| match platform.show(&caller, id).await {
            Ok(shown) if shown.state == wanted => Ok(()),
            other => Err(format!("{id} is to be {wanted} and is {other:?}")),
        };
        match &self {
            Asked::Pause(id) => stands(id, SandboxState::Paused).await,
            Asked::Resume(id) => stands(id, SandboxState::Running).await,
            Asked::Stop(id) => stands(id, SandboxState::Stopped).await,
            Asked::Create { .. } | Asked::Restore(_) | Asked::Start(_) => {
                let made: Sandbox = serde_json::from_value(value.clone()).unwrap();
                stands(&made.id, SandboxState::Running).await
            }
            Asked::Fork(..) => {
                for id in branches(value) {
                    stands(&id, SandboxState::Running).await?;
                }
                Ok(())
            }
            Asked::Capture(..) => {
                let made: Snapshot = serde_json::from_value(value.clone()).unwrap();
                match platform.snapshot(&caller, made.id.as_str(), Duration::ZERO).await {
                    Ok(shown) if shown.state == SnapshotState::Active => Ok(()),
                    other => Err(format!("{} is to be active and is {other:?}", made.id)),
                }
            }
            Asked::Remove(id) => match platform.show(&caller, id).await {
                Ok(shown) if shown.ended_at_ms.is_none() || shown.state != SandboxState::Gone => {
                    Err(format!("{id} is to be gone and is {shown:?}"))
                }
                _ => Ok(()),
            },
            Asked::RemoveSnapshot(id) => match platform.snapshot(&caller, id.as_str(), Duration::ZERO).await {
                Ok(shown) if shown.state != SnapshotState::Deleted => Err(format!("{id} is {shown:?}")),
                _ => Ok(()),
            },
            Asked::Execute(..) => Ok(()),
        }
    }
}
