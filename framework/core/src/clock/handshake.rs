//! Sleeping on a clock without missing its advance, and advancing it without a system call while nobody
//! sleeps.
//!
//! | sleeper | advancer |
//! |---|---|
//! | count itself | store the clock (release) |
//! | fence (SeqCst) | fence (SeqCst) |
//! | look at the clock | look at the counts |
//! | sleep while the clock is as seen | wake, if one is not zero |
//!
//! One of the two fences comes first in the single order of such fences. So either the sleeper's look at the
//! clock comes after the advancer's store, or the advancer's look at the counts comes after the sleeper
//! counted itself. The kernel compares the clock with the value that was seen in the same step in which it
//! puts the sleeper to sleep, so a wake between look and sleep is not lost. The model in the tests tries the
//! interleavings of this very code; without either fence it deadlocks.

/// The advancer's side of one clock.
pub(super) trait Advancer {
    type Error;
    /// Stores the clock, with release ordering.
    fn store(&self, value: u64) -> Result<(), Self::Error>;
    /// Makes a sequentially consistent fence.
    fn fence(&self);
    /// Returns whether any process counts a sleeper on a clock of this process.
    fn somebody_sleeps(&self) -> bool;
    /// Wakes all threads that sleep on the clock.
    fn wake(&self) -> Result<(), Self::Error>;
}

/// A sleeper's side of one clock.
pub(super) trait Sleeper {
    type End;
    /// Counts this thread as a sleeper, or no longer.
    fn count(&self, up: bool);
    /// Makes a sequentially consistent fence.
    fn fence(&self);
    /// Returns the clock, with acquire ordering, or, as the error, the end of the wait where the value is
    /// reached.
    fn look(&self) -> Result<u64, Self::End>;
    /// Sleeps while the clock is `seen`, for a limited time. The error is the end of the wait where it is
    /// given up.
    fn sleep(&self, seen: u64) -> Result<(), Self::End>;
}

/// Advances a clock.
#[inline]
pub(super) fn advance<A: Advancer>(clock: &A, value: u64) -> Result<(), A::Error> {
    clock.store(value)?;
    clock.fence(); // SLEEP-HANDSHAKE: pairs with the fence in `wait`
    if clock.somebody_sleeps() { clock.wake() } else { Ok(()) }
}

/// Sleeps until the wait ends, one way or another.
pub(super) fn wait<S: Sleeper>(clock: &S) -> S::End {
    clock.count(true);
    clock.fence(); // SLEEP-HANDSHAKE: pairs with the fence in `advance`
    let end = loop {
        let step = clock.look().and_then(|seen| clock.sleep(seen));
        if let Err(end) = step {
            break end;
        }
    };
    clock.count(false);
    end
}

#[cfg(test)]
mod model {
    use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;
    use crate::clock::passed;

    /// One clock and one count. A lock stands for the kernel: under it the model compares, sleeps and wakes.
    /// There is no second look after a time, so a lost wake-up is a deadlock, which loom reports.
    struct Model {
        clock: AtomicU64,
        count: AtomicU32,
        kernel: Mutex<()>,
        sleepers: Condvar,
        goal: u64,
    }

    impl Advancer for Model {
        type Error = ();
        fn store(&self, value: u64) -> Result<(), ()> {
            self.clock.store(value, Ordering::Release);
            Ok(())
        }
        fn fence(&self) {
            fence(Ordering::SeqCst);
        }
        fn somebody_sleeps(&self) -> bool {
            self.count.load(Ordering::Relaxed) != 0
        }
        fn wake(&self) -> Result<(), ()> {
            let _kernel = self.kernel.lock().unwrap();
            self.sleepers.notify_all();
            Ok(())
        }
    }

    impl Sleeper for Model {
        type End = u64;
        fn count(&self, up: bool) {
            if up {
                self.count.fetch_add(1, Ordering::Relaxed);
            } else {
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
        fn fence(&self) {
            fence(Ordering::SeqCst);
        }
        fn look(&self) -> Result<u64, u64> {
            let seen = self.clock.load(Ordering::Acquire);
            if passed(seen, self.goal) { Err(seen) } else { Ok(seen) }
        }
        fn sleep(&self, seen: u64) -> Result<(), u64> {
            let kernel = self.kernel.lock().unwrap();
            // The kernel's own lock orders its compare with the wake of the store that the compare must see.
            if self.clock.load(Ordering::Acquire) == seen {
                drop(self.sleepers.wait(kernel).unwrap());
            }
            Ok(())
        }
    }

    fn model(advances: u64, waiters: usize, preemptions: Option<usize>) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.check(move || {
            let model = Arc::new(Model {
                clock: AtomicU64::new(0),
                count: AtomicU32::new(0),
                kernel: Mutex::new(()),
                sleepers: Condvar::new(),
                goal: advances,
            });
            let threads: Vec<_> = (0..waiters)
                .map(|_| {
                    let model = Arc::clone(&model);
                    thread::spawn(move || wait(&*model))
                })
                .collect();
            for value in 1..=advances {
                advance(&*model, value).unwrap();
            }
            for thread in threads {
                assert_eq!(thread.join().unwrap(), advances);
            }
            assert_eq!(model.count.load(Ordering::Relaxed), 0);
        });
    }

    #[test]
    fn no_wake_up_is_lost_by_one_sleeper() {
        model(2, 1, None);
    }

    #[test]
    fn no_wake_up_is_lost_by_two_sleepers() {
        // Bound the preemptions, or the model takes minutes.
        model(1, 2, Some(2));
    }
}
