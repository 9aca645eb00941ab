//! Wake-ups: of the reader of this process, and deferred ones of the peers.
//!
//! Each process has one reader, which sleeps on the doorbells of all its links (`Ears`). Its wake page tells
//! the peers that it sleeps, and which reasons it wants to be woken for. This part owns both, and the mark
//! that the ring for something published was deferred ([`wake_reasons`] has the rules). The reader,
//! `publish`, waiting senders, and the handler of the node's messages use it.
//!
//! **Invariants.** A wake-up is never lost ([`Deferred`]). The words of the wake page have one writer, this
//! process (ONE-WRITER).
//!
//! **Locks.** None. Everything here may be called under any lock.
//!
//! **On a crash** the kernel shuts the doorbells, and the node tells the peers. **On cancellation** of a
//! parked reader its mark that it is parked stays, and `Notify` keeps the wake-up for the next reader, which
//! polls everything first anyway.

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
pub(crate) struct Wakeups {
    wake_page: WakePage,
    ears: Ears,
    /// Whether the ring for something published is deferred (see [`wake_reasons`]).
    deferred: Deferred,
    /// Wakes the parked reader.
    deferred_came: Notify,
    /// Whether there are enough cores for a waiting thread to poll for messages.
    spare_cores: AtomicBool,
    /// A peer has taken fresh memory for rings of this process, which the reader moves.
    offer_taken: AtomicBool,
    /// No look for idle memory is due, and the reader must be told when memory moves.
    is_all_idle: AtomicBool,
    /// How often it was told.
    memory_moved: AtomicU64,
}

impl Wakeups {
    /// Makes the wake page and the doorbells of a process.
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

    /// Notes that memory of this process has come back. If the reader has looked for idle memory for the last
    /// time, it is woken; at all other times this costs one load. If this call and that last look cross, the
    /// reader is told only the next time, which merely delays the look.
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

    /// Sets whether the reader has looked for idle memory for the last time.
    pub(super) fn set_all_idle(&self, is_all_idle: bool) {
        if self.is_all_idle.load(Ordering::Relaxed) != is_all_idle {
            self.is_all_idle.store(is_all_idle, Ordering::Release);
        }
    }

    /// Notes that rings can move. The reader, which is woken after this, looks for them.
    pub(super) fn note_offer_taken(&self) {
        self.offer_taken.store(true, Ordering::Release);
    }

    /// Returns whether rings can move, once for each note.
    pub(super) fn take_offer_taken(&self) -> bool {
        self.offer_taken.load(Ordering::Relaxed) && self.offer_taken.swap(false, Ordering::AcqRel)
    }

    /// Notes whether there are spare cores; the reader has counted them.
    pub(super) fn note_spare_cores(&self, spare: bool) {
        self.spare_cores.store(spare, Ordering::Relaxed);
    }

    #[cfg(any(feature = "bindings", feature = "hosts"))]
    pub(super) fn has_spare_cores(&self) -> bool {
        self.spare_cores.load(Ordering::Relaxed)
    }

    /// Returns the ears, from which the doorbells of links are made.
    pub(super) fn ears(&self) -> &Ears {
        &self.ears
    }

    /// Returns a descriptor of the wake page, for a peer.
    pub(super) fn export(&self) -> io::Result<OwnedFd> {
        self.wake_page.export()
    }

    /// Returns the word that says whether the reader sleeps.
    pub(super) fn sleep_word(&self) -> NativeWord {
        self.wake_page.sleep()
    }

    /// Returns the word that says which reasons the reader wants to be woken for.
    pub(super) fn wants_word(&self) -> NativeWord {
        self.wake_page.wants()
    }

    /// Makes the reader poll again.
    pub(crate) fn wake_reader(&self) {
        if let Err(error) = self.ears.wake() {
            tracing::warn!(%error, "the reader could not be woken");
        }
    }

    /// Asks peers to wake this process for their progress from now on. Called before the item that needs the
    /// progress is published.
    pub(super) fn want_progress(&self) {
        let wants = self.wake_page.wants();
        if wants.load(Ordering::Relaxed) & u64::from(wake_reasons::ROOM) == 0 {
            // All reasons: the reader may be writing its own at this moment.
            wants.store(wake_reasons::ALL, Ordering::Relaxed);
        }
    }

    /// Notes that the ring for something published is deferred. The reader rings when it finds nothing to do,
    /// which is soon if it is not parked; a parked reader is woken. It announces that it parks before it
    /// checks this mark for the last time.
    pub(super) fn defer_wakeup(&self) {
        if self.deferred.mark() {
            self.deferred_came.notify_one();
        }
    }

    /// Notes that the reader is about to sleep. A ring deferred from now on wakes it; its next poll sees the
    /// earlier ones.
    pub(super) fn park(&self) {
        self.deferred.park();
    }

    /// Notes that the reader is awake, and checks for deferred rings by itself.
    pub(super) fn unpark(&self) {
        self.deferred.unpark();
    }

    /// Resolves when a ring is deferred while the reader is parked.
    pub(super) fn deferred_came(&self) -> Notified<'_> {
        self.deferred_came.notified()
    }

    /// Rings for everything whose wake-up was deferred.
    pub(super) fn ring_deferred(&self, links: &Links) {
        // The mark is cleared before the links are checked: a ring deferred in the meantime sets it again.
        if self.deferred.take() {
            links.all().iter().for_each(|link| link.ring_deferred());
        }
    }

    /// Returns whether the wake page says that the reader sleeps.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn says_it_sleeps(&self) -> bool {
        self.wake_page.sleep().load(Ordering::Relaxed) & 1 == 1
    }

    /// Returns whether the ring for something published is still deferred.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn has_deferred(&self) -> bool {
        self.deferred.is_due()
    }
}

impl AsRawFd for Wakeups {
    /// Returns a descriptor that is readable when a doorbell was rung, or the reader has to poll again.
    fn as_raw_fd(&self) -> RawFd {
        self.ears.as_raw_fd()
    }
}
