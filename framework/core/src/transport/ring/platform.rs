//! The requirements of the shared-memory protocols on the memory under them.
//!
//! The protocols are generic over a [`Platform`] so that loom explores the code that runs in production. They
//! are generic over [`Orders`] so that a model can remove one barrier at a time and see loom find the failure
//! (`tests/loom_ring.rs`, `tests/loom_doorbell.rs`).

use std::fmt;
use std::sync::atomic::Ordering;

/// The kind of memory that a ring or a doorbell lives in.
pub trait Platform: 'static {
    /// A 64-bit word with one writing process.
    type Word: Word + fmt::Debug;
    /// The bytes of a ring, with one writing process.
    type Bytes: Bytes + fmt::Debug;

    /// Executes a sequentially consistent fence, see [`Orders::SLEEPER_FENCE`].
    fn fence_seq_cst();
}

/// A 64-bit word in shared memory. One process stores to it, any may load it (ONE-WRITER).
pub trait Word {
    /// Returns the word's value. `order` is `Relaxed` or `Acquire`.
    fn load(&self, order: Ordering) -> u64;

    /// Changes the word; only ever called in the process that the word belongs to. `order` is `Relaxed` or
    /// `Release`.
    fn store(&self, value: u64, order: Ordering);
}

/// Bytes in shared memory. One process writes them. The ring's two cursors determine which side may touch
/// which bytes, and when. Offsets and lengths are in bytes.
#[allow(clippy::len_without_is_empty, reason = "a ring's memory is never empty")]
pub trait Bytes {
    /// Copies `into.len()` bytes out, from `offset` on.
    ///
    /// # Panics
    /// If the range is out of bounds. The rings check every number from a peer first, so this is only a
    /// backstop.
    fn read(&self, offset: usize, into: &mut [u8]);

    /// Copies `from` in, at `offset`.
    ///
    /// # Panics
    /// If the range is out of bounds, as for [`read`](Self::read).
    fn write(&self, offset: usize, from: &[u8]);

    /// Returns the eight bytes at `offset`, a multiple of 8, in native order. They are fetched exactly once,
    /// so the checked value is the used value, no matter what the peer does at the same time.
    ///
    /// # Panics
    /// If the range is out of bounds or `offset` is not a multiple of 8.
    fn read_word(&self, offset: usize) -> u64;

    /// Writes eight bytes at `offset`; the inverse of [`read_word`](Self::read_word).
    ///
    /// # Panics
    /// As [`read_word`](Self::read_word).
    fn write_word(&self, offset: usize, value: u64);

    /// Returns how many bytes there are.
    fn len(&self) -> usize;
}

/// Every place where the protocols order memory. The defaults are the orders that they need; the models
/// weaken one at a time.
///
/// Sites that belong together carry the same label in the code: `TAIL`, `HEAD`, `BELL`, `WANTS`.
pub trait Orders: 'static {
    /// `TAIL`, release: the producer publishes records; their bytes were written before.
    const TAIL_RELEASE: Ordering = Ordering::Release;
    /// `TAIL`, acquire: the consumer learns of records; their bytes are read after.
    const TAIL_ACQUIRE: Ordering = Ordering::Acquire;
    /// `HEAD`, release: the consumer gives room back; the bytes were read before.
    const HEAD_RELEASE: Ordering = Ordering::Release;
    /// `HEAD`, acquire: the producer learns of room; the bytes are overwritten after.
    const HEAD_ACQUIRE: Ordering = Ordering::Acquire;
    /// `BELL`: whether the sleeper fences between "I sleep" and its second look at the sources. One of the
    /// two fences comes first in the total order: the sleeper's second look sees the publication, or the
    /// ringer sees the sleeper asleep. With either missing, both can miss.
    const SLEEPER_FENCE: bool = true;
    /// `BELL`: whether the ringer fences between publishing and its load of the sleep word.
    const RINGER_FENCE: bool = true;
    /// `WANTS`: whether a publisher fences between publishing and its load of the wake reasons that the
    /// sleeper wants. The sleeper's fence is that of `BELL`: it writes its wanted reasons before that fence.
    const WANTS_FENCE: bool = true;
}

/// The orders that production uses.
#[derive(Clone, Copy, Debug)]
pub struct Sound;

impl Orders for Sound {}
