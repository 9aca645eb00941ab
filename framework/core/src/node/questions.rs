//! Questions for chunks that the node does not know (yet), and how long they wait.
//!
//! An owner publishes a chunk on its control socket and then names it in a frame, which goes through shared
//! memory and can be quicker. The node may read the question of the frame's receiver before it reads the
//! owner's socket, so an unknown chunk of a living owner is no answer yet. The node parks the question and
//! sends the owner a ping. The messages of one process arrive in order, also those that waited in its queue.
//! So the pong comes after all messages that the owner sent before the question was asked: a chunk that is
//! unknown then was not published before a frame named it (WIRE-1).
//!
//! A parked question ends with the chunk, with the pong, or with the death of the owner or of the asker. An
//! owner that does none of these, because it was stopped, keeps only processes waiting that want a chunk
//! nobody can know of. One ping at a time is under way to an owner, no matter how many processes ask (MBX-2).

use std::collections::HashMap;

use crate::device::Access;
use crate::ids::{ChunkId, ProcessId};
use crate::node::limits::MAX_PARKED;

/// A process's question for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) asker: ProcessId,
    pub(crate) chunk: ChunkId,
    pub(crate) access: Access,
}

/// A ping to send; the pong must return the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ping {
    pub(crate) to: ProcessId,
    pub(crate) number: u64,
}

/// The error for a process with too many parked questions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// The error for a pong without a ping.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotAsked;

#[derive(Default)]
struct Owner {
    // The number of the last ping.
    pinged: u64,
    under_way: bool,
    // Each question with the first ping that was sent after it was asked.
    parked: Vec<(u64, Question)>,
}

impl Owner {
    fn ping(&mut self, to: ProcessId) -> Ping {
        self.pinged += 1;
        self.under_way = true;
        Ping { to, number: self.pinged }
    }
}

/// All parked questions.
#[derive(Default)]
pub(crate) struct Questions {
    owners: HashMap<ProcessId, Owner>,
    by_asker: HashMap<ProcessId, usize>,
    pings: Vec<Ping>,
}

impl Questions {
    /// Parks a question for a chunk of another, living process.
    pub(crate) fn park(&mut self, question: Question) -> Result<(), TooMany> {
        let count = self.by_asker.entry(question.asker).or_default();
        if *count >= MAX_PARKED {
            return Err(TooMany);
        }
        *count += 1;
        let owner = self.owners.entry(question.chunk.owner).or_default();
        if owner.under_way {
            // The pong under way may have been sent before the chunk was published: wait for the next one.
            owner.parked.push((owner.pinged + 1, question));
        } else {
            let ping = owner.ping(question.chunk.owner);
            owner.parked.push((ping.number, question));
            self.pings.push(ping);
        }
        Ok(())
    }

    /// Takes the questions for `chunk`, which is known now.
    pub(crate) fn published(&mut self, chunk: ChunkId) -> Vec<Question> {
        let Some(owner) = self.owners.get_mut(&chunk.owner) else { return Vec::new() };
        let answered = owner.parked.extract_if(.., |(_, question)| question.chunk == chunk);
        let answered = answered.map(|(_, question)| question).collect();
        self.forget(answered)
    }

    /// Takes the questions that were asked before `owner` was sent the ping that it has answered.
    pub(crate) fn pong(&mut self, owner: ProcessId, number: u64) -> Result<Vec<Question>, NotAsked> {
        let asked = self.owners.get_mut(&owner).filter(|asked| asked.under_way && asked.pinged == number);
        let asked = asked.ok_or(NotAsked)?;
        asked.under_way = false;
        let answered = asked.parked.extract_if(.., |(ping, _)| *ping <= number);
        let answered = answered.map(|(_, question)| question).collect();
        if !asked.parked.is_empty() {
            let ping = asked.ping(owner);
            self.pings.push(ping);
        }
        Ok(self.forget(answered))
    }

    /// Takes the questions for the chunks of a process that has ended, and drops those that it asked.
    pub(crate) fn left(&mut self, process: ProcessId) -> Vec<Question> {
        self.by_asker.remove(&process);
        for owner in self.owners.values_mut() {
            owner.parked.retain(|(_, question)| question.asker != process);
        }
        self.pings.retain(|ping| ping.to != process);
        let unanswered = self.owners.remove(&process).map(|owner| owner.parked).unwrap_or_default();
        self.forget(unanswered.into_iter().map(|(_, question)| question).collect())
    }

    /// Takes the pings to send now.
    pub(crate) fn take_pings(&mut self) -> Vec<Ping> {
        std::mem::take(&mut self.pings)
    }

    /// Counts parked questions and the bookkeeping for them.
    #[cfg(feature = "testing")]
    pub(crate) fn kept(&self) -> usize {
        let parked: usize = self.owners.values().map(|owner| owner.parked.len()).sum();
        parked + self.owners.len() + self.by_asker.len() + self.pings.len()
    }

    /// Returns how many questions `asker` has parked.
    #[cfg(test)]
    pub(crate) fn parked(&self, asker: ProcessId) -> usize {
        let parked = self.owners.values().flat_map(|owner| &owner.parked);
        let parked = parked.filter(|(_, question)| question.asker == asker).count();
        assert_eq!(parked, self.by_asker.get(&asker).copied().unwrap_or(0), "the count is right");
        parked
    }

    fn forget(&mut self, answered: Vec<Question>) -> Vec<Question> {
        for question in &answered {
            if let Some(count) = self.by_asker.get_mut(&question.asker) {
                *count -= 1;
            }
        }
        answered
    }
}
