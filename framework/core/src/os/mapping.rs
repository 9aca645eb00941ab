//! A range of shared memory in this process's address space.
//!
//! Nothing hands out a `&[u8]` into it: another process may write there, and a Rust slice promises that
//! nobody does. Access is by atomic words, or by copies made of relaxed atomic words. So a peer that breaks
//! the protocol can change the bytes that are read, but can never make the reading undefined.
//!
//! The word functions come in two kinds. `word64` gives the atomic itself and only exists on a writable
//! mapping; [`watch64`](Mapping::watch64) can only load, with a relaxed load and a fence, which is the one
//! form of atomic access that Rust defines on read-only pages. Do not use 32-bit and 64-bit access on the
//! same bytes at the same time, except to sleep on half a word.

#![expect(unsafe_code, reason = "maps memory and makes references to words in it")]

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use rustix::fs::fstat;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde::{Deserialize, Serialize};

use super::fork::{self, InForks};
use super::futex::{self, Woken};

/// The ordering of a load of a peer's word before a fence that acquires. Rust guarantees only relaxed atomic
/// loads on read-only pages (it may make the others a compare-exchange). ThreadSanitizer knows no fences, so
/// under it the load acquires; on the processors that it supports, that is a plain load too.
pub(crate) const BEFORE_FENCE: Ordering =
    if cfg!(tensorpost_tsan) { Ordering::Acquire } else { Ordering::Relaxed };

/// The access that a mapping gives this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Access {
    /// Writing to it faults, on the CPU and on a GPU.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// A shared mapping of a descriptor's first bytes; unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    addr: *mut u8,
    len: usize,
    access: Access,
    /// Whether forked children see something else there.
    kept_from_forks: bool,
}

