//! Waits until everything that another process had sent to this one was delivered.
//!
//! Code uses it that acts on news of a process which may arrive earlier than the process's own messages.
//!
//! **On a crash** of that process everything that it had posted is read first. **On cancellation** nothing
//! happens.

use std::time::Duration;

use tokio::time::sleep;

use super::Transport;
use crate::ids::ProcessId;

/// Time between two checks of whether a live process was read far enough.
const READ_CHECK_INTERVAL: Duration = Duration::from_millis(1);

impl Transport {
    /// Resolves when everything that `process` had sent to this one by now was delivered; if it has ended,
    /// everything that it ever sent. News of it, or of an actor in it, may arrive earlier from other
    /// processes, over their own links.
    pub(crate) async fn until_read(&self, process: ProcessId) {
        let mut sent_by_now = None;
        loop {
            // Registered before the check, so a notification after the check is not missed.
            let read = self.lifecycle.exited.read.notified();
            if process.slot() == self.process().slot() {
                // An earlier process of this one's slot: the slot was given out again only after everything
                // was read.
                return;
            }
            match self.links.to(process) {
                Some(link) if !self.lifecycle.exited.contains(process) => {
                    if link.has_taken(*sent_by_now.get_or_insert_with(|| link.sent_by_now())) {
                        return;
                    }
                    // A reader that takes frames notifies nobody: that would cost every batch, while this
                    // wait only happens after a death.
                    tokio::select! {
                        () = read => {}
                        () = sleep(READ_CHECK_INTERVAL) => {}
                    }
                    continue;
                }
                Some(_) => {}
                None if self.lifecycle.exited.contains(process) => return,
                // A process that joined later was not told of the end. It asks the node for a link, and the
                // node answers that there is no such process.
                None => drop(self.link(process)),
            }
            read.await;
        }
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    use crate::testing::Cluster;

    fn poll(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> Poll<()> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn who_lives_is_read_when_all_that_it_had_sent_by_now_was_delivered() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let cluster = Cluster::new(2);
        let (to, inbox) = cluster.inbox::<u32>(1, 8);
        cluster.connect();
        let (sender, transport) = (cluster.process(0), Arc::clone(cluster.transport(1)));
        assert!(poll(pin!(transport.until_read(sender))).is_ready(), "it has sent nothing");
        (0..3).for_each(|number| cluster.send(0, &to, number));
        {
            let _entered = runtime.enter();
            let mut read = pin!(transport.until_read(sender));
            assert!(poll(read.as_mut()).is_pending(), "nothing was read");
            assert!(inbox.is_empty());
        }
        let mut read = Box::pin(transport.until_read(sender));
        runtime.block_on(async {
            assert!(poll(read.as_mut()).is_pending());
            cluster.run_until_idle();
            read.await;
        });
        let came: Vec<u32> = inbox.take().into_iter().map(|received| received.message).collect();
        assert_eq!(came, [0, 1, 2]);
    }

    #[test]
    fn who_ended_is_read_when_all_that_it_sent_was_delivered() {
        let mut cluster = Cluster::new(3);
        let (to, inbox) = cluster.inbox::<u32>(1, 8);
        cluster.connect();
        let (dead, transport) = (cluster.process(0), Arc::clone(cluster.transport(1)));
        (0..3).for_each(|number| cluster.send(0, &to, number));
        cluster.end(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        let mut read = pin!(transport.until_read(dead));
        assert!(poll(read.as_mut()).is_pending(), "nothing was read");
        assert!(inbox.is_empty());
        cluster.run_until_idle();
        assert!(poll(read.as_mut()).is_ready());
        let came: Vec<u32> = inbox.take().into_iter().map(|received| received.message).collect();
        assert_eq!(came, [0, 1, 2]);
        // A process that had no link to it, and one that began later and was told nothing of it.
        let other = Arc::clone(cluster.transport(2));
        assert!(poll(pin!(other.until_read(dead))).is_ready());
        let later = cluster.revive(0);
        let later = Arc::clone(cluster.transport(later));
        assert!(poll(pin!(later.until_read(dead))).is_ready(), "a life before its own");
        cluster.end(2);
        cluster.run_until_idle();
        let mut read = pin!(later.until_read(cluster.process(2)));
        for _ in 0..10 {
            if poll(read.as_mut()).is_ready() {
                return;
            }
            cluster.run_until_idle();
        }
        panic!("it asks the node, which knows that there is nobody");
    }
}
