//! A thread that waits for messages of peers, and reads for the process in the meantime if there are spare
//! cores ([`Role`](super::role::Role)).
//!
//! It is for threads of other languages, because Rust's actors run on the reader's own thread. Such a thread
//! also takes messages for others, and wakes them, as the reader does.
//!
//! **Invariants.** Those of the [reader](super::reader).
//!
//! **Locks.** None across a poll, and no poll under a lock of the caller, because a message may wake any
//! task.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Transport;
use super::role::{Reads, Wants};
use crate::os::vital;

/// See the module. The role goes back when this drops.
pub struct Helper<'a> {
    transport: &'a Arc<Transport>,
    reads: Option<Reads<'a>>,
    _wants: Wants<'a>,
}

impl Transport {
    /// Makes this thread read, from the first [poll](Helper::read) at which the reader lends the role, until
    /// the returned value drops.
    pub fn help_to_read(self: &Arc<Self>) -> Helper<'_> {
        Helper { transport: self, reads: None, _wants: self.role.want() }
    }
}

impl Helper<'_> {
    /// Polls the links once, if no other thread does.
    pub fn read(&mut self) {
        if self.transport.lifecycle.is_stopped() {
            self.reads = None;
            return;
        }
        if self.reads.is_none() {
            self.reads = self.transport.role.take();
        }
        let Some(reads) = &mut self.reads else { return };
        let poll = || reads.poll(self.transport, false);
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(any) => reads.found |= any,
            Err(panic) => {
                let why =
                    format!("a thread that read for it panicked: {}", vital::panic_text(panic.as_ref()));
                if vital::fail(&why) {
                    vital::await_end();
                }
                tracing::error!("{why}");
                std::process::abort();
            }
        }
    }
}

impl std::fmt::Debug for Helper<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Helper").field("reads", &self.reads.is_some()).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use serde::{Deserialize, Serialize};
    use tensorpost_derive::GpuMessage;

    use super::*;
    use crate::testing::Cluster;

    const SENDERS: usize = 3;
    const MANY: u32 = 8_000;

    #[derive(Debug, Serialize, Deserialize, GpuMessage)]
    #[gpu_message(crate = crate)]
    struct Numbered {
        sender: usize,
        number: u32,
    }

    /// Runs the reader, which sleeps now and then, and two threads that take the role from it and from each
    /// other.
    #[test]
    fn what_one_sends_stays_in_order_whoever_reads() {
        let cluster = Cluster::new(SENDERS + 1);
        let receiver = cluster.transport(SENDERS);
        let (to, inbox) = cluster.inbox::<Numbered>(SENDERS, 64);
        cluster.connect();
        let (done, by_helpers) = (AtomicBool::new(false), AtomicUsize::new(0));
        let read = &|i: usize| block_on(async { tokio::spawn(Arc::clone(cluster.transport(i)).run()).await });
        let help = &|seed: u32| {
            let mut dice = seed;
            while !done.load(Ordering::Relaxed) {
                dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let before = receiver.stats().received;
                let mut helper = receiver.help_to_read();
                (0..dice >> 24).for_each(|_| helper.read());
                if helper.reads.is_some() && receiver.stats().received > before {
                    by_helpers.fetch_add(1, Ordering::Relaxed);
                }
                drop(helper);
                // Pauses long enough that the reader sleeps at times.
                if dice.is_multiple_of(64) {
                    std::thread::yield_now();
                }
            }
        };
        let send = &|sender: usize| {
            let address = cluster.address(sender, &to).with_key(to.key);
            for number in 0..MANY {
                let sent = block_on(address.send(Numbered { sender, number }));
                assert!(sent.is_ok(), "{sent:?}");
            }
        };
        std::thread::scope(|threads| {
            let readers: Vec<_> = (0..=SENDERS).map(|i| threads.spawn(move || read(i))).collect();
            let helpers = [1, 2].map(|seed| threads.spawn(move || help(seed)));
            (0..SENDERS).for_each(|sender| drop(threads.spawn(move || send(sender))));
            let until = Instant::now() + Duration::from_secs(120);
            let mut next = [0; SENDERS];
            while next != [MANY; SENDERS] && Instant::now() < until {
                for received in inbox.take() {
                    let Numbered { sender, number } = received.message;
                    assert_eq!(number, next[sender], "out of order");
                    next[sender] += 1;
                }
                std::hint::spin_loop();
            }
            done.store(true, Ordering::Relaxed);
            (0..=SENDERS).for_each(|i| cluster.transport(i).stop());
            assert_eq!(next, [MANY; SENDERS], "messages are missing");
            for helper in helpers {
                helper.join().expect("it does not panic");
            }
            for reader in readers {
                let read = reader.join().expect("it does not panic");
                read.expect("the task does not panic").expect("it reads");
            }
        });
        assert!(by_helpers.load(Ordering::Relaxed) > 0, "nobody has helped");
        assert!(receiver.role.take().is_some(), "it is nobody's");
        // The count that only one reader at a time may write is right.
        assert_eq!(receiver.actors.open(), 0);
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(future)
    }
}
