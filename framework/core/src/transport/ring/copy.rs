//! Copies between this process's memory and memory that another process may write, or read, at the same time.
//!
//! A plain copy promises the compiler that nobody else writes there, but a peer that breaks the protocol
//! does. So on x86-64 the copies are inline assembly, which the compiler cannot look into and bases no
//! assumption on. Elsewhere, and under Miri and ThreadSanitizer, which do not know assembly, they are relaxed
//! atomic accesses. Data that a peer writes during the copy can be torn, but the behaviour is defined, and
//! the data is checked in the copy.
//!
//! Only [`native`](super::native) uses it.

#![expect(unsafe_code, reason = "copies by address from and to mapped memory")]

/// Copies out of memory that others may write at the same time.
///
/// # Safety
/// `into.len()` bytes from `from` on are mapped readable. In this process no thread writes them at the same
/// time, except by [`copy_in`] or atomically. Other processes may do anything.
#[inline]
pub(super) unsafe fn copy_out(from: *const u8, into: &mut [u8]) {
    // SAFETY: the caller's promise for the source; the target is a slice of this process's own.
    unsafe { by::copy_out(from, into) };
}

/// Copies into memory that others may read at the same time.
///
/// # Safety
/// `from.len()` bytes from `to` on are mapped writable. In this process no thread accesses them at the same
/// time, except by [`copy_out`] or atomically. Other processes may do anything.
#[inline]
pub(super) unsafe fn copy_in(from: &[u8], to: *mut u8) {
    // SAFETY: the caller's promise for the target; the source is a slice of this process's own.
    unsafe { by::copy_in(from, to) };
}

#[cfg(all(target_arch = "x86_64", not(miri), not(tensorpost_tsan)))]
use instructions as by;
#[cfg(not(all(target_arch = "x86_64", not(miri), not(tensorpost_tsan))))]
use words as by;

/// Copies by inline assembly, of which the compiler knows only that it may read and write any memory.
#[cfg(all(target_arch = "x86_64", not(miri), not(tensorpost_tsan)))]
mod instructions {
    use std::arch::asm;

    /// From this many bytes on, one instruction for all of them is the fastest.
    const MANY: usize = 2048;

    /// # Safety
    /// As for [`copy`].
    #[inline]
    pub(super) unsafe fn copy_out(from: *const u8, into: &mut [u8]) {
        // SAFETY: the caller's promise.
        unsafe { copy(from, into.as_mut_ptr(), into.len()) };
    }

    /// # Safety
    /// As for [`copy`].
    #[inline]
    pub(super) unsafe fn copy_in(from: &[u8], to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { copy(from.as_ptr(), to, from.len()) };
    }

    /// # Safety
    /// `count` bytes are readable at `from` and writable at `to`, and do not overlap.
    #[inline]
    unsafe fn copy(mut from: *const u8, mut to: *mut u8, mut count: usize) {
        if count >= MANY {
            // SAFETY: the caller's promise; the direction flag is clear by the ABI, and nothing changes but
            // the three registers and the bytes at `to`.
            unsafe {
                asm!("rep movsb", inout("rcx") count => _, inout("rsi") from => _, inout("rdi") to => _,
                    options(nostack, preserves_flags));
            }
            return;
        }
        macro_rules! step {
            ($bytes:literal, [$($instruction:literal),+], [$($registers:tt)*]) => {{
                // SAFETY: at least this many bytes are left in both ranges; all these instructions take any
                // alignment, and the operands declare everything that they change.
                unsafe {
                    asm!($($instruction),+, from = in(reg) from, to = in(reg) to, $($registers)*
                        options(nostack, preserves_flags));
                    (from, to, count) = (from.add($bytes), to.add($bytes), count - $bytes);
                }
            }};
        }
        while count >= 64 {
            step!(64, [
                "movdqu {a}, [{from}]", "movdqu {b}, [{from} + 16]", "movdqu {c}, [{from} + 32]", "movdqu {d}, [{from} + 48]",
                "movdqu [{to}], {a}", "movdqu [{to} + 16], {b}", "movdqu [{to} + 32], {c}", "movdqu [{to} + 48], {d}"
            ], [a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,]);
        }
        while count >= 16 {
            step!(16, ["movdqu {a}, [{from}]", "movdqu [{to}], {a}"], [a = out(xmm_reg) _,]);
        }
        if count >= 8 {
            step!(8, ["mov {a}, [{from}]", "mov [{to}], {a}"], [a = out(reg) _,]);
        }
        if count >= 4 {
            step!(4, ["mov {a:e}, [{from}]", "mov [{to}], {a:e}"], [a = out(reg) _,]);
        }
        while count > 0 {
            step!(1, ["mov {a}, [{from}]", "mov [{to}], {a}"], [a = out(reg_byte) _,]);
        }
        let _ = (from, to);
    }
}

