//! A difference between two pictures, and what is to be done about it where that is certain.

use remuda_engine::ProcessFacts;
use remuda_types::wire::{self, ThingKind};
use remuda_types::{Account, SandboxId, SnapshotId, Uid};

/// What is done about a difference. Each is looked at once more before it is done, and may be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Repair {
    /// Everything is removed that the machine has of a sandbox which has ended.
    TearDown(Uid),
    /// Everything but the files is removed of a sandbox that is stopped.
    LayDown(Account, SandboxId),
    /// A process is ended that is on record as a sandbox's which has ended.
    EndProcess(ProcessFacts),
    /// Layer and memory image go.
    RemoveCapture(SnapshotId),
    /// What is half-made beside them goes.
    RemoveHalves(SnapshotId),
    /// A memory image goes that is not kept.
    RemoveMemory(SnapshotId),
    /// Output of nobody goes.
    RemoveOutput(String),
    /// All that something holds which has ended is given back.
    Release(Account, Holds),
    /// An amount is held again as it must be.
    Hold {
        /// Whose.
        account: Account,
        /// By what, in whose words.
        holder: Holds,
        /// Of what.
        name: String,
        /// How much was held.
        from: u64,
        /// How much must be.
        to: u64,
    },
    /// The sums of an account are made anew.
    Recount(Account, String),
    /// That a sandbox's processes have ended is written down.
    WriteDeath(Account, SandboxId),
    /// Where a snapshot stands is written down.
    WriteSnapshot(SnapshotId),
}

/// What holds an amount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Holds {
    Sandbox(Uid),
    Snapshot(SnapshotId),
    Operation(remuda_types::OperationId),
}

/// A difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) thing: ThingKind,
    pub(crate) name: String,
    pub(crate) account: Option<Account>,
    pub(crate) sandbox: Option<SandboxId>,
    pub(crate) snapshot: Option<SnapshotId>,
    pub(crate) found: String,
    pub(crate) remedy: String,
    pub(crate) repair: Option<Repair>,
}

impl Finding {
    pub(crate) fn new(thing: ThingKind, name: impl ToString, found: impl Into<String>) -> Finding {
        Finding {
            thing,
            name: name.to_string(),
            account: None,
            sandbox: None,
            snapshot: None,
            found: found.into(),
            remedy: "have it repaired with: remuda doctor --repair".to_owned(),
            repair: None,
        }
    }

    pub(crate) fn of(mut self, account: &Account) -> Finding {
        self.account = Some(account.clone());
        self
    }

    pub(crate) fn sandbox(mut self, id: &SandboxId) -> Finding {
        self.sandbox = Some(id.clone());
        self
    }

    pub(crate) fn snapshot(mut self, id: &SnapshotId) -> Finding {
        self.snapshot = Some(id.clone());
        self
    }

    pub(crate) fn repaired_by(mut self, repair: Repair) -> Finding {
        self.repair = Some(repair);
        self
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = remedy.into();
        self
    }

    /// Whether it is the same difference, in another look: figures such as the number of processes may have changed.
    pub(crate) fn is_again(&self, other: &Finding) -> bool {
        (self.thing, &self.name, &self.repair) == (other.thing, &other.name, &other.repair)
            && (self.repair.is_some() || self.found == other.found)
    }

    pub(crate) fn shown(&self) -> wire::Finding {
        wire::Finding {
            thing: self.thing,
            name: self.name.clone(),
            account: self.account.clone(),
            sandbox: self.sandbox.clone(),
            snapshot: self.snapshot.clone(),
            found: self.found.clone(),
            repair: self.repair.as_ref().map(|repair| repair.words().to_owned()),
            remedy: self.remedy.clone(),
        }
    }
}

impl Repair {
    /// What it does, in words.
    pub(crate) fn words(&self) -> &'static str {
        match self {
            Repair::TearDown(_) => {
                "its processes are ended, and its mounts, namespaces, control group and files removed"
            }
            Repair::LayDown(..) => "its processes are ended, and all but its files is removed",
            Repair::EndProcess(_) => "the process is ended",
            Repair::RemoveCapture(_) => "layer and memory image are removed",
            Repair::RemoveHalves(_) => "what is half-made is removed",
            Repair::RemoveMemory(_) => "the memory image is removed",
            Repair::RemoveOutput(_) => "the output is removed",
            Repair::Release(..) => "it is given back",
            Repair::Hold { .. } => "the amount is set to what must be held",
            Repair::Recount(..) => "the sum is made anew",
            Repair::WriteDeath(..) | Repair::WriteSnapshot(_) => "it is written down",
        }
    }
}