// SAFETY: only this value owns the mapping, which stays in place until it is dropped; all access to it goes
// through atomics, or through raw addresses whose users argue for themselves.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives out atomics and copies made of atomics, and `addr()` is only a number.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `fd`, shared.
    ///
    /// A descriptor from a peer must have passed [`memfd::check`](super::memfd::check): memory that can
    /// shrink kills its readers.
    ///
    /// # Errors
    /// `InvalidInput` where `len` is zero or more than the descriptor holds; otherwise the error of the
    /// kernel.
    pub fn map(fd: BorrowedFd<'_>, len: usize, access: Access) -> io::Result<Self> {
        let size = fstat(fd)?.st_size;
        if len == 0 || u64::try_from(size).unwrap_or(0) < len as u64 {
            let message = format!("cannot map {len} bytes of a descriptor that holds {size}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: the kernel picks a fresh range (null hint, no MAP_FIXED), so no existing memory is touched;
        // the pages are shared and described by nothing but this value.
        let addr = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, 0)? };
        Ok(Mapping { addr: addr.cast(), len, access, kept_from_forks: false })
    }

    /// Maps as [`map`](Self::map) does, writable, for memory that only this process writes (ONE-WRITER), and
    /// not its forked children.
    ///
    /// # Errors
    /// As for [`map`](Self::map).
    pub fn map_own(fd: BorrowedFd<'_>, len: usize, in_forks: InForks) -> io::Result<Self> {
        let mut mapping = Self::map(fd, len, Access::ReadWrite)?;
        fork::keep_from_forks(mapping.addr, len, in_forks);
        mapping.kept_from_forks = true;
        Ok(mapping)
    }

    /// Returns where it starts.
    pub fn addr(&self) -> *mut u8 {
        self.addr
    }

    /// Returns the length in bytes, as asked for.
    #[allow(clippy::len_without_is_empty, reason = "an empty mapping cannot be made")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the access that this process has.
    #[cfg_attr(not(feature = "inside"), allow(dead_code, reason = "a GPU, or tests, use it"))]
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the 64-bit word at byte `offset`; `None` where it is out of range or unaligned, or the mapping
    /// read-only.
    pub(crate) fn word64(&self, offset: usize) -> Option<&AtomicU64> {
        if self.access == Access::ReadOnly {
            return None;
        }
        let at = self.place(offset, size_of::<AtomicU64>())?;
        // SAFETY: in range, aligned and mapped writable for as long as `self` lives (checked above); any bit
        // pattern is a u64, and every other user of the word, in any process, is atomic too.
        Some(unsafe { AtomicU64::from_ptr(at.cast()) })
    }

    /// Returns the 32-bit word at byte `offset`; `None` where it is out of range or unaligned, or the mapping
    /// read-only.
    pub(crate) fn word32(&self, offset: usize) -> Option<&AtomicU32> {
        if self.access == Access::ReadOnly {
            return None;
        }
        let at = self.place(offset, size_of::<AtomicU32>())?;
        // SAFETY: as in `word64`.
        Some(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    /// Returns the 64-bit word at byte `offset`, to read only; `None` where it is out of range or unaligned.
    pub fn watch64(&self, offset: usize) -> Option<Watched64<'_>> {
        let at = self.place(offset, size_of::<AtomicU64>())?;
        // SAFETY: in range, aligned and mapped for as long as `self` lives; the wrapper only does relaxed
        // loads, which are defined on read-only pages too.
        Some(Watched64 { word: unsafe { AtomicU64::from_ptr(at.cast()) } })
    }

    /// Returns the 32-bit word at byte `offset`, to read only; `None` where it is out of range or unaligned.
    pub fn watch32(&self, offset: usize) -> Option<Watched32<'_>> {
        let at = self.place(offset, size_of::<AtomicU32>())?;
        // SAFETY: as in `watch64`.
        Some(Watched32 { word: unsafe { AtomicU32::from_ptr(at.cast()) } })
    }

    /// Copies `bytes` to byte `offset`. Not atomic as a whole: publish it with a release store of some word.
    ///
    /// # Errors
    /// `InvalidInput` where the range is not inside the mapping, `PermissionDenied` where it is read-only.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> io::Result<()> {
        if self.access == Access::ReadOnly {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the mapping is read-only"));
        }
        self.range(offset, bytes.len())?;
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let skip = at % 8;
            let take = rest.len().min(8 - skip);
            let (now, later) = rest.split_at(take);
            // SAFETY: `at` is inside the mapping, and so is its word: a mapping is made of whole pages.
            // Mapped writable (checked above) for as long as `self` lives.
            let word = unsafe { AtomicU64::from_ptr(self.addr.add(at - skip).cast()) };
            if let Ok(whole) = <[u8; 8]>::try_from(now) {
                word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
            } else {
                // A word at an edge also has bytes of others, perhaps of another thread: exchange it
                // atomically.
                let merge = |old: u64| {
                    let mut bytes = old.to_ne_bytes();
                    bytes[skip..skip + take].copy_from_slice(now);
                    Some(u64::from_ne_bytes(bytes))
                };
                let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merge);
            }
            at += take;
            rest = later;
        }
        Ok(())
    }

    /// Copies from byte `offset` into `bytes`. Not atomic as a whole: read it after an acquire load of some
    /// word.
    ///
    /// # Errors
    /// `InvalidInput` where the range is not inside the mapping.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> io::Result<()> {
        self.range(offset, bytes.len())?;
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let skip = at % 8;
            let take = rest.len().min(8 - skip);
            let (now, later) = rest.split_at_mut(take);
            // SAFETY: as in `copy_in`; only a relaxed load is made, which read-only pages allow.
            let word = unsafe { AtomicU64::from_ptr(self.addr.add(at - skip).cast()) };
            let word = word.load(Ordering::Relaxed).to_ne_bytes();
            now.copy_from_slice(&word[skip..skip + take]);
            at += take;
            rest = later;
        }
        Ok(())
    }

    fn place(&self, offset: usize, size: usize) -> Option<*mut u8> {
        let fits = offset.checked_add(size).is_some_and(|end| end <= self.len);
        // SAFETY: the offset is inside the mapping.
        (fits && offset.is_multiple_of(size)).then(|| unsafe { self.addr.add(offset) })
    }

    fn range(&self, offset: usize, len: usize) -> io::Result<()> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        let message = format!("{len} bytes at {offset} lie outside a mapping of {} bytes", self.len);
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.kept_from_forks {
            fork::forget_mapping(self.addr);
        }
        // SAFETY: the range was mapped by `map` and nothing that borrows from `self` is left. Users of the
        // raw address keep the mapping alive, by the contract of the functions that take it.
        let unmapped = unsafe { munmap(self.addr.cast::<c_void>(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail");
    }
}

/// A 64-bit word that this process reads and another may write.
#[derive(Clone, Copy, Debug)]
pub struct Watched64<'a> {
    word: &'a AtomicU64,
}

