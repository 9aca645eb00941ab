//! Loom on the queue of a host stream, with the crate's own file. Each step is done once and in order. A
//! thread that waits for a step or for room is woken. A failure is reported once, and the thread ends with
//! the stream.

mod loom_platform;

#[allow(dead_code, reason = "as the crate has it")]
#[path = "../src/device/host/queue.rs"]
mod queue;

/// The names of the crate that this file uses.
mod sync {
    pub(crate) use std::sync::Arc;

    pub(crate) use crate::loom_platform::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, thread};
}
mod clock {
    pub(crate) struct ClockDomain;
    pub(crate) struct OwnClock;

    impl OwnClock {
        pub(crate) fn slot(&self) -> u16 {
            0
        }
    }
}
mod device {
    #[derive(Debug, PartialEq)]
    pub(crate) enum DeviceError {
        Stream { slot: u16, message: String },
        Thread,
    }

    impl DeviceError {
        pub(crate) fn os(_what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
            |_| DeviceError::Thread
        }
    }
}
mod limits {
    pub(crate) const MAX_STREAM_STEPS: usize = 1;
}
mod os {
    /// A spin of one look. (It has a field because production's does: a unit struct would be constructed
    /// another way.)
    #[derive(Default)]
    pub(crate) struct AdaptiveSpin(());

    impl AdaptiveSpin {
        pub(crate) fn until(&self, mut ready: impl FnMut() -> bool) -> bool {
            ready()
        }
    }

    pub(crate) mod vital {
        pub(crate) fn spawn(
            _name: &str,
            run: impl FnOnce() + 'static,
        ) -> std::io::Result<loom::thread::JoinHandle<()>> {
            Ok(loom::thread::spawn(run))
        }
    }
}
mod work {
    use tensorpost_core::transport::ring::Bytes as _;

    use crate::clock::{ClockDomain, OwnClock};
    use crate::loom_platform::LoomBytes;
    use crate::loom_platform::sync::AtomicU64;

    /// Appends its number to those before it, and fails with it if `fails` is set.
    pub(crate) struct Work {
        pub(crate) number: u64,
        pub(crate) done: LoomBytes,
        pub(crate) fails: bool,
    }

    impl Work {
        pub(crate) fn perform(self, _: &OwnClock, _: &ClockDomain, _: &AtomicU64) -> Result<(), String> {
            // Each step is a decimal digit, so the number shows their order.
            self.done.write_word(0, 10 * self.done.read_word(0) + self.number);
            if self.fails { Err(format!("step {}", self.number)) } else { Ok(()) }
        }
    }
}

use std::sync::Arc;

use clock::{ClockDomain, OwnClock};
use device::DeviceError;
use loom::thread;
use loom_platform::sync::{Weaker, weaken};
use loom_platform::{LoomBytes, explore, failure_of};
use queue::Queue;
use tensorpost_core::transport::ring::Bytes as _;
use work::Work;

/// Limit of switches away from a runnable thread.
const PREEMPTIONS: Option<usize> = Some(2);

fn stream() -> (Arc<Queue>, LoomBytes) {
    (Queue::new(OwnClock, Arc::new(ClockDomain)), LoomBytes::zeroed(8))
}

fn step(number: u64, done: &LoomBytes) -> Work {
    Work { number, done: done.clone(), fails: false }
}

/// Two threads submit steps. One of them waits for its step, and both may have to wait for room.
fn submitters(weaker: Weaker) {
    weaken(weaker);
    let (queue, done) = stream();
    let other = {
        let (queue, done) = (Arc::clone(&queue), done.clone());
        thread::spawn(move || {
            let mut state = queue.enter_with_room().expect("nothing has failed");
            queue.push(&mut state, [step(1, &done)]).expect("a thread");
        })
    };
    let state = queue.enter_with_room().expect("nothing has failed");
    queue.finish(state, Some(step(2, &done))).expect("nothing has failed");
    // All bytes that the step has written are visible.
    let seen = done.clone();
    other.join().expect("it submits");
    let state = queue.enter().expect("nothing has failed");
    queue.finish(state, None).expect("nothing has failed");
    assert!([12, 21].contains(&seen.read_word(0)), "each once, in some order: {}", seen.read_word(0));
    queue.close();
}

/// Two threads wait for the steps that they have submitted.
fn waiters(weaker: Weaker) {
    weaken(weaker);
    let (queue, done) = stream();
    let other = {
        let (queue, done) = (Arc::clone(&queue), done.clone());
        thread::spawn(move || {
            let state = queue.enter().expect("nothing has failed");
            queue.finish(state, Some(step(1, &done))).expect("nothing has failed");
        })
    };
    let state = queue.enter().expect("nothing has failed");
    queue.finish(state, Some(step(2, &done))).expect("nothing has failed");
    other.join().expect("its step is done");
    queue.close();
}

/// A step fails while another thread submits a step behind it.
fn failure() {
    let (queue, done) = stream();
    let ordering = {
        let (queue, done) = (Arc::clone(&queue), done.clone());
        thread::spawn(move || {
            let mut state = queue.enter_in_order();
            queue.push(&mut state, [step(2, &done)]).expect("a thread");
        })
    };
    let mut state = queue.enter_in_order();
    queue.push(&mut state, [Work { fails: true, ..step(1, &done) }]).expect("a thread");
    drop(state);
    ordering.join().expect("what only orders is never refused");
    let mut told = 0;
    for _ in 0..3 {
        let outcome = queue.enter().and_then(|state| queue.finish(state, None));
        let failed = DeviceError::Stream { slot: 0, message: "step 1".to_owned() };
        told += usize::from(outcome == Err(failed));
    }
    assert_eq!(told, 1, "a failure is told once");
    assert!([12, 21].contains(&done.read_word(0)), "and the other step is done all the same");
    queue.close();
}

fn assert_deadlock(failure: &str) {
    assert!(failure.contains("deadlock"), "another failure: {failure}");
}

#[test]
fn steps_are_done_once_and_those_who_wait_are_woken() {
    explore(PREEMPTIONS, || submitters(Weaker::Nothing));
}

#[test]
fn all_who_wait_for_steps_are_woken() {
    explore(PREEMPTIONS, || waiters(Weaker::Nothing));
}

#[test]
fn all_who_wait_have_to_be_woken() {
    assert_deadlock(&failure_of(PREEMPTIONS, || waiters(Weaker::NotifyAll)));
}

#[test]
fn a_failure_is_told_once_and_loses_no_order() {
    explore(PREEMPTIONS, failure);
}

#[test]
fn the_thread_has_to_be_woken_for_a_step_and_for_the_end() {
    assert_deadlock(&failure_of(PREEMPTIONS, || submitters(Weaker::Notify)));
}
