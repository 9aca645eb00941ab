//! Sleep and wake across processes, without a word that both sides write (ONE-WRITER).
//!
//! The consumer's page has one word that only the consumer writes: even while it is awake, odd while it
//! sleeps or is about to, and never the same odd number twice. A producer that has published something loads
//! the word. It rings (see [`Bell`](crate::os::Bell), which is the caller's part) only for a sleeper, and
//! once for each of its sleeps. Any number of producers can ring one sleeper.
//!
//! No wake-up is lost as long as both sides keep to the order below. `tests/loom_doorbell.rs` explores it,
//! and leaves out each step in turn:
//!
//! | sleeper | ringer |
//! |---|---|
//! | [`Sleeper::prepare`]: the word becomes odd; fence | publish |
//! | look at **every** source again; if there is something: `awake`, no sleep | [`Ringer::should_ring`]: fence; look at the word |
//! | wait for the bell | if true: ring |
//! | [`Sleeper::awake`], then look at the sources | |
//!
//! If a ring were taken back after the second look, it would be lost. Nothing takes rings back: the ears are
//! polled edge-triggered and never read.
//!
//! A sleeper that dies asleep costs each producer one ring. A ringer that dies between publishing and ringing
//! leaves the sleeper asleep with something to read. So a process that learns of a death polls the dead
//! process's rings once more. A wrong value in the word, from a broken consumer, costs superfluous rings or
//! that consumer's own wake-up.
//!
//! A producer that waits for room in a full ring is a sleeper in the same way, with the consumer as its
//! ringer.
//!
//! The word is an epoch and not a flag, because the ringer would have to clear a flag, and the word would
//! then have two writers.

use std::marker::PhantomData;

use crate::sync::{AtomicU64, Ordering};

use super::ring::native::Native;
use super::ring::platform::{Orders, Platform, Sound, Word};

/// The side that sleeps: one per process, over all its sources.
#[derive(Debug)]
pub struct Sleeper<P: Platform = Native, O: Orders = Sound> {
    word: P::Word,
    /// The current value of the word.
    epoch: u64,
    orders: PhantomData<fn() -> O>,
}

impl<P: Platform, O: Orders> Sleeper<P, O> {
    /// Makes a sleeper, awake, that stores to its own `word`, which is zero.
    pub fn new(word: P::Word) -> Self {
        Sleeper { word, epoch: 0, orders: PhantomData }
    }

    /// Announces that the caller is about to sleep. The caller checks every source again before it sleeps,
    /// and if it finds something, it calls [`awake`](Self::awake) instead of sleeping. Calling it again
    /// without `awake` starts another sleep, with another ring due.
    #[inline]
    pub fn prepare(&mut self) {
        self.set(self.epoch.wrapping_add(1) | 1);
        if O::SLEEPER_FENCE {
            // BELL: pairs with the fence in `Ringer::should_ring`.
            P::fence_seq_cst();
        }
    }

    /// Announces that the caller is awake: no ring is due from here on. The caller checks its sources after
    /// this.
    #[inline]
    pub fn awake(&mut self) {
        if self.is_asleep() {
            self.set(self.epoch.wrapping_add(1));
        }
    }

    /// Returns whether [`prepare`](Self::prepare) was called and [`awake`](Self::awake) was not.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.epoch & 1 == 1
    }

    #[inline]
    fn set(&mut self, epoch: u64) {
        self.epoch = epoch;
        // Relaxed: the fences order it, and a late "awake" costs no more than a superfluous ring.
        self.word.store(epoch, Ordering::Relaxed);
    }
}

/// One producer's view of one sleeper.
#[derive(Debug)]
pub struct Ringer<P: Platform = Native, O: Orders = Sound> {
    word: P::Word,
    /// The last sleep that this producer rang for. Zero for none: sleeps are odd.
    rung: AtomicU64,
    orders: PhantomData<fn() -> O>,
}

impl<P: Platform, O: Orders> Ringer<P, O> {
    /// Makes a ringer that loads the sleeper's `word`.
    pub fn new(word: P::Word) -> Self {
        Ringer { word, rung: AtomicU64::new(0), orders: PhantomData }
    }

    /// Returns whether the caller has to ring, after it published something. It returns true once for each
    /// sleep, so the caller must ring then. Only one of several threads gets true. Its ring makes the sleeper
    /// check every source, and the sleeper checks again, after a fence, before it sleeps the next time.
    #[inline]
    pub fn should_ring(&self) -> bool {
        if O::RINGER_FENCE {
            // BELL: pairs with the fence in `Sleeper::prepare`.
            P::fence_seq_cst();
        }
        let epoch = self.word.load(Ordering::Relaxed);
        epoch & 1 == 1
            && epoch != self.rung.load(Ordering::Relaxed)
            && epoch != self.rung.swap(epoch, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::ring::NativeWord;

    fn bell() -> (Sleeper, Ringer, Ringer) {
        let word = NativeWord::in_memory();
        (Sleeper::new(word.clone()), Ringer::new(word.clone()), Ringer::new(word))
    }

    #[test]
    fn only_a_sleeper_is_rung_for() {
        let (mut sleeper, ringer, _) = bell();
        assert!(!ringer.should_ring());
        sleeper.prepare();
        assert!(sleeper.is_asleep() && ringer.should_ring());
        sleeper.awake();
        assert!(!sleeper.is_asleep() && !ringer.should_ring());
    }

    #[test]
    fn each_ringer_rings_once_for_each_sleep() {
        let (mut sleeper, one, other) = bell();
        for _ in 0..3 {
            sleeper.prepare();
            assert!(one.should_ring() && !one.should_ring());
            assert!(other.should_ring() && !other.should_ring());
            sleeper.awake();
        }
    }

    #[test]
    fn preparing_twice_is_another_sleep_and_waking_twice_is_not() {
        let (mut sleeper, ringer, _) = bell();
        sleeper.prepare();
        assert!(ringer.should_ring());
        sleeper.prepare();
        assert!(ringer.should_ring());
        sleeper.awake();
        sleeper.awake();
        assert!(!ringer.should_ring());
    }
}
