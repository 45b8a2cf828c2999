//! Operations that somebody in this server is seeing to. One that is pending in the journal and in nobody's hands waits
//! for the next server. Must decide nothing about what becomes of it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_types::OperationId;

/// All of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hands(Arc<Mutex<HashSet<OperationId>>>);

/// One operation; it is in nobody's hands when this is dropped, also by a panic.
#[derive(Debug)]
pub(crate) struct InHand {
    hands: Hands,
    operation: OperationId,
}

impl Hands {
    /// Takes an operation up.
    pub(crate) fn take(&self, operation: OperationId) -> InHand {
        self.lock().insert(operation.clone());
        InHand { hands: self.clone(), operation }
    }

    /// Those that are seen to now.
    pub(crate) fn all(&self) -> HashSet<OperationId> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<OperationId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        self.hands.lock().remove(&self.operation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_in_hand_until_it_is_let_go() {
        let hands = Hands::default();
        let operation = OperationId::from_entropy([7; 20]);
        let held = hands.take(operation.clone());
        assert!(hands.all().contains(&operation));
        drop(held);
        assert!(hands.all().is_empty());
    }
}
