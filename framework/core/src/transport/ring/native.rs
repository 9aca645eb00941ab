//! The real memory: mapped pages, shared with another process.

#![expect(unsafe_code, reason = "the only place where the rings touch mapped memory through raw pointers")]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::copy::{copy_in, copy_out};
use super::platform::{Bytes, Platform, Word};
use crate::os::mapping::BEFORE_FENCE;

/// A handle that keeps a mapping mapped. Words and bytes hold a clone for as long as they point into it.
pub type KeepMapped = Arc<dyn Any + Send + Sync>;

/// Memory mapped into this process, and real atomics.
#[derive(Clone, Copy, Debug)]
pub struct Native;

impl Platform for Native {
    type Word = NativeWord;
    type Bytes = NativeBytes;

    #[inline]
    fn fence_seq_cst() {
        fence(Ordering::SeqCst);
    }
}

/// A word in mapped memory.
#[derive(Clone)]
pub struct NativeWord {
    at: NonNull<AtomicU64>,
    _keep: KeepMapped,
}

impl NativeWord {
    /// Makes a handle on the word at `at`, which `keep` keeps mapped. Give every word a cache line of its
    /// own.
    ///
    /// # Safety
    /// `at` is aligned to 8 and stays readable for as long as `keep` or a clone of it lives; every access to
    /// it, in any process, is atomic. If it is mapped read-only, it is passed only to the side that loads it:
    /// each constructor of a ring or doorbell says which words that side stores to.
    pub unsafe fn from_raw(at: NonNull<AtomicU64>, keep: KeepMapped) -> Self {
        NativeWord { at, _keep: keep }
    }

    /// Makes a word in this process's own memory, zero, for rings between threads.
    #[cfg(any(test, feature = "inside"))]
    pub fn in_memory() -> Self {
        let word = Arc::new(AtomicU64::new(0));
        NativeWord { at: NonNull::from(&*word), _keep: word }
    }

    #[inline]
    fn atomic(&self) -> &AtomicU64 {
        // SAFETY: `from_raw`'s caller promised an aligned, readable word that is only accessed atomically for
        // as long as `_keep` lives, and `&self` borrows `_keep`; `in_memory` points into the allocation
        // `_keep` owns.
        unsafe { self.at.as_ref() }
    }
}

impl Word for NativeWord {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        load(self.atomic(), order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.atomic().store(value, order);
    }
}

#[inline]
fn load(word: &AtomicU64, order: Ordering) -> u64 {
    if order == Ordering::Relaxed {
        return word.load(order);
    }
    // A fence after it orders at least as much as an acquire load.
    let value = word.load(BEFORE_FENCE);
    fence(order);
    value
}

/// Words side by side in mapped memory, found by index. There are many of them, and this handle takes few
/// bytes.
#[derive(Clone)]
pub struct NativeWords {
    first: NonNull<AtomicU64>,
    count: usize,
    _keep: KeepMapped,
}

impl NativeWords {
    /// Makes a handle on the `count` words from `first` on, which `keep` keeps mapped.
    ///
    /// # Safety
    /// As for [`NativeWord::from_raw`], for each of them.
    pub unsafe fn from_raw(first: NonNull<AtomicU64>, count: usize, keep: KeepMapped) -> Self {
        NativeWords { first, count, _keep: keep }
    }

    /// Makes words in this process's own memory, zero.
    #[cfg(test)]
    pub(crate) fn in_memory(count: usize) -> Self {
        let words: Arc<Vec<AtomicU64>> = Arc::new((0..count).map(|_| AtomicU64::new(0)).collect());
        NativeWords { first: NonNull::from(words.as_slice()).cast(), count, _keep: words }
    }

    #[inline]
    fn get(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: it is one of the `count` words that `from_raw`'s caller promised, or that `in_memory` has
        // allocated; they stay as long as `_keep`, which `&self` borrows.
        (index < self.count).then(|| unsafe { self.first.add(index).as_ref() })
    }

    /// Loads the word `index`; returns `None` if there are fewer words.
    #[inline]
    pub fn load(&self, index: usize, order: Ordering) -> Option<u64> {
        self.get(index).map(|word| load(word, order))
    }

    /// Stores to the word `index`, if there is one. Only the side that has it mapped writable calls this.
    #[inline]
    pub fn store(&self, index: usize, value: u64, order: Ordering) {
        if let Some(word) = self.get(index) {
            word.store(value, order);
        }
    }
}

impl fmt::Debug for NativeWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeWords({:p}, {})", self.first, self.count)
    }
}

// SAFETY: the pointees are atomics that any thread may access, and `_keep` is `Send + Sync`.
unsafe impl Send for NativeWords {}
// SAFETY: as for `Send`; `&self` gives only atomic accesses.
unsafe impl Sync for NativeWords {}

