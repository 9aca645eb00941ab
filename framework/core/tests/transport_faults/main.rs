//! Transports of several processes in one, and faults at points that they pass. A program of its own, and one
//! test at a time: a fault that is armed strikes whoever passes its point.

#![cfg(feature = "testing")]

mod links;
mod races;

use std::sync::{Mutex, MutexGuard, PoisonError};

static ALONE: Mutex<()> = Mutex::new(());

/// Held while a test runs.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
