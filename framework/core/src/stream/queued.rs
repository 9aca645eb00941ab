//! The waits that were put on each stream of this process, on every device, in order. Hang reports read them.
//! A GPU does not say where its streams stand, but their own clocks and the clocks that they wait for do, so
//! the GPU need not be asked. A node without a limit for hangs has no such list.
//!
//! Streams note their waits here, and hang reports read them ([`waiting`]).
//!
//! **Locks.** Each stream has a lock of its own here, held for a few comparisons of clocks. No call of the
//! driver is made under it: the holder of the stream's state may be blocked in the driver, behind the very
//! wait that is to be reported.
//!
//! **On a crash** of this process nobody asks for its waits any more. **On cancellation** nothing happens: a
//! wait that was put on a stream stays on it.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::process_streams::OwnStreams;
use crate::clock::{ClockDomain, Ticket, passed};
use crate::ids::DeviceId;
use crate::observe::hang_probe::{WaitProbe, WaitsIn, count_note};

/// Number of waits above which finished ones are removed.
const PRUNE_AT: usize = 16;

/// The most waits that are kept for one stream (MBX-2). Later ones are left out: a stream stands at an early
/// one.
const MOST: usize = 1024;

/// The waits of one stream; for as long as the process lives, because a stream may be dropped while its work
/// goes on.
#[derive(Debug, Default)]
pub(super) struct Queued(Mutex<Waits>);

#[derive(Debug, Default)]
struct Waits {
    device: Option<DeviceId>,
    queue: VecDeque<Wait>,
    prune_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    ticket: Ticket,
    /// The last clock write that was put on the stream before the wait. Once it is done, the stream has
    /// reached the wait, or kernels just before it.
    behind: u64,
}

/// A stream that stands at a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stands {
    pub(super) at: Ticket,
    pub(super) device: DeviceId,
}

/// Returns the streams of this process that stand at a wait, and its threads that sleep until a clock passes
/// a value. Never waits. Empty where the node detects no hangs.
pub(crate) fn waiting(domain: &ClockDomain) -> Vec<WaitProbe> {
    let hang_probe = |waits_in: WaitsIn, ticket: Ticket| WaitProbe {
        waits_in,
        on: ticket.process,
        clock: ticket.slot,
        value: ticket.value,
    };
    // Nobody waits for a clock that is not known here any more.
    let is_over = |ticket: &Ticket| domain.passed(ticket).unwrap_or(true);
    let mut asleep = domain.asleep();
    let mut waits = Vec::new();
    for (slot, queued) in OwnStreams::of(domain).all_queued() {
        let shows = domain.own_page().load(slot).unwrap_or(0);
        let Some(stands) = queued.look(shows, is_over) else { continue };
        // A host stream is a thread too.
        asleep.retain(|sleeper| !(sleeper.is_stream(slot) && sleeper.ticket == stands.at));
        waits.push(hang_probe(WaitsIn::Stream { clock: slot, device: stands.device }, stands.at));
    }
    waits.extend(
        asleep.into_iter().map(|sleeper| hang_probe(WaitsIn::Thread(sleeper.thread), sleeper.ticket)),
    );
    waits
}

impl Queued {
    /// Notes that a stream of `device` begins to use the clock.
    pub(super) fn begin(&self, device: DeviceId) {
        self.0.lock().device = Some(device);
    }

    /// Notes waits that are about to be put on the stream, whose last clock write before them is `behind`.
    /// Returns how many were noted, for [`take_back`](Self::take_back).
    pub(super) fn put(
        &self,
        tickets: impl Iterator<Item = Ticket>,
        behind: u64,
        is_over: impl Fn(&Ticket) -> bool,
    ) -> usize {
        count_note();
        let mut waits = self.0.lock();
        if waits.queue.len() > waits.prune_at.max(PRUNE_AT) {
            waits.queue.retain(|wait| !is_over(&wait.ticket));
            waits.prune_at = 2 * waits.queue.len();
        }
        let before = waits.queue.len();
        let room = MOST.saturating_sub(before);
        waits.queue.extend(tickets.take(room).map(|ticket| Wait { ticket, behind }));
        waits.queue.len() - before
    }

    /// Removes the last `count` waits, which could not be put on the stream.
    pub(super) fn take_back(&self, count: usize) {
        let mut waits = self.0.lock();
        let left = waits.queue.len().saturating_sub(count);
        waits.queue.truncate(left);
    }

