//! One process's clocks in shared memory.
//!
//! The layout, in bytes, begins with a header of one cache line (magic, version, counts). [`MAX_STREAMS`]
//! clocks follow, each on a line of its own so that streams do not disturb each other. Behind each clock, one
//! word says whether a device writes it, and another is the largest value that the process has promised for
//! it. Last comes one 32-bit word per process of the node, which counts the host threads of *this* page's
//! process that sleep on a clock of that process.
//!
//! Other processes check the promise (WIRE-1): nobody waits for a value that its process has not promised,
//! and the node does not believe a process that claims to.
//!
//! On a crash the page stays as it was: peers and the node still have it mapped. The node keeps a writable
//! mapping of every worker's page from before the worker was spawned, and writes through it only after the
//! worker's death.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use thiserror::Error;

use super::{ClockError, passed, release_value};
use crate::limits::{MAX_PROCESSES, MAX_STREAMS};
use crate::os::memfd::{self, ReadOnlyFd};
use crate::os::{Access, BadMemfd, InForks, Mapping, Memfd, Woken};

const MAGIC: u64 = u64::from_le_bytes(*b"TPCLOCKS");
/// Version of the layout; the counts are part of it.
const VERSION: u64 = (3 << 32) | ((MAX_STREAMS as u64) << 16) | MAX_PROCESSES as u64;
const LINE: usize = 64;
const CLOCKS_AT: usize = LINE;
const WAITING_AT: usize = CLOCKS_AT + MAX_STREAMS * LINE;
const PAGE_BYTES: usize = (WAITING_AT + MAX_PROCESSES * size_of::<u32>()).next_multiple_of(4096);
/// Position on a clock's line of the word that says whether a device writes the clock; a device wakes nobody.
const DEVICE_AT: usize = 8;
/// Position on a clock's line of the largest value that was promised for it. It shares the line because its
/// readers have just read the clock.
const PROMISED_AT: usize = 16;
/// Position in a clock's eight bytes of the half that every advance changes.
const LOW_HALF: usize = if cfg!(target_endian = "little") { 0 } else { 4 };

const _: () = assert!(MAX_STREAMS < 1 << 16 && MAX_PROCESSES < 1 << 16);

