//! Before a process ends, it sends the replies that have found no room, or whose link was not open yet: the
//! asks were handled, and their callers must get the answers.
//!
//! The reader sends such replies, and checks after each poll whether all have gone. The check costs nothing
//! while nobody waits.
//!
//! **Locks.** That of the waker, and no other lock inside it. **On a crash** of a peer the replies to it no
//! longer count. **On cancellation** the replies stay where they are.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;

use super::links::Links;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LastReplies {
    waker: Mutex<Option<Waker>>,
    /// Whether there is one.
    waits: AtomicBool,
}

impl LastReplies {
    /// Resolves when no reply waits to be sent to a live peer. It is called on the reader's thread, which
    /// keeps reading, when no actor is left; one caller at a time. A peer that does not read makes it wait
    /// for ever.
    pub(crate) async fn are_sent(&self, links: &Links) {
        poll_fn(|context| {
            *self.waker.lock() = Some(context.waker().clone());
            self.waits.store(true, Ordering::Relaxed);
            if are_left(links) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Wakes the waiting caller if no reply is left; called after each poll of the links.
    pub(super) fn check(&self, links: &Links) {
        if self.waits.load(Ordering::Relaxed) && !are_left(links) {
            self.waits.store(false, Ordering::Relaxed);
            let waker = self.waker.lock().take();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

fn are_left(links: &Links) -> bool {
    links.all().iter().any(|link| link.has_backlog() && !link.is_past())
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    use futures_util::task::noop_waker_ref;

    use crate::testing::Cluster;

    #[test]
    fn a_reply_that_found_no_room_is_waited_for_and_one_to_the_dead_is_not() {
        for ends in [false, true] {
            let cluster = Cluster::new(2);
            let (to, inbox) = cluster.inbox::<u32>(1, 64);
            cluster.connect();
            let asked: Vec<_> = (0..64).map(|n| cluster.ask::<u32, Vec<u8>>(0, &to, n)).collect();
            cluster.poll(1);
            for received in inbox.take() {
                received.receipt.reply(vec![7_u8; 32 << 10]);
            }
            let transport = cluster.transport(1);
            let mut waiting = pin!(transport.last_replies.are_sent(&transport.links));
            let mut context = Context::from_waker(noop_waker_ref());
            assert!(waiting.as_mut().poll(&mut context).is_pending(), "its ring has room for half of them");
            cluster.poll(1);
            assert!(waiting.as_mut().poll(&mut context).is_pending());
            if ends {
                cluster.end(0);
            }
            cluster.run_until_idle();
            assert!(waiting.as_mut().poll(&mut context).is_ready());
            assert!(ends || asked.iter().all(|asked| matches!(asked.take(), Some(Ok(_)))));
        }
    }
}
