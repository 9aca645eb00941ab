//! Memory that is nobody's chunk: another library of this process keeps it, and is told when it is not used
//! any more.
//!
//! A lease on it stands in no table, for there is nobody to share it with: only this process can reach the
//! memory. When the last handle drops, the lease goes to the collector with the tickets of every local stream
//! that used it (CLOCK-2); it lets the memory go when all have passed.
//!
//! **The collector** is one thread of the process. What it calls may take its time, and may wait for a lock
//! that the thread which dropped the last handle has (Python's): so it is called nowhere else. Who drops
//! waits for nothing (LEASE-2).
//!
//! **Locks.** None is held while anything is dropped. **On a crash** of this process the library goes with
//! it. **On the death of another process** whose clock a use waits for, that clock is released, and so the
//! use passes (DEATH-1).

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::pool::Pool;
use super::table::Uses;
use super::writers::Writers;
use crate::clock::ClockDomain;
use crate::device::{ChunkMapping, DeviceError};
use crate::os::{Birth, PerProcess, vital};

/// Longest time between two looks at uses that have not passed.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What a lease on such memory has of its own.
pub(crate) struct Foreign {
    collector: &'static Collector,
    /// The pieces of it that have a writer, where it was split.
    pub(super) writers: Writers,
}

impl Foreign {
    pub(super) fn new(collector: &'static Collector) -> Self {
        Foreign { collector, writers: Writers::default() }
    }

    /// The last handle was dropped.
    pub(super) fn release(&self, domain: &Arc<ClockDomain>, mapping: &Arc<ChunkMapping>, uses: Uses) {
        self.collector.put(Job::AfterUses {
            domain: Arc::clone(domain),
            uses,
            held: Box::new(Arc::clone(mapping)),
        });
    }
}

enum Job {
    /// Drop this when these uses have passed.
    AfterUses { domain: Arc<ClockDomain>, uses: Uses, held: Box<dyn Any + Send> },
    /// Drop this.
    Now(Box<dyn Any + Send>),
    /// Look at this pool until it says otherwise.
    #[cfg(feature = "foreign")]
    Watch(Arc<Pool>),
}

/// The thread that lets such memory go.
pub(crate) struct Collector {
    jobs: Mutex<Sender<Job>>,
}

impl Collector {
    /// The process's, started at the first call.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn get() -> Result<&'static Self, DeviceError> {
        static COLLECTOR: PerProcess<Option<Collector>> = PerProcess::new(|| {
            let (sender, jobs) = channel();
            match vital::spawn("tp-foreign", move || run(&jobs)) {
                Ok(_) => Some(Collector { jobs: Mutex::new(sender) }),
                Err(error) => {
                    tracing::error!(%error, "no thread for memory of other libraries");
                    None
                }
            }
        });
        COLLECTOR.get().as_ref().ok_or_else(|| DeviceError::Refused {
            what: "memory of another library, because the system gave no thread to let it go on".to_owned(),
        })
    }

    /// Drops `owner` on the collector's thread, for a thread that cannot.
    pub(crate) fn drop_elsewhere(owner: Box<dyn Any + Send>) {
        match Self::get() {
            Ok(collector) => collector.put(Job::Now(owner)),
            Err(error) => {
                tracing::error!(%error, "a tensor that another library let go is kept");
                std::mem::forget(owner);
            }
        }
    }

    /// Has the pool [look](Pool::look_again) for what a GPU has passed: nothing else wakes who waits for
    /// that.
    #[cfg(feature = "foreign")]
    pub(super) fn watch(&self, pool: Arc<Pool>) {
        self.put(Job::Watch(pool));
    }

    fn put(&self, job: Job) {
        // The thread ends with the process only.
        let _ = self.jobs.lock().send(job);
    }
}

/// Something that is dropped on the collector's thread, wherever this is dropped: a stream may be the last
/// that has it.
pub(crate) struct Collected<T: Send + 'static> {
    birth: Birth,
    held: Mutex<Option<T>>,
    collector: &'static Collector,
}

impl<T: Send + 'static> Collected<T> {
    pub(crate) fn new(held: T, collector: &'static Collector) -> Self {
        Collected { birth: Birth::here(), held: Mutex::new(Some(held)), collector }
    }
}

impl<T: Send + 'static> Drop for Collected<T> {
    fn drop(&mut self) {
        let Some(held) = self.held.get_mut().take() else { return };
        if self.birth.is_inherited() {
            std::mem::forget(held);
        } else {
            self.collector.put(Job::Now(Box::new(held)));
        }
    }
}

#[cfg(feature = "foreign")]
fn look_at(pool: &Arc<Pool>) -> Option<Duration> {
    pool.look_again()
}

#[cfg(not(feature = "foreign"))]
fn look_at(_: &Arc<Pool>) -> Option<Duration> {
    None
}

type Waiting = (Arc<ClockDomain>, Uses, Box<dyn Any + Send>);

fn run(jobs: &Receiver<Job>) {
    let mut waiting: Vec<Waiting> = Vec::new();
    let mut watched: Vec<Arc<Pool>> = Vec::new();
    loop {
        let mut look = (!waiting.is_empty()).then_some(LOOK_AGAIN);
        watched.retain(|pool| {
            let again = look_at(pool);
            look = [look, again].into_iter().flatten().min();
            again.is_some()
        });
        let job = match look {
            None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(look) => jobs.recv_timeout(look),
        };
        match job {
            Ok(Job::Now(held)) => drop(held),
            #[cfg(feature = "foreign")]
            Ok(Job::Watch(pool)) => watched.push(pool),
            Ok(Job::AfterUses { domain, uses, held }) => waiting.push((domain, uses, held)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        waiting.retain_mut(|(domain, uses, _)| {
            // The clock of a process that this one no longer knows was released when that ended.
            uses.retain(|ticket| !domain.passed(ticket).unwrap_or(true));
            !uses.is_empty()
        });
    }
}
