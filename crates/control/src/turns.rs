//! Turns: calls with the same key are received one after another. Between the moment in which a call is judged and that in
//! which its key is on record, a second one would otherwise be judged too, and refused for what the first has begun.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use remuda_journal::Scope;
use remuda_types::{Account, Key};
use tokio::sync::OwnedMutexGuard;

type Name = (Account, Scope, Key);
type Held = Mutex<HashMap<Name, Arc<tokio::sync::Mutex<()>>>>;

/// Keys whose calls are being received now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns {
    held: Arc<Held>,
}

/// One call's turn; the next one with the same key has it when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    held: Arc<Held>,
    name: Name,
    /// Given up before the entry is looked at.
    guard: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits for the turn of a call.
    pub(crate) async fn wait(&self, account: &Account, scope: &Scope, key: &Key) -> Turn {
        let name = (account.clone(), scope.clone(), key.clone());
        let lock = {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.entry(name.clone()).or_default().clone()
        };
        let guard = Some(lock.lock_owned().await);
        Turn { held: self.held.clone(), name, guard }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        self.guard = None;
        // Whoever waits holds it too, and only under this lock does anybody come to it.
        if held.get(&self.name).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            held.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_after_another_and_nothing_is_left() {
        let turns = Turns::default();
        let (account, scope) = ("a".parse().unwrap(), Scope::new("create").unwrap());
        let (one, other): (Key, Key) = ("k".parse().unwrap(), "l".parse().unwrap());
        let first = turns.wait(&account, &scope, &one).await;
        // Another key waits for nothing.
        drop(turns.wait(&account, &scope, &other).await);
        let mut second = Box::pin(turns.wait(&account, &scope, &one));
        assert!(futures_util::FutureExt::now_or_never(&mut second).is_none());
        drop(first);
        drop(second.await);
        assert!(turns.held.lock().unwrap().is_empty());
    }
}
