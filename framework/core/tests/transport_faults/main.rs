//! Transports of several processes in one, with faults at points that they pass. This is a program of its own
//! that runs one test at a time: an armed fault strikes any thread that passes its point.

#![cfg(feature = "testing")]

mod links;
mod races;

use std::sync::{Mutex, MutexGuard, PoisonError};

static ALONE: Mutex<()> = Mutex::new(());

/// Held while a test runs.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
