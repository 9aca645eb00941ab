//! The rounds of a group whose actors are on several hosts, without I/O.
//!
//! The host whose program has made the group is its *home*, which keeps a [`Spread`]; each other host with
//! members keeps a [`Joined`]. A *round* is one common restart. The home begins it, with a failure of its own
//! or one that a host has told it of, and has each host end its members ([`Step::End`]). When all have
//! answered that they have ended, here too, it has each begin the next lives ([`Step::Begin`]). A host whose
//! own member fails ends its others at once, holds the next lives back, and tells the home, which answers
//! with a round.
//!
//! Used by the supervisor (`groups/elsewhere.rs`). What is said is said again where it was lost with a
//! gateway, so each step may come twice. The model (`model.rs`) loses, repeats and delays, and takes out what
//! each case is for.
//!
//! **Invariants.** No next life begins on any host before the last of the old ones has ended on all. A
//! failure of one life ends each other life once: a host says which round its lives are of, so what was said
//! late, or twice, begins no further round. **On the loss** of a host it is waited for no longer; what that
//! means for the group, the supervisor decides.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::ids::ActorId;

/// What a host is to do, in the order of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::node) enum Step {
    /// End the members that are there.
    End(u64),
    /// Begin their next lives.
    Begin(u64),
}

impl Step {
    /// Steps in their order: one ends before it begins.
    fn place(self) -> (u64, bool) {
        match self {
            Step::End(round) => (round, false),
            Step::Begin(round) => (round, true),
        }
    }
}

/// A host with members.
#[derive(Debug)]
struct Told {
    /// The last step that it has taken.
    done: Step,
    /// Whether it was asked for one, and has not answered.
    is_asked: bool,
}

/// At its home: a group with members elsewhere.
#[derive(Debug)]
pub(super) struct Spread {
    round: u64,
    /// Whether not all of that round have ended.
    is_ending: bool,
    /// When the next lives begin, if all have ended by then.
    at: Instant,
    /// Of the present round.
    why: String,
    /// Whether nobody comes back in it.
    gives_up: bool,
    hosts: BTreeMap<u16, Told>,
    /// The members on other hosts that come back after a failure, and do not roam; with their hosts.
    pub(super) members: HashMap<ActorId, u16>,
    /// Members that are being started on other hosts.
    pub(super) starting: usize,
}

impl Spread {
    /// Rounds before this one were before it. `round` is no smaller than that of any group before it, for
    /// hosts that remember those.
    pub(super) fn new(round: u64, now: Instant) -> Self {
        let (hosts, members) = Default::default();
        Spread {
            round,
            is_ending: false,
            at: now,
            why: String::new(),
            gives_up: false,
            hosts,
            members,
            starting: 0,
        }
    }

    /// A host is to have a member: the round that it is of, which has ended the others.
    pub(super) fn add(&mut self, host: u16) -> u64 {
        self.hosts.entry(host).or_insert(Told { done: Step::Begin(self.round), is_asked: false });
        self.round
    }

    pub(super) fn has(&self, host: u16) -> bool {
        self.hosts.contains_key(&host)
    }

    /// Whether no next life of it may begin here.
    pub(super) fn is_held(&self) -> bool {
        self.is_ending
    }

    /// When the next lives begin at the earliest, while they are held.
    pub(super) fn at(&self) -> Option<Instant> {
        self.is_ending.then_some(self.at)
    }

    pub(super) fn why(&self) -> &str {
        &self.why
    }

    pub(super) fn gives_up(&self) -> bool {
        self.gives_up
    }

    /// One has failed: `round` follows.
    pub(super) fn fails(&mut self, round: u64, at: Instant, why: String, gives_up: bool) {
        let before = std::mem::replace(&mut self.is_ending, true);
        self.at = if before { self.at.max(at) } else { at };
        // Who was given up is not brought back by another failure.
        self.gives_up = gives_up || before && self.gives_up;
        (self.round, self.why) = (round, why);
    }

    /// A host says that one of its members has failed, whose life was of the round `begun`. Whether another
    /// round follows: otherwise the present one ends it, or has.
    pub(super) fn is_news(&mut self, begun: u64, at: Instant) -> bool {
        if begun < self.round && self.is_ending {
            self.at = self.at.max(at);
        }
        begun >= self.round
    }

    /// The next step that a host is to be asked for.
    pub(super) fn next_ask(&mut self) -> Option<(u16, Step)> {
        let step = if self.is_ending { Step::End(self.round) } else { Step::Begin(self.round) };
        let is_due = |told: &Told| !told.is_asked && told.done.place() < step.place();
        let (host, told) = self.hosts.iter_mut().find(|(_, told)| is_due(told))?;
        told.is_asked = true;
        Some((*host, step))
    }

    /// A host has taken a step.
    pub(super) fn did(&mut self, host: u16, step: Step) {
        if let Some(told) = self.hosts.get_mut(&host) {
            told.is_asked = false;
            if told.done.place() < step.place() {
                told.done = step;
            }
        }
    }

    /// A host is not waited for any more.
    pub(super) fn without(&mut self, host: u16) {
        self.hosts.remove(&host);
    }

    /// Whether all have ended on all other hosts.
    pub(super) fn has_ended(&self) -> bool {
        let end = Step::End(self.round).place();
        self.is_ending && self.hosts.values().all(|told| told.done.place() >= end)
    }

    /// All have ended, here too: the next lives begin.
    pub(super) fn begin(&mut self) {
        (self.is_ending, self.gives_up) = (false, false);
    }
}

/// On another host than its home: a group with members here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    /// The round that the members' lives here are of.
    begun: u64,
    /// The last round that the home has ended them for.
    ended: u64,
    /// Whether one of this round has failed here.
    has_failed: bool,
}

impl Joined {
    pub(super) fn new(round: u64) -> Self {
        Joined { begun: round, ended: round, has_failed: false }
    }

    /// Whether no next life of it may begin here.
    pub(super) fn is_held(&self) -> bool {
        self.has_failed || self.ended > self.begun
    }

    /// A member has failed here. Of which round it was, if the home is to be told.
    pub(super) fn fails(&mut self) -> Option<u64> {
        let is_news = !self.is_held();
        // Where the home ends the round, it is one of those that end.
        self.has_failed |= is_news;
        is_news.then_some(self.begun)
    }

    /// The home has not taken the failure, and says no more of it.
    pub(super) fn is_alone(&mut self) {
        self.has_failed = false;
    }

    /// The home has the members ended. Whether it had not said so before.
    pub(super) fn end(&mut self, round: u64) -> bool {
        let is_news = round > self.ended;
        self.ended = self.ended.max(round);
        is_news
    }

    /// The home has them begin again.
    pub(super) fn begin(&mut self, round: u64) {
        if round >= self.ended && round > self.begun {
            *self = Joined::new(round);
        }
    }
}

#[cfg(test)]
mod model;
