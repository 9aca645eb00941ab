//! The code that `#[tensorpost::test]` puts before the body of a test.

use parking_lot::{Mutex, MutexGuard};

use crate::fault;

/// Held by the running test: faults are armed, and leaks counted, for the process as a whole.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A guard: while it lives, no other such test runs. On drop the next one begins.
#[derive(Debug)]
pub struct TestGuard {
    _turn: MutexGuard<'static, ()>,
}

/// Begins a test on this thread.
pub fn begin() -> TestGuard {
    TestGuard { _turn: ONE_AT_A_TIME.lock() }
}

impl Drop for TestGuard {
    fn drop(&mut self) {
        fault::disarm();
    }
}
