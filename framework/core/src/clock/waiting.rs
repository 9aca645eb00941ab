//! Advancing a clock, and waiting for one on a host thread.
//!
//! A wait reads the clock, spins for a few microseconds, and then sleeps on the clock's own word. A process
//! that advances a clock makes a system call only where a thread sleeps (see `handshake`). An advancer may
//! not have added the sleeper's page yet, so a sleeper also looks again every 100 ms. A GPU advances its
//! clocks without waking anybody; such a clock is marked on its page, and its waiters nap, from ten
//! microseconds up to a millisecond.
//!
//! On the death of a process that others wait for, the node's release ends their waits (DEATH-1). The death
//! of a sleeper leaves its count behind on its page, which costs advancers a needless system call until the
//! page is removed, and nothing else.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::{Duration, Instant};

use super::handshake::{self, Advancer, Sleeper};
use super::sleeping_threads::{ClockSleeper, SleepingThreads};
use super::slots::OwnClock;
use super::{ClockDomain, ClockError, ClockPage, Deadline, Ticket, UnknownClock, passed};
use crate::os::Punctual;

/// Longest sleep between two looks at a clock.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// The shortest and the longest nap between two looks at a clock that a device writes. Between these bounds,
/// a nap is one `NAP_PART`th of the time that the wait has taken so far, so a wait lasts too long by about
/// that part at most. (Naps that doubled made a round trip of 290 us last 405 us.)
const SHORTEST_NAP: Duration = Duration::from_micros(10);
const LONGEST_NAP: Duration = Duration::from_millis(1);
const NAP_PART: u32 = 16;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The clock has passed the value, or was released because its process died.
    Passed,
    /// The deadline came first.
    TimedOut,
}

impl ClockDomain {
    /// Advances one of this process's clocks, and wakes the threads that sleep on it. A value that the clock
    /// has passed already changes nothing: clocks never go back.
    ///
    /// Calls for one clock come from its stream alone, one after the other. It makes no system call while no
    /// thread of any process sleeps on a clock of this process.
    ///
    /// # Errors
    /// There is none in a process that writes its own page and has a kernel with futexes.
    pub fn advance(&self, clock: &OwnClock, value: u64) -> Result<(), ClockError> {
        clock.promise(value);
        #[cfg(any(test, feature = "testing"))]
        if self.frozen.load(Ordering::Relaxed) {
            return Ok(());
        }
        if passed(clock.value(), value) {
            return Ok(());
        }
        handshake::advance(&Advance { domain: self, clock }, value)
    }

    /// Waits, on this thread, until a ticket's clock has passed its value or the deadline has come (`None`:
    /// no deadline; DEATH-1 ensures that it ends).
    ///
    /// Only stream workers and tests call it: no handler and no async task waits like this (CLOCK-1).
    ///
    /// # Errors
    /// [`UnknownClock`] at once where the clock is not known here.
    pub fn wait(&self, ticket: &Ticket, deadline: Option<Deadline>) -> Result<Waited, ClockError> {
        match self.page_of(ticket.process) {
            Some(page) => self.wait_on(&page, ticket, deadline),
            None if self.knows_end_of(ticket) => Ok(Waited::Passed),
            None => Err(UnknownClock(*ticket).into()),
        }
    }

    /// Returns the threads of this process that sleep until a clock passes a value. Empty where the node
    /// detects no hangs.
    pub(crate) fn asleep(&self) -> Vec<ClockSleeper> {
        self.asleep.get().map_or_else(Vec::new, SleepingThreads::all)
    }

    /// Waits as [`wait`](Self::wait) does, on a page that was looked up earlier, so it works after the peer
    /// was removed too.
    pub fn wait_on(
        &self,
        page: &ClockPage,
        ticket: &Ticket,
        deadline: Option<Deadline>,
    ) -> Result<Waited, ClockError> {
        let clock = page.load(ticket.slot).ok_or(UnknownClock(*ticket))?;
        let has_passed = || page.load(ticket.slot).is_some_and(|clock| passed(clock, ticket.value));
        if passed(clock, ticket.value) || self.spin.until(has_passed) {
            return Ok(Waited::Passed);
        }
        let count = self.own_page.waiting_on(ticket.process.slot()).ok_or(ClockError::NotWriter)?;
        let _noted = self.asleep.get().map(|asleep| asleep.note(ticket));
        handshake::wait(&Sleep { page, ticket, deadline, count, since: Instant::now() })
    }
}

