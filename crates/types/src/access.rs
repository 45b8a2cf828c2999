//! What an access key may do, and to what it may be narrowed. Decides by what it is given alone; must never learn of a
//! secret.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ids::{SandboxId, Slot};
use crate::wire::Labels;

macro_rules! scopes {
    ($($(#[$doc:meta])* $name:ident = $text:tt;)*) => {
        /// One thing that an access key may be allowed to do.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        pub enum AccessScope {
            $($(#[$doc])* #[serde(rename = $text)] $name,)*
        }

        impl AccessScope {
            /// Every scope, in the order of the documentation.
            pub const ALL: &'static [AccessScope] = &[$(AccessScope::$name),*];

            /// The word for it.
            pub fn as_str(self) -> &'static str {
                match self { $(AccessScope::$name => $text),* }
            }
        }
    };
}

scopes! {
    /// List and show sandboxes, their events and receipts.
    SandboxesRead = "sandboxes:read";
    /// Make, pause, resume and fork sandboxes.
    SandboxesWrite = "sandboxes:write";
    /// End and remove sandboxes.
    SandboxesDelete = "sandboxes:delete";
    /// Run commands, and read, signal and cancel what runs.
    Executions = "executions";
    /// Read, write and remove files of guests.
    Files = "files";
    /// List, show and restore snapshots.
    SnapshotsRead = "snapshots:read";
    /// Capture sandboxes.
    SnapshotsWrite = "snapshots:write";
    /// Delete snapshots.
    SnapshotsDelete = "snapshots:delete";
    /// Reach the ports of guests, and give others access to them.
    Previews = "previews";
    /// See what the account uses of its quotas.
    Usage = "usage";
    /// Make, list and revoke access keys, and nothing else.
    Admin = "admin";
}

impl fmt::Display for AccessScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is no scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a scope; there are {known}", known = AccessScope::ALL.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(", "))]
pub struct ScopeNameError(String);

impl FromStr for AccessScope {
    type Err = ScopeNameError;
    fn from_str(text: &str) -> Result<Self, ScopeNameError> {
        let found = AccessScope::ALL.iter().find(|scope| scope.as_str() == text);
        found.copied().ok_or_else(|| ScopeNameError(text.chars().take(80).collect()))
    }
}

/// To what a key is narrowed: it sees this and nothing else of its account.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Narrowing {
    /// Every generation of this slot, and what was captured from them.
    Slot(Slot),
    /// This generation alone, and what was captured from it.
    Sandbox(SandboxId),
    /// Sandboxes and snapshots that carry this label.
    Label(Label),
}

/// A label with its value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// The label's name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Label {
    /// Whether these labels have it.
    pub fn is_in(&self, labels: &Labels) -> bool {
        labels.get(&self.name) == Some(&self.value)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

impl Narrowing {
    /// Whether it leaves this sandbox to be seen.
    pub fn leaves_sandbox(&self, id: &SandboxId, labels: &Labels) -> bool {
        match self {
            Narrowing::Slot(slot) => id.slot == *slot,
            Narrowing::Sandbox(sandbox) => id == sandbox,
            Narrowing::Label(label) => label.is_in(labels),
        }
    }

    /// Whether it leaves a snapshot to be seen that was captured from `source` and has these labels.
    pub fn leaves_snapshot(&self, source: Option<&SandboxId>, labels: &Labels) -> bool {
        match self {
            Narrowing::Slot(slot) => source.is_some_and(|source| source.slot == *slot),
            Narrowing::Sandbox(sandbox) => source == Some(sandbox),
            // Its own labels and not its source's: a snapshot outlives the labels of its source.
            Narrowing::Label(label) => label.is_in(labels),
        }
    }

    /// Whether everything that `other` leaves is left by this one too.
    pub fn covers(&self, other: &Narrowing) -> bool {
        match (self, other) {
            (Narrowing::Slot(slot), Narrowing::Sandbox(sandbox)) => sandbox.slot == *slot,
            _ => self == other,
        }
    }
}

impl fmt::Display for Narrowing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Narrowing::Slot(slot) => write!(f, "the slot {slot}"),
            Narrowing::Sandbox(sandbox) => write!(f, "the sandbox {sandbox}"),
            Narrowing::Label(label) => write!(f, "the label {label}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> SandboxId {
        text.parse().unwrap()
    }

    fn label(name: &str, value: &str) -> Narrowing {
        Narrowing::Label(Label { name: name.into(), value: value.into() })
    }

    #[test]
    fn a_scope_is_the_same_word_everywhere() {
        for scope in AccessScope::ALL {
            assert_eq!(serde_json::to_value(scope).unwrap(), scope.as_str());
            assert_eq!(scope.as_str().parse::<AccessScope>().unwrap(), *scope);
        }
        let error = "sandboxes".parse::<AccessScope>().unwrap_err();
        assert!(error.to_string().contains("sandboxes:read, sandboxes:write"), "{error}");
    }

    #[test]
    fn a_narrowing_leaves_what_it_names_and_nothing_else() {
        let (first, second) = (id("c1@2026-10-08T12:00:00.000Z"), id("c1@2026-10-08T12:00:00.001Z"));
        let other = id("c2@2026-10-08T12:00:00.000Z");
        let tagged = Labels::from([("team".into(), "a".into()), ("x".into(), "y".into())]);
        let slot = Narrowing::Slot("c1".parse().unwrap());
        let one = Narrowing::Sandbox(first.clone());
        for (narrowing, left) in [(&slot, [true, true, false]), (&one, [true, false, false])] {
            for (sandbox, left) in [&first, &second, &other].into_iter().zip(left) {
                assert_eq!(narrowing.leaves_sandbox(sandbox, &tagged), left, "{narrowing} {sandbox}");
                assert_eq!(narrowing.leaves_snapshot(Some(sandbox), &tagged), left, "{narrowing} {sandbox}");
            }
            assert!(!narrowing.leaves_snapshot(None, &tagged), "an imported one was captured from nothing here");
        }
        assert!(label("team", "a").leaves_sandbox(&other, &tagged));
        assert!(label("team", "a").leaves_snapshot(None, &tagged));
        for wrong in [label("team", "b"), label("a", "team"), label("", "")] {
            assert!(!wrong.leaves_sandbox(&other, &tagged), "{wrong}");
        }
    }

    #[test]
    fn one_covers_another_only_where_that_leaves_no_more() {
        let slot = Narrowing::Slot("c1".parse().unwrap());
        let inside = Narrowing::Sandbox(id("c1@2026-10-08T12:00:00.000Z"));
        let outside = Narrowing::Sandbox(id("c2@2026-10-08T12:00:00.000Z"));
        assert!(slot.covers(&slot) && slot.covers(&inside) && inside.covers(&inside));
        assert!(!slot.covers(&outside) && !inside.covers(&slot) && !inside.covers(&outside));
        assert!(label("a", "b").covers(&label("a", "b")) && !label("a", "b").covers(&label("a", "c")));
        assert!(!slot.covers(&label("a", "b")) && !label("a", "b").covers(&inside));
    }

    #[test]
    fn its_wire_form_names_its_kind() {
        let one = Narrowing::Sandbox(id("c1@2026-10-08T12:00:00.000Z"));
        assert_eq!(serde_json::to_string(&one).unwrap(), r#"{"sandbox":"c1@2026-10-08T12:00:00.000Z"}"#);
        let text = r#"{"label":{"name":"team","value":"a=b"}}"#;
        assert_eq!(serde_json::from_str::<Narrowing>(text).unwrap(), label("team", "a=b"));
        for wrong in [r#"{}"#, r#"{"slot":"c1","sandbox":"c1"}"#, r#"{"sandbox":"c1"}"#, r#"{"all":true}"#] {
            assert!(serde_json::from_str::<Narrowing>(wrong).is_err(), "{wrong}");
        }
    }
}