/// Copies by relaxed atomic words, and by bytes at the edges.
#[cfg(any(test, not(all(target_arch = "x86_64", not(miri), not(tensorpost_tsan)))))]
mod words {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

    /// Returns how many bytes come before the first whole word of shared memory, and how many words there
    /// are.
    fn split(at: *const u8, count: usize) -> (usize, usize) {
        let before = at.align_offset(size_of::<u64>()).min(count);
        (before, (count - before) / size_of::<u64>())
    }

    /// # Safety
    /// As for [`copy_out`](super::copy_out).
    pub(super) unsafe fn copy_out(from: *const u8, into: &mut [u8]) {
        let (before, words) = split(from, into.len());
        let (first, rest) = into.split_at_mut(before);
        let (middle, last) = rest.split_at_mut(8 * words);
        let byte = |at: usize| {
            // SAFETY: it is one of the bytes that the caller promised. Only a relaxed load is made, which
            // read-only pages allow.
            unsafe { AtomicU8::from_ptr(from.add(at).cast_mut()) }.load(Ordering::Relaxed)
        };
        first.iter_mut().enumerate().for_each(|(at, into)| *into = byte(at));
        for (word, into) in middle.chunks_exact_mut(8).enumerate() {
            // SAFETY: as above, and it is aligned: `before` bytes lie before the first word.
            let word = unsafe { AtomicU64::from_ptr(from.add(before + 8 * word).cast_mut().cast()) };
            into.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        last.iter_mut().enumerate().for_each(|(at, into)| *into = byte(before + 8 * words + at));
    }

    /// # Safety
    /// As for [`copy_in`](super::copy_in).
    pub(super) unsafe fn copy_in(from: &[u8], to: *mut u8) {
        let (before, words) = split(to, from.len());
        let (first, rest) = from.split_at(before);
        let (middle, last) = rest.split_at(8 * words);
        let byte = |at: usize, value| {
            // SAFETY: it is one of the bytes that the caller promised.
            unsafe { AtomicU8::from_ptr(to.add(at)) }.store(value, Ordering::Relaxed);
        };
        first.iter().enumerate().for_each(|(at, value)| byte(at, *value));
        for (word, from) in middle.as_chunks().0.iter().enumerate() {
            // SAFETY: as above, and it is aligned: `before` bytes lie before the first word.
            let word = unsafe { AtomicU64::from_ptr(to.add(before + 8 * word).cast()) };
            word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
        last.iter().enumerate().for_each(|(at, value)| byte(before + 8 * words + at, *value));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Every alignment, and lengths around each step: the bytes, and nothing beside them.
    #[test]
    fn copies_keep_to_their_range() {
        const MOST: usize = 2064;
        type Out = unsafe fn(*const u8, &mut [u8]);
        type In = unsafe fn(&[u8], *mut u8);
        let ways: [(Out, In); 2] = [(copy_out, copy_in), (words::copy_out, words::copy_in)];
        for (copy_out, copy_in) in ways {
            let lengths = (0..140).step_by(if cfg!(miri) { 13 } else { 1 }).chain([2047, 2048, 2049]);
            for (length, offset) in lengths.flat_map(|length| (0..9).map(move |offset| (length, offset))) {
                let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + 1) as u8).collect();
                let mut shared = vec![0x11_u64; MOST / 8];
                // SAFETY: all lie in `shared`, which no other thread has.
                unsafe { copy_in(&bytes, shared.as_mut_ptr().cast::<u8>().add(offset)) };
                let mut expected = vec![0x11_u64; MOST / 8];
                bytemuck::cast_slice_mut::<u64, u8>(&mut expected)[offset..offset + length]
                    .copy_from_slice(&bytes);
                assert_eq!(shared, expected, "{length} bytes at {offset}");
                let mut copy = vec![0x55; length + 1];
                // SAFETY: as above.
                unsafe { copy_out(shared.as_mut_ptr().cast::<u8>().add(offset), &mut copy[..length]) };
                assert_eq!(
                    (&copy[..length], copy[length]),
                    (&bytes[..], 0x55),
                    "{length} bytes from {offset}"
                );
            }
        }
    }

    /// A writer that ignores the protocol leaves some mixture of its bytes, and no race under Miri and
    /// ThreadSanitizer.
    #[test]
    fn who_writes_meanwhile_changes_bytes_and_nothing_else() {
        let shared: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
        let start = || shared.as_ptr().cast::<u8>().cast_mut().wrapping_add(3);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 0..200 {
                    // SAFETY: the words are in `shared`, and every access to them is by these functions.
                    unsafe { copy_in(&[round; 250], start()) };
                }
            });
            let mut bytes = [0; 250];
            while !writer.is_finished() {
                // SAFETY: as above.
                unsafe { copy_out(start(), &mut bytes) };
                assert!(bytes.iter().all(|byte| *byte < 200));
            }
        });
    }
}