/// The advancing side of the handshake.
struct Advance<'a> {
    domain: &'a ClockDomain,
    clock: &'a OwnClock,
}

impl Advancer for Advance<'_> {
    type Error = ClockError;

    fn store(&self, value: u64) -> Result<(), ClockError> {
        self.clock.page().store(self.clock.slot(), value)
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn somebody_sleeps(&self) -> bool {
        let own = self.domain.own.slot();
        self.domain.own_page.sleepers_on(own) != 0
            || self.domain.peers.read().all.iter().any(|page| page.sleepers_on(own) != 0)
    }

    fn wake(&self) -> Result<(), ClockError> {
        Ok(self.clock.page().wake(self.clock.slot())?)
    }
}

/// The sleeping side of the handshake.
struct Sleep<'a> {
    page: &'a ClockPage,
    ticket: &'a Ticket,
    deadline: Option<Deadline>,
    /// The number of this process's threads that sleep on clocks of the ticket's process, on this process's
    /// own page.
    count: &'a AtomicU32,
    /// When it began.
    since: Instant,
}

impl Sleeper for Sleep<'_> {
    type End = Result<Waited, ClockError>;

    fn count(&self, up: bool) {
        if up {
            self.count.fetch_add(1, Ordering::Relaxed);
        } else {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn look(&self) -> Result<u64, Self::End> {
        match self.page.load(self.ticket.slot) {
            Some(clock) if passed(clock, self.ticket.value) => Err(Ok(Waited::Passed)),
            Some(clock) => Ok(clock),
            None => Err(Err(UnknownClock(*self.ticket).into())),
        }
    }

    fn sleep(&self, seen: u64) -> Result<(), Self::End> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Ok(Waited::TimedOut));
        }
        let is_woken = !self.page.is_left_to_device(self.ticket.slot);
        let nap = || (self.since.elapsed() / NAP_PART).clamp(SHORTEST_NAP, LONGEST_NAP);
        let most = if is_woken { LONGEST_SLEEP } else { nap() };
        let most = left.map_or(most, |left| left.min(most));
        // The kernel may end a nap 50 us late. A sleep that an advancer ends is not delayed.
        let _punctual = (!is_woken).then(Punctual::begin);
        match self.page.sleep(self.ticket.slot, seen, most) {
            // Woken or timed out: only the clock says whether the wait is over.
            Ok(_woken) => {
                #[cfg(test)]
                if is_woken {
                    tests::note_sleep(_woken, self.page, self.ticket);
                }
                Ok(())
            }
            Err(error) => Err(Err(error.into())),
        }
    }
}

