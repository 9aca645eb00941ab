//! What the dead had sent, and nobody is left to send again: whoever had it from them names what it has lost
//! of it.

use std::collections::HashSet;

use futures_util::future::FutureExt as _;
use tensorpost_core::api::actor::Send;
use tensorpost_core::api::node::{ProcessId, Restart};

use super::Conductor;
use crate::launch::source_number;
use crate::worker::args::Control;

impl Conductor {
    /// Tells a member something, without waiting for it here.
    pub(super) fn send(&self, sending: Send<Control>) {
        // One that has ended need not hear it.
        self.sends.push(async move { drop(sending.await) }.boxed_local());
    }

    /// Tells a member that nothing more comes from another that has died, behind the last that comes.
    pub(super) fn tell_exited(&self, dead: usize, to: usize) {
        let (worker, control) = (self.members[dead].worker, &self.members[to].control);
        let exited = self.exited(dead, to);
        #[cfg(feature = "hosts")]
        if !self.scaling.scales(self.members[dead].stage) {
            return self.sends.push(self.supervisor.send_behind(worker, control, exited));
        }
        // The next replica at its place, on this host, is told of over the same way.
        let _ = worker;
        self.send(control.send(exited));
    }

    /// Nobody is left, perhaps only since this death, who could send again what others that have died had
    /// sent. Who had it from these may have been told before that nothing more comes from them; now it names
    /// what it has lost of theirs.
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

    /// Whether a member has died, does not come back, and nobody sends again what it had sent: it is a
    /// source, or the same holds for one of those that it had its items from.
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

    /// For a member, when all is over: what earlier lives before it had sent and the last ones did not make
    /// again. A source that begins anew is stopped where the others are, after a cancel for example, and may
    /// not have got so far.
    pub(super) fn not_made_again(&self, index: usize) -> impl Iterator<Item = Control> + '_ {
        let senders = (0..self.members.len()).filter(move |other| self.sends_to(*other, index));
        senders.filter_map(|sender| {
            let made = self.made_before(sender);
            (!made.is_empty()).then(|| Control::NotAgain { lanes: self.members[sender].lanes.clone(), made })
        })
    }

    /// The sources that have ended after a death, of whose items a member had sent some in an earlier life:
    /// the member itself, or one from which only members that have died too lead to it. With each, how many
    /// items its last life has made.
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

    /// Whether a member has died and does not come back. Of those that end with one process, each is noticed
    /// by itself.
    fn is_gone(&self, index: usize) -> bool {
        let member = &self.members[index];
        let with_it = |(other, process): (&usize, &Option<ProcessId>)| {
            process.is_some() && self.members[*other].worker == member.worker
        };
        self.exited.contains_key(&index)
            || self.plan.restart(member.stage) == Restart::never() && self.exited.iter().any(with_it)
    }
}