// SAFETY: the pointee is an atomic that any thread may access, and `_keep` is `Send + Sync`.
unsafe impl Send for NativeWord {}
// SAFETY: as for `Send`; `&self` gives only atomic accesses.
unsafe impl Sync for NativeWord {}

impl fmt::Debug for NativeWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeWord({:p})", self.at)
    }
}

/// The bytes of a ring in mapped memory.
pub struct NativeBytes {
    start: NonNull<u8>,
    len: usize,
    _keep: KeepMapped,
}

impl NativeBytes {
    /// Makes a handle on the `len` bytes from `start` on, which `keep` keeps mapped.
    ///
    /// # Safety
    /// - `start` is aligned to 8, and `len` bytes from there stay readable for as long as `keep` or a clone
    ///   of it lives; they are writable too if the bytes go to a producer.
    /// - In this process, they are touched only through the one producer or the one consumer made of these
    ///   bytes, or through the two ends of the same ring.
    ///
    /// The other process is *not* trusted to keep to the protocol. If it overwrites bytes that it has already
    /// published, only the contents of bytes change. Any contents are valid, and they are checked after they
    /// were copied out.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize, keep: KeepMapped) -> Self {
        debug_assert_eq!(start.align_offset(8), 0, "a ring's memory is aligned to 8");
        NativeBytes { start, len, _keep: keep }
    }

    /// Makes two views of zeroed memory of this process, for the two ends of a ring between threads.
    /// Crate-private, because they may be used only as [`from_raw`](Self::from_raw) says.
    #[cfg(any(test, feature = "inside"))]
    pub(super) fn in_memory(len: usize) -> (Self, Self) {
        let memory: Arc<[AtomicU64]> = (0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        (Self::of_words(&memory, len), Self::of_words(&memory, len))
    }

    /// Makes a view of the first `len` bytes of `memory`, under the same rule as
    /// [`in_memory`](Self::in_memory).
    #[cfg(any(test, feature = "inside"))]
    pub(super) fn of_words(memory: &Arc<[AtomicU64]>, len: usize) -> Self {
        assert!(len <= size_of_val(&**memory), "{len} bytes do not fit the memory given");
        NativeBytes { start: NonNull::from(&**memory).cast(), len, _keep: Arc::new(Arc::clone(memory)) }
    }

    /// Returns a weak handle on the memory, for tests that check whether it is gone.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn memory(&self) -> std::sync::Weak<dyn Any + Send + Sync> {
        Arc::downgrade(&self._keep)
    }

    /// Returns the address of the `count` bytes from `offset` on.
    #[inline]
    fn range(&self, offset: usize, count: usize) -> NonNull<u8> {
        assert!(
            offset <= self.len && count <= self.len - offset,
            "bytes {offset}+{count} are outside a ring of {}",
            self.len
        );
        // SAFETY: the assertion keeps `offset` within the `len` bytes that are one mapping, or one
        // allocation.
        unsafe { self.start.add(offset) }
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "offset {offset} is no multiple of 8");
        // SAFETY: `range` checked the bounds, `start` and `offset` are multiples of 8, the memory lives as
        // long as `_keep`, which `&self` borrows, and no one in this process touches it in a way the cursors
        // do not order.
        unsafe { self.range(offset, 8).cast::<AtomicU64>().as_ref() }
    }
}

impl Bytes for NativeBytes {
    #[inline]
    fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.range(offset, into.len());
        // SAFETY: `range` checked the bounds of the source, which stays mapped as long as `_keep`. The
        // cursors order this read after the writes of a producer in this process (`from_raw`) and of a peer
        // that keeps to the protocol. A peer that does not can change the bytes at the same time, which
        // `copy_out` allows. The copy is what gets checked and used, never the shared bytes.
        unsafe { copy_out(from.as_ptr(), into) }
    }

    #[inline]
    fn write(&self, offset: usize, from: &[u8]) {
        let to = self.range(offset, from.len());
        // SAFETY: `range` checked the bounds of the target, which `from_raw`'s caller promised to be writable
        // for a producer, the only caller of `write`. No one else writes there (ONE-WRITER), and the consumer
        // has given the range back, or has lied about it and then reads garbage through its own fault.
        unsafe { copy_in(from, to.as_ptr()) }
    }

    #[inline]
    fn read_word(&self, offset: usize) -> u64 {
        // Atomic so that the compiler cannot fetch twice what is checked once; the cursors give the order.
        self.word(offset).load(Ordering::Relaxed)
    }

    #[inline]
    fn write_word(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Relaxed);
    }

    #[inline]
    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: it is a view of memory that outlives it through `_keep`, which is `Send + Sync`; nothing in it
// belongs to a thread. It is not `Sync`: a ring's end is used by one thread at a time.
unsafe impl Send for NativeBytes {}

impl fmt::Debug for NativeBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NativeBytes({:p}, {} bytes)", self.start, self.len)
    }
}