/// Returns how many threads of `domain`'s process sleep on clocks of the process in roster slot `process`.
#[cfg(test)]
pub(crate) fn sleepers(domain: &ClockDomain, process: usize) -> u32 {
    domain.own_page.waiting_on(process).map_or(0, |count| count.load(Ordering::Relaxed))
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::ids::ProcessId;
    use crate::limits::MAX_STREAMS;
    use crate::os::Woken;

    pub(in super::super) fn domain(slot: u16) -> Arc<ClockDomain> {
        ClockDomain::new(ProcessId::new(slot, 0).unwrap(), ClockPage::create().unwrap())
    }

    /// Creates two processes that know each other's pages, by descriptor.
    pub(in super::super) fn two() -> (Arc<ClockDomain>, Arc<ClockDomain>) {
        let (a, b) = (domain(1), domain(2));
        a.add_peer(b.own(), ClockPage::open(b.own_page().export_fd().unwrap()).unwrap());
        b.add_peer(a.own(), ClockPage::open(a.own_page().export_fd().unwrap()).unwrap());
        (a, b)
    }

    #[test]
    fn a_sleeper_in_another_domain_is_woken() {
        let (a, b) = two();
        let clock = a.allocate_slot().unwrap();
        let ticket = clock.ticket(5);
        assert!(!b.passed(&ticket).unwrap());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| b.wait(&ticket, None).unwrap());
            while sleepers(&b, 1) == 0 {
                std::thread::yield_now();
            }
            a.advance(&clock, 4).unwrap();
            assert!(!b.passed(&ticket).unwrap());
            a.advance(&clock, 5).unwrap();
            assert_eq!(waiter.join().unwrap(), Waited::Passed);
        });
        assert_eq!(sleepers(&b, 1), 0);
        assert!(b.passed(&ticket).unwrap() && a.passed(&ticket).unwrap());
    }

    /// Number of sleeps that only the look after 100 ms ended, although the clock had passed: lost wake-ups.
    static LATE: AtomicU64 = AtomicU64::new(0);

    pub(super) fn note_sleep(woken: Woken, page: &ClockPage, ticket: &Ticket) {
        let has_passed = page.load(ticket.slot).is_some_and(|clock| passed(clock, ticket.value));
        if woken == Woken::TimedOut && has_passed {
            LATE.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn no_wake_up_is_lost() {
        let (a, b) = two();
        let (ping, pong) = (a.allocate_slot().unwrap(), b.allocate_slot().unwrap());
        let rounds = 3_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    b.wait(&ping.ticket(round), None).unwrap();
                    b.advance(&pong, round).unwrap();
                }
            });
            for round in 1..=rounds {
                a.advance(&ping, round).unwrap();
                a.wait(&pong.ticket(round), None).unwrap();
            }
        });
        // A machine that stalls for 100 ms looks the same, once.
        assert!(LATE.load(Ordering::Relaxed) <= 1, "{LATE:?} wake-ups of {rounds} were lost");
    }

    /// A GPU stores its clock and wakes nobody; the test writes the page in the same way.
    #[test]
    fn a_clock_that_a_device_writes_is_seen_without_a_wake_up() {
        let (a, b) = two();
        let clock = a.allocate_slot().unwrap();
        clock.leave_to_device().unwrap();
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for value in 1..=100 {
                    assert_eq!(b.wait(&clock.ticket(value), None).unwrap(), Waited::Passed);
                    seen.store(value, Ordering::Release);
                }
            });
            let start = Instant::now();
            for value in 1..=100 {
                while sleepers(&b, 1) == 0 {
                    std::thread::yield_now();
                }
                a.own_page().store(clock.slot(), value).unwrap();
                while seen.load(Ordering::Acquire) < value {
                    std::thread::yield_now();
                }
            }
            // With only the look every 100 ms, it would take ten seconds.
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        });
        let slot = clock.slot();
        drop(clock);
        let next = a.allocate_slot().unwrap();
        assert!(
            next.slot() == slot && !a.own_page().is_left_to_device(slot),
            "a new stream, perhaps of a thread"
        );
    }

    #[test]
    fn a_deadline_ends_a_wait_and_an_unknown_clock_is_an_error() {
        let (a, b) = two();
        let clock = a.allocate_slot().unwrap();
        let soon = Instant::now() + Duration::from_millis(2);
        assert_eq!(b.wait(&clock.ticket(1), Some(soon)).unwrap(), Waited::TimedOut);
        assert_eq!(sleepers(&b, 1), 0);
        let stranger = Ticket { process: ProcessId::new(9, 0).unwrap(), slot: 0, value: 0 };
        assert!(b.passed(&stranger).is_err() && b.wait(&stranger, None).is_err());
        let no_such_slot = Ticket { process: a.own(), slot: MAX_STREAMS as u16, value: 0 };
        assert!(b.passed(&no_such_slot).is_err() && b.wait(&no_such_slot, None).is_err());
        let other_life = Ticket { process: ProcessId::new(1, 1).unwrap(), slot: 0, value: 0 };
        assert!(b.passed(&other_life).is_err());
    }

    /// DEATH-1: the release wakes a thread that sleeps on a clock whose low half it could have left alone.
    #[test]
    fn the_nodes_release_ends_every_wait() {
        let node_side = ClockPage::prepare().unwrap();
        let page = ClockPage::adopt(node_side.writable_fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
        let worker = ClockDomain::new(ProcessId::new(1, 0).unwrap(), page);
        let b = domain(2);
        b.add_peer(worker.own(), ClockPage::open(worker.own_page().export_fd().unwrap()).unwrap());
        let clock = worker.allocate_slot().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| b.wait(&clock.ticket(1_000), None).unwrap());
            while sleepers(&b, 1) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(node_side.values()[0], 0);
            node_side.release_all().unwrap();
            assert_eq!(waiter.join().unwrap(), Waited::Passed);
        });
        // A late advance does not undo a release.
        worker.advance(&clock, 3).unwrap();
        assert!(b.passed(&clock.ticket(1_000)).unwrap());
    }
}
