//! Leases on memory that is in no chunk: another library of this process keeps it, and is told when it is no
//! longer used.
//!
//! A lease on it is in no lease table, because only this process can reach the memory. When the last handle
//! drops, the lease goes to the collector with the tickets of every local stream that used it (CLOCK-2). The
//! collector releases the memory when all of them have passed.
//!
//! **The collector** is one thread of the process. The library's callback may be slow, and may wait for a
//! lock (Python's) that the thread which dropped the last handle holds. So only the collector calls it, and
//! the dropping thread waits for nothing (LEASE-2).
//!
//! **Locks.** None is held while anything is dropped. **On a crash** of this process the library goes with
//! it. **On the death of another process** whose clock a use waits for, the node releases that clock, and so
//! the use passes (DEATH-1).

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

/// Longest time between two checks of uses that have not passed.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The state that a lease on such memory has beyond that of other leases.
pub(crate) struct External {
    collector: &'static Collector,
    /// The pieces that have a writer, if the memory was split.
    pub(super) writers: Writers,
}

impl External {
    pub(super) fn new(collector: &'static Collector) -> Self {
        External { collector, writers: Writers::default() }
    }

    /// Releases the memory once all uses have passed; called when the last handle was dropped.
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
    /// Look at this pool again and again, until it needs no further look.
    #[cfg(feature = "bindings")]
    Watch(Arc<Pool>),
}

/// The thread that releases such memory.
pub(crate) struct Collector {
    jobs: Mutex<Sender<Job>>,
}

impl Collector {
    /// Returns the collector of this process; the first call starts it.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn get() -> Result<&'static Self, DeviceError> {
        static COLLECTOR: PerProcess<Option<Collector>> = PerProcess::new(|| {
            let (sender, jobs) = channel();
            match vital::spawn("tp-external", move || run(&jobs)) {
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

    /// Drops `owner` on the collector's thread, for a thread that cannot drop it itself.
    pub(crate) fn drop_on_collector(owner: Box<dyn Any + Send>) {
        match Self::get() {
            Ok(collector) => collector.put(Job::Now(owner)),
            Err(error) => {
                tracing::error!(%error, "a tensor that another library let go is kept");
                std::mem::forget(owner);
            }
        }
    }

    /// Has the pool [look again](Pool::look_again) for uses that the GPU has passed: nothing else wakes the
    /// threads that wait for them.
    #[cfg(feature = "bindings")]
    pub(super) fn watch(&self, pool: Arc<Pool>) {
        self.put(Job::Watch(pool));
    }

    fn put(&self, job: Job) {
        // The thread ends with the process only.
        let _ = self.jobs.lock().send(job);
    }
}

/// A value that is dropped on the collector's thread, whichever thread drops this: the last holder may be a
/// stream.
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

#[cfg(feature = "bindings")]
fn look_at(pool: &Arc<Pool>) -> Option<Duration> {
    pool.look_again()
}

#[cfg(not(feature = "bindings"))]
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
            #[cfg(feature = "bindings")]
            Ok(Job::Watch(pool)) => watched.push(pool),
            Ok(Job::AfterUses { domain, uses, held }) => waiting.push((domain, uses, held)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        waiting.retain_mut(|(domain, uses, _)| {
            // If this process no longer knows the clock's process, the clock was released when that process
            // ended.
            uses.retain(|ticket| !domain.passed(ticket).unwrap_or(true));
            !uses.is_empty()
        });
    }
}
