//! All the clocks that one process can see, and waiting on them from a host thread.
//!
//! A wait looks, spins for a few microseconds, and then sleeps on the clock's own word; a process that advances a
//! clock makes a system call only where somebody sleeps (see `handshake`). An advancer may not have added the sleeper's
//! page yet, so a sleeper also looks again every 100 ms. A GPU advances its clocks without waking anybody; such a clock
//! is marked on its page, and whoever waits for it naps, from ten microseconds up to a millisecond.
//!
//! On the death of a process that others wait for, the node's release ends their waits (DEATH-1). The death of a
//! sleeper leaves its count behind on its page, which costs advancers a needless system call until the page is
//! removed, and nothing else.

use std::sync::Arc;
#[cfg(any(test, feature = "testing"))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use super::asleep::Asleep;
use super::handshake::{self, Advancer, Sleeper};
use super::late::LateWriter;
use super::marking::Knowledge;
use super::own::OwnStreams;
use super::queued::Queued;
use super::taint::Board;
use super::{ClockError, ClockPage, Deadline, Ticket, UnknownClock, passed};
use crate::ids::ProcessId;
use crate::limits::{MAX_PROCESSES, MAX_STREAMS};
use crate::observe::sight::{WaitSight, WaitsIn};
use crate::observe::trace::Tracer;
use crate::os::{AdaptiveSpin, Punctual, monotonic_ns};

/// Longest sleep between two looks at a clock.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Shortest and longest sleep between two looks at a clock that a device writes. In between, a nap is as long as this
/// part of what the wait has taken so far, so a wait lasts at most about so much longer than it has to. (Naps that
/// doubled made a round trip of 290 us last 405.)
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

/// The clocks of this process and of its peers. One per process.
#[derive(Debug)]
pub struct ClockDomain {
    own: ProcessId,
    own_page: Arc<ClockPage>,
    /// Read for the length of a look-up, written only when a peer comes or goes.
    peers: RwLock<Peers>,
    slots: Arc<Slots>,
    spin: AdaptiveSpin,
    own_streams: OwnStreams,
    late_writer: Arc<LateWriter>,
    tracer: Tracer,
    asleep: Asleep,
    /// By clock of this process: what its stream waits for.
    queued: Box<[Queued]>,
    #[cfg(any(test, feature = "testing"))]
    frozen: AtomicBool,
    knowledge: Knowledge,
}

#[derive(Debug)]
struct Peers {
    /// By roster slot; two lives of one slot can overlap while the earlier one's tensors are still about.
    by_slot: Box<[SmallVec<[Peer; 1]>]>,
    /// The same pages in one row, for the advancer's look at their counts.
    all: Vec<Arc<ClockPage>>,
}

#[derive(Clone, Debug)]
struct Peer {
    id: ProcessId,
    page: Arc<ClockPage>,
}

/// Which of this process's clocks are free. A bit per clock.
#[derive(Debug)]
struct Slots {
    free: Mutex<u64>,
}

const _: () = assert!(MAX_STREAMS <= u64::BITS as usize);

/// The right to advance one clock of this process; one per stream.
#[derive(Debug)]
pub struct OwnClock {
    page: Arc<ClockPage>,
    slots: Arc<Slots>,
    process: ProcessId,
    slot: u16,
    /// Largest value that anyone was told to wait for.
    promised: AtomicU64,
}

impl ClockDomain {
    /// The clocks of process `own`, whose page this process writes; no peers yet. There is nobody to tell it of deaths.
    pub fn new(own: ProcessId, page: Arc<ClockPage>) -> Arc<Self> {
        Self::with_board(own, page, None)
    }

