//! Orphans: items that dead members had sent, and that no sender is left to send again. Their receivers name
//! those that they have lost.

use std::collections::HashSet;

use futures_util::future::FutureExt as _;
use tensorpost_core::api::actor::SendFuture;
use tensorpost_core::api::node::{ProcessId, Restart};

use super::Conductor;
use crate::launch::source_number;
use crate::worker::args::{Control, Directive};

impl Conductor {
    /// Sends a member an order, without waiting for it here.
    pub(super) fn send(&self, sending: SendFuture<Control>) {
        // A member that has ended need not hear it.
        self.sends.push(async move { drop(sending.await) }.boxed_local());
    }

    /// Tells a member that nothing more comes from another that has died. The order arrives behind the last
    /// item of the dead member.
    pub(super) fn tell_exited(&self, dead: usize, to: usize) {
        let (member, exited) = (&self.members[to], self.exited(dead, to));
        #[cfg(feature = "hosts")]
        if !self.scaling.scales(self.members[dead].stage) {
            let (worker, exited) = (self.members[dead].worker, member.order_by_way_of_a_host(exited));
            return self.sends.push(self.supervisor.send_fenced(worker, &member.control, exited));
        }
        // The order about the next replica at this place, on this host, goes the same way.
        self.send(member.send(exited));
    }

    /// Tells the receivers of dead members that no sender is left, perhaps only since this death, which could
    /// send their items again. These receivers may have been told before that nothing more comes from those
    /// members; now they name the items of theirs that they have lost.
    pub(super) fn tell_of_orphans(&mut self, index: usize) {
        let others = self.exited.keys().filter(|other| **other != index && self.leaves_orphans(**other));
        for other in others {
            for receiver in 0..self.members.len() {
                if self.sends_to(*other, receiver) && !self.exited.contains_key(&receiver) {
                    self.tell_exited(*other, receiver);
                }
            }
        }
    }

    /// Whether a member has died, does not come back, and its items are not sent again: it is a source, or
    /// the same holds for one of its senders.
    pub(super) fn leaves_orphans(&self, index: usize) -> bool {
        let (mut found, mut next) = (HashSet::from([index]), vec![index]);
        while let Some(index) = next.pop() {
            if !self.is_gone(index) {
                continue;
            }
            if self.members[index].source {
                return true;
            }
            let senders = (0..self.members.len()).filter(|other| self.sends_to(*other, index));
            next.extend(senders.filter(|sender| found.insert(*sender)));
        }
        false
    }

    /// Returns, when all is over, the orders that tell a member which items earlier lives of its senders had
    /// sent and their last lives did not make again. A source that begins anew is stopped together with the
    /// others, after a cancel for example, and may not have made as many items as its earlier life.
    pub(super) fn not_made_again(&self, index: usize) -> impl Iterator<Item = Directive> + '_ {
        let senders = (0..self.members.len()).filter(move |other| self.sends_to(*other, index));
        senders.filter_map(|sender| {
            let made = self.made_before(sender);
            (!made.is_empty())
                .then(|| Directive::NotAgain { lanes: self.members[sender].lanes.clone(), made })
        })
    }

    /// Returns the sources that have ended after a death and whose items an earlier life of this member had
    /// sent, each with the number of items that its last life has made. Such a source is the member itself,
    /// or a source from which only members that have died too lead to it.
    fn made_before(&self, index: usize) -> Vec<(u16, u64)> {
        let (mut found, mut next, mut made) = (HashSet::from([index]), vec![index], Vec::new());
        while let Some(index) = next.pop() {
            let member = &self.members[index];
            if !self.has_died(index) {
                continue;
            }
            if let (true, Some(counts)) = (member.source, &self.counts[index]) {
                made.push((source_number(&self.plan, member.stage, member.replica), counts.made));
            }
            let senders = (0..self.members.len()).filter(|other| self.sends_to(*other, index));
            next.extend(senders.filter(|sender| found.insert(*sender)));
        }
        made
    }

    /// Whether a member has died and does not come back. The ends of several members of one process are
    /// noticed one by one, so this also looks at the others in its worker.
    fn is_gone(&self, index: usize) -> bool {
        let member = &self.members[index];
        let with_it = |(other, process): (&usize, &Option<ProcessId>)| {
            process.is_some() && self.members[*other].worker == member.worker
        };
        self.exited.contains_key(&index)
            || self.plan.restart(member.stage) == Restart::never() && self.exited.iter().any(with_it)
    }
}
