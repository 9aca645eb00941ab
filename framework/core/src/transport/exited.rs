//! The processes that have exited, as far as this one knows.
//!
//! A process drops the link to a dead peer after it has read the link to the end, with its descriptors, rings
//! and queues. One number per slot says which of the processes in that slot have ended, because a slot is
//! given out again only after its last process has ended. A process that joined later learns of earlier ends
//! from its own incarnation, and from the incarnations of peers that link to it. Memory of earlier
//! incarnations is memory of dead processes (LEASE-4).
//!
//! Part of the process's [lifecycle](super::process). **Invariants.** Nothing noted here is ever taken back.
//! **Locks.** Those of two small tables, and no other lock inside them. The checks for each message read only
//! atomics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::Transport;
use crate::ids::ProcessId;
use crate::limits::MAX_PROCESSES;
use crate::transport::lifecycle::ProcessDown;

/// Time between two checks of whether a live process was read far enough.
const READ_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The processes that exited. Processes of a slot follow each other, so the last one that ended stands for
/// all before it, and thousands of deaths take no more room than one.
#[derive(Debug)]
pub(super) struct ExitedProcesses {
    /// By slot: one more than the incarnation of the last process that ended.
    by_slot: Box<[AtomicU64]>,
    /// By slot, in the same way: the last process that was reclaimed.
    reclaimed: Box<[AtomicU64]>,
    /// Ids of processes that the node had never heard of. Each answers one question only, because there may
    /// be such a process later (WIRE-1).
    nobody: DashMap<ProcessId, ()>,
    /// The node's report on the last process of each slot that ended.
    how: DashMap<usize, Arc<ProcessDown>>,
    /// Wakes the callers that wait until a process that ended was read to the end.
    read: Notify,
}

impl ExitedProcesses {
    pub(super) fn new() -> Self {
        let none = || (0..MAX_PROCESSES).map(|_| AtomicU64::new(0)).collect();
        ExitedProcesses {
            by_slot: none(),
            reclaimed: none(),
            nobody: DashMap::new(),
            how: DashMap::new(),
            read: Notify::new(),
        }
    }

    /// Notes that a process has ended, as the node says.
    pub(super) fn note(&self, process: ProcessId) {
        if let Some(last) = self.by_slot.get(process.slot()) {
            last.fetch_max(u64::from(process.incarnation()) + 1, Ordering::AcqRel);
        }
    }

    /// Notes that all processes before `process` in its slot have ended. The node does not tell that to a
    /// process that joined later.
    pub(super) fn note_before(&self, process: ProcessId) {
        if let Some(last) = self.by_slot.get(process.slot()) {
            last.fetch_max(u64::from(process.incarnation()), Ordering::AcqRel);
        }
    }

    pub(super) fn contains(&self, process: ProcessId) -> bool {
        let last = self.by_slot.get(process.slot());
        last.is_some_and(|last| u64::from(process.incarnation()) < last.load(Ordering::Acquire))
    }

    /// Notes that everything which a process had posted was read, as the node says. Its leases are about to
    /// be dropped.
    pub(super) fn note_reclaimed(&self, process: ProcessId) {
        if let Some(last) = self.reclaimed.get(process.slot()) {
            last.fetch_max(u64::from(process.incarnation()) + 1, Ordering::AcqRel);
        }
    }

    pub(super) fn is_reclaimed(&self, process: ProcessId) -> bool {
        let last = self.reclaimed.get(process.slot());
        last.is_some_and(|last| u64::from(process.incarnation()) < last.load(Ordering::Acquire))
    }

    /// Notes that this process has nothing left to read of some process that ended, and wakes the waiters.
    pub(super) fn note_read(&self) {
        self.read.notify_waiters();
    }

    /// Notes how a process has ended, as the node says.
    pub(super) fn note_how(&self, process_down: ProcessDown) {
        self.how.insert(process_down.process.slot(), Arc::new(process_down));
    }

    pub(super) fn how(&self, process: ProcessId) -> Option<Arc<ProcessDown>> {
        let known = self.how.get(&process.slot())?;
        (known.process == process).then(|| Arc::clone(&known))
    }

    /// Notes that there never was such a process, as the node says.
    pub(super) fn note_nobody(&self, process: ProcessId) {
        // MBX-2: the list is bounded. Clearing it also forgets answers that are still needed, and asking
        // again costs a link message.
        if self.nobody.len() >= MAX_PROCESSES {
            self.nobody.clear();
        }
        self.nobody.insert(process, ());
    }

    /// Returns whether the node has just said that there never was such a process.
    pub(super) fn take_nobody(&self, process: ProcessId) -> bool {
        !self.nobody.is_empty() && self.nobody.remove(&process).is_some()
    }
}

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
mod reading_tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::lifecycle::EndReason;

    #[test]
    fn the_last_life_that_ended_stands_for_all_before_it() {
        let exited = ExitedProcesses::new();
        let life = |slot, incarnation| ProcessId::new(slot, incarnation).expect("in range");
        exited.note(life(3, 7));
        exited.note(life(3, 5));
        assert!(exited.contains(life(3, 0)) && exited.contains(life(3, 7)));
        assert!(!exited.contains(life(3, 8)) && !exited.contains(life(4, 0)));
        exited.note_before(life(3, 8));
        assert!(exited.contains(life(3, 7)) && !exited.contains(life(3, 8)));
        exited.note_before(life(5, 2));
        assert!(exited.contains(life(5, 1)) && !exited.contains(life(5, 2)));
        // Only the reason of the last end is known.
        exited.note_how(ProcessDown {
            process: life(3, 7),
            worker: "blur".into(),
            reason: EndReason::Signal(9),
            restarting: Vec::new(),
            gave_up: Vec::new(),
        });
        assert_eq!(exited.how(life(3, 7)).map(|last| last.reason.clone()), Some(EndReason::Signal(9)));
        assert_eq!(exited.how(life(3, 5)), None);
    }

    #[test]
    fn that_there_is_nobody_is_said_once_and_bounded() {
        let exited = ExitedProcesses::new();
        let name = |incarnation| ProcessId::new(9, incarnation).expect("in range");
        exited.note_nobody(name(1));
        assert!(exited.take_nobody(name(1)) && !exited.take_nobody(name(1)));
        (0..10 * MAX_PROCESSES as u32).for_each(|incarnation| exited.note_nobody(name(incarnation)));
        assert!(exited.nobody.len() <= MAX_PROCESSES);
    }
}
