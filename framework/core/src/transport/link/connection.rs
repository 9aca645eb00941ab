//! The connection to a peer: both halves, whether they are connected, and the peer's doorbell.
//!
//! Code that makes the link uses it, and so do all checks of whether it is open, and all rings.
//!
//! **Invariants.** `broken`, `exited` and `refused` are set once, `refused` before `broken`. A link is open
//! only while each side has said that it has mapped the other's half and neither flag is set. The thread that
//! takes a deferred reason out of the mark (`deferred`) rings for it. If a link is refused while the peer's
//! half is mapped, exactly one thread learns that it has to refuse that half too: the one that refuses the
//! link, or the one that maps the half.
//!
//! **Locks.** That of the bell's end. Under it the bell is sent to the node, a half is announced as mapped,
//! and the link is refused; no other lock inside it. `ring` may be called under the locks of the rings.
//!
//! **On a crash** of the peer its doorbell is shut, and a ring in vain is an error that is only logged. **On
//! cancellation** nothing happens.

use std::io;
use std::os::fd::OwnedFd;
#[cfg(any(test, feature = "testing"))]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::Link;
use crate::os::{Bell, Ear, Ears};
use crate::transport::LinkRefused;
use crate::transport::bad_half::BadHalf;
use crate::transport::deferred::DeferredFor;
use crate::transport::doorbell::Ringer;
use crate::transport::pages::{LinkMemory, RingMemory, WakePage};
use crate::transport::ring::{Native, NativeBytes, NativeWord, NativeWords, Sound, Word as _};
use crate::transport::wake_reasons;

/// See the module.
#[derive(Debug)]
pub(super) struct Connection {
    /// The number of this process's half; an answer to the half names it.
    number: u64,
    /// The words that this process writes for the peer.
    pub(super) memory: LinkMemory,
    /// The word in it that says which half of the peer is mapped here.
    taken: NativeWord,
    /// The ear that hears the peer's rings.
    _ear: Ear,
    /// The peer's end of the bell and a descriptor of the rings to the peer, until they are sent.
    unsent: Mutex<Option<(OwnedFd, Bell)>>,
    /// The rings to the peer, until its half comes.
    rings: Mutex<Option<(NativeBytes, NativeBytes)>>,
    /// The peer's half, which it writes for this process, once it came.
    half: OnceLock<Half>,
    /// Both halves are known to be mapped.
    made: AtomicBool,
    /// The peer broke the protocol or ended; nothing is sent or read any more.
    broken: AtomicBool,
    /// Why it never opened, if that is known. In an `Arc`, because a frame on another link may wait for this.
    refused: Arc<OnceLock<LinkRefused>>,
    /// The peer has ended; its posted frames and notices are still read.
    exited: AtomicBool,
    /// Pending sends and asks have been failed.
    given_up: AtomicBool,
    /// The reasons that were published and not rung for.
    deferred: DeferredFor,
    /// How often the peer's doorbell was rung.
    #[cfg(any(test, feature = "testing"))]
    rung: AtomicU64,
}

#[derive(Debug)]
struct Half {
    credits: NativeWords,
    mailbox_states: NativeWords,
    /// The word that says which half of this process the peer has mapped.
    taken: NativeWord,
    wants: NativeWord,
    bell: Bell,
    ringer: Ringer,
}

impl Connection {
    /// Makes this process's half, which no peer has yet.
    pub(super) fn new(number: u64, ears: &Ears) -> io::Result<Self> {
        let (ear, bell) = ears.doorbell()?;
        let rings = RingMemory::create()?;
        let unsent = (rings.export()?, bell);
        let memory = LinkMemory::create()?;
        Ok(Connection {
            number,
            taken: memory.taken(),
            memory,
            _ear: ear,
            unsent: Mutex::new(Some(unsent)),
            rings: Mutex::new(Some(rings.into_bytes())),
            half: OnceLock::new(),
            made: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            refused: Arc::default(),
            exited: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            deferred: DeferredFor::new(),
            #[cfg(any(test, feature = "testing"))]
            rung: AtomicU64::new(0),
        })
    }

    /// Takes the rings to the peer; works once.
    pub(super) fn take_rings(&self) -> Option<(NativeBytes, NativeBytes)> {
        self.rings.lock().take()
    }

    /// Takes the peer's half, whose words are in `memory`.
    pub(super) fn take_half(
        &self,
        wake_page: &WakePage,
        memory: &LinkMemory,
        bell: OwnedFd,
    ) -> Result<(), BadHalf> {
        let half = Half {
            credits: memory.credits(),
            mailbox_states: memory.mailbox_states(),
            taken: memory.taken(),
            wants: wake_page.wants(),
            bell: Bell::from_fd(bell)?,
            ringer: Ringer::new(wake_page.sleep()),
        };
        self.half.set(half).map_err(|_| BadHalf::Twice)
    }
}

impl Link {
    /// Returns a descriptor of the words of this process's half.
    pub(crate) fn export(&self) -> io::Result<OwnedFd> {
        self.connection.memory.export()
    }

    /// Has `send` send the half, with a descriptor of the rings and the bell with which the peer rings here.
    /// Both can be sent once, and only the peer has the bell. Nothing is sent if the link was refused in the
    /// meantime, because the node would take the half for a valid one.
    pub(crate) fn send_half<E: From<io::Error>>(
        &self,
        send: impl FnOnce([OwnedFd; 2]) -> Result<(), E>,
    ) -> Result<(), E> {
        // Locked while it is sent: a refusal reaches the node after it, or stops it.
        let mut unsent = self.connection.unsent.lock();
        if self.connection.refused.get().is_some() {
            return Ok(());
        }
        let (rings, bell) = unsent.take().ok_or_else(|| io::Error::from(io::ErrorKind::AlreadyExists))?;
        send([rings, bell.into()])
    }