    /// As [`new`](Self::new), in a node that says on `board` what everybody must know of deaths.
    pub fn with_board(own: ProcessId, page: Arc<ClockPage>, board: Option<Arc<Board>>) -> Arc<Self> {
        let free = if MAX_STREAMS == 64 { u64::MAX } else { (1 << MAX_STREAMS) - 1 };
        let by_slot = std::iter::repeat_with(SmallVec::new).take(MAX_PROCESSES).collect();
        Arc::new(ClockDomain {
            own,
            own_page: page,
            peers: RwLock::new(Peers { by_slot, all: Vec::new() }),
            slots: Arc::new(Slots { free: Mutex::new(free) }),
            spin: AdaptiveSpin::default(),
            own_streams: OwnStreams::default(),
            late_writer: Arc::default(),
            tracer: Tracer::default(),
            asleep: Asleep::default(),
            queued: std::iter::repeat_with(Queued::default).take(MAX_STREAMS).collect(),
            #[cfg(any(test, feature = "testing"))]
            frozen: AtomicBool::new(false),
            knowledge: Knowledge::new(board),
        })
    }

    pub(super) fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }

    /// The process this is.
    pub fn own(&self) -> ProcessId {
        self.own
    }

    /// Where the process notes what it does, if its node traces. Here because everything that notes something knows its
    /// clocks.
    pub(crate) fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// This process's streams, by clock.
    pub(super) fn own_streams(&self) -> &OwnStreams {
        &self.own_streams
    }

    /// For clock writes that a device has no room for.
    pub(super) fn late_writer(&self) -> &Arc<LateWriter> {
        &self.late_writer
    }

    /// This process's page.
    pub fn own_page(&self) -> &Arc<ClockPage> {
        &self.own_page
    }

    /// Adds a peer's page, or replaces it. Another life of the same slot stays known until it is removed.
    pub fn add_peer(&self, id: ProcessId, page: Arc<ClockPage>) {
        let mut peers = self.peers.write();
        let lives = &mut peers.by_slot[id.slot()];
        lives.retain(|peer| peer.id != id);
        lives.push(Peer { id, page });
        peers.gather();
    }

    /// Forgets a peer's page; gives it back where it was known. Waits that already have it go on.
    pub fn remove_peer(&self, id: ProcessId) -> Option<Arc<ClockPage>> {
        let mut peers = self.peers.write();
        let lives = &mut peers.by_slot[id.slot()];
        let at = lives.iter().position(|peer| peer.id == id)?;
        let peer = lives.swap_remove(at);
        peers.gather();
        Some(peer.page)
    }

    /// The page of a process, this one included.
    pub fn page_of(&self, id: ProcessId) -> Option<Arc<ClockPage>> {
        if id == self.own {
            return Some(Arc::clone(&self.own_page));
        }
        let peers = self.peers.read();
        peers.by_slot[id.slot()].iter().find(|peer| peer.id == id).map(|peer| Arc::clone(&peer.page))
    }

    /// Takes a free clock of this process. It goes on from where its last user left it.
    ///
    /// # Errors
    /// [`ClockError::Exhausted`] where all [`MAX_STREAMS`] are in use.
    pub fn allocate_slot(&self) -> Result<OwnClock, ClockError> {
        let mut free = self.slots.free.lock();
        if *free == 0 {
            return Err(ClockError::Exhausted);
        }
        let slot = free.trailing_zeros() as u16;
        *free &= !(1 << slot);
        drop(free);
        let value = self.own_page.load(slot).unwrap_or(0);
        self.own_page.leave_to_device(slot, false)?;
        Ok(OwnClock {
            page: Arc::clone(&self.own_page),
            slots: Arc::clone(&self.slots),
            process: self.own,
            slot,
            promised: AtomicU64::new(value),
        })
    }

    /// Whether a ticket's clock has passed its value, or was released. Never blocks. It orders work; whether there is
    /// data is another question: see [`standing`](Self::standing).
    pub fn passed(&self, ticket: &Ticket) -> Result<bool, UnknownClock> {
        match self.value_of(ticket.process, ticket.slot) {
            Some(clock) => Ok(passed(clock, ticket.value)),
            // The dead keep nobody waiting whose page is not even here.
            None if self.knows_end_of(ticket) => Ok(true),
            None => Err(UnknownClock(*ticket)),
        }
    }

    /// Whether `clock` is one of this domain's own process.
    pub fn owns(&self, clock: &OwnClock) -> bool {
        Arc::ptr_eq(&self.own_page, clock.page())
    }

    /// The value of a clock; `None` where it is not known here.
    pub fn value_of(&self, process: ProcessId, slot: u16) -> Option<u64> {
        if process == self.own {
            return self.own_page.load(slot);
        }
        let peers = self.peers.read();
        peers.by_slot[process.slot()].iter().find(|peer| peer.id == process)?.page.load(slot)
    }

    /// Advances one of this process's clocks, and wakes whoever sleeps on it. A value that the clock has passed
    /// already changes nothing: clocks never go back.
    ///
    /// Calls for one clock come from its stream alone, one after the other. Makes no system call while no thread
    /// of any process sleeps on a clock of this process.
    ///
    /// # Errors
    /// None in a process that writes its own page and whose kernel has futexes.
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

    /// Writes a clock of this process as no stream would.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn forge_clock(&self, slot: u16, value: u64) -> Result<(), ClockError> {
        self.own_page.store(slot, value)
    }

    /// No clock of this process is advanced any more, as if it had died.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn freeze(&self) {
        self.frozen.store(true, Ordering::SeqCst);
    }

    /// Waits, on this thread, until a ticket's clock has passed its value or the deadline has come (`None`: no
    /// deadline; DEATH-1 sees to it that it ends).
    ///
    /// For stream workers and tests: no handler and no async task waits like this (CLOCK-1).
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

    /// What the stream of this process's clock `slot` waits for.
    pub(super) fn queued(&self, slot: u16) -> Option<&Queued> {
        self.queued.get(usize::from(slot))
    }

    /// The streams of this process that stand at a wait, and its threads that sleep until a clock passes a value. Waits
    /// for nobody.
    ///
    /// Of a stream it is known since which look it has stood there; of a thread, since when. A host stream is both.
    pub(crate) fn waiting(&self) -> Vec<WaitSight> {
        let time = monotonic_ns();
        let sight = |waits_in: WaitsIn, ticket: Ticket, since: u64| WaitSight {
            waits_in,
            on: ticket.process,
            clock: ticket.slot,
            value: ticket.value,
            now: self.value_of(ticket.process, ticket.slot).unwrap_or(0),
            waited: time.saturating_sub(since),
        };
        // Nobody waits for a clock that is not known here any more.
        let is_over = |ticket: &Ticket| self.passed(ticket).unwrap_or(true);
        let mut asleep = self.asleep.all();
        let mut waits = Vec::new();
        for (slot, queued) in (0_u16..).zip(&self.queued) {
            let shows = self.own_page.load(slot).unwrap_or(0);
            let Some(stands) = queued.look(shows, time, is_over) else { continue };
            let thread =
                asleep.iter().position(|sleeper| sleeper.is_stream(slot) && sleeper.ticket == stands.at);
            let since = thread.map_or(stands.since, |at| asleep.swap_remove(at).since);
            waits.push(sight(WaitsIn::Stream { clock: slot, device: stands.device }, stands.at, since));
        }
        waits.extend(
            asleep
                .into_iter()
                .map(|sleeper| sight(WaitsIn::Thread(sleeper.thread), sleeper.ticket, sleeper.since)),
        );
        waits
    }

    /// As [`wait`](Self::wait), on a page looked up earlier: it works after the peer was removed, too.
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
        let _noted = self.asleep.note(ticket);
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
        self.clock.page.store(self.clock.slot, value)
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
        Ok(self.clock.page.wake(self.clock.slot)?)
    }
}

