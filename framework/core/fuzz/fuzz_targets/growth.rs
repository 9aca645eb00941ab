//! Counts the bytes of the heap, so that a target can hold its input to what it may make grow (MBX-2).

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract; it came from `alloc` above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Runs `input` and panics where it had more than `most` bytes at a time, or leaves more than `left` behind.
pub fn bounded(most: usize, left: usize, input: impl FnOnce()) {
    let before = NOW.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    input();
    let grown = MOST.load(Ordering::Relaxed).saturating_sub(before);
    assert!(grown <= most, "{grown} bytes at a time, and {most} are allowed");
    let kept = NOW.load(Ordering::Relaxed).saturating_sub(before);
    assert!(kept <= left, "{kept} bytes were left behind, and {left} are allowed");
}
