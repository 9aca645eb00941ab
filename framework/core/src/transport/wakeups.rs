//! Who is woken, and when: the reader of this process, and, put off, the peers.
//!
//! Each process has one reader, which sleeps on the doorbells of all its links (`Ears`). Its wake page tells
//! the peers that it sleeps, and what it wants to be woken for. This part owns both, and the mark that
//! something was published that nobody was rung for ([`wake_reasons`] has the rules). Used by the reader, by
//! `publish`, by senders that wait, and by whoever hears from the node.
//!
//! **Invariants.** A wake-up is never lost ([`Deferred`]). The words of the wake page have one writer, this
//! process (ONE-WRITER).
//!
//! **Locks.** None. Everything here may be called under any lock.
//!
//! **On a crash** the kernel shuts the doorbells, and the node tells the peers. **On cancellation** of a
//! parked reader its mark that it is parked stays, and `Notify` keeps the wake-up for the next reader, which
//! looks at everything first anyway.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::deferred::Deferred;
use super::links::Links;
use super::pages::WakePage;
use super::wake_reasons;
use crate::os::Ears;
use crate::transport::ring::{NativeWord, Word};

/// See the module.
pub(super) struct Wakeups {
    wake_page: WakePage,
    ears: Ears,
    /// Whether something was published that nobody was rung for (see [`wake_reasons`]).
    deferred: Deferred,
    /// Wakes the parked reader.
    deferred_came: Notify,
    /// Whether there are so many cores that a thread may look for what comes.
    spare_cores: AtomicBool,
    /// A peer has taken fresh memory for rings of this process, which the reader moves.
    offer_taken: AtomicBool,
    /// No look for what is idle is due, and the reader is to be told when memory moves.
    is_all_idle: AtomicBool,
    /// How often it was.
    memory_moved: AtomicU64,
}

impl Wakeups {
    /// The wake page and the doorbells of a process.
    pub(super) fn open() -> io::Result<Self> {
        Ok(Wakeups {
            wake_page: WakePage::create()?,
            ears: Ears::create()?,
            deferred: Deferred::new(),
            deferred_came: Notify::new(),
            spare_cores: AtomicBool::new(false),
            offer_taken: AtomicBool::new(false),
            is_all_idle: AtomicBool::new(false),
            memory_moved: AtomicU64::new(0),
        })
    }

    /// Memory of this process has come back. Wakes the reader where it has looked for what is idle for the
    /// last time; at all other times one load. Where this and that cross nobody is told until the next time:
    /// it only takes longer.
    pub(super) fn note_memory_moved(&self) {
        if self.is_all_idle.load(Ordering::Relaxed) && self.is_all_idle.swap(false, Ordering::AcqRel) {
            self.memory_moved.fetch_add(1, Ordering::Relaxed);
            self.wake_reader();
        }
    }

    /// Returns how often memory has come back while all was idle.
    pub(super) fn memory_moved(&self) -> u64 {
        self.memory_moved.load(Ordering::Relaxed)
    }

    /// Returns whether the reader has looked for what is idle for the last time.
    pub(super) fn set_all_idle(&self, is_all_idle: bool) {
        if self.is_all_idle.load(Ordering::Relaxed) != is_all_idle {
            self.is_all_idle.store(is_all_idle, Ordering::Release);
        }
    }

    /// Rings can move. The reader, which is woken after this, looks for them.
    pub(super) fn note_offer_taken(&self) {
        self.offer_taken.store(true, Ordering::Release);
    }

    /// Returns whether rings can move since the last time that this was asked.
    pub(super) fn take_offer_taken(&self) -> bool {
        self.offer_taken.load(Ordering::Relaxed) && self.offer_taken.swap(false, Ordering::AcqRel)
    }

    /// The reader has counted the cores.
    pub(super) fn note_spare_cores(&self, spare: bool) {
        self.spare_cores.store(spare, Ordering::Relaxed);
    }

    #[cfg(any(feature = "foreign", feature = "hosts"))]
    pub(super) fn has_spare_cores(&self) -> bool {
        self.spare_cores.load(Ordering::Relaxed)
    }

    /// Where the doorbells of links are made.
    pub(super) fn ears(&self) -> &Ears {
        &self.ears
    }

    /// A descriptor of the wake page, for a peer.
    pub(super) fn export(&self) -> io::Result<OwnedFd> {
        self.wake_page.export()
    }

    /// The word that says whether the reader sleeps.
    pub(super) fn sleep_word(&self) -> NativeWord {
        self.wake_page.sleep()
    }

    /// The word that says what the reader wants to be woken for.
    pub(super) fn wants_word(&self) -> NativeWord {
        self.wake_page.wants()
    }

    /// Makes the reader look again.
    pub(super) fn wake_reader(&self) {
        if let Err(error) = self.ears.wake() {
            tracing::warn!(%error, "the reader could not be woken");
        }
    }

    /// From now on peers' progress wakes this process. Called before what the progress is waited for is
    /// published.
    pub(super) fn want_progress(&self) {
        let wants = self.wake_page.wants();
        if wants.load(Ordering::Relaxed) & u64::from(wake_reasons::ROOM) == 0 {
            // All of it: the reader may be writing what it wants just now.
            wants.store(wake_reasons::ALL, Ordering::Relaxed);
        }
    }

    /// Something was published that nobody was rung for. The reader rings when it finds nothing to do: soon,
    /// if it is not parked. It says that it is before it looks for this for the last time.
    pub(super) fn defer_wakeup(&self) {
        if self.deferred.mark() {
            self.deferred_came.notify_one();
        }
    }

    /// The reader is about to sleep. What is deferred from now on wakes it; what was before is seen by its
    /// next look.
    pub(super) fn park(&self) {
        self.deferred.park();
    }

    /// The reader sleeps no longer: it looks for what was put off by itself.
    pub(super) fn unpark(&self) {
        self.deferred.unpark();
    }

    /// Resolves when something is published quietly while the reader is parked.
    pub(super) fn deferred_came(&self) -> Notified<'_> {
        self.deferred_came.notified()
    }

    /// Rings for everything whose wake-up was deferred.
    pub(super) fn ring_deferred(&self, links: &Links) {
        // The mark goes before the links are looked at: what is put off meanwhile sets it again.
        if self.deferred.take() {
            links.all().iter().for_each(|link| link.ring_deferred());
        }
    }

    /// What the wake page says.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn says_it_sleeps(&self) -> bool {
        self.wake_page.sleep().load(Ordering::Relaxed) & 1 == 1
    }

    /// Returns whether something was published that nobody was rung for.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn has_deferred(&self) -> bool {
        self.deferred.is_due()
    }
}

impl AsRawFd for Wakeups {
    /// Readable when a doorbell was rung, or the reader is to look again.
    fn as_raw_fd(&self) -> RawFd {
        self.ears.as_raw_fd()
    }
}