    /// Returns the wait at which the stream stands, given that its clock shows `shows`.
    pub(super) fn look(&self, shows: u64, is_over: impl Fn(&Ticket) -> bool) -> Option<Stands> {
        let mut waits = self.0.lock();
        while waits.queue.front().is_some_and(|wait| is_over(&wait.ticket)) {
            waits.queue.pop_front();
        }
        // The stream may still be busy with work in front of the wait; then only its own process is to blame.
        let at = waits.queue.front().filter(|wait| passed(shows, wait.behind))?.ticket;
        Some(Stands { at, device: waits.device? })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::clock::{ClockDomain, ClockPage};
    use crate::device::Backend;
    use crate::device::fake::Fake;
    use crate::ids::ProcessId;
    use crate::observe::hang_probe::{WaitProbe, WaitsIn};
    use crate::stream::Stream;

    fn ticket(value: u64) -> Ticket {
        Ticket { process: ProcessId::new(1, 0).expect("a small slot"), slot: 4, value }
    }

    fn queued(waits: &[(u64, u64)]) -> Queued {
        let queued = Queued::default();
        queued.begin(DeviceId::HOST);
        for (value, behind) in waits {
            assert_eq!(queued.put(std::iter::once(ticket(*value)), *behind, |_| false), 1);
        }
        queued
    }

    fn stands(queued: &Queued, shows: u64, others: u64) -> Option<u64> {
        queued.look(shows, |ticket| passed(others, ticket.value)).map(|stands| stands.at.value)
    }

    #[test]
    fn a_stream_stands_at_its_first_wait_that_is_not_over() {
        let queued = queued(&[(3, 0), (5, 0), (9, 2)]);
        assert_eq!(stands(&queued, 0, 2), Some(3));
        assert_eq!(stands(&queued, 0, 3), Some(5));
        assert_eq!(stands(&queued, 0, 5), None, "its own work in front of the next wait is not done");
        assert_eq!(stands(&queued, 2, 5), Some(9));
        assert_eq!(stands(&queued, 2, 9), None);
    }

    /// On a device that shows nothing of its streams, like a GPU, the waits at which they stand are known
    /// nevertheless, both for data and for order.
    #[test]
    fn a_stream_that_says_nothing_is_seen_by_its_clock() {
        let id = |slot| ProcessId::new(slot, 0).expect("a small slot");
        let (page, fake) = (ClockPage::create().expect("memory"), Fake::new(7, 2, &[]));
        let domain = ClockDomain::new(id(1), ClockPage::create().expect("memory"));
        let other = ClockDomain::new(id(2), Arc::clone(&page));
        domain.add_peer(id(2), page);
        domain.detect_hangs();
        fake.seen.mute.store(true, Ordering::SeqCst);
        let device = Arc::clone(&fake) as Arc<dyn Backend>;
        let (stream, theirs) =
            (Stream::new(&device, &domain).expect("one"), other.allocate_slot().expect("one"));
        assert_eq!(waiting(&domain), []);
        stream.wait([theirs.ticket(3)]).expect("a clock that is known");
        stream.wait_in_order([theirs.ticket(5)]).expect("the same");
        let own = stream.backend().clock_slot();
        let stands = |value| {
            let waits_in = WaitsIn::Stream { clock: own, device: fake.id() };
            assert_eq!(waiting(&domain), [WaitProbe { waits_in, on: id(2), clock: theirs.slot(), value }]);
        };
        stands(3);
        other.advance(&theirs, 4).expect("its own clock");
        stands(5);
        other.advance(&theirs, 5).expect("its own clock");
        assert_eq!(waiting(&domain), []);
        // Behind unfinished work of its own, the stream itself is the slow one.
        stream.ticket().expect("the device does nothing");
        stream.flush();
        stream.wait([theirs.ticket(6)]).expect("the same");
        assert_eq!(waiting(&domain), []);
        domain.forge_clock(own, 1).expect("the device would write it");
        stands(6);
    }

    #[test]
    fn without_a_limit_for_hangs_no_wait_is_noted() {
        let id = |slot| ProcessId::new(slot, 0).expect("a small slot");
        for detects_hangs in [false, true] {
            let (page, fake) = (ClockPage::create().expect("memory"), Fake::new(7, 2, &[]));
            let domain = ClockDomain::new(id(1), ClockPage::create().expect("memory"));
            let other = ClockDomain::new(id(2), Arc::clone(&page));
            domain.add_peer(id(2), page);
            other.add_peer(id(1), Arc::clone(domain.own_page()));
            if detects_hangs {
                domain.detect_hangs();
            }
            let device = fake as Arc<dyn Backend>;
            let (stream, theirs) =
                (Stream::new(&device, &domain).expect("one"), other.allocate_slot().expect("one"));
            stream.wait([theirs.ticket(3)]).expect("a clock that is known");
            assert_eq!(stream.waits().0, 1, "the stream waits in either case");
            assert_eq!(waiting(&domain).len(), usize::from(detects_hangs));
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| domain.wait(&theirs.ticket(1), None).expect("the same"));
                // That thread, and the stream's.
                while crate::clock::sleepers(&domain, 2) < 2 {
                    std::thread::yield_now();
                }
                let noted = waiting(&domain).len();
                other.advance(&theirs, 3).expect("its own clock");
                thread.join().expect("it ends");
                assert_eq!(noted, 2 * usize::from(detects_hangs));
            });
        }
    }

    #[test]
    fn what_was_refused_is_not_waited_for() {
        let queued = queued(&[(3, 0)]);
        let count = queued.put([ticket(4), ticket(5)].into_iter(), 0, |_| false);
        queued.take_back(count);
        assert_eq!((stands(&queued, 0, 2), stands(&queued, 0, 3)), (Some(3), None));
    }

    /// MBX-2.
    #[test]
    fn what_is_over_goes_and_too_much_is_left_out() {
        let queued = queued(&[]);
        for value in 1..=10_000 {
            queued.put(std::iter::once(ticket(value)), 0, |ticket| ticket.value + 10 < value);
            assert!(queued.0.lock().queue.len() <= 2 * PRUNE_AT + 12);
        }
        for value in 10_001..=20_000 {
            queued.put(std::iter::once(ticket(value)), 0, |_| false);
        }
        assert!(queued.0.lock().queue.len() <= MOST);
        assert_eq!(queued.put(std::iter::once(ticket(1)), 0, |_| false), 0);
        assert!(stands(&queued, 0, 9_999).is_some());
    }
}
