//! Locks without poisoning. A thread that panicked is a defect of its own and must never become a panic of all others.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Locks, whatever happened to an earlier holder.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits, whatever happened to an earlier holder.
pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
