//! The faults that are armed in this process.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::process::{Signal, getpid, kill_process};

use super::plan::{self, Action, Fault, VARIABLE};

/// Whether any fault is armed. Where none is, this load is the whole cost of a passage.
static ANY: AtomicBool = AtomicBool::new(false);
static ARMED: Mutex<Vec<Armed>> = Mutex::new(Vec::new());

struct Armed {
    fault: Fault,
    /// Number of passages before the fault strikes.
    left: u64,
}

/// Arms a fault in this process.
pub fn arm(fault: Fault) {
    let left = fault.nth.max(1);
    ARMED.lock().push(Armed { fault, left });
    ANY.store(true, Ordering::Release);
}

/// Disarms everything that has not struck yet.
pub fn disarm() {
    ARMED.lock().clear();
    ANY.store(false, Ordering::Release);
}

/// Returns the faults that are armed in this process and have not struck yet.
pub fn armed() -> Vec<Fault> {
    ARMED.lock().iter().map(|armed| armed.fault.clone()).collect()
}

/// Arms the faults that the environment has for the process called `name`.
pub(crate) fn arm_from_environment(name: &str) {
    let Ok(text) = std::env::var(VARIABLE) else { return };
    for fault in plan::faults_for(name, &text) {
        match fault {
            Ok(fault) => arm(fault),
            Err(error) => tracing::error!(%error, "the environment variable {VARIABLE} was not understood"),
        }
    }
}

#[inline(always)]
pub(super) fn pass(name: &str) {
    if ANY.load(Ordering::Relaxed) {
        strike(name);
    }
}

#[cold]
fn strike(name: &str) {
    let action = {
        let mut armed = ARMED.lock();
        let mut due = None;
        armed.retain_mut(|armed| {
            if armed.fault.point != name {
                return true;
            }
            armed.left -= 1;
            let strikes = armed.left == 0 && due.is_none();
            // Where two faults are due at once, the other one strikes at the next passage.
            armed.left += u64::from(armed.left == 0);
            if strikes {
                due = Some(armed.fault.action);
            }
            !strikes
        });
        ANY.store(!armed.is_empty(), Ordering::Release);
        due
    };
    match action {
        None => {}
        Some(Action::Kill) => {
            let _ = kill_process(getpid(), Signal::KILL);
            // Not reached: the signal arrives before the call returns.
            std::process::abort()
        }
        Some(Action::Stop) => {
            let _ = kill_process(getpid(), Signal::STOP);
        }
        Some(Action::Panic) => panic!("the fault point `{name}` was armed"),
        Some(Action::Delay(time)) => std::thread::sleep(time),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::point;
    use super::*;

    #[test]
    fn a_fault_strikes_once_at_its_passage() {
        let (first, second) = ("test.struck.first", "test.struck.second");
        arm(Fault::new(first, Action::Panic).at(3));
        let panics = |name: &'static str| std::panic::catch_unwind(|| point(name)).is_err();
        let struck: Vec<_> = (0..5).map(|_| panics(first)).collect();
        assert_eq!(struck, [false, false, true, false, false]);
        assert!(!panics(second));
        arm(Fault::new(second, Action::Panic));
        arm(Fault::new(second, Action::Delay(Duration::from_millis(2))));
        assert!(panics(second));
        let begin = Instant::now();
        assert!(!panics(second) && begin.elapsed() >= Duration::from_millis(2));
        assert!(!panics(second));
    }
}
