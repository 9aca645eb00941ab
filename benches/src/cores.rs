//! Gives each of two talking processes a core.
//!
//! Left alone, the kernel may put both on one core while other processes want the machine. Then the
//! measurement is of its scheduler: neither can find anything by polling while the other cannot run.

use std::sync::OnceLock;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The cores that this process could use when it first asked.
static CORES: OnceLock<Vec<usize>> = OnceLock::new();

fn cores() -> &'static [usize] {
    CORES.get_or_init(|| {
        let allowed = sched_getaffinity(None).unwrap_or_default();
        (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect()
    })
}

/// As [`pin`], counted around all cores but the first, which belongs to another process.
pub fn pin_beside(number: usize) {
    pin(1 + number % cores().len().saturating_sub(1).max(1));
}

/// Returns the processor time of the calling thread.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32) // below a thousand million
}

/// Keeps the calling thread, and its children, on the `number`th of the cores that the process may use,
/// counted around. Where the system refuses, the thread stays where it is and prints that.
pub fn pin(number: usize) {
    let cores = cores();
    let Some(core) = cores.get(number % cores.len().max(1)) else { return };
    let mut set = CpuSet::new();
    set.set(*core);
    if let Err(error) = sched_setaffinity(None, &set) {
        eprintln!("core {core} cannot be had: {error}");
    }
}