impl Watched64<'_> {
    /// Returns its value. Everything that the writer did before its release store is visible afterwards.
    #[inline]
    pub fn load(self) -> u64 {
        let value = self.word.load(BEFORE_FENCE);
        fence(Ordering::Acquire);
        value
    }

    /// Returns its value, without ordering.
    #[inline]
    pub fn load_relaxed(self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }
}

/// A 32-bit word that this process reads and another may write.
#[derive(Clone, Copy, Debug)]
pub struct Watched32<'a> {
    word: &'a AtomicU32,
}

impl Watched32<'_> {
    /// Returns its value. Everything that the writer did before its release store is visible afterwards.
    #[inline]
    #[cfg(any(test, feature = "inside"))]
    pub fn load(self) -> u32 {
        let value = self.word.load(BEFORE_FENCE);
        fence(Ordering::Acquire);
        value
    }

    /// Returns its value, without ordering.
    #[inline]
    pub fn load_relaxed(self) -> u32 {
        self.word.load(Ordering::Relaxed)
    }

    /// Sleeps while the word holds `expected`; see [`futex::wait`].
    pub fn wait(self, expected: u32, timeout: Option<Duration>) -> io::Result<Woken> {
        futex::wait(self.word, expected, timeout)
    }

    /// Wakes all threads that sleep on it, in every process; see [`futex::wake_all`]. Needs no right to
    /// write.
    pub fn wake_all(self) -> io::Result<usize> {
        futex::wake_all(self.word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::Memfd;
    use std::os::fd::AsFd;

    fn pair(len: usize) -> (Mapping, Mapping) {
        let memfd = Memfd::create("test", len as u64).unwrap();
        let writer = Mapping::map(memfd.as_fd(), len, Access::ReadWrite).unwrap();
        let reader = Mapping::map(memfd.as_fd(), len, Access::ReadOnly).unwrap();
        (writer, reader)
    }

    #[test]
    fn words_are_checked_for_range_alignment_and_access() {
        let (writer, reader) = pair(100);
        assert!(writer.word64(88).is_some() && writer.word64(96).is_none() && writer.word64(4).is_none());
        assert!(
            writer.word32(96).is_some() && writer.word32(97).is_none() && writer.word32(usize::MAX).is_none()
        );
        assert!(reader.word64(0).is_none() && reader.word32(0).is_none());
        writer.word64(8).unwrap().store(7, Ordering::Release);
        assert_eq!(reader.watch64(8).unwrap().load(), 7);
    }

    #[test]
    fn copies_keep_to_their_range() {
        let (writer, reader) = pair(100);
        for (offset, len) in [(0, 100), (1, 6), (3, 5), (7, 2), (8, 8), (5, 30), (99, 1), (100, 0)] {
            writer.copy_in(0, &[0xee; 100]).unwrap();
            let bytes: Vec<u8> = (0..len as u8).collect();
            writer.copy_in(offset, &bytes).unwrap();
            let mut seen = [0; 100];
            reader.copy_out(0, &mut seen).unwrap();
            let mut expected = [0xee; 100];
            expected[offset..offset + len].copy_from_slice(&bytes);
            assert_eq!(seen, expected, "{len} bytes at {offset}");
            let mut part = vec![0; len];
            reader.copy_out(offset, &mut part).unwrap();
            assert_eq!(part, bytes);
        }
        assert!(writer.copy_in(99, &[0; 2]).is_err());
        assert!(reader.copy_out(usize::MAX, &mut [0; 2]).is_err());
        assert_eq!(reader.copy_in(0, &[1]).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn nothing_past_the_descriptor_is_mapped() {
        let memfd = Memfd::create("test", 4096).unwrap();
        assert!(Mapping::map(memfd.as_fd(), 4097, Access::ReadOnly).is_err());
        assert!(Mapping::map(memfd.as_fd(), 0, Access::ReadOnly).is_err());
    }
}
