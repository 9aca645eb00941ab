//! The deadline until which the workers of an agent may work (HOST-10): a page with one moment of the boot
//! clock.
//!
//! Once the head has not heard an agent for some time, it may restart that agent's actors on other hosts.
//! Before that the agent's workers have to end. Their node ends them when its gateway says so, but either may
//! be stopped, and a machine may be suspended. So each worker checks the deadline by itself, on a thread that
//! does nothing else: it sleeps until that moment, and ends its process unless the moment has moved on. No
//! message waits for such a check.
//!
//! The gateway makes the page when its host has joined, and moves the moment with each beat that the head
//! answers. It gives the page to its node, which hands it to every worker and checks it too. A gateway that
//! follows another begins with the other's moment and makes a page of its own, because it may not write the
//! first one; the node hands the new page to all workers again. On a head nobody checks the moment. Its page
//! has the last number that was given to a host, so that the next gateway does not give it again. A node of
//! one host has no page.
//!
//! **Invariants.** ONE-WRITER: the gateway writes it, all others map it read-only. WIRE-1: a process that
//! maps it checks size, seals and header.
//!
//! **On the gateway's crash**, and while the gateway is stopped, the moment stays, and so it arrives, unless
//! the next gateway gets an answer before.

#[cfg(any(test, feature = "hosts"))]
mod own;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::os::{Access, BadMemfd, Mapping, memfd, since_boot, sleep_until_since_boot};

const MAGIC: u64 = u64::from_le_bytes(*b"TPUNTIL1");
const MOMENT_AT: usize = 64;
const BYTES: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(crate) struct WorksUntil {
    mapping: Mapping,
    #[cfg_attr(not(any(test, feature = "hosts")), expect(dead_code, reason = "only a node passes it on"))]
    fd: OwnedFd,
}

/// Why a descriptor is not such a page (WIRE-1).
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadWorksUntil {
    #[error("the descriptor is no page that says until when workers may work")]
    Memory(#[from] BadMemfd),
    #[error("the memory is no page that says until when workers may work: it begins with {0:#x}")]
    Header(u64),
    #[error("could not map the page that says until when workers may work")]
    Os(#[from] io::Error),
}

impl WorksUntil {
    /// Maps the gateway's page, read-only, after checking it (WIRE-1).
    ///
    /// # Errors
    /// It is not such a page.
    pub(crate) fn open(fd: OwnedFd) -> Result<Arc<Self>, BadWorksUntil> {
        memfd::check_one_writer(fd.as_fd(), BYTES as u64)?;
        let mapping = Mapping::map(fd.as_fd(), BYTES, Access::ReadOnly)?;
        match mapping.watch64(0).map_or(0, |word| word.load()) {
            MAGIC => Ok(Arc::new(WorksUntil { mapping, fd })),
            other => Err(BadWorksUntil::Header(other)),
        }
    }

    /// Returns the moment, as time since the machine's start.
    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.mapping.watch64(MOMENT_AT).map_or(0, |word| word.load()))
    }

    /// Returns the time that is left until then.
    pub(crate) fn left(&self) -> Duration {
        self.get().saturating_sub(since_boot())
    }

    /// Sleeps until no time is left.
    pub(crate) fn await_end(&self) {
        while !self.left().is_zero() {
            sleep_until_since_boot(self.get());
        }
    }
}

/// The page of a host's present gateway, for the threads that end their process by it.
#[derive(Debug)]
pub(crate) struct Present(Mutex<Arc<WorksUntil>>);

impl Present {
    pub(crate) fn new(page: Arc<WorksUntil>) -> Arc<Self> {
        Arc::new(Present(Mutex::new(page)))
    }

    /// Replaces the page by that of another gateway. It began with the moment of the last page, so threads
    /// that sleep until that moment need not be woken.
    pub(crate) fn replace(&self, page: Arc<WorksUntil>) {
        *self.0.lock() = page;
    }

    /// Sleeps until no time is left on the page that is present by then.
    pub(crate) fn await_end(&self) {
        loop {
            let page = Arc::clone(&self.0.lock());
            page.await_end();
            if Arc::ptr_eq(&page, &self.0.lock()) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::Memfd;

    #[test]
    fn others_read_it_and_cannot_move_it() {
        let gateway = WorksUntil::create().unwrap();
        let worker = WorksUntil::open(gateway.export().unwrap()).unwrap();
        // A node passes on what it was given.
        let passed_on = WorksUntil::open(worker.export().unwrap()).unwrap();
        assert!(worker.left().is_zero(), "nobody works before it was moved");
        gateway.set(since_boot() + Duration::from_secs(100));
        worker.set(Duration::ZERO);
        assert_eq!((worker.get(), passed_on.get()), (gateway.get(), gateway.get()));
        assert!(passed_on.left() > Duration::from_secs(50));
        gateway.set(Duration::MAX);
        assert!(worker.left() > Duration::from_secs(1 << 32));
        let blank = Memfd::create("blank", BYTES as u64).unwrap();
        let open_to_all = blank.as_fd().try_clone_to_owned().unwrap();
        assert!(matches!(WorksUntil::open(open_to_all), Err(BadWorksUntil::Memory(_))));
        blank.seal_future_write().unwrap();
        assert!(matches!(WorksUntil::open(blank.into_fd()), Err(BadWorksUntil::Header(0))));
    }

    /// HOST-10: the wait ends neither sooner nor later, no matter which gateway moves the moment.
    #[test]
    fn the_page_of_the_next_gateway_counts_from_when_it_is_there() {
        let first = WorksUntil::create().unwrap();
        let present = Present::new(WorksUntil::open(first.export().unwrap()).unwrap());
        let begin = since_boot();
        first.set(begin + Duration::from_millis(20));
        let next = WorksUntil::create().unwrap();
        next.set(first.get());
        present.replace(WorksUntil::open(next.export().unwrap()).unwrap());
        next.set(begin + Duration::from_millis(60));
        // Nobody reads the first page any more.
        first.set(Duration::MAX);
        present.await_end();
        assert!(since_boot() >= begin + Duration::from_millis(60));
    }

    #[test]
    fn who_waits_goes_on_waiting_while_it_moves() {
        let gateway = WorksUntil::create().unwrap();
        let worker = WorksUntil::open(gateway.export().unwrap()).unwrap();
        let begin = since_boot();
        gateway.set(begin + Duration::from_millis(20));
        let waiting = std::thread::spawn(move || {
            worker.await_end();
            since_boot()
        });
        gateway.set(begin + Duration::from_millis(60));
        assert!(waiting.join().unwrap() >= begin + Duration::from_millis(60));
    }
}
