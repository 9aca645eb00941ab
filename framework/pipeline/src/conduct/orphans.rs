//! What the dead had sent, and nobody is left to send again: whoever had it from them names what it has lost of it.

use std::collections::HashSet;

use tensorpost_core::api::node::{ProcessId, Restart};

use super::Conductor;

impl Conductor {
    /// Nobody is left, perhaps only since this death, who could send again what others that have died had sent. Who had it
    /// from these may have been told before that nothing more comes from them; now it names what it has lost of theirs.
    pub(super) fn tell_of_orphans(&mut self, index: usize) {
        let others = self.exited.keys().filter(|other| **other != index && self.leaves_orphans(**other));
        for other in others {
            for (receiver, member) in self.members.iter().enumerate() {
                if self.sends_to(*other, receiver) && !self.exited.contains_key(&receiver) {
                    self.sends.push(member.control.send(self.exited(*other)));
                }
            }
        }
    }

    /// Whether a member has died, does not come back, and nobody sends again what it had sent: it is a source, or the same
    /// holds for one of those that it had its items from.
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

    /// Whether a member has died and does not come back. Of those that end with one process, each is noticed by itself.
    fn is_gone(&self, index: usize) -> bool {
        let member = &self.members[index];
        let with_it = |(other, process): (&usize, &Option<ProcessId>)| {
            process.is_some() && self.members[*other].worker == member.worker
        };
        self.exited.contains_key(&index)
            || self.plan.restart(member.stage) == Restart::never() && self.exited.iter().any(with_it)
    }
}
