//! Sleeping on a word of shared memory.
//!
//! The futexes are shared, not process-private: the kernel names the word by the memory behind it, so a
//! sleeper and a waker may have it mapped at different addresses, and the sleeper may have it mapped
//! read-only.

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{Flags, Timespec};

/// The reason why a sleep ended. None of these says that the word changed: read it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::enum_variant_names, reason = "the others are not wakes")]
pub enum Woken {
    /// A thread called [`wake_all`], or a signal came.
    Woken,
    /// The word did not hold the expected value, so there was no sleep.
    Changed,
    /// The timeout has passed.
    TimedOut,
}

/// Sleeps while `word` holds `expected`, until woken or until `timeout` has passed (`None`: no limit).
///
/// The kernel compares and goes to sleep in one step, so a store and a wake that come after the caller read
/// the word are not missed. It only reads the word.
///
/// # Errors
/// The kernel's error about an address that it cannot read. A timeout is no error.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> io::Result<Woken> {
    // A timeout too long for the kernel's type is as good as no limit.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match rustix::thread::futex::wait(word, Flags::empty(), expected, timeout.as_ref()) {
        Ok(()) | Err(Errno::INTR) => Ok(Woken::Woken),
        Err(Errno::AGAIN) => Ok(Woken::Changed),
        Err(Errno::TIMEDOUT) => Ok(Woken::TimedOut),
        Err(error) => Err(error.into()),
    }
}

/// Wakes all threads that sleep on `word`, in every process, and returns how many. It uses the address only
/// and never touches the word.
pub fn wake_all(word: &AtomicU32) -> io::Result<usize> {
    Ok(rustix::thread::futex::wake(word, Flags::empty(), i32::MAX as u32)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{Access, Mapping, Memfd};
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_sleeper_on_a_read_only_mapping_is_woken_through_another() {
        let memfd = Memfd::create("test", 4096).unwrap();
        let writer = Mapping::map(memfd.as_fd(), 4096, Access::ReadWrite).unwrap();
        memfd.seal_future_write().unwrap();
        let fd = memfd.read_only_fd().unwrap();
        // Nobody has touched this page yet: sleeping on it must work too.
        let reader = Mapping::map(fd.as_fd(), 4096, Access::ReadOnly).unwrap();
        let word = writer.word32(64).unwrap();
        std::thread::scope(|scope| {
            let sleeper =
                scope.spawn(|| reader.watch32(64).unwrap().wait(0, Some(Duration::from_secs(20))).unwrap());
            // The number of woken threads shows that the sleeper was really asleep, without a guess at how
            // long that takes.
            while wake_all(word).unwrap() == 0 {
                std::thread::yield_now();
            }
            assert_eq!(sleeper.join().unwrap(), Woken::Woken);
        });
        word.store(1, Ordering::Release);
        assert_eq!(reader.watch32(64).unwrap().wait(0, None).unwrap(), Woken::Changed);
        let short = Some(Duration::from_millis(1));
        assert_eq!(reader.watch32(64).unwrap().wait(1, short).unwrap(), Woken::TimedOut);
        // A read-only mapping can wake as well.
        assert_eq!(reader.watch32(64).unwrap().wake_all().unwrap(), 0);
    }
}
