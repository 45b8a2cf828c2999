//! Records of sandboxes, one for each generation.

use remuda_types::wire::Labels;
use remuda_types::{Account, OperationId, SandboxId, SandboxState, SnapshotId, Uid};
use serde_json::Value;

/// One generation of a slot.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRecord {
    /// Whose it is.
    pub account: Account,
    /// `slot@generation`.
    pub id: SandboxId,
    /// Its name in host names, directories and foreign APIs.
    pub uid: Uid,
    /// The operation that made it.
    pub operation: OperationId,
    /// Where its machine stands.
    pub state: SandboxState,
    /// Why, where that is not plain.
    pub reason: Option<String>,
    /// The caller's labels.
    pub labels: Labels,
    /// What it is to be.
    pub spec: Value,
    /// Which engine, agent and base it is made with.
    pub parts: Value,
    /// Frozen layers below its upper, newest first.
    pub layers: Vec<SnapshotId>,
    /// What is known of its processes on the host: boot id, pids, start times; null before it has any.
    pub host: Value,
    /// When this generation ended for good, in Unix milliseconds. It holds its slot exactly until then.
    pub ended_at_ms: Option<i64>,
    /// The generation whose files it went on with.
    pub continues: Option<SandboxId>,
    /// The generation that went on with its files.
    pub continued_as: Option<SandboxId>,
}

/// What changes of a sandbox; what is not said stays as it is.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxChange {
    pub(crate) uid: Uid,
    pub(crate) state: Option<SandboxState>,
    pub(crate) reason: Option<Option<String>>,
    pub(crate) labels: Option<Labels>,
    pub(crate) spec: Option<Value>,
    pub(crate) parts: Option<Value>,
    pub(crate) layers: Option<Vec<SnapshotId>>,
    pub(crate) host: Option<Value>,
    pub(crate) ended_at_ms: Option<i64>,
    pub(crate) hands_back: bool,
}

impl SandboxChange {
    /// No change yet of the sandbox with this uid.
    pub fn of(uid: &Uid) -> SandboxChange {
        SandboxChange {
            uid: uid.clone(),
            state: None,
            reason: None,
            labels: None,
            spec: None,
            parts: None,
            layers: None,
            host: None,
            ended_at_ms: None,
            hands_back: false,
        }
    }

    /// Its machine stands here now.
    #[must_use]
    pub fn state(mut self, state: SandboxState) -> Self {
        self.state = Some(state);
        self
    }

    /// Why; none takes an earlier reason back.
    #[must_use]
    pub fn reason(mut self, reason: Option<String>) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Other labels.
    #[must_use]
    pub fn labels(mut self, labels: Labels) -> Self {
        self.labels = Some(labels);
        self
    }

    /// Another specification, as after a change of its deadline.
    #[must_use]
    pub fn spec(mut self, spec: Value) -> Self {
        self.spec = Some(spec);
        self
    }

    /// Other parts.
    #[must_use]
    pub fn parts(mut self, parts: Value) -> Self {
        self.parts = Some(parts);
        self
    }

    /// Other layers, as after a rotation.
    #[must_use]
    pub fn layers(mut self, layers: Vec<SnapshotId>) -> Self {
        self.layers = Some(layers);
        self
    }

    /// What is known of its processes.
    #[must_use]
    pub fn host(mut self, host: Value) -> Self {
        self.host = Some(host);
        self
    }

    /// It has ended for good and gives its slot up. The first end counts: a later one changes neither time nor reason
    /// nor state.
    #[must_use]
    pub fn ended(mut self, at_ms: i64) -> Self {
        self.ended_at_ms = Some(at_ms);
        self
    }

    /// It has ended without ever coming up, and gives the slot back to the generation that it was to continue, as if
    /// it had never been. Goes with [`SandboxChange::ended`].
    #[must_use]
    pub fn hands_back(mut self) -> Self {
        self.hands_back = true;
        self
    }
}

/// Which sandboxes are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxFilter {
    /// Ended ones too.
    pub include_ended: bool,
    /// Only generations of this slot.
    pub slot: Option<remuda_types::Slot>,
    /// Only those that have this label with this value.
    pub label: Option<(String, String)>,
}