    /// Returns the number of this process's half.
    pub(crate) fn number(&self) -> u64 {
        self.connection.number
    }

    /// Tells the peer that its half, which has that number, is mapped: this process sees everything that the
    /// peer writes into it from now on. Returns false if the link was refused in the meantime, and so the
    /// half must be refused too.
    #[must_use]
    pub(crate) fn note_taken(&self, number: u64) -> bool {
        let _refused_or_not = self.connection.unsent.lock();
        // Release: a peer that sees the number finds the rings mapped.
        self.connection.taken.store(number, Ordering::Release);
        self.connection.refused.get().is_none()
    }

    /// Returns whether frames and holds can go out.
    pub(crate) fn is_open(&self) -> bool {
        self.is_made() && !self.is_broken() && !self.has_exited()
    }

    /// Returns whether each side has mapped the other's half, and has said so.
    pub(crate) fn is_made(&self) -> bool {
        let Connection { made, half, taken, number, .. } = &self.connection;
        if made.load(Ordering::Acquire) {
            return true;
        }
        // Acquire: pairs with `note_taken` of the peer, and of another thread here.
        let is_made = half.get().is_some_and(|half| half.taken.load(Ordering::Acquire) == *number)
            && taken.load(Ordering::Acquire) != 0;
        if is_made {
            made.store(true, Ordering::Release);
        }
        is_made
    }

    /// Returns whether the peer's half is here.
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.half.get().is_some()
    }

    /// Notes that the peer has ended: nothing is sent to it any more.
    pub(crate) fn end(&self) {
        self.connection.exited.store(true, Ordering::Release);
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.connection.exited.load(Ordering::Acquire)
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.connection.broken.load(Ordering::Acquire)
    }

    /// Returns whether nothing more is sent to the peer.
    pub(crate) fn is_past(&self) -> bool {
        self.is_broken() || self.has_exited()
    }

    pub(crate) fn break_off(&self) {
        self.connection.broken.store(true, Ordering::Release);
    }

    /// Notes that the link never opens, for this reason, which is set before the link counts as broken. A
    /// half that has not been sent to the node by then is not sent. Returns the number of the peer's half, if
    /// that was mapped before.
    pub(crate) fn refuse(&self, why: LinkRefused) -> Option<u64> {
        let _sent_or_not = self.connection.unsent.lock();
        let _ = self.connection.refused.set(why);
        self.break_off();
        Some(self.connection.taken.load(Ordering::Acquire)).filter(|number| *number != 0)
    }

    /// Returns why it never opened, once that is known.
    pub(crate) fn refused(&self) -> &Arc<OnceLock<LinkRefused>> {
        &self.connection.refused
    }

    /// Returns how many messages to its actor `index` the peer is done with.
    pub(crate) fn handled(&self, index: u16) -> u64 {
        // CREDIT acquire: pairs with `hand_back`.
        let load = |half: &Half| half.credits.load(usize::from(index), Ordering::Acquire);
        self.connection.half.get().and_then(load).unwrap_or(0)
    }

    /// Returns [`CLOSED`] if the peer's actor `index` is gone, [`AWAY`] if it is being restarted, [`NOBODY`]
    /// if there was none yet, or else how many messages of this process its mailbox takes at a time.
    pub(crate) fn mailbox_state(&self, index: u16) -> u64 {
        // CREDIT acquire: pairs with `close` and `open`.
        let load = |half: &Half| half.mailbox_states.load(usize::from(index), Ordering::Acquire);
        self.connection.half.get().and_then(load).unwrap_or(0)
    }

    /// Rings the peer's doorbell if it sleeps: for frames always, for other [`wake_reasons`] only if the peer
    /// wants them.
    pub(crate) fn ring(&self, what: u8) {
        let Some(half) = self.connection.half.get() else { return };
        if !wake_reasons::is_wanted::<Native, Sound>(what, &half.wants) {
            return;
        }
        // One ring for both.
        self.connection.deferred.clear();
        if !half.ringer.should_ring() {
            return;
        }
        #[cfg(any(test, feature = "testing"))]
        self.connection.rung.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = half.bell.ring() {
            tracing::warn!(peer = %self.peer, %error, "a doorbell could not be rung");
        }
    }

    /// Notes reasons that were published and for which the peer is not woken now.
    pub(crate) fn defer_wakeup(&self, what: u8) {
        self.connection.deferred.mark(what);
    }

    /// Rings for the deferred reasons.
    pub(crate) fn ring_deferred(&self) {
        let what = self.connection.deferred.take();
        if what != 0 {
            self.ring(what);
        }
    }

    /// Returns whether its pending sends and asks have been failed.
    pub(crate) fn is_given_up(&self) -> bool {
        self.connection.given_up.load(Ordering::Acquire)
    }

    /// Notes that its pending sends and asks have been failed.
    pub(crate) fn note_given_up(&self) {
        self.connection.given_up.store(true, Ordering::Release);
    }

    /// Returns how often the peer's doorbell was rung.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn rung(&self) -> u64 {
        self.connection.rung.load(Ordering::Relaxed)
    }
}