/// The reason why a descriptor is not a clock page (WIRE-1).
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the texts of the errors name their fields")]
pub enum BadClockPage {
    /// Not the sealed memory that a clock page is.
    #[error("the descriptor is no clock page")]
    Memory(#[from] BadMemfd),
    /// The header has other values.
    #[error("the memory is no clock page of this build: header {magic:#x} {version:#x}")]
    Header { magic: u64, version: u64 },
    /// It could not be mapped.
    #[error("could not map a clock page")]
    Os(#[from] io::Error),
}

/// The clocks of one process, mapped writable by that process (and by the node, for its death), read-only by
/// others.
#[derive(Debug)]
pub struct ClockPage {
    /// Shared with the devices that it was registered for, which may keep it longer.
    mapping: Arc<Mapping>,
    /// The descriptor of a page that is handed on. A peer's page has none: it is only read, and the mapping
    /// is enough for that.
    fd: Option<OwnedFd>,
    to_show: ReadOnlyFd,
    /// The highest values seen so far, for [`ran_back`](Self::ran_back).
    seen: [AtomicU64; MAX_STREAMS],
}

impl ClockPage {
    /// Makes this process's own page, all clocks at zero. From then on nobody else can map it writable.
    pub fn create() -> io::Result<Arc<Self>> {
        let page = Self::prepare()?;
        page.seal()?;
        Ok(page)
    }

    /// Makes a page for a worker that is about to be spawned. The worker gets the
    /// [`writable_fd`](Self::writable_fd) and calls [`adopt`](Self::adopt). The caller writes through its own
    /// mapping after the worker's death and never before (ONE-WRITER, DEATH-1).
    pub fn prepare() -> io::Result<Arc<Self>> {
        let memfd = Memfd::create("tensorpost-clocks", PAGE_BYTES as u64)?;
        let mapping = Mapping::map_own(memfd.as_fd(), PAGE_BYTES, InForks::ReadOnly)?;
        for (offset, value) in [(0, MAGIC), (8, VERSION)] {
            if let Some(word) = mapping.word64(offset) {
                word.store(value, Ordering::Release);
            }
        }
        Ok(Arc::new(ClockPage {
            mapping: Arc::new(mapping),
            fd: Some(memfd.into_fd()),
            to_show: ReadOnlyFd::default(),
            seen: Default::default(),
        }))
    }

    /// Maps a [prepared](Self::prepare) page writable, in its worker, and seals it against later writable
    /// mappings.
    ///
    /// # Errors
    /// The descriptor is not such a page, or was sealed already.
    pub fn adopt(fd: OwnedFd) -> Result<Arc<Self>, BadClockPage> {
        memfd::check(fd.as_fd(), PAGE_BYTES as u64)?;
        let mapping = Self::check(Mapping::map_own(fd.as_fd(), PAGE_BYTES, InForks::ReadOnly)?)?;
        let page = Arc::new(ClockPage {
            mapping,
            fd: Some(fd),
            to_show: ReadOnlyFd::default(),
            seen: Default::default(),
        });
        page.seal()?;
        Ok(page)
    }

    /// Maps a peer's page, read-only, after checking size, seals and header (WIRE-1).
    pub fn open(fd: OwnedFd) -> Result<Arc<Self>, BadClockPage> {
        memfd::check_one_writer(fd.as_fd(), PAGE_BYTES as u64)?;
        let mapping = Self::check(Mapping::map(fd.as_fd(), PAGE_BYTES, Access::ReadOnly)?)?;
        Ok(Arc::new(ClockPage {
            mapping,
            fd: None,
            to_show: ReadOnlyFd::default(),
            seen: Default::default(),
        }))
    }

    fn check(mapping: Mapping) -> Result<Arc<Mapping>, BadClockPage> {
        let word = |offset| mapping.watch64(offset).map_or(0, |word| word.load());
        let (magic, version) = (word(0), word(8));
        if (magic, version) != (MAGIC, VERSION) {
            return Err(BadClockPage::Header { magic, version });
        }
        Ok(Arc::new(mapping))
    }

    /// Forbids every further writable mapping. Calling it twice is fine.
    pub fn seal(&self) -> io::Result<()> {
        memfd::seal_future_write(self.writable_fd()?)
    }

    /// Returns a read-only descriptor of the page, for a peer.
    ///
    /// # Errors
    /// The errors of `open` and `fcntl`; the page is a [peer's](Self::open).
    pub fn export_fd(&self) -> io::Result<OwnedFd> {
        self.to_show.of(self.writable_fd()?)
    }

    /// Returns the writable descriptor of a [prepared](Self::prepare) page, which the page's worker adopts.
    ///
    /// # Errors
    /// The page is a [peer's](Self::open).
    pub fn writable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        let none = || io::Error::new(io::ErrorKind::Unsupported, "a peer's clock page is not passed on");
        self.fd.as_ref().map(AsFd::as_fd).ok_or_else(none)
    }

    /// The mapping, whose address and length a device registers.
    #[cfg_attr(not(feature = "inside"), allow(dead_code, reason = "a GPU, or tests, use it"))]
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Returns the value of clock `slot`; `None` where there is no such clock. Everything that its stream did
    /// before it advanced the clock to that value is visible afterwards.
    #[inline]
    pub fn load(&self, slot: u16) -> Option<u64> {
        // CLOCK-ACQUIRE: pairs with the release store in `store`.
        Some(self.mapping.watch64(clock_at(slot)?)?.load())
    }

    /// Checks whether clock `slot` has gone back since the last call, and returns the two values if it has.
    /// No stream moves its clock back, so such a process must not be believed (WIRE-1).
    pub(crate) fn ran_back(&self, slot: u16) -> Option<(u64, u64)> {
        let seen = self.seen.get(usize::from(slot))?;
        // Load this before the clock: another thread may meanwhile see the clock further on and raise it.
        let before = seen.load(Ordering::Acquire);
        let now = self.load(slot)?;
        if !passed(now, before) {
            return Some((before, now));
        }
        let raise = |old| (!passed(old, now)).then_some(now);
        let _ = seen.fetch_update(Ordering::AcqRel, Ordering::Acquire, raise);
        None
    }

    /// Returns the position of clock `slot` on the page, in bytes, for a device that reads or writes it;
    /// `None` where there is no such clock.
    #[cfg_attr(not(feature = "inside"), allow(dead_code, reason = "a GPU, or tests, use it"))]
    pub fn clock_offset(&self, slot: u16) -> Option<usize> {
        clock_at(slot)
    }

    /// Returns whether a device writes clock `slot`; a device does not wake the threads that sleep on it.
    pub(super) fn is_left_to_device(&self, slot: u16) -> bool {
        let word = clock_at(slot).and_then(|at| self.mapping.watch32(at + DEVICE_AT));
        word.is_some_and(|word| word.load_relaxed() != 0)
    }

    /// Notes whether a device writes clock `slot` from now on.
    pub(super) fn leave_to_device(&self, slot: u16, device: bool) -> Result<(), ClockError> {
        let word =
            clock_at(slot).and_then(|at| self.mapping.word32(at + DEVICE_AT)).ok_or(ClockError::NotWriter)?;
        word.store(u32::from(device), Ordering::Release);
        Ok(())
    }

    /// Notes that clock `slot` will reach `value`, before any other process learns the value. Calls for one
    /// clock come one after the other, under the lock of its stream.
    pub(crate) fn promise(&self, slot: u16, value: u64) {
        let word = clock_at(slot).and_then(|at| self.mapping.word64(at + PROMISED_AT));
        if let Some(word) = word.filter(|word| !passed(word.load(Ordering::Relaxed), value)) {
            // The ring or socket that carries the value to other processes orders this store before it.
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Returns whether clock `slot` has passed `value`, or its process has promised that it will.
    pub(crate) fn is_promised(&self, slot: u16, value: u64) -> bool {
        let Some(at) = clock_at(slot) else { return false };
        let shows = |at| self.mapping.watch64(at).is_some_and(|word| passed(word.load(), value));
        shows(at) || shows(at + PROMISED_AT)
    }

    /// Returns all clocks. When the process is dead, and nobody writes them any more, they are its death
    /// certificate.
    pub fn values(&self) -> [u64; MAX_STREAMS] {
        std::array::from_fn(|slot| self.load(slot as u16).unwrap_or(0))
    }

    /// Sets clock `slot`, and wakes nobody (see [`ClockDomain::advance`](super::ClockDomain::advance)).
    pub(super) fn store(&self, slot: u16, value: u64) -> Result<(), ClockError> {
        let word = clock_at(slot).and_then(|at| self.mapping.word64(at)).ok_or(ClockError::NotWriter)?;
        word.store(value, Ordering::Release); // CLOCK-RELEASE
        Ok(())
    }

    /// Sets clock `slot`, as its stream would.
    #[cfg(test)]
    pub(crate) fn testing_advance(&self, slot: u16, value: u64) {
        self.store(slot, value).expect("a page of this process");
    }

    /// Calls [`release_all`](Self::release_all), for tests of devices. Programs must never call it: released
    /// waiters read memory that nobody has written.
    ///
    /// # Errors
    /// As for [`release_all`](Self::release_all).
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn testing_release_all(&self) -> Result<(), ClockError> {
        self.release_all()
    }

    /// Releases every clock of a dead process and wakes every thread that sleeps on one (DEATH-1).
    ///
    /// Only the node calls it, after the process's death, after its certificate was published and every
    /// process has marked the work that depends on the missing values (DEATH-3). A second call changes
    /// nothing.
    ///
    /// # Errors
    /// [`ClockError::NotWriter`] on a page that is not mapped writable here.
    pub(crate) fn release_all(&self) -> Result<(), ClockError> {
        for slot in 0..MAX_STREAMS as u16 {
            let last = self.load(slot).unwrap_or(0);
            if !super::is_released(last) {
                self.store(slot, release_value(last))?;
            }
            // Deaths are rare: wake without checking for sleepers.
            self.wake(slot)?;
        }
        Ok(())
    }

    /// Returns how many host threads of this page's process sleep on a clock of the process in roster slot
    /// `process`.
    pub(super) fn sleepers_on(&self, process: usize) -> u32 {
        self.mapping.watch32(waiting_at(process)).map_or(0, |word| word.load_relaxed())
    }

    /// Returns the word behind [`sleepers_on`](Self::sleepers_on), for its owner.
    pub(super) fn waiting_on(&self, process: usize) -> Option<&AtomicU32> {
        self.mapping.word32(waiting_at(process))
    }

    /// Sleeps while the low half of clock `slot` is that of `seen`.
    pub(super) fn sleep(&self, slot: u16, seen: u64, timeout: Duration) -> io::Result<Woken> {
        match clock_at(slot).and_then(|at| self.mapping.watch32(at + LOW_HALF)) {
            Some(half) => half.wait(seen as u32, Some(timeout)),
            None => Ok(Woken::Changed),
        }
    }

    /// Wakes every host thread, in every process, that sleeps on clock `slot`.
    pub(super) fn wake(&self, slot: u16) -> io::Result<()> {
        if let Some(half) = clock_at(slot).and_then(|at| self.mapping.watch32(at + LOW_HALF)) {
            half.wake_all()?;
        }
        Ok(())
    }
}

fn clock_at(slot: u16) -> Option<usize> {
    let slot = usize::from(slot);
    (slot < MAX_STREAMS).then_some(CLOCKS_AT + slot * LINE)
}

fn waiting_at(process: usize) -> usize {
    WAITING_AT + process.min(MAX_PROCESSES - 1) * size_of::<u32>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::is_released;

    #[test]
    fn a_peer_sees_the_clocks_and_cannot_write_them() {
        let own = ClockPage::create().unwrap();
        let peer = ClockPage::open(own.export_fd().unwrap()).unwrap();
        own.store(3, 42).unwrap();
        assert_eq!((peer.load(3), peer.load(2), peer.load(MAX_STREAMS as u16)), (Some(42), Some(0), None));
        assert!(matches!(peer.store(3, 43), Err(ClockError::NotWriter)));
        assert!(matches!(peer.release_all(), Err(ClockError::NotWriter)));
        assert!(peer.waiting_on(1).is_none());
        // Even a descriptor that was opened for writing maps read-only by now (ONE-WRITER).
        let raw = own.writable_fd().unwrap().try_clone_to_owned().unwrap();
        assert!(ClockPage::adopt(raw).is_err());
    }

    /// WIRE-1.
    #[test]
    fn a_peer_sees_what_was_promised() {
        let own = ClockPage::create().unwrap();
        let peer = ClockPage::open(own.export_fd().unwrap()).unwrap();
        assert!(
            peer.is_promised(3, 0) && !peer.is_promised(3, 1) && !peer.is_promised(MAX_STREAMS as u16, 0)
        );
        own.promise(3, 7);
        own.promise(3, 6);
        peer.promise(3, 9);
        assert!(peer.is_promised(3, 7) && !peer.is_promised(3, 8) && !peer.is_promised(2, 7));
        own.store(3, 9).unwrap();
        assert!(peer.is_promised(3, 9), "it is there");
    }

    #[test]
    fn the_node_prepares_the_worker_adopts_and_the_node_releases() {
        let node = ClockPage::prepare().unwrap();
        let unsealed = node.export_fd().unwrap();
        assert!(ClockPage::open(unsealed).is_err(), "a page that others can still write is no clock page");
        let worker = ClockPage::adopt(node.writable_fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
        let peer = ClockPage::open(worker.export_fd().unwrap()).unwrap();
        worker.store(0, 9).unwrap();
        assert_eq!(node.values()[..2], [9, 0]);
        node.release_all().unwrap();
        node.release_all().unwrap();
        assert!((0..MAX_STREAMS as u16).all(|slot| is_released(peer.load(slot).unwrap())));
        assert_eq!(peer.load(0).unwrap(), release_value(9));
    }

    #[test]
    fn forged_pages_are_refused() {
        let short = Memfd::create("short", 64).unwrap();
        assert!(matches!(ClockPage::adopt(short.into_fd()), Err(BadClockPage::Memory(_))));
        let blank = Memfd::create("blank", PAGE_BYTES as u64).unwrap();
        blank.seal_future_write().unwrap();
        assert!(matches!(ClockPage::open(blank.into_fd()), Err(BadClockPage::Header { magic: 0, .. })));
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(matches!(ClockPage::open(file.into()), Err(BadClockPage::Memory(_))));
    }
}