/// The sleeping side of the handshake.
struct Sleep<'a> {
    page: &'a ClockPage,
    ticket: &'a Ticket,
    deadline: Option<Deadline>,
    /// On this process's own page: how many of its threads sleep on clocks of the ticket's process.
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
        let most = if is_woken { LOOK_AGAIN } else { nap() };
        let most = left.map_or(most, |left| left.min(most));
        // The kernel would add 50 us to a nap; to a sleep that somebody ends, that is nothing.
        let _punctual = (!is_woken).then(Punctual::begin);
        match self.page.sleep(self.ticket.slot, seen, most) {
            // Whatever the reason, the clock says whether it is over.
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

impl Peers {
    fn gather(&mut self) {
        self.all = self.by_slot.iter().flatten().map(|peer| Arc::clone(&peer.page)).collect();
    }
}

impl OwnClock {
    /// Which clock of its process it is.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Where it stands. Its first user starts at zero, a later one where the last one stopped.
    pub fn value(&self) -> u64 {
        self.page.load(self.slot).unwrap_or(0)
    }

    /// The page it is on.
    pub fn page(&self) -> &Arc<ClockPage> {
        &self.page
    }

    /// Says that a device advances it from now on, without waking anybody: waiters look again in short steps.
    ///
    /// # Errors
    /// [`ClockError::NotWriter`] where this process does not write the page.
    pub fn leave_to_device(&self) -> Result<(), ClockError> {
        self.page.leave_to_device(self.slot, true)
    }

    /// Notes that `value` will be reached: somebody may wait for it from now on.
    pub fn promise(&self, value: u64) {
        // Only ever raised, and compared like the clock itself.
        let raise = |old| (!passed(old, value)).then_some(value);
        let _ = self.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
    }

    /// The largest value promised so far.
    pub fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    /// The ticket of one of its values.
    pub fn ticket(&self, value: u64) -> Ticket {
        Ticket { process: self.process, slot: self.slot, value }
    }
}

impl Drop for OwnClock {
    fn drop(&mut self) {
        // A clock that owes somebody a value must not be continued by another stream: reaching that value would
        // then mean something else. It is lost to the process instead, and its waiters end with the process.
        if passed(self.value(), self.promised()) {
            *self.slots.free.lock() |= 1 << self.slot;
        } else {
            tracing::debug!(slot = self.slot, "a clock was dropped before it reached what it had promised");
        }
    }
}

/// How many threads of `domain`'s process sleep on clocks of the process in roster slot `process`.
#[cfg(test)]
pub(crate) fn sleepers(domain: &ClockDomain, process: usize) -> u32 {
    domain.own_page.waiting_on(process).map_or(0, |count| count.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::Woken;

    fn domain(slot: u16) -> Arc<ClockDomain> {
        ClockDomain::new(ProcessId::new(slot, 0).unwrap(), ClockPage::create().unwrap())
    }

    /// Two processes that know each other's pages, by descriptor.
    fn two() -> (Arc<ClockDomain>, Arc<ClockDomain>) {
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

    /// Sleeps that only the look after 100 ms ended, though the clock had passed: wake-ups that were lost.
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
        // A machine that stands still for 100 ms looks the same, once.
        assert!(LATE.load(Ordering::Relaxed) <= 1, "{LATE:?} wake-ups of {rounds} were lost");
    }

    /// A GPU stores and wakes nobody; the page alone is written here, as it does.
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
            // Woken by the look every 100 ms alone, it would take ten seconds.
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
        // A release is not undone by a straggler.
        worker.advance(&clock, 3).unwrap();
        assert!(b.passed(&clock.ticket(1_000)).unwrap());
    }

    #[test]
    fn clocks_are_bounded_and_never_go_back() {
        let a = domain(1);
        let mut clocks: Vec<_> = (0..MAX_STREAMS).map(|_| a.allocate_slot().unwrap()).collect();
        assert!(matches!(a.allocate_slot(), Err(ClockError::Exhausted)));
        let done = clocks.pop().unwrap();
        a.advance(&done, 7).unwrap();
        a.advance(&done, 6).unwrap();
        assert_eq!(done.value(), 7);
        let slot = done.slot();
        drop(done);
        let next = a.allocate_slot().unwrap();
        assert_eq!((next.slot(), next.value()), (slot, 7));
        // One that owes a value is not given to anyone else.
        next.promise(8);
        drop(next);
        assert!(matches!(a.allocate_slot(), Err(ClockError::Exhausted)));
    }

    #[test]
    fn peers_come_and_go() {
        let (a, b) = two();
        let clock = a.allocate_slot().unwrap();
        let page = b.page_of(a.own()).unwrap();
        assert!(b.remove_peer(a.own()).is_some() && b.remove_peer(a.own()).is_none());
        assert!(b.page_of(a.own()).is_none() && b.passed(&clock.ticket(0)).is_err());
        a.advance(&clock, 1).unwrap();
        assert_eq!(b.wait_on(&page, &clock.ticket(1), None).unwrap(), Waited::Passed);
        assert!(b.page_of(b.own()).is_some());
    }
}
