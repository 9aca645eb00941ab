//! Fences: the node asks this process to report when everything that others had sent to it by now was
//! delivered.
//!
//! The node uses a fence before it sends a message that must not overtake the last messages of a process that
//! has ended, which this one reads over another link. The reader checks fences after each poll; without a
//! fence that costs nothing.
//!
//! **Locks.** One, and inside it the links' `inbound`, which the reader does not hold when it calls this.
//!
//! **On a crash** of a peer this process reads everything that it had posted. **On cancellation** the answer
//! finds no waiter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::link::Link;
use super::links::Links;
use crate::transport::control_channel::{ControlChannel, ToNode};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Fences {
    waiting: Mutex<Vec<Fence>>,
    /// Whether there are any.
    any: AtomicBool,
}

#[derive(Debug)]
struct Fence {
    ticket: u64,
    /// The links on which something is unread, and the position up to which it has to be taken.
    unread: Vec<(Arc<Link>, u64)>,
}

impl Fence {
    fn is_open(&mut self) -> bool {
        // Nothing is taken any more from a peer that was given up.
        self.unread.retain(|(link, end)| !link.is_broken() && !link.has_taken(*end));
        self.unread.is_empty()
    }
}

impl Fences {
    /// Answers when everything that others have sent to this process by now was delivered.
    pub(super) fn begin(&self, ticket: u64, links: &Links, control: &dyn ControlChannel) {
        let links = links.all();
        let unread = links.iter().map(|link| (Arc::clone(link), link.sent_by_now())).collect();
        let mut fence = Fence { ticket, unread };
        let mut waiting = self.waiting.lock();
        // MBX-2: the node bounds how many fences it has waiting.
        if fence.is_open() {
            drop(waiting);
            return answer(ticket, control);
        }
        waiting.push(fence);
        self.any.store(true, Ordering::Release);
    }

    /// Answers the fences that are open; called after each poll of the links.
    pub(super) fn check(&self, control: &dyn ControlChannel) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut waiting = self.waiting.lock();
        let open: Vec<_> = waiting.extract_if(.., Fence::is_open).map(|fence| fence.ticket).collect();
        self.any.store(!waiting.is_empty(), Ordering::Release);
        drop(waiting);
        open.into_iter().for_each(|ticket| answer(ticket, control));
    }
}

fn answer(ticket: u64, control: &dyn ControlChannel) {
    // An error means that the node has ended, and nobody waits for the answer.
    let _ = control.send(ToNode::Fenced { ticket }, Vec::new());
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::sync::atomic::Ordering;

    use crate::testing::Cluster;

    #[test]
    fn a_fence_opens_when_all_that_was_sent_before_it_was_delivered_and_not_earlier() {
        let cluster = Cluster::new(3);
        let (to, inbox) = cluster.inbox::<u32>(1, 8);
        cluster.connect();
        let first = cluster.fence(1);
        cluster.run_node_until_idle();
        assert!(first.load(Ordering::Acquire), "nothing was sent");
        cluster.send(0, &to, 1);
        cluster.send(2, &to, 2);
        let second = cluster.fence(1);
        cluster.end(0);
        cluster.run_node_until_idle();
        assert!(!second.load(Ordering::Acquire), "it lies unread");
        cluster.poll(1);
        assert_eq!(inbox.len(), 2, "also what the dead had sent");
        cluster.run_node_until_idle();
        assert!(second.load(Ordering::Acquire));
        // A process that has ended takes no messages any more.
        cluster.send(2, &to, 3);
        let last = cluster.fence(1);
        cluster.run_node_until_idle();
        assert!(!last.load(Ordering::Acquire));
        cluster.end(1);
        cluster.run_node_until_idle();
        assert!(last.load(Ordering::Acquire) && cluster.fence(1).load(Ordering::Acquire));
    }
}
