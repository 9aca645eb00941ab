//! Sends words from one process to another through memory that both map, without a system call: the receiver
//! polls.

#![expect(unsafe_code, reason = "maps memory, and looks at it as atomics")]

use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Bytes of the memory: a ring each way.
pub(super) const BYTES: usize = 2 * RING;
const RING: usize = 32 << 10;
/// Words of a ring.
const SLOTS: u64 = 1024;
/// The distance in words between two words that different processes write.
const APART: usize = 16;
/// The index of the first word: before it are the number of words sent and the number taken.
const FIRST: usize = 2 * APART;

/// Longest time that one word may take.
const WAIT_FOR_WORD: Duration = Duration::from_secs(20);

const _: () = assert!((FIRST + SLOTS as usize) * 8 <= RING);

/// One process's ends of the two rings.
pub(super) struct Rings {
    base: *const AtomicU64,
    /// The ring on which this one sends: 0 or 1.
    out: usize,
    sent: u64,
    /// The other one's progress when this one looked last.
    taken_of_sent: u64,
    taken: u64,
}

/// Calls `look` until it returns something, but not for ever.
pub(super) fn spin<T>(mut look: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let mut until = None;
    loop {
        for _ in 0..1 << 16 {
            if let Some(found) = look() {
                return Ok(found);
            }
            std::hint::spin_loop();
        }
        let until = *until.get_or_insert_with(|| Instant::now() + WAIT_FOR_WORD);
        anyhow::ensure!(Instant::now() < until, "the other side has not answered for {WAIT_FOR_WORD:?}");
    }
}

impl Rings {
    /// Maps the rings in a memfd of [`BYTES`] zeros.
    pub(super) fn map(memory: &OwnedFd, is_near: bool) -> anyhow::Result<Self> {
        // SAFETY: a new mapping at a place of the kernel's choice, never unmapped.
        let base = unsafe {
            mmap(null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, memory, 0)?
        };
        let out = usize::from(!is_near);
        Ok(Rings { base: base.cast(), out, sent: 0, taken_of_sent: 0, taken: 0 })
    }

    fn word(&self, ring: usize, index: usize) -> &AtomicU64 {
        // SAFETY: inside of the mapping, by the assertion above; both processes use its words as atomics.
        unsafe { &*self.base.add(ring * RING / 8 + index) }
    }

    fn slot(&self, ring: usize, number: u64) -> &AtomicU64 {
        self.word(ring, FIRST + (number % SLOTS) as usize)
    }

    pub(super) fn send(&mut self, word: u64) -> anyhow::Result<()> {
        if self.sent - self.taken_of_sent == SLOTS {
            self.taken_of_sent = spin(|| {
                let taken = self.word(self.out, APART).load(Ordering::Acquire);
                (self.sent - taken < SLOTS).then_some(taken)
            })?;
        }
        self.slot(self.out, self.sent).store(word, Ordering::Relaxed);
        self.sent += 1;
        self.word(self.out, 0).store(self.sent, Ordering::Release);
        Ok(())
    }

    pub(super) fn take(&mut self) -> anyhow::Result<u64> {
        let ring = 1 - self.out;
        spin(|| (self.word(ring, 0).load(Ordering::Acquire) > self.taken).then_some(()))?;
        let word = self.slot(ring, self.taken).load(Ordering::Relaxed);
        self.taken += 1;
        self.word(ring, APART).store(self.taken, Ordering::Release);
        Ok(word)
    }
}
